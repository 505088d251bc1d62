"""Loads models with custom operators, either directly on a backend or divided at the operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ModelError
from .onnx_schema import registered
from .operator_set import explain, operators_for

if TYPE_CHECKING:
    from ..core.device import Device
    from ..core.model_source import ModelSource
    from ..infer import Infer
    from .declaration import CustomOp

__all__ = ["with_custom_ops"]


def with_custom_ops(
    kind: type[Infer], source: ModelSource, device: Device, custom_ops: Sequence[type[CustomOp]] | None, *, cut: bool
) -> Callable[..., Infer]:
    """A factory for the `Infer` of a model: the class of the backend, or `CutInfer`.

    Raises:
        CustomOpError: as `operators_for`, or an operator has no kernel for the device.
    """
    ops = operators_for(source, custom_ops)
    if ops is not None:
        for op in ops:
            op.kernel_for(device.kind)

    def make(model: ModelSource, **arguments: Any) -> Infer:
        try:
            with registered(*(ops or ())):  # passes need the type constraints of operators
                if ops is not None and (cut or not kind.declaration.runs_custom_ops(device)):
                    from .cut_infer import CutInfer

                    return CutInfer(model, kind, **arguments, custom_ops=ops)
                return kind(model, **arguments, custom_ops=ops)
        except ModelError as error:
            raise explain(source, ops, error) from error.__cause__

    return make
