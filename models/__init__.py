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

# ruff: noqa: F403
if TYPE_CHECKING:  # `*` exports `__all__` of a module to type checkers, `as` a single name
    from .anomaly import *
    from .canvases import choose_canvases as choose_canvases
    from .classifier import *
    from .composed import *
    from .configuration import COMPOSITIONS as COMPOSITIONS
    from .configuration import create as create
    from .declaration import UNCHECKED as UNCHECKED
    from .depth import *
    from .description import ModelDescription as ModelDescription
    from .description import Recognition as Recognition
    from .detr import *
    from .embedder import *
    from .end_to_end import *
    from .execution import DevicePostprocess as DevicePostprocess
    from .execution import Timings as Timings
    from .image_model import ImageModel as ImageModel
    from .image_to_image import *
    from .loading import fitting_types as fitting_types
    from .loading import load as load
    from .loading import named_type as named_type
    from .loading import wrapper_type as wrapper_type
    from .obb import *
    from .ocr import *
    from .pose import *
    from .preprocessor import ImageInput as ImageInput
    from .preprocessor import Preprocessor as Preprocessor
    from .presets import PRESETS as PRESETS
    from .registry import TYPES as TYPES
    from .results import AnomalyMap as AnomalyMap
    from .results import Classification as Classification
    from .results import Classifications as Classifications
    from .results import ClassMap as ClassMap
    from .results import ClassMaps as ClassMaps
    from .results import DepthMap as DepthMap
    from .results import Detection as Detection
    from .results import Detections as Detections
    from .results import Embedding as Embedding
    from .results import Gallery as Gallery
    from .results import ImageResult as ImageResult
    from .results import Mask as Mask
    from .results import Masks as Masks
    from .results import Match as Match
    from .results import Matte as Matte
    from .results import Result as Result
    from .results import ResultTensor as ResultTensor
    from .results import Rows as Rows
    from .segment import *
    from .selected_boxes import *
    from .semantic import *
    from .ssd import *
    from .tracker import *
    from .vision import *
    from .yolo import *
    from .yunet import *
    from .zones import *

#: The names of each module. A program imports the modules of the wrappers that it uses.
_MODULES = {
    "anomaly": "AnomalyDetection",
    "canvases": "choose_canvases",
    "classifier": "Classifier",
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
    "presets": "PRESETS",
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

__getattr__, __dir__ = lazy(__name__, _MODULES)
if not TYPE_CHECKING:  # type checkers read the imports above
    __all__ = [name for names in _MODULES.values() for name in names.split()]
