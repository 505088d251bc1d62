"""The operations of the native core: on NumPy arrays here, on CUDA devices in `ops.device`."""

from .alignment import FIVE_POINTS, aligned_crops, similarity
from .classification import topk
from .detection import DETECTION, DetectionDecoder, DetectStats, nms, nms_groups
from .masks import MASK, PackedMasks, assemble_masks
from .preprocess import letterbox, preprocess, preprocess_into
from .resample import resample

__all__ = [
    "DETECTION",
    "FIVE_POINTS",
    "MASK",
    "DetectStats",
    "DetectionDecoder",
    "PackedMasks",
    "aligned_crops",
    "assemble_masks",
    "letterbox",
    "nms",
    "nms_groups",
    "preprocess",
    "preprocess_into",
    "resample",
    "similarity",
    "topk",
]
