"""The operations of the native core: on NumPy arrays here, on CUDA devices in `ops.device`."""

from .classification import topk
from .detection import DETECTION, DetectionDecoder, DetectStats, nms
from .preprocess import letterbox, preprocess, preprocess_into

__all__ = [
    "DETECTION",
    "DetectStats",
    "DetectionDecoder",
    "letterbox",
    "nms",
    "preprocess",
    "preprocess_into",
    "topk",
]
