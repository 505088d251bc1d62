"""The native kernels as plain functions over NumPy arrays."""

from .classification import topk
from .detection import DETECTION, Detector, DetectStats, nms

__all__ = [
    "DETECTION",
    "DetectStats",
    "Detector",
    "nms",
    "topk",
]
