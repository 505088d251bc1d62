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

from ..core.lazy import lazy

if TYPE_CHECKING:
    from .anomaly import AnomalyDetection
    from .canvases import choose_canvases
    from .classifier import PRESETS, Classifier
    from .composed import Composed, GroupResult, ModelGroup, Tile, Tiled, TwoStage, tile_grid
    from .configuration import COMPOSITIONS, create
    from .declaration import UNCHECKED
    from .depth import DepthEstimation
    from .description import ModelDescription, Recognition
    from .detr import DETR, RFDETR, RTDETR, RFDETRSeg, UltralyticsRTDETR
    from .embedder import Embedder
    from .end_to_end import EndToEnd
    from .execution import DevicePostprocess, Timings
    from .image_model import ImageModel
    from .image_to_image import BackgroundRemoval, ImageToImage
    from .loading import fitting_types, load, named_type, wrapper_type
    from .obb import EndToEndOBB, YOLOv8OBB
    from .ocr import OCR, TextLine, TextLines
    from .pose import EndToEndPose, YOLOv8Pose
    from .preprocessor import ImageInput, Preprocessor
    from .registry import TYPES
    from .results import (
        AnomalyMap,
        Classification,
        Classifications,
        ClassMap,
        ClassMaps,
        DepthMap,
        Detection,
        Detections,
        Embedding,
        Gallery,
        ImageResult,
        Mask,
        Masks,
        Match,
        Matte,
        Result,
        ResultTensor,
        Rows,
    )
    from .segment import EndToEndSeg, YOLOv5Seg, YOLOv8Seg
    from .selected_boxes import SelectedBoxes
    from .semantic import SemanticSegmentation, TwinLiteNet
    from .ssd import SSD, YOLONAS, UltraFace
    from .tracker import Tracker
    from .vision import VisionModel
    from .yolo import YOLO, YOLOX, YOLOv5, YOLOv8
    from .yunet import YuNet
    from .zones import Line, Zone

__all__ = [
    "COMPOSITIONS",
    "DETR",
    "OCR",
    "PRESETS",
    "RFDETR",
    "RTDETR",
    "SSD",
    "TYPES",
    "UNCHECKED",
    "YOLO",
    "YOLONAS",
    "YOLOX",
    "AnomalyDetection",
    "AnomalyMap",
    "BackgroundRemoval",
    "ClassMap",
    "ClassMaps",
    "Classification",
    "Classifications",
    "Classifier",
    "Composed",
    "DepthEstimation",
    "DepthMap",
    "Detection",
    "Detections",
    "DevicePostprocess",
    "Embedder",
    "Embedding",
    "EndToEnd",
    "EndToEndOBB",
    "EndToEndPose",
    "EndToEndSeg",
    "Gallery",
    "GroupResult",
    "ImageInput",
    "ImageModel",
    "ImageResult",
    "ImageToImage",
    "Line",
    "Mask",
    "Masks",
    "Match",
    "Matte",
    "ModelDescription",
    "ModelGroup",
    "Preprocessor",
    "RFDETRSeg",
    "Recognition",
    "Result",
    "ResultTensor",
    "Rows",
    "SelectedBoxes",
    "SemanticSegmentation",
    "TextLine",
    "TextLines",
    "Tile",
    "Tiled",
    "Timings",
    "Tracker",
    "TwinLiteNet",
    "TwoStage",
    "UltraFace",
    "UltralyticsRTDETR",
    "VisionModel",
    "YOLOv5",
    "YOLOv5Seg",
    "YOLOv8",
    "YOLOv8OBB",
    "YOLOv8Pose",
    "YOLOv8Seg",
    "YuNet",
    "Zone",
    "choose_canvases",
    "create",
    "fitting_types",
    "load",
    "named_type",
    "tile_grid",
    "wrapper_type",
]

#: The names of each module. A program imports the modules of the wrappers that it uses.
_MODULES = {
    "anomaly": "AnomalyDetection",
    "canvases": "choose_canvases",
    "classifier": "Classifier PRESETS",
    "composed": "Composed GroupResult ModelGroup Tile Tiled TwoStage tile_grid",
    "configuration": "COMPOSITIONS create",
    "declaration": "UNCHECKED",
    "depth": "DepthEstimation",
    "description": "ModelDescription Recognition",
    "detr": "DETR RFDETR RFDETRSeg RTDETR UltralyticsRTDETR",
    "embedder": "Embedder",
    "end_to_end": "EndToEnd",
    "execution": "DevicePostprocess Timings",
    "image_model": "ImageModel",
    "image_to_image": "BackgroundRemoval ImageToImage",
    "loading": "fitting_types load named_type wrapper_type",
    "obb": "EndToEndOBB YOLOv8OBB",
    "ocr": "OCR TextLine TextLines",
    "pose": "EndToEndPose YOLOv8Pose",
    "preprocessor": "ImageInput Preprocessor",
    "registry": "TYPES",
    "results": (
        "AnomalyMap ClassMap ClassMaps Classification Classifications DepthMap Detection Detections Embedding Gallery "
        "ImageResult Mask Masks Match Matte Result ResultTensor Rows"
    ),
    "segment": "EndToEndSeg YOLOv5Seg YOLOv8Seg",
    "selected_boxes": "SelectedBoxes",
    "semantic": "SemanticSegmentation TwinLiteNet",
    "ssd": "SSD UltraFace YOLONAS",
    "tracker": "Tracker",
    "vision": "VisionModel",
    "yolo": "YOLO YOLOX YOLOv5 YOLOv8",
    "yunet": "YuNet",
    "zones": "Line Zone",
}

__getattr__, __dir__ = lazy(__name__, {name: module for module, names in _MODULES.items() for name in names.split()})
