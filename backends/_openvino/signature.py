"""The inputs and outputs of a model in OpenVINO, the values of inputs, and how shapes of outputs follow from inputs."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import openvino as ov

from ...core.tensor_spec import TensorSpec, as_array
from ...errors import DTypeError, UnsupportedModelError
from .runtime import metadata_of, port_name, written_precision

if TYPE_CHECKING:
    from ...core.model_source import ModelSource
    from ...core.tensor import Tensor

__all__ = ["ELEMENT_TYPES", "Signature", "feed", "writable"]

#: Element types of NumPy by OpenVINO's names.
ELEMENT_TYPES = {
    "f32": "float32", "f16": "float16", "f64": "float64", "boolean": "bool",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
}  # fmt: skip

#: A dimension of an output: a size, an axis of an input with the same size, or None if only a run determines it.
_Dimension = int | tuple[str, int] | None


#: Operations that have bodies, or outputs whose shapes follow from values.
_BY_VALUES = ("If", "Loop", "TensorIterator", "NonMaxSuppression", "NonZero", "Unique")


class Signature(msgspec.Struct):
    """The declarations of a model, which the cache keeps with the compiled model.

    Attributes:
        inputs, outputs: their specs, in order.
        output_dims: the dimensions of each output.
        metadata: see `metadata_of()`.
        written: the precision that it is written in.
        fails_by_values: whether a run may fail by the values of tensors: of indices, sizes or shapes.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    output_dims: dict[str, tuple[_Dimension, ...]]
    metadata: dict[str, str]
    written: str | None
    fails_by_values: bool

    @classmethod
    def read(cls, model: Any, source: ModelSource) -> Signature:
        """Gives each free dimension of an input a symbol, which OpenVINO carries through the graph to the outputs.

        Raises:
            UnsupportedModelError: an element type that no tensor holds, or an unknown number of dimensions.
            ModelFormatError: a name that is not UTF-8.
        """
        symbols: list[tuple[Any, str, int]] = []
        for port, node in zip(model.inputs, model.get_parameters(), strict=True):
            shape = node.get_partial_shape()
            if shape.rank.is_dynamic:
                continue
            dims = list(shape)
            for axis, dim in enumerate(dims):
                if dim.is_dynamic:
                    dim.set_symbol(ov.Symbol())
                    symbols.append((dim.get_symbol(), port_name(port), axis))
            node.set_partial_shape(ov.PartialShape(dims))
        inputs = tuple(cls._spec(port, "input", source.name) for port in model.inputs)
        model.validate_nodes_and_infer_types()
        outputs = tuple(cls._spec(port, "output", source.name) for port in model.outputs)
        output_dims = {
            spec.name: tuple(_dimension(dim, symbols) for dim in port.partial_shape)
            for spec, port in zip(outputs, model.outputs, strict=True)
        }
        return cls(
            inputs, outputs, output_dims, metadata_of(model, source), written_precision(model), _fails_by_values(model)
        )

    def settle(self, compiled: Any) -> None:
        """Takes the sizes of outputs from the compiled model, where the graph leaves them open."""
        outputs = []
        for spec, port in zip(self.outputs, compiled.outputs, strict=True):
            if spec.is_dynamic and port.partial_shape.is_static:
                self.output_dims[spec.name] = tuple(port.shape)
                spec = msgspec.structs.replace(spec, shape=tuple(port.shape))  # noqa: PLW2901
            outputs.append(spec)
        self.outputs = tuple(outputs)

    def output_shapes(self, inputs: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...] | None]:
        """The shape of each output for these shapes of inputs; None if only a run determines it."""
        shapes: dict[str, tuple[int, ...] | None] = {}
        for name, declared in self.output_dims.items():
            dims = [inputs[d[0]][d[1]] if isinstance(d, tuple) else d for d in declared]
            shapes[name] = None if None in dims else tuple(d for d in dims if d is not None)
        return shapes

    def inputs_passed_on(self, compiled: Any) -> dict[str, str]:
        """The outputs that are inputs, with the names of these: both have the same names in the compiled model.

        The CPU plugin of OpenVINO 2026.4 does not write a tensor that is set for such an output, or overwrites the
        input with it. So the backend sets none, and copies the input.
        """
        return {
            output.name: source.name
            for output, port in zip(self.outputs, compiled.outputs, strict=True)
            for source, other in zip(self.inputs, compiled.inputs, strict=True)
            if port.get_names() & other.get_names()
        }

    @staticmethod
    def _spec(port: Any, side: str, model: str) -> TensorSpec:
        name, kind = port_name(port), port.element_type.get_type_name()
        # bfloat16 inputs are given as bits; outputs would be marked as float16. OpenVINO 2026.4 damages strings in
        # outputs when their number changes, and frees them twice.
        is_called = kind == "bf16" and side == "input"
        if kind not in ELEMENT_TYPES and not is_called:
            raise UnsupportedModelError(
                f"{side} {name!r} of {model} has elements of type {kind}; tensors hold {', '.join(ELEMENT_TYPES)}"
            )
        if port.partial_shape.rank.is_dynamic:
            raise UnsupportedModelError(
                f"{side} {name!r} of {model} does not say how many dimensions it has; "
                "export the model with a rank for it"
            )
        # OpenVINO forgets the names that free dimensions have in an ONNX file.
        shape = tuple(dim.get_length() if dim.is_static else None for dim in port.partial_shape)
        if is_called:
            return TensorSpec(name, np.dtype(object), shape, kind)
        return TensorSpec(name, np.dtype(ELEMENT_TYPES[kind]), shape)


def _fails_by_values(model: Any) -> bool:
    """Whether a node is one of `_BY_VALUES`, or takes integers beside its data that follow from values of the inputs,
    not from shapes alone.

    GatherElements and the Scatter operations of OpenVINO 2026.4 check their indices, TopK its count, Reshape its shape.
    """
    by_values = {node.get_name() for node in model.get_parameters()}  # nodes whose outputs follow from values
    for node in model.get_ordered_ops():
        kind, sources = node.get_type_name(), node.input_values()
        follows = [source.get_node().get_name() in by_values for source in sources]
        if kind in _BY_VALUES or any(
            follows[index] and sources[index].get_element_type().get_type_name() in ("i32", "i64")
            for index in range(1, len(sources))
        ):
            return True
        if any(follows) and kind != "ShapeOf":
            by_values.add(node.get_name())
    return False


def _dimension(dim: Any, symbols: list[tuple[Any, str, int]]) -> _Dimension:
    if dim.is_static:
        return int(dim.get_length())
    return next(((name, axis) for symbol, name, axis in symbols if symbol == dim.get_symbol()), None)


def writable(tensor: Tensor) -> Any:
    """The host side of an input, as an array that NumPy takes for writable. OpenVINO requires writable arrays for
    inputs too, and a user may bind a read-only one.
    """
    view = tensor.numpy()
    interface = view.__array_interface__
    interface["data"] = interface["data"][0], False
    return np.asarray(SimpleNamespace(__array_interface__=interface, view=view))  # keeps the memory alive


def feed(spec: TensorSpec, value: Any) -> Any:
    """The value for a request: bfloat16 as bits, since NumPy has no such type."""
    array = np.asarray(as_array(value, spec.name), order="C")
    if spec.kind == "tensor":
        return ov.Tensor(array)
    if array.dtype != np.uint16 and array.dtype.name != "bfloat16":
        raise DTypeError(
            f"input {spec.name!r} takes bfloat16, not {array.dtype}; give an array of ml_dtypes, or the bits as uint16"
        )
    spec.check(array.shape)
    return ov.Tensor(array.view(np.uint16), ov.Shape(array.shape), ov.Type.bf16)
