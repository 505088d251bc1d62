"""How good a model is on labelled images, and whether another file, precision or backend is as good.

::

    report = gate(
        [Contender("yolov5n.onnx", "onnxruntime"), Contender("yolov5n-int8.onnx", "openvino/int8")],
        DetectTask("instances_val.json", "val/"),
        max_drop=0.01,
    )
    report.passes                   # False: at least one is worse than the first by more than 0.01
    report.scores[1].figures        # {"mAP": 0.301, "mAP50": 0.452}

Detection is measured as COCO does: mAP over IoU 0.5 to 0.95 and all classes; so are masks, and keypoints by their
similarity (OKS). Class maps are measured by the mean IoU of the classes, classification by top-1.
"""

from ..models.results import Agreement
from .classification import LabelledImage, read_labels, top_figures
from .detection import CocoTruth, coco_figures, read_coco
from .gate import Contender, GateReport, Score, Task, agreement, gate
from .segmentation import MappedImage, iou_figures, read_label_maps
from .tasks import TASKS, ClassifyTask, DetectTask, PoseTask, SegmentTask, SemanticTask, labelled_task

__all__ = [
    "TASKS", "Agreement", "ClassifyTask", "CocoTruth", "Contender", "DetectTask", "GateReport", "LabelledImage",
    "MappedImage", "PoseTask", "Score", "SegmentTask", "SemanticTask", "Task", "agreement", "coco_figures",
    "gate", "iou_figures", "labelled_task", "read_coco", "read_label_maps", "read_labels",
    "top_figures",
]  # fmt: skip
