"""Model wrappers: from images to results, on any backend.

::

    detector = YOLOv5("yolov5s.onnx", backend="openvino", conf=0.4)
    for box in detector("bus.jpg"):
        print(box.label, box.score, box.xyxy)

    model = load("model.onnx")              # the wrapper that fits the file
    model = create("app.toml")["detector"]  # the one that a configuration names
"""

from __future__ import annotations

if __name__ != "infersdk.models":
    raise ImportError("this folder is the package infersdk.models; import it by that name")

from typing import TYPE_CHECKING

from .._lazy import lazy

if TYPE_CHECKING:
    from .canvases import choose_canvases
    from .classifier import PRESETS, Classifier
    from .composed import Composed, GroupResult, ModelGroup, Tile, Tiled, TwoStage, tile_grid
    from .configuration import COMPOSITIONS, create
    from .declaration import UNCHECKED
    from .description import ModelDescription
    from .detr import DETR, RFDETR, RTDETR
    from .embedder import Embedder
    from .end_to_end import EndToEnd
    from .execution import DevicePostprocess, Timings
    from .image_model import ImageModel
    from .loading import TYPES, fitting_types, load, named_type, wrapper_type
    from .obb import YOLOv8OBB
    from .ocr import OCR, TextLine, TextLines
    from .pose import EndToEndPose, YOLOv8Pose
    from .preprocessor import ImageInput, Preprocessor
    from .results import (
        Classification,
        Classifications,
        ClassMap,
        ClassMaps,
        Detection,
        Detections,
        Embedding,
        Gallery,
        Mask,
        Masks,
        Match,
    )
    from .segment import EndToEndSeg, YOLOv5Seg, YOLOv8Seg
    from .semantic import SemanticSegmentation, TwinLiteNet
    from .tracker import Tracker
    from .vision import VisionModel
    from .yolo import YOLO, YOLOX, YOLOv5, YOLOv8
    from .yunet import YuNet

__all__ = [
    "COMPOSITIONS",
    "DETR",
    "OCR",
    "PRESETS",
    "RFDETR",
    "RTDETR",
    "TYPES",
    "UNCHECKED",
    "YOLO",
    "YOLOX",
    "ClassMap",
    "ClassMaps",
    "Classification",
    "Classifications",
    "Classifier",
    "Composed",
    "Detection",
    "Detections",
    "DevicePostprocess",
    "Embedder",
    "Embedding",
    "EndToEnd",
    "EndToEndPose",
    "EndToEndSeg",
    "Gallery",
    "GroupResult",
    "ImageInput",
    "ImageModel",
    "Mask",
    "Masks",
    "Match",
    "ModelDescription",
    "ModelGroup",
    "Preprocessor",
    "SemanticSegmentation",
    "TextLine",
    "TextLines",
    "Tile",
    "Tiled",
    "Timings",
    "Tracker",
    "TwinLiteNet",
    "TwoStage",
    "VisionModel",
    "YOLOv5",
    "YOLOv5Seg",
    "YOLOv8",
    "YOLOv8OBB",
    "YOLOv8Pose",
    "YOLOv8Seg",
    "YuNet",
    "choose_canvases",
    "create",
    "fitting_types",
    "load",
    "named_type",
    "tile_grid",
    "wrapper_type",
]

#: The module that each name comes from. A program imports the modules of the wrappers that it uses.
_HOMES = {
    "COMPOSITIONS": "configuration",
    "ClassMap": "results",
    "ClassMaps": "results",
    "Classification": "results",
    "Classifications": "results",
    "Classifier": "classifier",
    "Composed": "composed",
    "DETR": "detr",
    "Detection": "results",
    "Detections": "results",
    "DevicePostprocess": "execution",
    "Embedder": "embedder",
    "Embedding": "results",
    "EndToEnd": "end_to_end",
    "EndToEndPose": "pose",
    "EndToEndSeg": "segment",
    "Gallery": "results",
    "GroupResult": "composed",
    "ImageInput": "preprocessor",
    "ImageModel": "image_model",
    "Mask": "results",
    "Masks": "results",
    "Match": "results",
    "ModelDescription": "description",
    "ModelGroup": "composed",
    "OCR": "ocr",
    "PRESETS": "classifier",
    "Preprocessor": "preprocessor",
    "RFDETR": "detr",
    "RTDETR": "detr",
    "SemanticSegmentation": "semantic",
    "TYPES": "loading",
    "TextLine": "ocr",
    "TextLines": "ocr",
    "Tile": "composed",
    "Tiled": "composed",
    "Timings": "execution",
    "Tracker": "tracker",
    "TwinLiteNet": "semantic",
    "TwoStage": "composed",
    "UNCHECKED": "declaration",
    "VisionModel": "vision",
    "YOLO": "yolo",
    "YOLOX": "yolo",
    "YOLOv5": "yolo",
    "YOLOv5Seg": "segment",
    "YOLOv8": "yolo",
    "YOLOv8OBB": "obb",
    "YOLOv8Pose": "pose",
    "YOLOv8Seg": "segment",
    "YuNet": "yunet",
    "choose_canvases": "canvases",
    "create": "configuration",
    "fitting_types": "loading",
    "load": "loading",
    "named_type": "loading",
    "tile_grid": "composed",
    "wrapper_type": "loading",
}

__getattr__, __dir__ = lazy(__name__, _HOMES)
