"""Reading and editing ONNX graphs. Needs `onnx` and `onnx_ir`, which are imported on first use.

graph = infersdk.graph.open("model.onnx")       # inspect, edit, save
infersdk.graph.onnx_info("model.onnx")          # inputs, outputs, operators, precision
infersdk.graph.passes                           # ready-made edits: dynamic batch, input size, FP16, ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.lazy import lazy

if TYPE_CHECKING:
    from . import passes
    from .editor import Graph, open  # noqa: A004
    from .info import ModelInfo, onnx_info

__all__ = ["Graph", "ModelInfo", "onnx_info", "open", "passes"]

__getattr__, __dir__ = lazy(__name__, {"editor": "Graph open", "info": "ModelInfo onnx_info", "passes": "passes"})
