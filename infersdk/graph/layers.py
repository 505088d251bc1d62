"""What flows between the layers of an ONNX model, exposed as outputs, so that it can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..dtypes import dtype_code
from ..errors import DTypeError
from .files import read_model, write_model
from .passes.name_nodes import node_names
from .shapes import infer_shapes

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx_ir as ir

__all__ = ["LayerModel", "LayerValue"]

#: Weights beyond this many bytes go to a file of their own: protobuf's limit, less what the rest of a graph needs.
_WEIGHTS_IN_ONE_FILE = 2**31 - 2**27


@dataclass(frozen=True)
class LayerValue:
    """A result of a layer: its own name, and the name and operator of the node that computes it."""

    name: str
    node: str
    operator: str


class LayerModel:
    """An ONNX model whose values can be exposed.

    Args:
        path: the model file.
        shapes: of the inputs, in the runs to come. They let shape inference see through what is computed from them.

    Attributes:
        values: the results of all nodes in topological order, the model's outputs among them. Constants are left out,
            and so is what a subgraph (of `If`, `Loop`, `Scan`) computes within.
        unseen: how many values are left out because they are not tensors of numbers, or shape inference cannot find
            their type or their number of dimensions.

    Raises:
        BackendUnavailableError, ModelFormatError: as `read_model`.
    """

    def __init__(
        self, path: str | os.PathLike[str], shapes: Mapping[str, Sequence[int]] = MappingProxyType({})
    ) -> None:
        self._model = read_model(path)
        infer_shapes(self._model, shapes)
        self._exposed: dict[str, ir.Value] = {}
        self.values: list[LayerValue] = []
        self.unseen = 0
        for node, name in zip(self._model.graph, node_names(self._model.graph), strict=True):
            if node.op_type == "Constant":
                continue
            for output in node.outputs:
                if output.name and _can_be_held(output):
                    self._exposed[output.name] = output
                    self.values.append(LayerValue(output.name, name, node.op_type))
                elif output.name:
                    self.unseen += 1

    def expose(self, values: Sequence[LayerValue], path: Path) -> Path:
        """Writes the model to `path` with `values` as its only outputs, in their order; returns `path`."""
        graph = self._model.graph
        graph.outputs.clear()
        graph.outputs.extend(self._exposed[value.name] for value in values)
        tensors = [value.const_value for value in graph.initializers.values()]
        large = sum(tensor.nbytes for tensor in tensors if tensor is not None) > _WEIGHTS_IN_ONE_FILE
        return write_model(self._model, path, external_data=f"{path.name}.data" if large else None)


def _can_be_held(value: ir.Value) -> bool:
    """Whether a tensor of this package can hold the value, and its number of dimensions is known."""
    import onnx_ir as ir

    if not isinstance(value.type, ir.TensorType) or value.shape is None:
        return False
    try:
        dtype_code(value.type.dtype.numpy())
    except (TypeError, DTypeError):
        return False
    return True
