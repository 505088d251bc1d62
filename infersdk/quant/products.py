"""Layers in 8 bits whose results are floating point, as matrix products.

ONNX Runtime computes a convolution in 8 bits only if its result is quantised; a matrix product of 8 bits may give
floating point. A convolution that computes each position from that position alone is a matrix product, of all
positions with their channels last, which is the order that ONNX Runtime computes in 8 bits in.

The result is transposed back for what reads it. Two readers do without that: a Shape, and a Reshape that splits the
channels with a Transpose behind it, as detectors do with the boxes of one position. A head that also takes the channels
apart and joins them again becomes several products (`heads`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..graph.builder import GraphBuilder
from ..graph.weights import constant_tensor
from .heads import AnchorHead, find_head, write_head

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["is_pointwise", "write_product"]

#: The largest bias in units of its scale: sums of products have the rest of 32 bits.
_LARGEST_BIAS = 2**30


def is_pointwise(node: ir.Node) -> bool:
    """Whether a node is a convolution that computes each position from that position alone.

    Its bias, if there is one, is a weight, and the number of dimensions of what it reads is known.
    """
    if node.op_type != "Conv" or len(node.inputs) < 2:
        return False
    data, weights = node.inputs[:2]
    if data is None or data.shape is None or weights is None or weights.shape is None:
        return False
    if len(node.inputs) > 2 and node.inputs[2] is not None and node.inputs[2].const_value is None:
        return False
    ones = [*list(weights.shape)[2:], *node.attributes.get_ints("strides", []), node.attributes.get_int("group", 1)]
    return all(one == 1 for one in ones) and not any(node.attributes.get_ints("pads", []))


def write_product(graph: ir.Graph, node: ir.Node, codes: npt.NDArray[np.int8], scales: npt.NDArray[np.float32]) -> None:
    """Puts a matrix product in 8 bits that gives floating point in the place of a convolution of one position.

    The nodes of the graph are out of order behind this.

    Args:
        graph: the graph of the node.
        node: one that `is_pointwise`, which reads what a DequantizeLinear gives.
        codes: its weights, [results, channels, 1, ...].
        scales: one for each result.
    """
    data, bias = node.inputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    assert data is not None
    assert data.shape is not None
    restore = data.producer()
    assert restore is not None
    scale = restore.inputs[1]
    assert scale is not None
    assert scale.const_value is not None
    rank = len(data.shape)
    build = GraphBuilder(graph, f"{node.name}/")
    last = build("Transpose", restore.inputs[0], perm=[0, *range(2, rank), 1], name="channels_last")
    rows = build("Reshape", last, build.ints(-1, codes.shape[1]), name="rows")
    restored = build("DequantizeLinear", rows, *restore.inputs[1:], name="input")
    weights = _product_weights(codes.reshape(codes.shape[:2]), scales, bias, float(scale.const_value.numpy()))
    head = _head_behind(node.outputs[0])
    if head is not None:
        write_head(build, graph, head, last, lambda columns, name: weights.write(build, restored, columns, f"{name}_"))
        graph.remove(node, safe=True)
    else:
        product = weights.write(build, restored)
        sizes = build("Gather", build("Shape", last), build.ints(range(rank - 1)))  # the model may be resized
        shape = build("Concat", sizes, build.ints(len(scales)), axis=0)
        positions = build("Reshape", product, shape, name="positions")
        positions.type = node.outputs[0].type
        _replace_layer(build, graph, node, positions, [0, rank - 1, *range(1, rank - 1)])
    if not restore.outputs[0].uses():
        graph.remove(restore, safe=True)


@dataclass(frozen=True)
class _ProductWeights:
    """The weights of a matrix product in 8 bits.

    Attributes:
        codes: int8, [results, channels].
        scales: float32, one for each result.
        bias: int32, one for each result; None if there is none.
        bias_scales: float32: the weights' scales times the input's.
    """

    codes: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]
    bias: npt.NDArray[np.int32] | None
    bias_scales: npt.NDArray[np.float32]

    def write(
        self, build: GraphBuilder, data: ir.Value, columns: Sequence[int] | None = None, prefix: str = ""
    ) -> ir.Value:  # fmt: skip
        """Writes the product of some results, or all; returns it, [rows, results]."""
        chosen = slice(None) if columns is None else list(columns)
        matrix = np.ascontiguousarray(self.codes[chosen].T)
        factors = [data, _restored(build, f"{prefix}weight", matrix, self.scales[chosen], axis=1)]
        if self.bias is not None:
            factors.append(_restored(build, f"{prefix}bias", self.bias[chosen], self.bias_scales[chosen], axis=0))
        product: ir.Value = build("Gemm", *factors, name=f"{prefix}product")
        return product


def _product_weights(
    codes: npt.NDArray[np.int8], scales: npt.NDArray[np.float32], bias: ir.Value | None, step: float
) -> _ProductWeights:
    """The weights of a convolution as those of a product.

    Args:
        codes: [results, channels].
        bias: of the convolution; a weight.
        step: the scale of its input.
    """
    if bias is None:
        return _ProductWeights(codes, scales, None, np.float32(step) * scales)
    assert bias.const_value is not None
    biases = np.asarray(bias.const_value.numpy(), np.float64)
    # Weights of next to nothing have a scale that their bias is too large for.
    units = np.maximum(scales, np.abs(biases) / (step * _LARGEST_BIAS)).astype(np.float32)
    sums = (step * units).astype(np.float32)
    matrix = np.rint(codes * (scales / units)[:, None]).astype(np.int8)
    return _ProductWeights(matrix, units, np.rint(biases / sums).astype(np.int32), sums)


def _head_behind(result: ir.Value) -> AnchorHead | None:
    """The head of a detector that alone reads the result of a convolution, if it can be written as products."""
    uses = list(result.uses())
    if len(uses) != 1 or result.is_graph_output() or uses[0].node.op_type != "Reshape" or uses[0].idx != 0:
        return None
    return find_head(uses[0].node) if _can_split(result, uses[0].node) else None


def _restored(
    build: GraphBuilder, name: str, codes: npt.NDArray[np.integer], scales: npt.NDArray[np.float32], axis: int
) -> ir.Value:  # fmt: skip
    """Weights of 8 or 32 bits in floating point, with a scale for each channel."""
    zeros = build.constant(np.zeros(len(scales), codes.dtype), f"{name}_zero_point")
    parts = build.constant(codes, name), build.constant(scales, f"{name}_scale"), zeros
    result: ir.Value = build("DequantizeLinear", *parts, axis=axis, name=f"{name}_dequantized")
    return result


def _replace_layer(build: GraphBuilder, graph: ir.Graph, node: ir.Node, positions: ir.Value, order: list[int]) -> None:
    """Gives the readers of a layer its result with the channels last, transposed back where they need that.

    Args:
        order: the axes of `positions` that make those of the layer's result.
    """
    result = node.outputs[0]
    for use in list(result.uses()):
        reader = use.node
        if reader.op_type == "Shape":
            start, end = reader.attributes.get_int("start", 0), reader.attributes.get_int("end", len(order))
            _replace(graph, reader, build("Gather", build("Shape", positions), build.ints(order[start:end])))
        elif reader.op_type == "Reshape" and use.idx == 0 and _can_split(result, reader):
            _split(build, graph, reader, positions)
    if result.uses() or result.is_graph_output():
        _replace(graph, node, build("Transpose", positions, perm=order, name="channels_first"))
    else:
        graph.remove(node, safe=True)


def _can_split(result: ir.Value, reader: ir.Node) -> bool:
    """Whether a Reshape makes two axes of the channels, [n, a * b, ...] to [n, a, b, ...], for Transposes alone."""
    before, after = result.shape, reader.outputs[0].shape
    uses = list(reader.outputs[0].consumers())
    if before is None or after is None or len(after) != len(before) + 1 or reader.outputs[0].is_graph_output():
        return False
    if not uses or any(use.op_type != "Transpose" or "perm" not in use.attributes for use in uses):
        return False
    count, first, second = before[1], after[1], after[2]
    if not isinstance(first, int) or not isinstance(second, int) or first * second != count:
        return False
    # The number of elements stays. So one axis may be unknown if all others are the same.
    rest = [(before[0], after[0]), *zip(list(before)[2:], list(after)[3:], strict=True)]
    if sum(not isinstance(old, int) or old != new for old, new in rest) > 1:
        return False
    target = constant_tensor(reader.inputs[1]) if reader.inputs[1] is not None else None
    # A 0 copies the axis of its position, which is another one if the channels are last.
    return target is not None and bool(target.numpy()[1:].all())


def _split(build: GraphBuilder, graph: ir.Graph, reader: ir.Node, positions: ir.Value) -> None:
    """The same Reshape with the channels last: [n, ..., a * b] to [n, ..., a, b], and the Transposes from there."""
    import onnx_ir as ir

    old, target = reader.outputs[0], reader.inputs[1]
    assert target is not None
    sides = constant_tensor(target).numpy()
    order = [0, *range(3, len(sides)), 1, 2]
    allowzero = reader.attributes.get_int("allowzero", 0) or None
    result = build("Reshape", positions, sides[order], allowzero=allowzero, name="split")
    for use in list(old.consumers()):
        use.attributes["perm"] = ir.AttrInt64s("perm", [order.index(axis) for axis in use.attributes["perm"].as_ints()])
        use.replace_input_with(0, result)
    graph.remove(reader, safe=True)


def _replace(graph: ir.Graph, node: ir.Node, by: ir.Value) -> None:
    """Puts a value in the place of a node's only result."""
    old = node.outputs[0]
    name, by.type, by.shape = old.name, old.type, old.shape
    old.replace_all_uses_with(by, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    by.name = name
