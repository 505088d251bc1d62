"""Loading a model that has custom operators, on a backend that takes them or by cutting the model at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ModelError
from .onnx_schema import registered
from .operator_set import explain, operators_for

if TYPE_CHECKING:
    from ..device import Device
    from ..infer import Infer
    from ..model_source import ModelSource
    from .declaration import CustomOp

__all__ = ["with_custom_ops"]


def with_custom_ops(
    kind: type[Infer], source: ModelSource, device: Device, custom_ops: Sequence[type[CustomOp]] | None, *, cut: bool
) -> Callable[..., Infer]:
    """What makes the Infer of a model: the backend's class with the operators that the model uses, or the model cut at
    them. Its arguments are those of `Infer`.

    Raises:
        CustomOpError: see `operators_for`; or an operator has no kernel for the device.
    """
    ops = operators_for(source, custom_ops)
    if ops is not None:
        for op in ops:
            op.kernel_for(device.kind)

    def make(model: ModelSource, **arguments: Any) -> Infer:
        try:
            with registered(*(ops or ())):  # the passes ask for the types that an operator takes
                if ops is not None and (cut or not kind.runs_custom_ops(device)):
                    from .cut_infer import CutInfer

                    return CutInfer(model, kind, **arguments, custom_ops=ops)
                return kind(model, **arguments, custom_ops=ops)
        except ModelError as error:
            raise explain(source, ops, error) from error.__cause__

    return make
