"""Custom operators, declared once for ONNX, PyTorch and all backends: see `CustomOp` and `docs/custom-operators.md`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.lazy import lazy

if TYPE_CHECKING:
    from .declaration import CustomOp
    from .kernels import CFunction, CSource, CudaSource, Launch, include_folder
    from .onnx_schema import deregister, register
    from .shapes import Dim, Shape, ceil_div, maximum, minimum, require_equal
    from .torch_operators import opset_versions, torch_operator, translation_table

__all__ = [
    "CFunction", "CSource", "CudaSource", "CustomOp", "Dim", "Launch", "Shape", "ceil_div", "deregister",
    "include_folder", "maximum", "minimum", "opset_versions", "register", "require_equal", "torch_operator",
    "translation_table",
]  # fmt: skip

__getattr__, __dir__ = lazy(
    __name__,
    {
        "declaration": "CustomOp",
        "kernels": "CFunction CSource CudaSource Launch include_folder",
        "onnx_schema": "deregister register",
        "shapes": "Dim Shape ceil_div maximum minimum require_equal",
        "torch_operators": "opset_versions torch_operator translation_table",
    },
)
