"""Ranges and histograms of activations, a piece at a time, and the thresholds that follow from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._lib import check, ffi, lib, out
from ..errors import DTypeError, InputError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["BINS", "LEVELS", "Histogram", "Range", "entropy_threshold", "quantize_expand"]

#: Bins of |x| up to the largest, and levels that 8 bits with a sign give to magnitudes.
BINS, LEVELS = 2048, 128

_FLOATS, _DOUBLES, _COUNTS = ffi.typeof("float[]"), ffi.typeof("double[]"), ffi.typeof("int64_t[]")


def _floats(values: npt.NDArray[Any]) -> Any:
    if values.dtype != np.float32:
        raise DTypeError(f"activations are {values.dtype}; ranges and histograms are of float32")
    return ffi.from_buffer(_FLOATS, np.ascontiguousarray(values).reshape(-1)) if values.size else ffi.NULL


class Range:
    """The smallest and the largest of all values so far; NaN and infinities are counted and left out."""

    def __init__(self) -> None:
        self._range = out("ifs_range")

    def update(self, values: npt.NDArray[Any]) -> None:
        """Takes in float32 values of any shape."""
        check(lib.ifs_range_update(_floats(values), values.size, self._range))

    @property
    def min(self) -> float:
        return float(self._range.min)

    @property
    def max(self) -> float:
        return float(self._range.max)

    @property
    def absmax(self) -> float:
        return max(-self.min, self.max)

    @property
    def count(self) -> int:
        return int(self._range.count)

    @property
    def nonfinite(self) -> int:
        return int(self._range.nonfinite)

    @property
    def zeros(self) -> int:
        return int(self._range.zeros)


class Histogram:
    """How often |x| falls into each of equal bins from 0 to `absmax`; what lies beyond is in the last.

    Raises:
        InputError: `absmax` is not finite or not above 0, or too small for the bins to be told apart.
    """

    def __init__(self, absmax: float, bins: int = BINS) -> None:
        self.absmax = absmax
        self.counts: npt.NDArray[np.int64] = np.zeros(bins, np.int64)
        self._nonfinite = out("int64_t")
        self._pointer = ffi.from_buffer(_COUNTS, self.counts)
        self.update(np.empty(0, np.float32))  # the core checks what it is given

    @property
    def width(self) -> float:
        """The width of a bin."""
        return self.absmax / len(self.counts)

    @property
    def nonfinite(self) -> int:
        return int(self._nonfinite[0])

    def update(self, values: npt.NDArray[Any]) -> None:
        """Takes in float32 values of any shape."""
        source = _floats(values)
        check(lib.ifs_histogram_add(source, values.size, self.absmax, self._pointer, len(self.counts), self._nonfinite))

    def entropy(self, levels: int = LEVELS, *, zeros: int = 0) -> float:
        """The threshold of the least Kullback-Leibler divergence: (m + 0.5) bin widths, see `entropy_threshold`.

        So many values that are exactly 0 are left out: each scale holds them without an error, and after a ReLU they
        are so many that the search would see nothing else.
        """
        counts = self.counts.copy()
        counts[0] -= min(zeros, int(counts[0]))
        best, _ = entropy_threshold(counts, levels)
        return min((best + 0.5) * self.width, self.absmax)

    def percentile(self, percent: float) -> float:
        """The edge of the first bin up to which at least `percent` of the values lie."""
        if not 0 < percent <= 100:
            raise InputError(f"percentile is above 0 and at most 100, not {percent!r}")
        total = int(self.counts.sum())
        if total == 0:
            raise InputError(f"the histogram is empty: all of its {len(self.counts)} bins are 0")
        reached = np.searchsorted(np.cumsum(self.counts), total * (percent / 100) * (1 - 1e-15))
        return (min(int(reached), len(self.counts) - 1) + 1) * self.width


def entropy_threshold(counts: npt.NDArray[np.int64], levels: int = LEVELS, *, plain: bool = False) -> tuple[int, float]:
    """How many bins to keep so that `levels` levels tell the least less, and the divergence then.

    For each i from `levels` to the number of bins - 1: P is the first i bins with everything beyond added to the last,
    Q the first i bins merged into levels and spread again over the bins that P fills; the i with the least KL(P || Q)
    wins (S. Migacz, "8-bit Inference with TensorRT", GTC 2017). The number of all bins comes back where no candidate
    will do.

    Args:
        counts: int64, `[bins]`.
        levels: 128 for 8 bits with a sign.
        plain: computes it by the reference, slowly; the result is the same.

    Raises:
        InputError: no bin is filled, one is negative, or there are no more bins than levels.
    """
    counts = np.ascontiguousarray(counts, np.int64)
    best, divergence = out("int32_t"), out("double")
    pointer = ffi.from_buffer(_COUNTS, counts)
    check(lib.ifs_entropy_threshold(pointer, len(counts), levels, plain, best, divergence))
    return int(best[0]), float(divergence[0])


def quantize_expand(bins: npt.ArrayLike, levels: int) -> npt.NDArray[np.float64]:
    """Bins merged into `levels` levels, each level's sum spread equally over its bins that are not 0.

    Raises:
        InputError: a bin is negative or not finite, or there are more levels than bins.
    """
    source = np.ascontiguousarray(bins, np.float64)
    result = np.empty_like(source)
    at, to = ffi.from_buffer(_DOUBLES, source), ffi.from_buffer(_DOUBLES, result)
    check(lib.ifs_quantize_expand(at, len(source), levels, to))
    return result
