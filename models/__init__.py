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

if TYPE_CHECKING:  # `as` exports a name to type checkers
    from .anomaly import AnomalyDetection as AnomalyDetection
    from .canvases import choose_canvases as choose_canvases
    from .classifier import Classifier as Classifier
    from .composed import Composed as Composed
    from .composed import GroupResult as GroupResult
    from .composed import ModelGroup as ModelGroup
    from .composed import Tile as Tile
    from .composed import Tiled as Tiled
    from .composed import TwoStage as TwoStage
    from .composed import tile_grid as tile_grid
    from .configuration import COMPOSITIONS as COMPOSITIONS
    from .configuration import create as create
    from .declaration import UNCHECKED as UNCHECKED
    from .depth import DepthEstimation as DepthEstimation
    from .description import ModelDescription as ModelDescription
    from .description import Recognition as Recognition
    from .detr import DETR as DETR
    from .detr import RFDETR as RFDETR
    from .detr import RTDETR as RTDETR
    from .detr import RFDETRSeg as RFDETRSeg
    from .detr import UltralyticsRTDETR as UltralyticsRTDETR
    from .embedder import Embedder as Embedder
    from .end_to_end import EndToEnd as EndToEnd
    from .execution import DevicePostprocess as DevicePostprocess
    from .execution import Timings as Timings
    from .image_model import ImageModel as ImageModel
    from .image_to_image import BackgroundRemoval as BackgroundRemoval
    from .image_to_image import ImageToImage as ImageToImage
    from .loading import fitting_types as fitting_types
    from .loading import load as load
    from .loading import named_type as named_type
    from .loading import wrapper_type as wrapper_type
    from .obb import EndToEndOBB as EndToEndOBB
    from .obb import YOLOv8OBB as YOLOv8OBB
    from .ocr import OCR as OCR
    from .ocr import TextLine as TextLine
    from .ocr import TextLines as TextLines
    from .pose import EndToEndPose as EndToEndPose
    from .pose import YOLOv8Pose as YOLOv8Pose
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
    from .segment import EndToEndSeg as EndToEndSeg
    from .segment import YOLOv5Seg as YOLOv5Seg
    from .segment import YOLOv8Seg as YOLOv8Seg
    from .selected_boxes import SelectedBoxes as SelectedBoxes
    from .semantic import SemanticSegmentation as SemanticSegmentation
    from .semantic import TwinLiteNet as TwinLiteNet
    from .ssd import SSD as SSD
    from .ssd import YOLONAS as YOLONAS
    from .ssd import UltraFace as UltraFace
    from .tracker import Tracker as Tracker
    from .vision import VisionModel as VisionModel
    from .yolo import YOLO as YOLO
    from .yolo import YOLOX as YOLOX
    from .yolo import YOLOv5 as YOLOv5
    from .yolo import YOLOv8 as YOLOv8
    from .yunet import YuNet as YuNet
    from .zones import Line as Line
    from .zones import Zone as Zone

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
