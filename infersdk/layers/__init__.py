"""The layers that runtimes execute for a model, and their times.

::

    report = infersdk.layers.profile("yolov8n.onnx", ["onnxruntime", "openvino"])
    for row in report.rows:
        print([report.nodes[i].name for i in row.nodes], row.seconds)
    infersdk.layers.write_page(report, "layers.html")
    infersdk.layers.write_trace(report, "layers.trace.json")

`infersdk layers` prints such a report.
"""

from __future__ import annotations

from .collecting import ProfileSettings, list_built, profile
from .mapping import OriginalGraph, OriginalNode
from .page import write_page
from .report import LayerReport, LayerRow, LayerSide
from .trace import write_trace

__all__ = [
    "LayerReport", "LayerRow", "LayerSide", "OriginalGraph", "OriginalNode", "ProfileSettings", "list_built", "profile",
    "write_page", "write_trace",
]  # fmt: skip
