"""The wrappers by name. They are imported by name, when they are first used, since they import this module."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .description import ModelDescription, Recognition

__all__ = ["ALIASES", "TYPES", "answers", "looks_like"]


class _Wrapper(NamedTuple):
    """A wrapper that is imported when it is first used; `aliases` are further names of it."""

    module: str
    kind: str
    aliases: str = ""


class _Types(MutableMapping[str, type[Any]]):
    def __init__(self, kinds: dict[str, _Wrapper]) -> None:
        self._kinds: dict[str, _Wrapper | type[Any]] = {**kinds}

    def __getitem__(self, name: str) -> type[Any]:
        kind = self._kinds[name]
        if isinstance(kind, _Wrapper):
            kind = self._kinds[name] = getattr(importlib.import_module(f".{kind.module}", __package__), kind.kind)
        return kind

    def __setitem__(self, name: str, kind: type[Any]) -> None:
        self._kinds[name] = kind

    def __delitem__(self, name: str) -> None:
        del self._kinds[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


_WRAPPERS = {
    "yolov5": _Wrapper("yolo", "YOLOv5", "yolov7"),
    "yolov8": _Wrapper("yolo", "YOLOv8", "yolo11 yolov11"),
    "yolox": _Wrapper("yolo", "YOLOX"),
    "end-to-end": _Wrapper("end_to_end", "EndToEnd", "yolov10 yolo26"),
    "yolov5-seg": _Wrapper("segment", "YOLOv5Seg", "yolov7-seg"),
    "yolov8-seg": _Wrapper("segment", "YOLOv8Seg", "yolo11-seg"),
    "end-to-end-seg": _Wrapper("segment", "EndToEndSeg", "yolo26-seg"),
    "yolov8-pose": _Wrapper("pose", "YOLOv8Pose", "yolo11-pose"),
    "end-to-end-pose": _Wrapper("pose", "EndToEndPose", "yolo26-pose"),
    "yolov8-obb": _Wrapper("obb", "YOLOv8OBB", "yolo11-obb"),
    "end-to-end-obb": _Wrapper("obb", "EndToEndOBB", "yolo26-obb"),
    "yolo-nas": _Wrapper("ssd", "YOLONAS", "yolonas"),
    "ssd": _Wrapper("ssd", "SSD"),
    "ultraface": _Wrapper("ssd", "UltraFace"),
    "selected-boxes": _Wrapper(
        "selected_boxes", "SelectedBoxes", "ssd-mobilenet torchvision-detector d-fine-export yolo-nas-nms"
    ),
    "detr": _Wrapper("detr", "DETR"),
    "rt-detr": _Wrapper("detr", "RTDETR", "rt-detrv2 d-fine"),
    "rt-detr-ultralytics": _Wrapper("detr", "UltralyticsRTDETR"),
    "rf-detr": _Wrapper("detr", "RFDETR"),
    "rf-detr-seg": _Wrapper("detr", "RFDETRSeg"),
    "yunet": _Wrapper("yunet", "YuNet"),
    "segmentation": _Wrapper("semantic", "SemanticSegmentation"),
    "twinlitenet": _Wrapper("semantic", "TwinLiteNet"),
    "depth": _Wrapper("depth", "DepthEstimation", "depth-anything midas dpt"),
    "anomaly": _Wrapper("anomaly", "AnomalyDetection", "anomalib padim patchcore efficient-ad"),
    "image-to-image": _Wrapper("image_to_image", "ImageToImage", "super-resolution"),
    "background-removal": _Wrapper("image_to_image", "BackgroundRemoval", "matte"),
    "classifier": _Wrapper("classifier", "Classifier"),
    "embedding": _Wrapper("embedder", "Embedder"),
}

#: Every wrapper, by the name that a configuration and the command line use. A new task is one line above.
TYPES = _Types(_WRAPPERS)

#: Further names of the same wrappers.
ALIASES = {alias: name for name, wrapper in _WRAPPERS.items() for alias in wrapper.aliases.split()}


def answers(model: ModelDescription) -> dict[str, Recognition]:
    """The answers of the wrappers to a model."""
    return {name: kind.recognises(model) for name, kind in TYPES.items()}


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
