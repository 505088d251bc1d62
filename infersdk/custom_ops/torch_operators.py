"""Custom operators in PyTorch, with `torch.library` and both ONNX exporters.

::

    hard_swish = torch_operator(HardSwish)
    y = hard_swish(x, alpha=0.2)                       # in a module's forward()

    torch.onnx.export(module, (x,), "model.onnx", dynamo=True, custom_translation_table=translation_table(HardSwish))
    torch.onnx.export(module, (x,), "model.onnx", dynamo=False, custom_opsets=opset_versions(HardSwish))

Both exporters write one node with all attributes.
"""

from __future__ import annotations

import functools
import importlib
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any

from ..core.device import Device
from ..errors import CustomOpError
from .native import Node, native_op
from .onnx_schema import onnx_schema
from .shapes import compute, evaluate

if TYPE_CHECKING:
    from .attributes import Attribute
    from .declaration import CustomOp, Signature

__all__ = ["opset_versions", "torch_operator", "translation_table"]

#: The types in torch schemas.
_TYPES = {
    "int": "int", "bool": "bool", "float": "float", "str": "str", "tuple[int, ...]": "int[]",
    "tuple[float, ...]": "float[]",
}  # fmt: skip

#: The kinds of attributes in the TorchScript exporter.
_DESCRIPTORS = {"INT": "i", "FLOAT": "f", "STRING": "s", "INTS": "is", "FLOATS": "fs"}

#: The operators by their names in torch, with its functions and libraries. It removes those of a library that is freed.
_made: dict[str, tuple[type[CustomOp], Any, Any]] = {}
_guard = threading.Lock()


def torch_operator(op: type[CustomOp]) -> Any:
    """The operator as a function of tensors, with attributes as keyword arguments. Several outputs are a tuple.

    It supports the devices for which the operator has kernels, and meta and fake tensors. It has no gradient. PyTorch
    has no default of inf or nan: such an attribute must be given. A new class replaces an earlier one with the same
    name.

    Raises:
        CustomOpError: PyTorch is not installed, or does not take the name of an input or an attribute.
    """
    with _guard:
        return _operator(op)


def translation_table(*ops: type[CustomOp]) -> dict[Callable[..., Any], Callable[..., Any]]:
    """The `custom_translation_table` for `torch.onnx.export(dynamo=True)`."""
    return {torch_operator(op): _translation(op) for op in ops}


def opset_versions(*ops: type[CustomOp]) -> dict[str, int]:
    """The `custom_opsets` for `torch.onnx.export(dynamo=False)`: the version of each domain."""
    versions: dict[str, int] = {}
    for op in ops:
        torch_operator(op)
        versions[op.domain] = max(op.version, versions.get(op.domain, 1))
    return versions


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError:
        raise CustomOpError(
            "custom operators in PyTorch need torch, which is not installed: pip install torch"
        ) from None


def _namespace(op: type[CustomOp]) -> str:
    """The torch namespace of an operator, which has no dots."""
    return op.domain.replace(".", "_")


def _operator(op: type[CustomOp]) -> Any:
    torch = _torch()

    name = f"{_namespace(op)}::{op.name}"
    if name in _made:
        known, made, library = _made[name]
        if known is op:
            return made
        if known.domain != op.domain:
            raise CustomOpError(
                f"operators {known.title()} and {op.title()} are both {name} in PyTorch, whose names have no dots; "
                "rename one"
            )
        del _made[name]
        library._destroy()
    library = torch.library.Library(_namespace(op), "FRAGMENT")
    try:
        library.define(f"{op.name}{_schema(op)}")
    except RuntimeError as error:  # an input named `in`, for example
        said = str(error).partition("\n")[0].rstrip(":")
        remedy = "; use other names" if said.startswith("expected") else ""
        raise CustomOpError(f"operator {op.title()}: PyTorch does not take {_schema(op)!r}: {said}{remedy}") from error
    # Without inputs there is no tensor whose device PyTorch could choose a kernel by.
    for device, key in (("cpu", "CPU"), ("cuda", "CUDA")) if op.inputs else (("cpu", "CompositeExplicitAutograd"),):
        if getattr(op, device) is not None:
            library.impl(op.name, functools.partial(_run, op), key)
    torch.library.register_fake(name, functools.partial(_fake, op), lib=library)
    torch.onnx.register_custom_op_symbolic(name, functools.partial(_symbolic, op), 9)
    made = getattr(getattr(torch.ops, _namespace(op)), op.name).default
    _made[name] = op, made, library
    return made


def _schema(op: type[CustomOp]) -> str:
    tensors = [f"Tensor {name}" for name in op.inputs]
    keywords = [_keyword(attribute) for attribute in op.attributes]
    arguments = [*tensors, *(["*", *keywords] if keywords else [])]
    results = ", ".join("Tensor" for _ in op.outputs)
    return f"({', '.join(arguments)}) -> {results if len(op.outputs) == 1 else f'({results})'}"


def _keyword(attribute: Attribute) -> str:
    text = f"{_TYPES[attribute.type]} {attribute.name}"
    values = attribute.default if isinstance(attribute.default, tuple) else (attribute.default,)
    if any(value is MISSING or (isinstance(value, float) and not math.isfinite(value)) for value in values):
        return text
    default = list(attribute.default) if isinstance(attribute.default, tuple) else attribute.default
    return f"{text}={default!r}"


# ---- running ----


def _run(op: type[CustomOp], *tensors: Any, **attributes: Any) -> Any:
    """Runs the kernel on the processor, or on the current stream of a GPU."""
    torch = _torch()
    given = [tensor.contiguous() for tensor in tensors]
    signature = op.signature_for([_dtype_name(tensor.dtype) for tensor in given])
    at = _device(op, given)
    device = Device(at.type, at.index or 0)
    node = _node(op.of(attributes), signature, device)
    shapes = node.shapes([tuple(tensor.shape) for tensor in given])
    made = [
        torch.empty(shape, dtype=getattr(torch, dtype), device=at)
        for shape, dtype in zip(shapes, signature.outputs, strict=True)
    ]
    if device.ordinal < 0:
        node.run_arrays([tensor.numpy(force=True) for tensor in given], [tensor.numpy() for tensor in made])
    else:
        inputs, outputs = ([(tensor.data_ptr(), tuple(tensor.shape)) for tensor in side] for side in (given, made))
        node.run(inputs, outputs, torch.cuda.current_stream(at).cuda_stream)
    return made[0] if len(made) == 1 else tuple(made)


@functools.lru_cache(maxsize=256)
def _node(op: CustomOp, signature: Signature, device: Device) -> Node:
    return Node(op, native_op(type(op), signature, device), "torch")


def _device(op: type[CustomOp], tensors: Sequence[Any]) -> Any:
    """The device of all tensors; the processor without any."""
    first, *others = {tensor.device for tensor in tensors} or {_torch().device("cpu")}
    if others:
        devices = ", ".join(str(tensor.device) for tensor in tensors)
        raise CustomOpError(f"operator {op.title()}: its inputs are on {devices}; move them to one device")
    return first


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _apply(operation: str, left: Any, right: Any) -> Any:
    """Computes with torch's symbolic integers."""
    torch = _torch()
    if operation == "ceil_div":
        return (left + right - 1) // right
    if operation in ("min", "max"):
        return (torch.sym_min if operation == "min" else torch.sym_max)(left, right)
    return compute(operation, left, right)


def _fake(op: type[CustomOp], *tensors: Any, **attributes: Any) -> Any:
    """Creates outputs of the right shapes and types without values."""
    torch = _torch()
    signature = op.signature_for([_dtype_name(tensor.dtype) for tensor in tensors])
    inputs = [tuple(tensor.shape) for tensor in tensors]
    rule = op.of(attributes).rule([len(shape) for shape in inputs])
    for size, wanted, what in rule.checks:
        torch._check(
            evaluate(size, inputs, _apply) == evaluate(wanted, inputs, _apply),
            lambda what=what: f"operator {op.title()}: {what}",
        )
    device = _device(op, tensors)
    made = [
        torch.empty([evaluate(size, inputs, _apply) for size in shape], dtype=getattr(torch, dtype), device=device)
        for shape, dtype in zip(rule.outputs, signature.outputs, strict=True)
    ]
    return made[0] if len(made) == 1 else tuple(made)


# ---- exporting ----


def _translation(op: type[CustomOp]) -> Callable[..., Any]:
    """The translation for the dynamo exporter: one node with all attributes."""
    from onnxscript import values

    make = values.Op(values.Opset(op.domain, op.version), op.name, onnx_schema(op))

    def translate(*inputs: Any, **attributes: Any) -> Any:
        return make(*inputs, **op.of(attributes).values())

    return translate


def _symbolic(op: type[CustomOp], graph: Any, *arguments: Any) -> Any:
    """Writes the node for the TorchScript exporter. Arguments are in the order of the schema."""
    helper = importlib.import_module("torch.onnx").symbolic_helper
    inputs, rest = arguments[: len(op.inputs)], arguments[len(op.inputs) :]
    values = {
        attribute.name: helper._get_const(value, _DESCRIPTORS[attribute.onnx_kind], attribute.name)
        for attribute, value in zip(op.attributes, rest, strict=True)
    }
    typed = {f"{a.name}_{_DESCRIPTORS[a.onnx_kind][0]}": _plain(op.of(values).values()[a.name]) for a in op.attributes}
    return graph.op(f"{op.domain}::{op.name}", *inputs, outputs=len(op.outputs), **typed)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else int(value) if isinstance(value, bool) else value
