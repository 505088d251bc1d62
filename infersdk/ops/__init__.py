"""The operations of the native core: on NumPy arrays here, on CUDA devices in `ops.device`."""

from .alignment import FIVE_POINTS, aligned_crops, similarity
from .classification import NO_CLASS, class_map, class_numbers, topk
from .detection import DETECTION, DetectionDecoder, DetectStats, GridLevel, RawHeadDecoder
from .masks import MASK, PackedMasks, assemble_masks
from .preprocessing import letterbox, preprocess, preprocess_into
from .resizing import resample, resize_map
from .suppression import nms, nms_groups, nms_oriented
from .tracking import NO_TRACK, ByteTracker, assign

__all__ = [
    "DETECTION", "FIVE_POINTS", "MASK", "NO_CLASS", "NO_TRACK", "ByteTracker", "DetectStats", "DetectionDecoder",
    "GridLevel", "PackedMasks", "RawHeadDecoder", "aligned_crops", "assemble_masks", "assign", "class_map",
    "class_numbers", "letterbox", "nms", "nms_groups", "nms_oriented", "preprocess", "preprocess_into", "resample",
    "resize_map", "similarity", "topk",
]  # fmt: skip
