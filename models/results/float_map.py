"""Results that are a number for each pixel of the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..colours import heat
from .result import Result, check_pixels

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image
    from typing_extensions import Self

__all__ = ["FloatMap"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FloatMap(Result):
    """A number for each pixel of an image.

    Attributes:
        values: float32 (height, width); NaN where the network has not seen the image.
    """

    values: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        check_pixels("values", self.values, np.float32)

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the image."""
        height, width = self.values.shape
        return width, height

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest value; zeros where there is none."""
        known = self.values[np.isfinite(self.values)]
        return (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)

    def scaled(self, low: float | None = None, high: float | None = None) -> npt.NDArray[np.float32]:
        """The values from 0 at `low` to 1 at `high`, clipped; None is the end of `range`. Unknown pixels are 0."""
        least, most = self.range
        low, high = least if low is None else low, most if high is None else high
        distance = max(high - low, 1e-45)  # two numbers of float32 are not nearer
        scaled = np.clip((self.values.astype(np.float64) - low) / distance, 0, 1)
        return np.nan_to_num(scaled, nan=0.0).astype(np.float32)

    def to_pil(self) -> Image.Image:
        """The map in colours, from black over red to yellow and white, as a new PIL image."""
        from PIL import Image

        return Image.fromarray(heat(self.scaled()))

    def _common(self, other: Self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], float]:
        """The values of the pixels that both maps know, and the share of these in the pixels that either map knows."""
        own, theirs = np.isfinite(self.values), np.isfinite(other.values)
        known, either = own & theirs, np.count_nonzero(own | theirs)
        share = np.count_nonzero(known) / either if either else 1.0
        return self.values[known].astype(np.float64), other.values[known].astype(np.float64), share

    def _correlation(self, other: Self) -> float:
        """The correlation of the pixels that both maps know, 0 to 1, times the share of these. Scale and offset do not
        count.
        """
        a, b, share = self._common(other)
        if not a.size or np.array_equal(a, b):
            return share
        a, b = a - a.mean(), b - b.mean()
        norm = float(np.sqrt((a @ a) * (b @ b)))
        return share * max(float(a @ b) / norm, 0.0) if norm > 0 else 0.0

    def __repr__(self) -> str:
        low, high = self.range
        return f"<{type(self).__name__}: {low:.4g} to {high:.4g} in {self.size[0]} x {self.size[1]}>"
