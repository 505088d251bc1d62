"""Appends `infersdk::DetectionNMS` to a detector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import UnsupportedModelError
from ..graph.passes.add_nms import check_numbers, head_output, input_size, require_detector
from ..graph.passes.base import Pass
from ..graph.passes.static_reshapes import trace_example
from ..graph.shapes import infer_shapes
from .onnx_schema import registered
from .packaged.detection_nms import DetectionNMS

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["AddDetectionNms"]


@dataclass(frozen=True)
class AddDetectionNms(Pass):
    """Appends DetectionNMS to a detector, whose outputs become its `detections`, `count` and `stats`.

    In contrast to `infersdk.graph.passes.AddNms`, this is infersdk's exact NMS.

    Attributes:
        head: "yolov5", "yolov8" or "yolox".
        settings: num_classes, if the output shape does not determine it, and conf, iou, max_detections, max_candidates,
            multi_label, class_agnostic, extra and strides of `DetectionNMS`.

    Raises (`apply`):
        ConfigError: the head is unknown, a number is outside of its range, or the model does not have one image input.
        UnsupportedModelError: the model does not have one output of a head with known sizes, or its input size is free.
        CustomOpError: a setting is unknown or has another type.
    """

    name: ClassVar[str] = "add-detection-nms"
    version: ClassVar[int] = 1

    head: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, model: ir.Model) -> bool:
        import onnx_ir as ir

        graph, head, settings = model.graph, self.head, dict(self.settings)
        output = head_output(model, head, DetectionNMS.outputs)
        width, height = input_size(model)
        extra = settings.get("extra", 0)
        if not extra:
            require_detector(model)
        values = _values_of_a_box(model, output, head)
        leading = 4 if head == "yolov8" else 5
        classes = settings.get("num_classes", None if values is None else values - leading - extra)
        if classes is None:
            raise UnsupportedModelError(
                f"the output {output.name!r} {output.shape} does not determine the number of classes; give num_classes"
            )
        if classes < 1 or (values is not None and values != leading + classes + extra):
            raise UnsupportedModelError(
                f"the output {output.name!r} has {values} numbers for each box; a head of {head!r} has {leading}, one "
                f"for each class ({classes}), and {extra} more"
            )
        if head == "yolox":
            settings = {"strides": (8, 16, 32), **settings}
        op = DetectionNMS.of({"head": head, "num_classes": classes, "width": width, "height": height} | settings)
        check_numbers(op, "max_detections", "max_candidates")
        # Empty lists, which are defaults, have no element type in ONNX.
        attributes = {name: value for name, value in op.values().items() if value != ()}
        node = ir.node(
            op.name, [output], attributes, domain=op.domain, num_outputs=len(op.outputs), name="infersdk_detection_nms"
        )
        for value, name in zip(node.outputs, op.outputs, strict=True):
            value.name = name
        graph.append(node)
        graph.outputs.clear()
        graph.outputs.extend(node.outputs)
        graph.opset_imports[op.domain] = max(op.version, graph.opset_imports.get(op.domain, 0))
        with registered(DetectionNMS):
            infer_shapes(model)
        model.metadata_props["end2end"] = "True"
        return True


def _values_of_a_box(model: ir.Model, output: ir.Value, head: str) -> int | None:
    """The number of values per box, traced with example sizes of free axes; None if unknown."""
    axis = 1 if head == "yolov8" else 2
    assert output.shape is not None
    result = output.shape[axis]
    if isinstance(result, int):
        return result
    trace = trace_example(model, batch=1, size=640)
    shape = trace.shapes.get(output) if trace is not None else None
    return shape[axis] if shape is not None and len(shape) == 3 else None
