"""Folding of constant factors and offsets into adjacent convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .weights import add_weight, constant_of, free_name, taken_names

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["fold_factors"]

#: The smallest magnitude of a factor to divide by.
_SMALLEST = 1e-3


def fold_factors(graph: ir.Graph) -> int:
    """Folds constant factors (Mul) and offsets (Add) into adjacent convolutions; returns the number of folded nodes.

    - After a convolution: a scalar or a value per channel is folded into the weights and the bias.
    - Before convolutions: a scalar factor is folded into the weights. A scalar offset is folded into the biases of
      convolutions without padding, since padding would no longer be 0.
    - x * s + b before padded convolutions becomes x + b / s, and s is folded into the weights.

    Results differ by rounding only.
    """
    folder = _Folder(graph)
    count = 0
    while changed := sum(folder.fold(node) for node in list(graph) if node.op_type in ("Mul", "Add")):
        count += changed
    return count


class _Folder:
    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._names = taken_names(graph)

    def fold(self, node: ir.Node) -> bool:
        """Folds a node if possible; returns whether it did."""
        if node.graph is not self._graph:
            return False  # removed with another node
        if node.domain or node.outputs[0].is_graph_output():
            return False
        for constant, data in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
            array = constant_of(constant)
            if array is not None and data is not None and array.dtype.kind == "f" and np.isfinite(array).all():
                return self._behind(node, data, array) or self._in_front(node, data, array)
        return False

    def _behind(self, node: ir.Node, data: ir.Value, array: npt.NDArray[Any]) -> bool:
        """Folds a node into the convolution before it."""
        conv = data.producer()
        if conv is None or data.is_graph_output() or len(list(data.uses())) != 1:
            return False
        weights = _weights_of(conv)
        if weights is None or (conv.op_type == "ConvTranspose" and _group(conv) != 1):
            return False
        axis = 0 if conv.op_type == "Conv" else 1
        channels = _channels(array, weights.shape[axis], weights.ndim)
        if channels is None:
            return False
        bias = _bias_of(conv, weights.shape[axis])
        if node.op_type == "Mul":
            shape = [-1 if at == axis else 1 for at in range(weights.ndim)]
            self._set(conv, weights * channels.reshape(shape), bias * channels if bias.any() else None)
        else:
            self._set(conv, None, bias + channels)
        self._bypass(node, data)
        return True

    def _in_front(self, node: ir.Node, data: ir.Value, array: npt.NDArray[Any]) -> bool:
        """Folds a scalar into the convolutions after it."""
        if array.size != 1:
            return False
        number = float(array.item())
        uses = list(node.outputs[0].uses())
        convs = [use.node for use in uses if use.idx == 0 and self._takes_factors(use.node)]
        if not uses or len(convs) != len(uses) or not _keeps_axes(array, data, convs[0]):
            return False
        if node.op_type == "Mul":
            self._scale(convs, number)
            self._bypass(node, data)
            return True
        if not any(map(_is_padded, convs)):
            for conv in convs:
                weights = _weights_of(conv)
                assert weights is not None
                sums = weights.sum(axis=tuple(range(1, weights.ndim)))
                self._set(conv, None, _bias_of(conv, len(weights)) + number * sums)
            self._bypass(node, data)
            return True
        return self._swap(node, data, number, convs)

    def _swap(self, add: ir.Node, data: ir.Value, offset: float, convs: list[ir.Node]) -> bool:
        """Rewrites x * s + b as x + b / s, and folds s into the convolutions after it."""
        mul = data.producer()
        if mul is None or mul.op_type != "Mul" or mul.domain:
            return False
        if data.is_graph_output() or len(list(data.uses())) != 1:
            return False
        for constant, source in ((mul.inputs[0], mul.inputs[1]), (mul.inputs[1], mul.inputs[0])):
            factor = constant_of(constant)
            if factor is not None and factor.size == 1 and source is not None:
                number = float(factor.item())
                if not _SMALLEST <= abs(number) < np.inf or not _keeps_axes(factor, source, convs[0]):
                    return False
                self._scale(convs, number)
                shifted = np.array([offset / number], factor.dtype)
                weight = add_weight(self._graph, self._free_name(f"{add.outputs[0].name}_offset"), shifted)
                add.replace_input_with(0, source)
                add.replace_input_with(1, weight)
                self._graph.remove(mul, safe=True)
                return True
        return False

    def _takes_factors(self, node: ir.Node) -> bool:
        """Whether a node is a convolution of this graph with constant weights."""
        return node.op_type == "Conv" and node.graph is self._graph and _weights_of(node) is not None

    def _scale(self, convs: list[ir.Node], number: float) -> None:
        for conv in convs:
            weights = _weights_of(conv)
            assert weights is not None
            self._set(conv, weights * number, None)

    def _set(self, conv: ir.Node, weights: npt.NDArray[Any] | None, bias: npt.NDArray[Any] | None) -> None:
        """Replaces the weights and the bias of a convolution; None keeps the present ones."""
        before = constant_of(conv.inputs[1])
        assert before is not None
        inputs = list(conv.inputs[:3]) + [None] * (3 - len(conv.inputs))
        name = conv.outputs[0].name
        for at, new, what in ((1, weights, "weight"), (2, bias, "bias")):
            if new is not None:
                inputs[at] = add_weight(self._graph, self._free_name(f"{name}_{what}"), new.astype(before.dtype))
        if len(conv.inputs) < 3 and inputs[2] is not None:
            conv.resize_inputs(3)
        for at in range(len(conv.inputs)):
            conv.replace_input_with(at, inputs[at])

    def _bypass(self, node: ir.Node, data: ir.Value) -> None:
        """Removes a node. Its users read `data` instead."""
        node.outputs[0].replace_all_uses_with(data)
        self._graph.remove(node, safe=True)

    def _free_name(self, base: str) -> str:
        name = free_name(base, self._names)
        self._names.add(name)
        return name


def _weights_of(conv: ir.Node) -> npt.NDArray[np.float64] | None:
    """The constant floating-point weights of a convolution; None for other nodes."""
    if conv.op_type not in ("Conv", "ConvTranspose") or conv.domain:
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


def _group(conv: ir.Node) -> int:
    return int(conv.attributes.get_int("group", 1))


def _is_padded(conv: ir.Node) -> bool:
    if conv.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return True
    return any(conv.attributes.get_ints("pads", ()))


def _keeps_axes(array: npt.NDArray[Any], data: ir.Value, conv: ir.Node) -> bool:
    """Whether removing a scalar before a convolution leaves the rank of the data as it is."""
    weights = _weights_of(conv)
    assert weights is not None
    return array.ndim < weights.ndim or (data.shape is not None and len(data.shape) == weights.ndim)


def _channels(array: npt.NDArray[Any], count: int, ndim: int) -> npt.NDArray[np.float64] | None:
    """A value per channel, if the array is a scalar or broadcasts along the channels only; else None."""
    if array.ndim > ndim:
        return None
    if array.size == 1:
        return np.full(count, float(array.item()))
    shape = (1,) * (ndim - array.ndim) + array.shape
    wanted = tuple(count if axis == 1 else 1 for axis in range(ndim))
    return array.astype(np.float64).reshape(-1) if shape == wanted else None
