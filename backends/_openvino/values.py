"""Values for requests of OpenVINO."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino as ov

from ...core.tensor_spec import as_array
from ...errors import DTypeError

if TYPE_CHECKING:
    from ...core.tensor import Tensor
    from ...core.tensor_spec import TensorSpec

__all__ = ["feed", "writable"]


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
    if array.dtype.name not in ("bfloat16", "uint16"):
        raise DTypeError(
            f"input {spec.name!r} takes bfloat16, not {array.dtype}; give an array of ml_dtypes, or the bits as uint16"
        )
    spec.check(array.shape)
    return ov.Tensor(array.view(np.uint16), ov.Shape(array.shape), ov.Type.bf16)
