"""Concatenation of 8-bit codes with different scales.

With a common scale, inputs with a small range would use few of the 256 codes, and all inputs would be rounded twice.
Instead, the weights of the convolutions after the concatenation compensate for the different scales:
sum_i w_i (s_i q_i) = sum_i (w_i s_i / s) (s q_i). The codes are then concatenated unchanged. Only their zero points
must be equal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..graph.builder import GraphBuilder
from .ranges import BOUNDED, scale_and_zero_point
from .table import TensorRange

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["aligned_ranges", "can_join", "joined_factors", "scale_input_channels"]


#: Operators whose results are never negative.
_NOT_NEGATIVE = BOUNDED | {"Relu"}


def can_join(node: ir.Node, layers: Collection[str], points: Mapping[str, str]) -> bool:
    """Whether a node concatenates the channels of quantised values only for quantised convolutions.

    A runtime fuses a ReLU with its layer if the zero point is 0. Therefore non-negative values are only joined with
    other non-negative values.

    Args:
        layers: the names of the quantised layers.
        points: the quantised values, each with the value whose range it has.
    """
    result = node.outputs[0]
    uses = list(result.uses())
    if node.op_type != "Concat" or result.is_graph_output() or not uses or not _channel_counts(node):
        return False
    for use in uses:
        reader = use.node
        if reader.name not in layers or reader.op_type != "Conv" or use.idx != 0:
            return False
        if reader.attributes.get_int("group", 1) != 1:
            return False
    axis = node.attributes.get_int("axis", 0)
    of_channels = axis == 1 or (result.shape is not None and axis + len(result.shape) == 1)
    if not of_channels or not all(value is not None and value.name in points for value in node.inputs):
        return False
    return len({_is_positive(value, points) for value in node.inputs if value is not None}) == 1


def _is_positive(value: ir.Value, points: Mapping[str, str]) -> bool:
    """Whether a value is never negative, by the operator that computes it, before operators that only move it."""
    maker = value.producer()
    while maker is not None and maker.inputs[0] is not None and value.name != points[value.name or ""]:
        value = maker.inputs[0]
        maker = value.producer()
    return maker is not None and maker.op_type in _NOT_NEGATIVE


def joined_factors(node: ir.Node, ranges: Sequence[TensorRange]) -> npt.NDArray[np.float64]:
    """The factors of the weights after a concatenation, per channel: scale / largest scale.

    Args:
        ranges: the ranges of the inputs of the concatenation.
    """
    scales = np.asarray([scale_and_zero_point(one.low, one.high, signed=False)[0] for one in ranges], np.float64)
    return np.repeat(scales / scales.max(), _channel_counts(node))


def _channel_counts(node: ir.Node) -> list[int]:
    """The number of channels of each input of a concatenation; [] if one is unknown."""
    shapes = [value.shape for value in node.inputs if value is not None]
    counts = [shape[1] for shape in shapes if shape is not None and len(shape) > 1]
    known = [count for count in counts if isinstance(count, int)]
    return known if len(known) == len(node.inputs) else []


def aligned_ranges(groups: Iterable[Collection[str]], ranges: Mapping[str, TensorRange]) -> dict[str, TensorRange]:
    """Widens uint8 ranges so that all ranges of a group have the same zero point.

    Args:
        groups: groups of names. Groups with a common name are merged.
        ranges: the ranges by name.

    Returns:
        All ranges. The zero point of a group minimises the sum of log(new scale / old scale).
    """
    result = dict(ranges)
    for group in _united(groups):
        lows, highs = (np.asarray([getattr(ranges[name], end) for name in group]) for end in ("low", "high"))
        zeros = np.arange(256)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            below = np.where(lows < 0, -lows / zeros, 0)
            above = np.where(highs > 0, highs / (255 - zeros), 0)
        scales = np.maximum(below, above)
        zero = int(np.log(scales).sum(1).argmin())
        for name, scale in zip(group, scales[zero], strict=True):
            low, high = -zero * float(scale), (255 - zero) * float(scale)
            result[name] = _widened(ranges[name], low, high)
    return result


def scale_input_channels(graph: ir.Graph, node: ir.Node, factors: npt.NDArray[np.float64]) -> None:
    """Multiplies the weights of a convolution by a factor per input channel."""
    weights = node.inputs[1]
    assert weights is not None
    assert weights.const_value is not None
    array = np.asarray(weights.const_value.numpy(), np.float32)
    scaled = array * factors.reshape(1, -1, *[1] * (array.ndim - 2))
    build = GraphBuilder(graph, f"{node.name}/")
    node.replace_input_with(1, build.constant(scaled.astype(np.float32), "weight_for_codes"))


def _widened(before: TensorRange, low: float, high: float) -> TensorRange:
    return TensorRange(min=before.min, max=before.max, low=low, high=high, threshold=before.threshold, mean=before.mean)


def _united(groups: Iterable[Collection[str]]) -> list[list[str]]:
    """Merges groups with a common name."""
    result: list[dict[str, None]] = []
    for group in groups:
        merged = dict.fromkeys(group)
        apart = []
        for other in result:
            if merged.keys() & other.keys():
                merged = other | merged
            else:
                apart.append(other)
        result = [*apart, merged]
    return [list(group) for group in result]
