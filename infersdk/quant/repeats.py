"""Rewrites a Resize that repeats 8-bit codes as an Expand with channels last.

ONNX Runtime's Resize with channels last computes the source position of each code, which takes four times as long as
copying. An Expand that repeats rows and columns copies all channels of a position at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..graph.builder import GraphBuilder
from ..graph.weights import constant_tensor

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["repeats_of", "write_repeats"]

#: Coordinate transformations with the rounding modes for which an integer scale repeats values.
_REPEATING = {
    "asymmetric": {"floor"},
    "half_pixel": {"round_prefer_floor", "round_prefer_ceil"},
    "pytorch_half_pixel": {"round_prefer_floor", "round_prefer_ceil"},
}


def repeats_of(node: ir.Node) -> tuple[int, ...] | None:
    """The number of repetitions along each spatial axis of a Resize; None for other nodes."""
    attributes = node.attributes
    if node.op_type != "Resize" or len(node.inputs) < 3 or node.inputs[2] is None:
        return None
    if attributes.get_string("mode", "nearest") != "nearest" or "axes" in attributes:
        return None
    rounding = attributes.get_string("nearest_mode", "round_prefer_floor")
    transformation = attributes.get_string("coordinate_transformation_mode", "half_pixel")
    scales = constant_tensor(node.inputs[2])
    if rounding not in _REPEATING.get(transformation, ()) or scales is None:
        return None
    factors = scales.numpy().tolist()
    if len(factors) < 3 or factors[:2] != [1, 1] or any(factor < 1 or factor != int(factor) for factor in factors):
        return None
    return tuple(int(factor) for factor in factors[2:])


def write_repeats(graph: ir.Graph, node: ir.Node, factors: tuple[int, ...]) -> None:
    """Replaces a Resize between a DequantizeLinear and QuantizeLinears of the same scale by an Expand of codes.

    Does nothing if the Resize has other users. The nodes of the graph are not sorted afterwards.

    Args:
        factors: the number of repetitions from `repeats_of`.
    """
    restore = node.inputs[0].producer() if node.inputs[0] is not None else None
    result = node.outputs[0]
    takers = list(result.consumers())
    if restore is None or restore.op_type != "DequantizeLinear" or result.is_graph_output() or not takers:
        return
    if any(taker.op_type != "QuantizeLinear" or not _same_codes(restore, taker) for taker in takers):
        return
    rank = len(factors) + 2
    build = GraphBuilder(graph, f"{node.name}/")
    last = build("Transpose", restore.inputs[0], perm=[0, *range(2, rank), 1], name="channels_last")
    spread = build("Unsqueeze", last, build.ints(range(2, 2 * len(factors) + 1, 2)))
    copies = build.ints(1, *((1, factor) for factor in factors), 1)
    sizes = build("Mul", build("Shape", last), build.ints(1, factors, 1))  # computed, so that the model can be resized
    codes = build(
        "Transpose", build("Reshape", build("Expand", spread, copies), sizes), perm=[0, rank - 1, *range(1, rank - 1)]
    )
    for taker in takers:
        old = taker.outputs[0]
        codes.type, codes.shape = old.type, old.shape
        old.replace_all_uses_with(codes)
        graph.remove(taker, safe=True)
    graph.remove(node, safe=True)
    if not restore.outputs[0].uses():
        graph.remove(restore, safe=True)


def _same_codes(restore: ir.Node, quantize: ir.Node) -> bool:
    """Whether a QuantizeLinear has the scale and zero point of a DequantizeLinear."""
    for first, second in zip(restore.inputs[1:3], quantize.inputs[1:3], strict=True):
        arrays = [constant_tensor(value) for value in (first, second) if value is not None]
        if len(arrays) < 2 or None in arrays or not np.array_equal(arrays[0].numpy(), arrays[1].numpy()):
            return False
    return True
