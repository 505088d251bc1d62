"""Rewrites weights to forms that more runtimes support or run faster."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import UnsupportedModelError
from ..shapes import ShapeTrace
from ..weights import data_inputs, repeated
from ._sizes import lift_constants, shapes_of
from .base import Pass

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["NarrowIndices", "ShrinkConstants", "WeightsOffInputs", "repeated_constants", "wide_indices"]

#: The input of an operator that contains int32 or int64 indices.
_INDICES = {"Gather": 1, "GatherElements": 1, "ScatterElements": 1}
_INT32 = np.iinfo(np.int32)
#: Operators that broadcast.
_BROADCASTING = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Where", "Min", "Max", "Equal", "Less", "Greater"})
#: Smaller constants are not changed.
_MIN_ELEMENTS = 256


@dataclass(frozen=True)
class NarrowIndices(Pass):
    """Converts constant int64 indices to int32 if the operator supports both."""

    name: ClassVar[str] = "narrow-indices"
    version: ClassVar[int] = 1

    def apply(self, model: ir.Model) -> bool:
        import onnx_ir as ir

        lift_constants(model)
        result = wide_indices(model)
        for value in result:
            assert value.const_value is not None
            tensor = ir.tensor(value.const_value.numpy().astype(np.int32), name=value.name)
            value.const_value, value.type = tensor, ir.TensorType(tensor.dtype)
        return bool(result)


def wide_indices(model: ir.Model) -> list[ir.Value]:
    """The int64 weights that are used only as indices and fit int32."""
    result = []
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.dtype.name != "INT64" or value.is_graph_input() or value.is_graph_output():
            continue
        uses = value.uses()
        if uses and all(_INDICES.get(use.node.op_type) == use.idx and not use.node.domain for use in uses):
            array = tensor.numpy()
            if array.size and array.min() >= _INT32.min and array.max() <= _INT32.max:
                result.append(value)
    return result


@dataclass(frozen=True)
class ShrinkConstants(Pass):
    """Removes repetition along axes of constants: an anchor grid [1, 3, 80, 80, 2] becomes [1, 3, 1, 1, 2]."""

    name: ClassVar[str] = "shrink-constants"
    version: ClassVar[int] = 3

    def apply(self, model: ir.Model) -> bool:
        import onnx_ir as ir

        lift_constants(model)
        result = repeated_constants(model)
        for value, array in result:
            tensor = ir.tensor(np.ascontiguousarray(array), name=value.name)
            value.const_value, value.shape = tensor, ir.Shape(array.shape)
        return bool(result)


def repeated_constants(model: ir.Model) -> list[tuple[ir.Value, npt.NDArray[Any]]]:
    """The weights that repeat along some axes, with the shorter arrays.

    Their users broadcast the shorter array, since another input has the full size for all sizes of free axes. No weight
    is known to do so if an input of the model has no declared shape.
    """
    if any(value.shape is None for value in data_inputs(model)):
        return []
    traces = [ShapeTrace(model, shapes_of(model, batch, size)) for batch, size in ((1, 640), (2, 320))]
    for node in model.graph:
        for trace in traces:
            with contextlib.suppress(UnsupportedModelError):  # the example of a free axis does not fit
                trace.step(node)
    result = []
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.size < _MIN_ELEMENTS or value.is_graph_input() or value.is_graph_output():
            continue
        axes = set(range(len(tensor.shape)))
        for use in value.uses():
            axes &= _free_axes(use.node, value, traces[0]) & _free_axes(use.node, value, traces[1])
        if not axes:
            continue
        array = tensor.numpy()
        for axis in sorted(axes):
            if array.shape[axis] > 1 and (first := repeated(array, axis)) is not None:
                array = first
        if array.size < tensor.size:
            result.append((value, array))
    return result


def _free_axes(node: ir.Node, value: ir.Value, trace: ShapeTrace) -> set[int]:
    """The axes of a weight along which another input of the node has the same size. Weights may shrink as well, and do
    not count.
    """
    shape = trace.shapes[value]
    free: set[int] = set()
    if node.op_type not in _BROADCASTING or node.domain:
        return free
    for other in node.inputs:
        sizes = trace.shapes.get(other) if other is not None and not other.is_initializer() else None
        if sizes is None:
            continue
        lead = len(sizes) - len(shape)
        free |= {axis for axis, size in enumerate(shape) if lead + axis >= 0 and sizes[lead + axis] == size}
    return free


@dataclass(frozen=True)
class WeightsOffInputs(Pass):
    """Removes weights from the inputs, as IR version 3 has them. Runtimes do not fold weights that are inputs."""

    name: ClassVar[str] = "weights-off-inputs"
    version: ClassVar[int] = 1

    def apply(self, model: ir.Model) -> bool:
        from onnx_ir.passes.common import RemoveInitializersFromInputsPass

        changed = bool(RemoveInitializersFromInputsPass()(model).modified)
        if changed and (model.ir_version or 0) < 4:
            model.ir_version = 4  # the first version that allows weights that are not inputs
        return changed
