"""infersdk::DetectionNMS: decoding and NMS of detector outputs inside the model."""

from __future__ import annotations

from typing import Any, ClassVar

from ..declaration import CustomOp
from ..native import NativeFunction
from ..shapes import require_equal

__all__ = ["DetectionNMS"]


class DetectionNMS(CustomOp):
    """Decodes the output of a head and runs exact greedy NMS, like `infersdk.ops.DetectionDecoder`.

    Inputs:
        output: [batch, anchors, 5 + classes + extra], or [batch, 4 + classes + extra, anchors] for "yolov8".

    Outputs:
        detections: [batch, max_detections, 6]: x1, y1, x2, y2 in input pixels, score and class, sorted by descending
            score and padded with 0.
        count: [batch], the number of valid detections.
        stats: [batch, 4]: the numbers of candidates, of candidates dropped by `max_candidates`, of boxes after NMS, and
            of boxes dropped by `max_detections`.

    Attributes:
        head: "yolov5", "yolov8" or "yolox".
        num_classes: the number of classes.
        width, height: the size of the input.
        extra: the number of values after the scores of a box.
        strides: the strides of the grids in order, for "yolox".
        conf, iou, max_detections, max_candidates, multi_label, class_agnostic: as in `DetectionDecoder`.
    """

    domain = "infersdk"
    inputs: ClassVar[dict[str, str]] = {"output": "T"}
    outputs: ClassVar[dict[str, str]] = {"detections": "float32", "count": "int32", "stats": "int32"}
    types: ClassVar[dict[str, tuple[str, ...]]] = {"T": ("float32", "float16")}
    # The native kernels read the attributes in this order.
    head: str
    num_classes: int
    width: int
    height: int
    extra: int = 0
    strides: tuple[int, ...] = ()
    conf: float = 0.25
    iou: float = 0.45
    max_detections: int = 300
    max_candidates: int = 30000
    multi_label: bool = False
    class_agnostic: bool = False

    cpu = NativeFunction("ifs_detection_nms", "ifs_detection_nms_destroy")
    cuda = NativeFunction("ifs_cuda_detection_nms", "ifs_cuda_detection_nms_destroy")

    def shape(self, output: Any) -> Any:
        if output.ndim != 3:
            raise ValueError(f"the output of a head has 3 dimensions, not {output.ndim}")
        if self.head == "yolov8":
            require_equal(output[1], 4 + self.num_classes + self.extra, "a box has 4 + num_classes + extra numbers")
        else:
            require_equal(output[2], 5 + self.num_classes + self.extra, "a box has 5 + num_classes + extra numbers")
        return (output[0], self.max_detections, 6), (output[0],), (output[0], 4)
