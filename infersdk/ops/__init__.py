"""The operations of the native core: on NumPy arrays here, on CUDA devices in `ops.device`."""

from .alignment import FIVE_POINTS, aligned_crops, similarity
from .class_maps import NO_CLASS, class_map
from .classification import topk
from .detection import DETECTION, DetectionDecoder, DetectStats, nms, nms_groups
from .float_maps import resize_map
from .masks import MASK, PackedMasks, assemble_masks
from .oriented import nms_oriented
from .preprocess import letterbox, preprocess, preprocess_into
from .raw_head import GridLevel, RawHeadDecoder
from .resample import resample
from .tracking import NO_TRACK, ByteTracker, assign

__all__ = [
    "DETECTION",
    "FIVE_POINTS",
    "MASK",
    "NO_CLASS",
    "NO_TRACK",
    "ByteTracker",
    "DetectStats",
    "DetectionDecoder",
    "GridLevel",
    "PackedMasks",
    "RawHeadDecoder",
    "aligned_crops",
    "assemble_masks",
    "assign",
    "class_map",
    "letterbox",
    "nms",
    "nms_groups",
    "nms_oriented",
    "preprocess",
    "preprocess_into",
    "resample",
    "resize_map",
    "similarity",
    "topk",
]
