"""Weights and constants as NumPy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["add_weight"]


def add_weight(graph: ir.Graph, name: str, array: npt.NDArray[Any]) -> ir.Value:
    """A new weight of the graph. Its name must be free."""
    import onnx_ir as ir

    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
    graph.register_initializer(value)
    return value
