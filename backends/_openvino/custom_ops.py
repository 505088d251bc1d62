"""Custom operators on OpenVINO.

OpenVINO calls an operator in Python with the interpreter's lock. A C kernel releases the lock while it runs. Each model
is read by a separate core, so that models do not share their operators.
"""

from __future__ import annotations

import functools
import json
import re
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import openvino as ov
from openvino.frontend.onnx import ConversionExtension

from ...core.device import Device
from ...custom_ops.failures import kernel_failure, note
from ...custom_ops.native import Node, native_op
from ...custom_ops.operator_set import all_nodes
from ...custom_ops.shapes import evaluate
from ...errors import CustomKernelError, CustomOpError, InferSDKError, ShapeError
from ...graph.files import read_model
from .runtime import new_core
from .signature import ELEMENT_TYPES

if TYPE_CHECKING:
    from ...core.model_source import ModelSource
    from ...custom_ops.declaration import CustomOp, Signature
    from ...custom_ops.operator_set import OperatorSet

__all__ = ["core_with", "raise_kernel_failure"]

#: OpenVINO's names of element types.
_TYPES = {ours: theirs for theirs, ours in ELEMENT_TYPES.items()}
#: The attribute that OpenVINO keeps of a node.
_STATE = "infersdk"


def core_with(ops: OperatorSet) -> Any:
    """A core that reads ONNX models with these operators, and caches of them."""
    core = new_core()
    for op in ops.values():
        core.add_extension(ConversionExtension(op.name, op.domain, functools.partial(_converted, op)))
        core.add_extension(_class_for(op))
    return core


def raise_kernel_failure(error: BaseException, model: ModelSource) -> None:
    """Raises the failure of a custom operator, if OpenVINO's exception reports one.

    OpenVINO calls a node by the name of the model's output that it produces; the raised failure has the node's name.
    """
    failure = kernel_failure(error)
    if failure is None:
        return
    match = re.search(r", node (.+?): ", str(failure))
    if match is not None and isinstance(failure, CustomKernelError) and model.is_onnx:
        for node in all_nodes(read_model(model)):
            if node.name and any(output.name == match[1] for output in node.outputs):
                named = str(failure).replace(match[0], f", node {node.name}: ", 1)
                raise CustomKernelError(named) from failure.__cause__
    raise failure from failure.__cause__


def _converted(op: type[CustomOp], context: Any) -> Any:
    """The operator for a node of an ONNX file."""
    names = [attribute.name for attribute in op.attributes if context.has_attribute(attribute.name)]
    values = {name: context.get_attribute(name) for name in names}
    inputs = [context.get_input(index) for index in range(context.get_input_size())]
    return _class_for(op)(inputs, op.of(values)).outputs()


_classes: dict[type[CustomOp], type[_OpenVinoOp]] = {}


def _class_for(op: type[CustomOp]) -> type[_OpenVinoOp]:
    # OpenVINO writes this name to its caches.
    name = f"{op.domain}.{op.name}".replace(".", "_")
    return _classes.setdefault(op, type(name, (_OpenVinoOp,), {"declared": op}))


class _OpenVinoOp(ov.Op):  # type: ignore[misc]
    """The base of the classes that OpenVINO has of operators.

    Plugins compute in fewer types than models have: the CPU plugin converts float16 and float64 to float32, and most
    integers to int32. Values are converted, so that the kernel gets the types of the model.
    """

    declared: ClassVar[type[CustomOp]]

    def __init__(
        self, inputs: Sequence[Any] | None = None, op: CustomOp | None = None, signature: Signature | None = None
    ) -> None:
        super().__init__(self)
        #: None after reading from a cache, until `visit_attributes()` sets the attributes.
        self._op = op
        #: The types of the model; None until the first inputs are known.
        self._signature = signature
        self._node: Any = lambda: None  # a weak reference: OpenVINO never frees an operator in Python
        if inputs is not None:
            self.set_arguments(inputs)
            self.constructor_validate_and_infer_types()

    def clone_with_new_inputs(self, inputs: Sequence[Any]) -> _OpenVinoOp:
        return type(self)(inputs, self._op, self._signature)

    def visit_attributes(self, visitor: Any) -> bool:
        """Gives OpenVINO the attributes. When it reads a cache, it writes them to the dict instead.

        They are one text, since OpenVINO does not keep all types of attributes.
        """
        state = ""
        if self._op is not None:  # OpenVINO's caches depend on the version and the types, too
            inputs = self._signature.inputs if self._signature is not None else ()
            state = json.dumps((self.declared.version, inputs, self._op.values()))  # which keeps infinity and NaN apart
        attributes = {_STATE: state}
        visitor.on_attributes(attributes)
        if self._op is None:
            _, inputs, values = json.loads(attributes[_STATE])
            self._signature = self.declared.signature_for(inputs)
            self._op = self.declared.of(values)
        return True

    def validate_and_infer_types(self) -> None:
        _marked(self._set_outputs)

    def _set_outputs(self) -> None:
        count = self.get_input_size()
        types = [_dtype(self.get_input_element_type(i)) for i in range(count)]
        if self._signature is None:
            self._signature = self.declared.signature_for(types)
        converted = dict(zip(self._signature.inputs, types, strict=True))
        dims = self._output_dims([self.get_input_partial_shape(i) for i in range(count)])
        for index, dtype in enumerate(self._signature.outputs):
            shape = ov.PartialShape.dynamic() if dims is None else ov.PartialShape(dims[index])
            self.set_output_type(index, getattr(ov.Type, _TYPES[converted.get(dtype, dtype)]), shape)

    def _output_dims(self, shapes: Sequence[Any]) -> list[list[Any]] | None:
        """The outputs' dimensions; None where the rank of an input is unknown."""
        if self._op is None or any(shape.rank.is_dynamic for shape in shapes):
            return None
        inputs = [[dim.get_length() if dim.is_static else dim for dim in shape] for shape in shapes]
        try:
            rule = self._op.rule([len(shape) for shape in inputs])
            result = [[evaluate(size, inputs) for size in shape] for shape in rule.outputs]
        except (CustomOpError, ShapeError) as error:
            text = str(error).removeprefix(f"operator {self.declared.title()}: ")
            where = f"operator {self.declared.title()}, node {self.get_friendly_name()}"
            raise type(error)(f"{where}: {text}") from error
        return [[_dimension(dim) for dim in shape] for shape in result]

    def has_evaluate(self) -> bool:
        return True

    def evaluate(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> bool:
        """Runs the kernel. OpenVINO calls it with the interpreter's lock."""
        _marked(lambda: self._run(outputs, inputs))
        return True

    def _run(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        node = self._node() or self._find_node()
        native = node.native
        arrays = [_as(tensor.data, dtype) for tensor, dtype in zip(inputs, native.inputs, strict=True)]
        for tensor, shape in zip(outputs, node.shapes([array.shape for array in arrays]), strict=True):
            tensor.shape = shape
        buffers = [tensor.data for tensor in outputs]
        results = [
            buffer if buffer.dtype == dtype else np.empty(buffer.shape, dtype)
            for buffer, dtype in zip(buffers, native.outputs, strict=True)
        ]
        node.run_arrays(arrays, results)
        for buffer, result in zip(buffers, results, strict=True):
            if buffer is not result:
                buffer[...] = result

    def _find_node(self) -> Node:
        assert self._op is not None
        assert self._signature is not None
        node = _make_node(self._op, self._signature, self.get_friendly_name())
        self._node = weakref.ref(node)
        return node


@functools.lru_cache(maxsize=512)
def _make_node(op: CustomOp, signature: Signature, name: str) -> Node:
    """A node; nodes with equal attributes are one, also of different models."""
    return Node(op, native_op(type(op), signature, Device.parse("cpu")), name)


def _dtype(kind: Any) -> str:
    name = str(kind.get_type_name())
    return ELEMENT_TYPES.get(name, name)


def _as(array: Any, dtype: Any) -> Any:
    return array if array.dtype == dtype else array.astype(dtype)


def _dimension(dim: Any) -> Any:
    """A dimension of an output: known, OpenVINO's own, or unknown."""
    return ov.Dimension.dynamic() if dim is None else ov.Dimension(dim) if isinstance(dim, int) else dim


def _marked(work: Any) -> Any:
    """OpenVINO keeps only the text of an exception. A mark in the text identifies the exception."""
    try:
        return work()
    except (InferSDKError, KeyboardInterrupt, SystemExit) as error:
        raise RuntimeError(f"{error}{note(error)}") from error
