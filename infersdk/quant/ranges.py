"""The range of an activation from its observations, and the activation functions that decide it."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np

from ..errors import ConfigError
from .table import Method, TensorRange

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

    from .histogram import ChannelRanges, Histogram

__all__ = [
    "BOUNDED", "PERCENTILE", "Function", "check_method", "function_behind", "scale_and_zero_point", "tensor_range",
]  # fmt: skip

#: The default percentile.
PERCENTILE = 99.999
#: Candidates for the end of a range, as fractions of the maximum.
_COARSE = np.concatenate([np.geomspace(1 / 64, 0.25, 7), np.linspace(0.3, 1, 15)])
#: Neighbouring bins are merged before the search until no more are filled: several per level.
_SEARCHED_BINS = 4096


def check_method(method: str, percentile: float) -> Method:
    """Returns the method. Raises ConfigError if it is unknown, or if the percentile is out of range."""
    if method not in get_args(Method):
        raise ConfigError(f"unknown method {method!r}; use one of {', '.join(get_args(Method))}")
    if not (isinstance(percentile, Real) and 50 < percentile <= 100):
        raise ConfigError(f"percentile must be a number above 50 and at most 100, not {percentile!r}")
    return cast("Method", method)


def scale_and_zero_point(low: float, high: float, *, signed: bool) -> tuple[np.float32, int]:
    """The scale and zero point for a range.

    Args:
        low, high: the range, which is extended to contain 0.
        signed: whether codes are int8 with a symmetric range and zero point 0; otherwise uint8.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    smallest = float(np.finfo(np.float32).tiny)
    if signed:
        return np.float32(max(max(-low, high) / 127, smallest)), 0
    scale = np.float32(max((high - low) / 255, smallest))
    return scale, int(np.clip(np.rint(-low / float(scale)), 0, 255))


def tensor_range(
    method: Method,
    ranges: ChannelRanges,
    histogram: Histogram,
    *,
    percentile: float = PERCENTILE,
    function: Function | None = None,
) -> TensorRange:
    """Selects the range of an activation with a method.

    Args:
        ranges: the ranges of its channels.
        histogram: the histogram of its values; not used by `"minmax"`.
        percentile: the percentile for `"percentile"`.
        function: the activation function after the values; `"mse"` minimises the error after it.
    """
    low, high = ranges.min, ranges.max
    threshold = ranges.absmax
    if method != "minmax":
        if method == "percentile":
            ends = histogram.percentile(percentile)
            threshold = histogram.magnitude_percentile(percentile)
        elif method == "entropy":
            threshold = histogram.entropy(zeros=ranges.zeros)
            ends = -threshold, threshold
        else:
            ends, threshold = _least_errors(histogram, ranges, function or (lambda x: x))
        low, high = max(low, ends[0]), min(high, ends[1])
        threshold = min(threshold, ranges.absmax)
        if low >= 0 >= high:  # almost all values are 0, and the others are negative
            low = -threshold
    return TensorRange(
        min=ranges.min, max=ranges.max, low=min(low, 0.0), high=max(high, 0.0), threshold=threshold,
        mean=[float(f"{mean:.6g}") for mean in ranges.channel_mean],
    )  # fmt: skip


def _least_errors(histogram: Histogram, ranges: ChannelRanges, function: Function) -> tuple[tuple[float, float], float]:
    """The ends, and T of a range from -T to T, with the minimum sum of (f(Q(x)) - f(x))^2 over the values.

    This balances the errors of clipping and of rounding. Errors count after the activation function f: for example, a
    SiLU is nearly 0 for large negative values, which then need no codes.
    """
    counts, values = histogram.counts.copy(), histogram.centres
    zero = len(counts) // 2
    counts[zero] -= min(ranges.zeros, int(counts[zero]))  # every range represents them exactly
    while np.count_nonzero(counts) > _SEARCHED_BINS:
        counts, values = counts.reshape(-1, 2).sum(1), values.reshape(-1, 2).mean(1)
    weights, values = counts[counts > 0].astype(np.float64), values[counts > 0]
    targets = function(values)

    def error(low: float, high: float, *, signed: bool = False) -> float:
        scale, zero = scale_and_zero_point(low, high, signed=signed)
        least, most = (-128, 127) if signed else (0, 255)
        codes = np.rint(values * (1 / float(scale)))
        codes += zero - least
        np.clip(codes, 0, most - least, out=codes)
        levels = function((np.arange(least, most + 1) - zero) * float(scale))
        errors = levels[codes.astype(np.intp)] - targets
        return float(np.dot(weights, errors * errors))

    first, last = min(ranges.min, 0.0), max(ranges.max, 0.0)
    low, high = first, last
    for _ in range(2):
        if high > 0:
            high = _best(lambda end: error(low, end), last)  # noqa: B023
        if low < 0:
            low = _best(lambda end: error(end, high), first)  # noqa: B023
    return (low, high), _best(lambda end: error(-end, end, signed=True), ranges.absmax)


def _best(error: Callable[[float], float], end: float) -> float:
    """The fraction of `end` with the minimum error, by a coarse and then a fine search."""
    shares: npt.NDArray[Any] = _COARSE
    result = [error(share * end) for share in shares]
    at = int(np.argmin(result))
    best, least = float(shares[at]), result[at]
    around = shares[max(at - 1, 0)], shares[min(at + 1, len(shares) - 1)]
    for share in np.linspace(*around, 9)[1:-1]:
        if (now := error(float(share) * end)) < least:
            best, least = float(share), now
    return best * end


Function = Callable[["npt.NDArray[Any]"], "npt.NDArray[Any]"]

#: Operators whose results are always between 0 and 1.
BOUNDED = frozenset({"HardSigmoid", "Sigmoid", "Softmax"})


def function_behind(value: ir.Value) -> Function | None:
    """The activation function that is the only user of a value; None if there is no such function."""
    if value.is_graph_output():
        return None
    uses = sorted(value.consumers(), key=lambda node: node.op_type)
    kinds = [node.op_type for node in uses]
    if kinds == ["Mul", "Sigmoid"]:
        product, gate = uses
        return (lambda x: x * _sigmoid(x)) if set(product.inputs) == {value, gate.outputs[0]} else None
    if len(uses) != 1:
        return None
    if kinds == ["LeakyRelu"]:
        slope = uses[0].attributes.get_float("alpha", 0.01)
        return lambda x: np.where(x < 0, slope * x, x)
    return _FUNCTIONS.get(kinds[0])


def _sigmoid(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    result: npt.NDArray[Any] = 1 / (1 + np.exp(-np.clip(x, -80, 80)))
    return result


_FUNCTIONS: dict[str, Function] = {
    "Relu": lambda x: np.maximum(x, 0), "Sigmoid": _sigmoid, "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
}  # fmt: skip
