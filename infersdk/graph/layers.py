"""Exposes intermediate values of an ONNX model as outputs, for comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..core.tensor_spec import dtype_code
from ..errors import DTypeError
from .files import read_model
from .passes.name_nodes import node_names
from .shapes import infer_shapes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx_ir as ir

    from ..core.model_source import ModelLike

__all__ = ["LayerModel", "LayerValue"]

#: Values of one part: enough for speed, few enough for the memory.
_VALUES_A_RUN = 64


@dataclass(frozen=True)
class LayerValue:
    """An output of a layer: its name, and the name and operator of its node."""

    name: str
    node: str
    operator: str


class LayerModel:
    """An ONNX model whose values can be exposed.

    Args:
        model: the model file, or the model in memory.
        shapes: shapes of the inputs, which let shape inference evaluate shape arithmetic.

    Attributes:
        values: the outputs of all nodes in topological order, including the model's outputs, without constants and
            without the contents of subgraphs (`If`, `Loop`, `Scan`).
        unseen: the number of values that are excluded because they are not numeric tensors, or because shape inference
            does not find their type or rank.

    Raises:
        BackendUnavailableError, ModelFormatError: as `read_model`.
    """

    def __init__(self, model: ModelLike, shapes: Mapping[str, Sequence[int]] = MappingProxyType({})) -> None:
        self._model = read_model(model)
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

    def parts(self) -> Iterator[tuple[list[LayerValue], ir.Model]]:
        """The values in parts, each with the model that has them as its only outputs.

        The model is one object: it changes with the next part.
        """
        outputs = self._model.graph.outputs
        for start in range(0, len(self.values), _VALUES_A_RUN):
            part = self.values[start : start + _VALUES_A_RUN]
            outputs.clear()
            outputs.extend(self._exposed[value.name] for value in part)
            yield part, self._model


def _can_be_held(value: ir.Value) -> bool:
    """Whether a `Tensor` can hold the value and its rank is known."""
    import onnx_ir as ir

    if not isinstance(value.type, ir.TensorType) or value.shape is None:
        return False
    try:
        dtype_code(value.type.dtype.numpy())
    except (TypeError, DTypeError):
        return False
    return True
