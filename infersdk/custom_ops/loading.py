"""Loads models with custom operators: on ONNX Runtime, on another backend, or divided at the operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..core._lib import ffi, lib, library_path
from ..errors import ModelError
from .onnx_schema import registered
from .operator_set import explain, operators_for

if TYPE_CHECKING:
    from ..core.device import Device
    from ..core.model_source import ModelSource
    from ..infer import Infer
    from .declaration import CustomOp
    from .operator_set import OperatorSet

__all__ = ["register_operators", "with_custom_ops"]


def with_custom_ops(
    kind: type[Infer], source: ModelSource, device: Device, custom_ops: Sequence[type[CustomOp]] | None, *, cut: bool
) -> Callable[..., Infer]:
    """A factory for the `Infer` of a model: the class of the backend, or `CutInfer`."""
    ops = operators_for(source, custom_ops)
    if ops is not None:
        for op in ops.values():
            op.kernel_for(device.kind)
        cut = cut or not _runs_whole(kind, ops, device)

    def make(model: ModelSource, **arguments: Any) -> Infer:
        try:
            with registered(*(ops or {}).values()):  # passes need the type constraints of operators
                if ops is not None and cut:
                    from .cut_infer import CutInfer

                    return CutInfer(model, kind, **arguments, custom_ops=ops)
                return kind(model, **arguments, custom_ops=ops)
        except ModelError as error:
            raise explain(source, ops, error) from error.__cause__

    return make


def _runs_whole(kind: type[Infer], ops: OperatorSet, device: Device) -> bool:
    """Whether the runtime itself runs a model with these operators.

    ONNX Runtime identifies some operators by their names alone, in any domain: a custom `Mul` of one input aborts the
    process. It does not infer the types of custom operators in functions of the model. OpenVINO reads no functions.
    """
    from onnx import defs

    if ops.in_functions or (kind.backend == "onnxruntime" and any(defs.has(name) for _, name in ops)):
        return False
    return kind.declaration.runs_custom_ops(device)


def register_operators(session_options: Any, ops: OperatorSet, device: Device) -> None:
    """Registers operators, with all their signatures, with `onnxruntime.SessionOptions`.

    The native core registers the operators that this thread offered last, through ONNX Runtime's C API
    (native/src/custom_ops_ort.c).
    """
    wanted = sorted(ops.values(), key=lambda op: op.domain)
    from .native import native_op

    handles = [native_op(op, signature, device).handle for op in wanted for signature in op.signatures()]
    offered = ffi.new("ifs_custom_op *[]", handles)
    lib.ifs_custom_offer_to_ort(offered, len(handles))
    try:
        session_options.register_custom_ops_library(library_path())
    finally:
        lib.ifs_custom_offer_to_ort(ffi.NULL, 0)  # nothing keeps the array after this call
