"""The native kernels as plain functions over NumPy arrays."""

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
