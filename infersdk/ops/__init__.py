"""The operations of the native core: on NumPy arrays here, on CUDA devices in `ops.device`."""

from .classification import topk
from .detection import DETECTION, DetectionDecoder, DetectStats, nms
from .masks import MASK, PackedMasks, assemble_masks
from .preprocess import letterbox, preprocess, preprocess_into

__all__ = [
    "DETECTION",
    "MASK",
    "DetectStats",
    "DetectionDecoder",
    "PackedMasks",
    "assemble_masks",
    "letterbox",
    "nms",
    "preprocess",
    "preprocess_into",
    "topk",
]
