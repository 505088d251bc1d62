"""Incremental ranges and histograms of activations, and thresholds from them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core._lib import check, ffi, lib, out
from ..core.tensor_spec import aligned
from ..errors import DTypeError, InputError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["BINS", "LEVELS", "ChannelRanges", "Histogram", "entropy_threshold"]

#: The default number of bins of a histogram; a power of two.
BINS = 8192
#: The number of magnitudes of signed 8-bit codes.
LEVELS = 128

_FLOATS, _COUNTS = ffi.typeof("float[]"), ffi.typeof("int64_t[]")
_RANGE = np.dtype(
    [("min", "f4"), ("max", "f4"), ("count", "i8"), ("nonfinite", "i8"), ("zeros", "i8"), ("sum", "f8")]
)  # ifs_range


def _floats(values: npt.NDArray[Any]) -> Any:
    if values.dtype != np.float32:
        raise DTypeError(f"activations are {values.dtype}; ranges and histograms need float32")
    return ffi.from_buffer(_FLOATS, aligned(np.ascontiguousarray(values)).reshape(-1)) if values.size else ffi.NULL


class ChannelRanges:
    """The range and the sum of each channel of an activation. NaN and infinities are counted and ignored.

    Args:
        channels: the number of channels.
        axis: the axis of the channels in the arrays, 1 for [batch, channels, height, width].
    """

    def __init__(self, channels: int = 1, axis: int = 1) -> None:
        self._axis = axis
        self._ranges = np.zeros(channels, _RANGE)
        self._pointer = ffi.from_buffer("ifs_range[]", self._ranges)

    def update(self, values: npt.NDArray[Any]) -> None:
        """Adds float32 values. With one channel, they may have any shape."""
        channels = len(self._ranges)
        outer, inner = 1, values.size
        if channels > 1:
            shape, axis = values.shape, self._axis % max(values.ndim, 1)
            if values.ndim == 0 or shape[axis] != channels:
                raise InputError(f"an activation of shape {shape} does not have {channels} channels on axis {axis}")
            outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        check(lib.ifs_ranges_update(_floats(values), outer, channels, inner, self._pointer))

    @property
    def channel_mean(self) -> npt.NDArray[np.float64]:
        """The mean of each channel; 0 if it has no values."""
        finite = self._ranges["count"] - self._ranges["nonfinite"]
        mean: npt.NDArray[np.float64] = self._ranges["sum"] / np.maximum(finite, 1)
        return mean

    @property
    def min(self) -> float:
        return float(self._ranges["min"].min())

    @property
    def max(self) -> float:
        return float(self._ranges["max"].max())

    @property
    def absmax(self) -> float:
        return max(-self.min, self.max)

    @property
    def count(self) -> int:
        return int(self._ranges["count"].sum())

    @property
    def nonfinite(self) -> int:
        return int(self._ranges["nonfinite"].sum())

    @property
    def zeros(self) -> int:
        return int(self._ranges["zeros"].sum())


class Histogram:
    """A histogram with equal bins from -limit to limit, which grows automatically.

    The limit is a power of two, at most 2**127. For a larger value the limit is doubled and neighbouring bins are
    merged. The result is the same as with the larger limit from the start, so one pass over the data is enough. Values
    beyond 2**127 are in the outer bins.

    Attributes:
        counts: int64, `[bins]`; the upper half contains values from 0.
        limit: the upper edge of the last bin.
    """

    def __init__(self, bins: int = BINS) -> None:
        if bins < 4 or bins & (bins - 1):
            raise InputError(f"the number of bins is {bins}; it must be a power of two from 4")
        self.counts: npt.NDArray[np.int64] = np.zeros(bins, np.int64)
        self._exponent: int | None = None  # of the limit; None before the first value that is not 0

    @property
    def limit(self) -> float:
        return 2.0 ** (0 if self._exponent is None else self._exponent)

    @property
    def width(self) -> float:
        """The width of a bin."""
        return 2 * self.limit / len(self.counts)

    @property
    def centres(self) -> npt.NDArray[np.float64]:
        return (np.arange(len(self.counts), dtype=np.float64) + 0.5) * self.width - self.limit

    def update(self, values: npt.NDArray[Any], absmax: float | None = None) -> None:
        """Adds float32 values of any shape.

        Args:
            absmax: their largest finite magnitude, if known.
        """
        source = _floats(values)
        if absmax is None:
            finite = np.abs(values[np.isfinite(values)])
            absmax = float(finite.max()) if finite.size else 0.0
        if absmax > 0:
            # From the smallest power of two that float32 can still divide into bins to the largest one of float32.
            self._reach(min(max(math.ceil(math.log2(absmax)), -100), 127))
        check(lib.ifs_histogram_add(source, values.size, self.limit, self._pointer, len(self.counts), ffi.NULL))

    @property
    def _pointer(self) -> Any:
        return ffi.from_buffer(_COUNTS, self.counts)

    def _reach(self, exponent: int) -> None:
        if self._exponent is None:
            # Only zeros so far, which are in the bin above 0 for any limit.
            self._exponent = exponent
        while self._exponent < exponent:
            quarter = len(self.counts) // 4
            pairs = self.counts.reshape(-1, 2).sum(1)
            self.counts[:] = 0
            self.counts[quarter : 3 * quarter] = pairs
            self._exponent += 1

    # ---- thresholds ----

    def magnitudes(self) -> npt.NDArray[np.int64]:
        """The counts of |x|, in bins of the same width from 0."""
        half = len(self.counts) // 2
        return self.counts[half:] + self.counts[:half][::-1]

    def entropy(self, *, zeros: int = 0) -> float:
        """The threshold with the minimum Kullback-Leibler divergence, see `entropy_threshold`.

        `zeros` values that are exactly 0 are ignored: every scale represents them exactly, and after a ReLU they would
        dominate the search.
        """
        counts = self.magnitudes()
        counts[0] -= min(zeros, int(counts[0]))
        filled = np.flatnonzero(counts)
        if not filled.size:
            raise InputError(f"the histogram is empty: all of its {len(self.counts)} bins are 0")
        used = int(filled[-1]) + 1
        best, _ = entropy_threshold(counts[: max(used, LEVELS + 1)])
        return min((best + 0.5) * self.width, used * self.width)

    def percentile(self, percent: float) -> tuple[float, float]:
        """(low, high), with (100 - percent) % of the values beyond each, rounded to edges of bins."""
        total = self._checked(percent)
        reached = np.cumsum(self.counts)
        beyond = total * (1 - percent / 100) * (1 + 1e-12)
        low = int(np.searchsorted(reached, beyond, side="right"))
        high = int(np.searchsorted(reached, total - beyond))
        return low * self.width - self.limit, (high + 1) * self.width - self.limit

    def magnitude_percentile(self, percent: float) -> float:
        """The upper edge of the first bin up to which at least `percent` of the magnitudes lie."""
        total = self._checked(percent)
        reached = np.searchsorted(np.cumsum(self.magnitudes()), total * (percent / 100) * (1 - 1e-15))
        return (int(reached) + 1) * self.width

    def _checked(self, percent: float) -> int:
        if not 0 < percent <= 100:
            raise InputError(f"percentile must be above 0 and at most 100, not {percent!r}")
        total = int(self.counts.sum())
        if total == 0:
            raise InputError(f"the histogram is empty: all of its {len(self.counts)} bins are 0")
        return total


def entropy_threshold(counts: npt.NDArray[np.int64], levels: int = LEVELS, *, plain: bool = False) -> tuple[int, float]:
    """The number of bins to keep for the minimum Kullback-Leibler divergence, and the divergence.

    The candidates i are `levels` to the number of bins - 1, where the first i bins have at least two that are filled. P
    is the first i bins, with all counts beyond added to the last. Q is the first i bins, merged into `levels` levels
    and expanded to the filled bins of P. The candidate with the minimum KL(P || Q) is selected (S. Migacz, "8-bit
    Inference with TensorRT", GTC 2017). If no divergence is finite, the result is the number of bins.

    Args:
        counts: int64, `[bins]`.
        levels: the number of levels, 128 for signed 8-bit codes.
        plain: use the slow reference implementation, which has the same result.

    Raises:
        InputError: all bins are empty, a bin is negative, or there are not more bins than levels.
    """
    counts = np.ascontiguousarray(counts, np.int64)
    best, divergence = out("int32_t"), out("double")
    pointer = ffi.from_buffer(_COUNTS, counts)
    check(lib.ifs_entropy_threshold(pointer, len(counts), levels, plain, best, divergence))
    return int(best[0]), float(divergence[0])
