"""The wrappers by name. They are imported by name, since they import this module."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .description import ModelDescription

__all__ = ["ALIASES", "TYPES", "looks_like"]

#: Every wrapper, by the name that a configuration and the command line use. A new task is one line here.
TYPES: dict[str, type[Any]] = {
    name: getattr(importlib.import_module(f".{module}", __package__), kind)
    for name, module, kind in (
        ("yolov5", "yolo", "YOLOv5"),
        ("yolov8", "yolo", "YOLOv8"),
        ("yolox", "yolo", "YOLOX"),
        ("end-to-end", "end_to_end", "EndToEnd"),
        ("yolov5-seg", "segment", "YOLOv5Seg"),
        ("yolov8-seg", "segment", "YOLOv8Seg"),
        ("end-to-end-seg", "segment", "EndToEndSeg"),
        ("yolov8-pose", "pose", "YOLOv8Pose"),
        ("end-to-end-pose", "pose", "EndToEndPose"),
        ("yolov8-obb", "obb", "YOLOv8OBB"),
        ("end-to-end-obb", "obb", "EndToEndOBB"),
        ("yolo-nas", "ssd", "YOLONAS"),
        ("ssd", "ssd", "SSD"),
        ("ultraface", "ssd", "UltraFace"),
        ("selected-boxes", "selected_boxes", "SelectedBoxes"),
        ("detr", "detr", "DETR"),
        ("rt-detr", "detr", "RTDETR"),
        ("rt-detr-ultralytics", "detr", "UltralyticsRTDETR"),
        ("rf-detr", "detr", "RFDETR"),
        ("rf-detr-seg", "detr", "RFDETRSeg"),
        ("yunet", "yunet", "YuNet"),
        ("segmentation", "semantic", "SemanticSegmentation"),
        ("twinlitenet", "semantic", "TwinLiteNet"),
        ("depth", "depth", "DepthEstimation"),
        ("anomaly", "anomaly", "AnomalyDetection"),
        ("image-to-image", "image_to_image", "ImageToImage"),
        ("background-removal", "image_to_image", "BackgroundRemoval"),
        ("classifier", "classifier", "Classifier"),
        ("embedding", "embedder", "Embedder"),
    )
}

#: Further names of the same wrappers.
ALIASES = {alias: name for name, kind in TYPES.items() for alias in vars(kind).get("aliases", ())}


def looks_like(model: ModelDescription) -> str:
    """The families that a model may belong to, as a noun phrase: those of the wrappers that say yes, else of those that
    say nearly or no.
    """
    said = [kind.recognises(model) for kind in TYPES.values()]
    families: dict[str, None] = {}
    for answer in ("yes", "nearly", "no"):
        families = families or dict.fromkeys(one.family for one in said if one.answer == answer and one.family)
    outputs = "; ".join(map(str, model.outputs))
    if model.task is None:
        return f"{' or '.join(families) or 'no model that a wrapper here knows'}: {outputs}"
    return f"{' or '.join(families) or 'a model'} (its metadata says task {model.task!r}): {outputs}"
