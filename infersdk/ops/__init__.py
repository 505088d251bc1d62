"""The native kernels as plain functions over NumPy arrays."""

from .classification import topk
from .detection import DETECTION, Detector, DetectStats, nms
from .image import Geometry, ImageView, PixelTransform, as_image, letterbox, preprocess, preprocess_into

__all__ = [
    "DETECTION",
    "DetectStats",
    "Detector",
    "Geometry",
    "ImageView",
    "PixelTransform",
    "as_image",
    "letterbox",
    "nms",
    "preprocess",
    "preprocess_into",
    "topk",
]
