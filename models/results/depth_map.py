"""The result of depth estimation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ...errors import InputError
from ..colours import heat
from .agreement import Agreement
from .float_map import FloatMap
from .result import ResultTensor

if TYPE_CHECKING:
    from PIL import Image
    from typing_extensions import Self

__all__ = ["DepthMap"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DepthMap(FloatMap):
    """How far each pixel of an image is away.

    Attributes:
        values: float32 (height, width); NaN where the network has not seen the image.
        kind: `"disparity"`: values grow towards the camera, with unknown scale and offset. `"distance"`: values grow
            away from it, in the unit of the network's training data, usually metres.
    """

    _replaces_image: ClassVar[bool] = True

    kind: Literal["disparity", "distance"] = "disparity"

    def __post_init__(self) -> None:
        FloatMap.__post_init__(self)
        if self.kind not in ("disparity", "distance"):
            raise InputError(f"kind is {self.kind!r}; use 'disparity' or 'distance'")

    @property
    def nearness(self) -> Any:
        """float32 (height, width): 0 at the farthest pixel, 1 at the nearest one."""
        scaled = self.scaled()
        return scaled if self.kind == "disparity" else np.where(np.isfinite(self.values), 1 - scaled, 0)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict: `kind`, `minimum`, `maximum` and `mean` of the values."""
        low, high = self.range
        known = self.values[np.isfinite(self.values)]
        mean = float(known.mean(dtype=np.float64)) if known.size else 0.0
        return [{"kind": self.kind, "minimum": low, "maximum": high, "mean": mean}]

    def to_pil(self) -> Image.Image:
        """The map in colours as a new PIL image; near pixels are bright."""
        from PIL import Image

        return Image.fromarray(heat(self.nearness))

    def _drawn(self, pil: Image.Image) -> Image.Image:
        return self.to_pil()

    def _tensors(self) -> Mapping[str, ResultTensor]:
        return {"depth": ResultTensor(lambda: self.values, 2, np.nan)}

    def _agreement(self, other: Self, min_score: float) -> Agreement:
        """The correlation of the maps: networks of disparity leave scale and offset open."""
        return Agreement.of(self._correlation(other), 1.0)
