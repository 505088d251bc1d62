"""ONNX schemas of custom operators, for the checker, shape inference and other ONNX tools."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Iterable, Iterator
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import CustomOpError
from .failures import note
from .shapes import evaluate

if TYPE_CHECKING:
    from .declaration import CustomOp

__all__ = ["deregister", "onnx_schema", "register", "registered"]

#: The registered operators with the number of active `registered()` blocks; infinity after `register()`.
_registered: dict[tuple[str, str, int], tuple[type[CustomOp], float]] = {}
_guard = threading.Lock()


def register(*ops: type[CustomOp]) -> None:
    """Registers operators with the `onnx` package of this process, for its checker and shape inference.

    `infersdk.load()` does not need this. An operator replaces an earlier one with the same domain, name and version,
    for example in a notebook.

    Raises:
        CustomOpError: another package has registered an operator with that domain, name and version.
    """
    with _guard:
        for op in ops:
            _add(op)
            _registered[_key(op)] = (op, math.inf)


def deregister(*ops: type[CustomOp]) -> None:
    """Removes operators that `register` has added."""
    with _guard:
        for op in ops:
            if _key(op) in _registered:
                _remove(op)


@contextlib.contextmanager
def registered(*ops: type[CustomOp]) -> Iterator[None]:
    """Registers operators with the `onnx` package for a `with` block."""
    with _guard:
        for op in ops:
            _add(op)
            _, count = _registered.get(_key(op), (op, 0))
            _registered[_key(op)] = (op, count + 1)
    try:
        yield
    finally:
        with _guard:
            for op in ops:
                known, count = _registered.get(_key(op), (None, 0))
                if known is op and count == 1:
                    _remove(op)
                elif known is op:
                    _registered[_key(op)] = (op, count - 1)


def _key(op: type[CustomOp]) -> tuple[str, str, int]:
    return op.domain, op.name, op.version


def _add(op: type[CustomOp]) -> None:
    from onnx import defs

    known, schema = _registered.get(_key(op)), (op.name, op.version, op.domain)
    if known is not None:
        if known[0] is op:
            return
        _remove(known[0])
    elif defs.has(*schema) and defs.get_schema(*schema).since_version == op.version:
        raise CustomOpError(
            f"operator {op.title()}: the onnx package already has a schema with that name and version {op.version}; "
            "use another domain or name"
        )
    defs.register_schema(onnx_schema(op))


def _remove(op: type[CustomOp]) -> None:
    from onnx import defs

    defs.deregister_schema(op.name, op.version, op.domain)
    del _registered[_key(op)]


def onnx_schema(op: type[CustomOp]) -> Any:
    """The `onnx.defs.OpSchema` of an operator, with type and shape inference."""
    from onnx import defs

    def parameters(tensors: Iterable[tuple[str, str]]) -> list[Any]:
        return [
            defs.OpSchema.FormalParameter(name, kind if kind in op.types else _type_text(kind))
            for name, kind in tensors
        ]

    schema = defs.OpSchema(
        op.name,
        op.domain,
        op.version,
        doc=(op.__doc__ or "").strip(),
        inputs=parameters(op.inputs.items()),
        outputs=parameters(op.outputs.items()),
        type_constraints=[(name, [_type_text(kind) for kind in kinds], "") for name, kinds in op.types.items()],
        attributes=[_schema_attribute(attribute) for attribute in op.attributes],
    )
    schema.set_type_and_shape_inference_function(functools.partial(_infer, op))
    return schema


def _type_text(dtype: str) -> str:
    """The ONNX name of a tensor type, such as `tensor(float)`."""
    name = {"float32": "float", "float64": "double"}.get(dtype, dtype)
    return f"tensor({name})"


def _schema_attribute(attribute: Any) -> Any:
    from onnx import defs, helper

    kind = getattr(defs.OpSchema.AttrType, attribute.onnx_kind)
    if attribute.default is MISSING:
        return defs.OpSchema.Attribute(attribute.name, kind, required=True)
    value = int(attribute.default) if attribute.type == "bool" else attribute.default
    return defs.OpSchema.Attribute(attribute.name, helper.make_attribute(attribute.name, value, attr_type=kind.value))


# ---- types and shapes ----


def _infer(op: type[CustomOp], context: Any) -> None:
    """The inference function of a schema, which sets the output types and known shapes."""
    try:
        _set_outputs(op, context)
    except CustomOpError as error:
        raise ValueError(f"{error}{note(error)}") from error


def _set_outputs(op: type[CustomOp], context: Any) -> None:
    from onnx import helper

    given = [context.get_input_type(i).tensor_type for i in range(context.get_num_inputs())]
    signature = op.signature_for([str(helper.tensor_dtype_to_np_dtype(kind.elem_type)) for kind in given])
    shapes: list[list[Any]] | None = None
    if all(kind.HasField("shape") for kind in given):
        inputs = [
            [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in kind.shape.dim]
            for kind in given
        ]
        shapes = _output_shapes(_instance(op, context), inputs)
    for index, dtype in enumerate(signature.outputs):
        code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        context.set_output_type(index, helper.make_tensor_type_proto(code, None if shapes is None else shapes[index]))


def _output_shapes(op: CustomOp, inputs: list[list[Any]]) -> list[list[Any]]:
    """The output shapes for inputs with sizes that are ints, names of dimensions or None."""
    rule = op.rule([len(shape) for shape in inputs])
    for size, wanted, what in rule.checks:
        one, other = evaluate(size, inputs), evaluate(wanted, inputs)
        if isinstance(one, int) and isinstance(other, int) and one != other:
            raise CustomOpError(f"operator {op.title()}: {what}: it is {one}, not {other}")
    shapes = [[evaluate(size, inputs) for size in shape] for shape in rule.outputs]
    for index, shape in enumerate(shapes):
        if wrong := [size for size in shape if isinstance(size, int) and size < 0]:
            raise CustomOpError(f"operator {op.title()}: shape() gives output {index} the size {wrong[0]}")
    return shapes


def _instance(op: type[CustomOp], context: Any) -> CustomOp:
    from onnx import helper

    given = [context.get_attribute(attribute.name) for attribute in op.attributes]
    return op.of({proto.name: helper.get_attribute_value(proto) for proto in given if proto is not None and proto.name})
