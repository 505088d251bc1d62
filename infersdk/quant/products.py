"""Rewrites quantised 1 x 1 convolutions with floating-point results as matrix products.

ONNX Runtime computes a convolution in 8 bits only if its result is quantised, but an 8-bit matrix product may have a
floating-point result. A 1 x 1 convolution is a matrix product of all positions with channels last, the order that ONNX
Runtime uses for 8 bits.

The result is transposed back for its readers, except for a Shape, and for a Reshape that splits the channels and is
followed by Transposes, as in detectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..graph.builder import GraphBuilder
from ..graph.parts import replace_node
from ..graph.weights import constant_tensor

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["is_pointwise", "write_product"]

#: The maximum bias in units of its scale, which leaves room for the products in 32 bits.
_LARGEST_BIAS = 2**30


def is_pointwise(node: ir.Node) -> bool:
    """Whether a node is a 1 x 1 convolution with a constant bias, or none, and an input of known rank."""
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
    """Replaces a 1 x 1 convolution by an 8-bit matrix product with a floating-point result.

    The nodes of the graph are not sorted afterwards.

    Args:
        graph: the graph of the node.
        node: a convolution for which `is_pointwise` holds, after a DequantizeLinear.
        codes: the quantised weights, [outputs, channels, 1, ...].
        scales: the scale of each output.
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
    step = float(scale.const_value.numpy())
    weights = _product_weights(build, codes.reshape(codes.shape[:2]), scales, bias, step)
    product = build("Gemm", restored, *weights, name="product")
    sizes = build(
        "Gather", build("Shape", last), build.ints(range(rank - 1))
    )  # computed, so that the model can be resized
    shape = build("Concat", sizes, build.ints(len(scales)), axis=0)
    positions = build("Reshape", product, shape, name="positions")
    positions.type = node.outputs[0].type
    _replace_layer(build, graph, node, positions, [0, rank - 1, *range(1, rank - 1)])
    if not restore.outputs[0].uses():
        graph.remove(restore, safe=True)


def _product_weights(
    build: GraphBuilder,
    codes: npt.NDArray[np.int8],
    scales: npt.NDArray[np.float32],
    bias: ir.Value | None,
    step: float,
) -> list[ir.Value]:
    """Writes the weights of a convolution, and its bias if there is one, as those of a matrix product.

    Args:
        codes: the weights, [results, channels].
        scales: the scale of each result.
        bias: the bias of the convolution, a weight.
        step: the scale of its input.
    """
    if bias is None:
        return [_restored(build, "weight", np.ascontiguousarray(codes.T), scales, axis=1)]
    assert bias.const_value is not None
    biases = np.asarray(bias.const_value.numpy(), np.float64)
    # The scale of very small weights is increased if their bias would not fit into 32 bits.
    units = np.maximum(scales, np.abs(biases) / (step * _LARGEST_BIAS)).astype(np.float32)
    sums = (step * units).astype(np.float32)
    matrix = np.rint(codes * (scales / units)[:, None]).astype(np.int8)
    return [
        _restored(build, "weight", np.ascontiguousarray(matrix.T), units, axis=1),
        _restored(build, "bias", np.rint(biases / sums).astype(np.int32), sums, axis=0),
    ]


def _restored(
    build: GraphBuilder, name: str, codes: npt.NDArray[np.integer], scales: npt.NDArray[np.float32], axis: int
) -> ir.Value:  # fmt: skip
    """Writes integer weights and a DequantizeLinear with a scale per channel."""
    zeros = build.constant(np.zeros(len(scales), codes.dtype), f"{name}_zero_point")
    parts = build.constant(codes, name), build.constant(scales, f"{name}_scale"), zeros
    result: ir.Value = build("DequantizeLinear", *parts, axis=axis, name=f"{name}_dequantized")
    return result


def _replace_layer(build: GraphBuilder, graph: ir.Graph, node: ir.Node, positions: ir.Value, order: list[int]) -> None:
    """Replaces the result of a layer by `positions`, which has channels last, for all readers.

    Args:
        order: the permutation from `positions` to the result of the layer.
    """
    result = node.outputs[0]
    for use in list(result.uses()):
        reader = use.node
        if reader.op_type == "Shape":
            start, end = reader.attributes.get_int("start", 0), reader.attributes.get_int("end", len(order))
            replace_node(graph, reader, build("Gather", build("Shape", positions), build.ints(order[start:end])))
        elif reader.op_type == "Reshape" and use.idx == 0 and _can_split(result, reader):
            _split(build, graph, reader, positions)
    if result.uses() or result.is_graph_output():
        replace_node(graph, node, build("Transpose", positions, perm=order, name="channels_first"))
    else:
        graph.remove(node, safe=True)


def _can_split(result: ir.Value, reader: ir.Node) -> bool:
    """Whether a Reshape splits the channels, [n, a * b, ...] to [n, a, b, ...], and only Transposes follow."""
    before, after = result.shape, reader.outputs[0].shape
    uses = list(reader.outputs[0].consumers())
    if before is None or after is None or len(after) != len(before) + 1 or reader.outputs[0].is_graph_output():
        return False
    if not uses or any(use.op_type != "Transpose" or "perm" not in use.attributes for use in uses):
        return False
    count, first, second = before[1], after[1], after[2]
    if not isinstance(first, int) or not isinstance(second, int) or first * second != count:
        return False
    # The number of elements is constant, so one axis may be unknown if all others are equal.
    rest = [(before[0], after[0]), *zip(list(before)[2:], list(after)[3:], strict=True)]
    if sum(not isinstance(old, int) or old != new for old, new in rest) > 1:
        return False
    target = constant_tensor(reader.inputs[1]) if reader.inputs[1] is not None else None
    # A 0 copies the axis at its position, which differs with channels last.
    return target is not None and bool(target.numpy()[1:].all())


def _split(build: GraphBuilder, graph: ir.Graph, reader: ir.Node, positions: ir.Value) -> None:
    """Rewrites a Reshape for channels last, [n, ..., a * b] to [n, ..., a, b], and the Transposes after it."""
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
