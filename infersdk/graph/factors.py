"""Folding of constant factors and offsets into adjacent convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .builder import GraphBuilder
from .weights import constant_of

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["fold_factors", "only_user"]


def fold_factors(graph: ir.Graph) -> int:
    """Folds constant factors (Mul) and offsets (Add) into adjacent convolutions; returns the number of folded nodes.

    - After a convolution: a scalar or a value per channel is folded into the weights and the bias.
    - Before convolutions: a scalar factor is folded into the weights. A scalar offset is folded into the biases of
      convolutions without padding, since padding would no longer be 0.

    Results differ by rounding only.
    """
    build, count = GraphBuilder(graph), 0
    while changed := sum(_fold(node, graph, build) for node in list(graph) if node.op_type in ("Mul", "Add")):
        count += changed
    return count


def only_user(graph: ir.Graph, value: ir.Value) -> ir.Node | None:
    """The only user of a value, if it is a node of this graph; else None."""
    uses = list(value.uses())
    alone = len(uses) == 1 and not value.is_graph_output() and uses[0].node.graph is graph
    return uses[0].node if alone else None


def _fold(node: ir.Node, graph: ir.Graph, build: GraphBuilder) -> bool:
    """Folds a node if possible; returns whether it did."""
    if node.graph is not graph or node.domain or node.outputs[0].is_graph_output():
        return False  # removed with another node, or needed
    found = _operands(node)
    if found is None or not np.isfinite(found[0]).all():
        return False
    return _behind(node, *found, build) or _in_front(node, *found, build)


def _operands(node: ir.Node) -> tuple[npt.NDArray[Any], ir.Value] | None:
    """The constant floating-point operand of a binary node and its other operand; None if there is none."""
    for constant, data in zip(node.inputs, reversed(node.inputs), strict=True):
        array = constant_of(constant)
        if array is not None and data is not None and array.dtype.kind == "f":
            return array, data
    return None


def _behind(node: ir.Node, array: npt.NDArray[Any], data: ir.Value, build: GraphBuilder) -> bool:
    """Folds a node into the convolution before it."""
    conv = data.producer()
    if conv is None or only_user(node.graph, data) is not node:  # type: ignore[arg-type]
        return False
    weights = _weights_of(conv)
    channels = None if weights is None else _channels(array, len(weights), weights.ndim)
    if weights is None or channels is None:
        return False
    bias = _bias_of(conv, len(weights))
    if node.op_type == "Mul":
        shape = [-1] + [1] * (weights.ndim - 1)
        _set(conv, build, weights * channels.reshape(shape), bias * channels if bias.any() else None)
    else:
        _set(conv, build, None, bias + channels)
    _replace_by_input(node, data)
    return True


def _in_front(node: ir.Node, array: npt.NDArray[Any], data: ir.Value, build: GraphBuilder) -> bool:
    """Folds a scalar into the convolutions after it."""
    uses = list(node.outputs[0].uses())
    convs = [use.node for use in uses if use.idx == 0 and use.node.graph is node.graph]
    weights = [kernel for conv in convs if (kernel := _weights_of(conv)) is not None]
    if array.size != 1 or not uses or len(weights) != len(uses) or not _keeps_axes(array, data, weights[0].ndim):
        return False
    number = float(array.item())
    if node.op_type == "Mul":
        for conv, kernel in zip(convs, weights, strict=True):
            _set(conv, build, kernel * number, None)
    elif not any(map(_is_padded, convs)):
        for conv, kernel in zip(convs, weights, strict=True):
            sums = kernel.sum(axis=tuple(range(1, kernel.ndim)))
            _set(conv, build, None, _bias_of(conv, len(kernel)) + number * sums)
    else:
        return False
    _replace_by_input(node, data)
    return True


def _set(conv: ir.Node, build: GraphBuilder, weights: npt.NDArray[Any] | None, bias: npt.NDArray[Any] | None) -> None:
    """Replaces the weights and the bias of a convolution; None keeps the present ones."""
    before = constant_of(conv.inputs[1])
    assert before is not None
    conv.resize_inputs(max(len(conv.inputs), 2 if bias is None else 3))
    for at, new, what in ((1, weights, "weight"), (2, bias, "bias")):
        if new is not None:
            conv.replace_input_with(at, build.constant(new.astype(before.dtype), f"{conv.outputs[0].name}_{what}"))


def _replace_by_input(node: ir.Node, data: ir.Value) -> None:
    """Removes a node. Its users read `data` instead."""
    node.outputs[0].replace_all_uses_with(data)
    assert node.graph is not None
    node.graph.remove(node, safe=True)


def _weights_of(conv: ir.Node) -> npt.NDArray[np.float64] | None:
    """The constant floating-point weights of a convolution; None for other nodes."""
    if conv.op_type != "Conv" or conv.domain or len(conv.inputs) < 2:
        return None
    array = constant_of(conv.inputs[1])
    if array is None or array.dtype not in (np.float32, np.float64):
        return None
    if len(conv.inputs) > 2 and conv.inputs[2] is not None and constant_of(conv.inputs[2]) is None:
        return None
    return array.astype(np.float64)


def _bias_of(conv: ir.Node, channels: int) -> npt.NDArray[np.float64]:
    array = constant_of(conv.inputs[2]) if len(conv.inputs) > 2 else None
    return np.zeros(channels) if array is None else array.astype(np.float64)


def _is_padded(conv: ir.Node) -> bool:
    if conv.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return True
    return any(conv.attributes.get_ints("pads", ()))


def _keeps_axes(array: npt.NDArray[Any], data: ir.Value, rank: int) -> bool:
    """Whether removing a scalar before a convolution leaves the rank of the data as it is."""
    return array.ndim < rank or (data.shape is not None and len(data.shape) == rank)


def _channels(array: npt.NDArray[Any], count: int, ndim: int) -> npt.NDArray[np.float64] | None:
    """A value per channel, if the array is a scalar or broadcasts along the channels only; else None."""
    if array.ndim > ndim:
        return None
    if array.size == 1:
        return np.full(count, float(array.item()))
    shape = (1,) * (ndim - array.ndim) + array.shape
    wanted = tuple(count if axis == 1 else 1 for axis in range(ndim))
    return array.astype(np.float64).reshape(-1) if shape == wanted else None
