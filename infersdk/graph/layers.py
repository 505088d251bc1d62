"""What flows between the layers of an ONNX model, exposed as outputs, so that it can be looked at."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..errors import DTypeError
from ..tensor import dtype_code
from .info import load_onnx

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["LayerModel", "LayerValue"]

_LARGEST_FILE = 2**31 - 1  # what protobuf puts into one message


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
        unseen: how many values are left out because they are no tensors of numbers, or shape inference cannot tell
            their type or their number of dimensions.

    Raises:
        BackendUnavailableError, ModelFormatError: as `load_onnx`.
    """

    def __init__(
        self, path: str | os.PathLike[str], shapes: Mapping[str, Sequence[int]] = MappingProxyType({})
    ) -> None:
        self._model = load_onnx(path)
        # Inferred from a copy without external weights, which need not fit one message.
        skeleton = load_onnx(path, external_data=False)
        for value in skeleton.graph.input:
            for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
                dim.dim_value = size
        known = {value.name: value for value in _infer(skeleton) if _can_be_held(value)}
        self._exposed: dict[str, Any] = {}
        self.values: list[LayerValue] = []
        self.unseen = 0
        for index, node in enumerate(self._model.graph.node):
            if node.op_type == "Constant":
                continue
            for name in filter(None, node.output):
                if name in known:
                    self._exposed[name] = known[name]
                    self.values.append(LayerValue(name, node.name or f"{node.op_type}_{index}", node.op_type))
                else:
                    self.unseen += 1

    def expose(self, values: Sequence[LayerValue], path: Path) -> Path:
        """Writes the model to `path` with `values` as its only outputs, in their order; returns `path`."""
        import onnx

        del self._model.graph.output[:]
        self._model.graph.output.extend(self._exposed[value.name] for value in values)
        large = self._model.ByteSize() > _LARGEST_FILE
        onnx.save_model(self._model, str(path), save_as_external_data=large)
        return path


def _infer(model: Any) -> list[Any]:
    """What shape inference knows of the values of a graph.

    ONNX's own gives up at a Reshape to a computed shape. How many dimensions come out is often known all the same, by
    the length of that shape. So it is told, and goes on from there.
    """
    import onnx

    told: dict[str, Any] = {}
    while True:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
        values = {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}
        before = len(told)
        for node in graph.node:
            if node.op_type != "Reshape" or len(node.input) < 2 or node.output[0] in told:
                continue
            result, target = values.get(node.output[0]), values.get(node.input[1])
            if result is None or target is None or result.type.tensor_type.HasField("shape"):
                continue
            length = target.type.tensor_type.shape.dim
            if len(length) == 1 and length[0].HasField("dim_value"):
                kind, rank = result.type.tensor_type.elem_type, length[0].dim_value
                told[result.name] = onnx.helper.make_tensor_value_info(result.name, kind, [None] * rank)
        if len(told) == before:
            return [*graph.value_info, *graph.output]
        model.graph.value_info.extend(list(told.values())[before:])


def _can_be_held(value: Any) -> bool:
    import onnx

    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        return False
    try:
        dtype_code(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    except (KeyError, DTypeError):
        return False
    return True
