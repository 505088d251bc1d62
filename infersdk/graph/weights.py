"""Weights and constants as NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, ModelFormatError

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

__all__ = [
    "Weights", "add_weight", "constant_of", "constant_tensor", "data_inputs", "drop_unused_weights", "free_name",
    "graph_values", "repeated", "taken_names", "tensor_of", "value_names", "weights_size",
]  # fmt: skip


def tensor_of(array: npt.ArrayLike, name: str | None = None) -> Any:
    """The tensor of onnx_ir for an array or number: a read-only copy in the byte order of this machine.

    Raises:
        ConfigError: rows have different lengths, elements are no numbers, or ONNX does not have their type.
    """
    import onnx_ir as ir

    try:
        given = np.asarray(array)
        if given.dtype.kind in "OSU":
            raise TypeError(f"its elements have the type {given.dtype}; give numbers")
        copy = given.astype(given.dtype.newbyteorder("="), order="C")
        copy.flags.writeable = False
        return ir.tensor(copy, name=name)
    except (TypeError, ValueError) as error:
        what = "an array" if name is None else f"weight {name!r}"
        raise ConfigError(f"{what} is no tensor of ONNX: {error}") from None


def add_weight(graph: ir.Graph, name: str, array: npt.ArrayLike) -> ir.Value:
    """Adds a weight to the graph. The name must be free. Raises ConfigError as `tensor_of()`."""
    import onnx_ir as ir

    tensor = tensor_of(array, name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape), const_value=tensor)
    graph.register_initializer(value)
    return value


def constant_tensor(value: ir.Value) -> Any:
    """The tensor of a weight or of a Constant node; None for other values, sparse tensors and invalid Constants."""
    import onnx_ir as ir

    try:
        return ir.convenience.get_const_tensor(value)
    except (TypeError, ValueError):
        return None


def constant_of(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """The array of a weight that is not an input, or of a Constant node; None for other values."""
    tensor = None if value is None or value.is_graph_input() else constant_tensor(value)
    return None if tensor is None else tensor.numpy()


def repeated(array: npt.NDArray[Any], axis: int) -> npt.NDArray[Any] | None:
    """The first part of an array along an axis, with size 1 there, if all parts have its bytes; else None."""
    first: npt.NDArray[Any] = array.take([0], axis=axis)
    # 0.0 and -0.0 are equal, and their bytes differ.
    return first if np.broadcast_to(first, array.shape).tobytes() == array.tobytes() else None


def drop_unused_weights(graph: ir.Graph) -> None:
    """Removes unused weights."""
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del graph.initializers[name]


def weights_size(model: ir.Model) -> int:
    """The size of the weights of a model in bytes."""
    result = (value.const_value for value in model.graph.initializers.values())
    return sum(int(tensor.nbytes) for tensor in result if tensor is not None)


def data_inputs(model: ir.Model) -> list[ir.Value]:
    """The inputs that are not weights."""
    return [value for value in model.graph.inputs if value.name not in model.graph.initializers]


def graph_values(graph: ir.Graph) -> Iterator[tuple[str, ir.Value]]:
    """The values of a graph with their names, without subgraphs."""
    for value in (*graph.inputs, *graph.initializers.values()):
        yield value.name or "", value
    for node in graph:
        for output in node.outputs:
            if output.name:
                yield output.name, output


def value_names(graph: ir.Graph) -> set[str]:
    """The names of all values of a graph and its subgraphs, which ONNX requires to be different."""
    return {name for one in (graph, *graph.subgraphs()) for name, _ in graph_values(one)}


def taken_names(graph: ir.Graph) -> set[str]:
    """The names of all values and nodes of a graph and its subgraphs."""
    return value_names(graph) | {node.name or "" for node in graph.all_nodes()}


def free_name(name: str, taken: set[str]) -> str:
    """`name`, with a number at its end if it is taken. The result is added to `taken`."""
    result, number = name, 2
    while result in taken:
        result, number = f"{name}_{number}", number + 1
    taken.add(result)
    return result


class Weights(MutableMapping[str, Any]):
    """The weights and Constant nodes of a graph as a mapping from names to arrays.

    Arrays are read-only unless they are copies. Assigning to a new name adds a weight; assigning to an existing name
    replaces it, also by another shape or type. Only unused weights can be deleted.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        value = self._model.graph.initializers.get(name) or dict(graph_values(self._model.graph)).get(name)
        tensor = None if value is None else constant_tensor(value)
        if tensor is None:
            raise KeyError(name)
        try:
            array: npt.NDArray[Any] = tensor.numpy()
        except (OSError, ValueError) as error:
            raise ModelFormatError(f"weight {name!r} cannot be read: {error}") from None
        return array

    def __setitem__(self, name: str, array: npt.NDArray[Any]) -> None:
        import onnx_ir as ir

        values = dict(graph_values(self._model.graph))
        if name not in values:
            add_weight(self._model.graph, name, array)
            return
        value, tensor = values[name], tensor_of(array, name)
        if value.is_initializer():
            value.const_value = tensor
        elif (node := value.producer()) is not None and node.op_type == "Constant":
            node.attributes.clear()
            node.attributes["value"] = ir.AttrTensor("value", tensor)
        else:
            raise ConfigError(f"{name!r} is not a weight but an input or the output of a node")
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape)

    def __delitem__(self, name: str) -> None:
        value = self._model.graph.initializers.get(name)
        if value is None:
            raise KeyError(name)
        if value.uses() or value.is_graph_output():
            raise ConfigError(f"weight {name!r} is used by {[node.name for node in value.consumers()]}")
        del self._model.graph.initializers[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._model.graph.initializers
        for node in self._model.graph:
            if node.op_type == "Constant":
                yield node.outputs[0].name or ""

    def __len__(self) -> int:
        return sum(1 for _ in self)
