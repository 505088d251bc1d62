"""The wrappers by name. They are imported by name, when they are first used, since they import this module."""

from __future__ import annotations

import importlib
from collections import UserDict
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .description import ModelDescription, Recognition

__all__ = ["ALIASES", "TYPES", "answers", "looks_like"]


class _Wrapper(NamedTuple):
    """A wrapper that is imported when it is first used.

    Attributes:
        kind: its name in `infersdk.models`.
        tasks: its words for the task in the metadata of files: `VisionModel.task` and `other_tasks`.
        aliases: further names of it.
    """

    kind: str
    tasks: str
    aliases: str = ""


class _Types(UserDict[str, type[Any]]):
    data: dict[str, Any]

    def __getitem__(self, name: str) -> type[Any]:
        if isinstance(wrapper := self.data[name], _Wrapper):
            self.data[name] = getattr(importlib.import_module(__package__), wrapper.kind)
        kind: type[Any] = self.data[name]
        return kind

    def of_task(self, task: str | None) -> list[str]:
        """The names, without those of wrappers that are not imported, and refuse models of this task."""
        return [
            name
            for name, kind in self.data.items()
            if task is None or not isinstance(kind, _Wrapper) or task in kind.tasks.split()
        ]


_WRAPPERS: dict[str, Any] = {
    "yolov5": _Wrapper("YOLOv5", "detect", "yolov7"),
    "yolov8": _Wrapper("YOLOv8", "detect", "yolo11 yolov11"),
    "yolox": _Wrapper("YOLOX", "detect"),
    "end-to-end": _Wrapper("EndToEnd", "detect", "yolov10 yolo26"),
    "yolov5-seg": _Wrapper("YOLOv5Seg", "segment", "yolov7-seg"),
    "yolov8-seg": _Wrapper("YOLOv8Seg", "segment", "yolo11-seg"),
    "end-to-end-seg": _Wrapper("EndToEndSeg", "segment", "yolo26-seg"),
    "yolov8-pose": _Wrapper("YOLOv8Pose", "pose", "yolo11-pose"),
    "end-to-end-pose": _Wrapper("EndToEndPose", "pose", "yolo26-pose"),
    "yolov8-obb": _Wrapper("YOLOv8OBB", "obb", "yolo11-obb"),
    "end-to-end-obb": _Wrapper("EndToEndOBB", "obb", "yolo26-obb"),
    "yolo-nas": _Wrapper("YOLONAS", "detect", "yolonas"),
    "ssd": _Wrapper("SSD", "detect"),
    "ultraface": _Wrapper("UltraFace", "detect"),
    "selected-boxes": _Wrapper(
        "SelectedBoxes", "detect", "ssd-mobilenet torchvision-detector d-fine-export yolo-nas-nms"
    ),
    "detr": _Wrapper("DETR", "detect"),
    "rt-detr": _Wrapper("RTDETR", "detect", "rt-detrv2 d-fine"),
    "rt-detr-ultralytics": _Wrapper("UltralyticsRTDETR", "detect"),
    "rf-detr": _Wrapper("RFDETR", "detect"),
    "rf-detr-seg": _Wrapper("RFDETRSeg", "segment"),
    "yunet": _Wrapper("YuNet", "detect"),
    "segmentation": _Wrapper("SemanticSegmentation", "semantic"),
    "twinlitenet": _Wrapper("TwinLiteNet", "semantic"),
    "depth": _Wrapper("DepthEstimation", "depth", "depth-anything midas dpt"),
    "anomaly": _Wrapper("AnomalyDetection", "anomaly", "anomalib padim patchcore efficient-ad"),
    "image-to-image": _Wrapper("ImageToImage", "image-to-image", "super-resolution"),
    "background-removal": _Wrapper("BackgroundRemoval", "matte", "matte"),
    "classifier": _Wrapper("Classifier", "classify"),
    "embedding": _Wrapper(
        "Embedder", "embed embedding reid feature-extraction image-feature-extraction"
    ),
}  # fmt: skip

#: Every wrapper, by the name that a configuration and the command line use. A new task is one line above.
TYPES = _Types(_WRAPPERS)

#: Further names of the same wrappers.
ALIASES = {alias: name for name, wrapper in _WRAPPERS.items() for alias in wrapper.aliases.split()}


def answers(model: ModelDescription) -> dict[str, Recognition]:
    """The answers of the wrappers to a model, without those that refuse its task."""
    return {name: TYPES[name].recognises(model) for name in TYPES.of_task(model.task)}


def looks_like(model: ModelDescription) -> str:
    """The families that a model may belong to, as a noun phrase: those of the wrappers that say yes, else of those that
    say nearly or no.
    """
    said = answers(model).values()
    families: dict[str, None] = {}
    for answer in ("yes", "nearly", "no"):
        families = families or dict.fromkeys(one.family for one in said if one.answer == answer and one.family)
    outputs = "; ".join(map(str, model.outputs))
    if model.task is None:
        return f"{' or '.join(families) or 'no model that a wrapper here knows'}: {outputs}"
    return f"{' or '.join(families) or 'a model'} (its metadata says task {model.task!r}): {outputs}"
