"""Registers custom operators with ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core._lib import check, ffi, lib, library_path

if TYPE_CHECKING:
    from ..core.device import Device
    from .operator_set import OperatorSet

__all__ = ["register_operators"]


def register_operators(session_options: Any, ops: OperatorSet, device: Device) -> None:
    """Registers operators, with all their signatures, with `onnxruntime.SessionOptions`.

    The native core registers the operators that this thread offered last, through ONNX Runtime's C API
    (native/src/custom_ops_ort.c).

    Raises:
        CustomOpError: an operator has no kernel for the device, or the kernel cannot be compiled or loaded.
    """
    wanted = sorted(ops, key=lambda op: op.domain)
    from .native import native_op

    handles = [native_op(op, signature, device).handle for op in wanted for signature in op.signatures()]
    offered = ffi.new("ifs_custom_op *[]", handles)
    check(lib.ifs_custom_offer_to_ort(offered, len(handles)))
    session_options.register_custom_ops_library(library_path())
