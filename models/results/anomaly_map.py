"""The result of anomaly detection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InputError, ShapeError
from ..colours import heat
from .agreement import Agreement
from .float_map import FloatMap
from .masks import eroded
from .result import ResultTensor, check_pixels

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image
    from typing_extensions import Self

__all__ = ["AnomalyMap"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AnomalyMap(FloatMap):
    """How unusual an image and each of its pixels is.

    Attributes:
        values: float32 (height, width); NaN where the network has not seen the image.
        score: of the whole image; in exports with normalisation 0 to 1, with the threshold at 0.5.
        is_anomalous: whether the score is above the model's threshold; None where the model does not say.
        pixels: bool (height, width): the pixels above the model's threshold; None where the model does not say.
    """

    score: float = 0.0
    is_anomalous: bool | None = None
    pixels: npt.NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        FloatMap.__post_init__(self)
        if self.pixels is not None:
            check_pixels("pixels", self.pixels, np.bool_)
            if self.pixels.shape != self.values.shape:
                raise ShapeError(
                    f"pixels have shape {self.pixels.shape}, and values {self.values.shape}; give both of one image"
                )

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """`pixels`; raises InputError where the model does not say."""
        if self.pixels is None:
            raise InputError(
                "the model has no output of anomalous pixels; compare .values with a threshold of your own"
            )
        return self.pixels

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict: `score`, `is_anomalous`, `maximum` of the map, and `area`, the share of anomalous pixels."""
        area = None if self.pixels is None else float(self.pixels.mean())
        return [{"score": self.score, "is_anomalous": self.is_anomalous, "maximum": self.range[1], "area": area}]

    def _drawn(self, pil: Image.Image) -> Image.Image:
        """The map in colours over the image; anomalous pixels are tinted more."""
        from PIL import Image

        # Normalised maps lie in 0 to 1: an image without anomalies stays as it is.
        low, high = self.range
        strength = self.scaled(min(low, 0.0), max(high, 1.0))[..., None] * np.float32(0.7)
        pixels = np.asarray(pil) * (1 - strength) + heat(strength[..., 0] / np.float32(0.7)) * strength
        if self.pixels is not None:
            pixels[self.pixels & ~eroded(self.pixels)] = (255, 255, 255)
        return Image.fromarray(np.rint(pixels).astype(np.uint8))

    def _tensors(self) -> Mapping[str, ResultTensor]:
        tensors = {
            "anomaly_score": ResultTensor(lambda: np.float32(self.score)),
            "anomaly_map": ResultTensor(lambda: self.values, 2, np.nan),
        }
        if self.is_anomalous is not None:
            tensors["is_anomalous"] = ResultTensor(lambda: np.bool_(self.is_anomalous))
        if self.pixels is not None:
            tensors["anomaly_mask"] = ResultTensor(lambda: self.pixels, 2, False)
        return tensors

    def _agreement(self, other: Self, min_score: float) -> Agreement:
        """The correlation of the maps, and the shift of the score."""
        return Agreement.of(self._correlation(other), 1.0, [other.score - self.score])

    def __repr__(self) -> str:
        said = {None: "", True: ", anomalous", False: ", normal"}[self.is_anomalous]
        return f"<{type(self).__name__}: score {self.score:.4g}{said} in {self.size[0]} x {self.size[1]}>"
