"""The operations of the native core: on NumPy arrays here, on CUDA devices in `ops.device`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.lazy import lazy

if TYPE_CHECKING:  # `as` exports a name to type checkers
    from .alignment import FIVE_POINTS as FIVE_POINTS
    from .alignment import aligned_crops as aligned_crops
    from .alignment import similarity as similarity
    from .classification import NO_CLASS as NO_CLASS
    from .classification import class_map as class_map
    from .classification import class_numbers as class_numbers
    from .classification import topk as topk
    from .detection import DETECTION as DETECTION
    from .detection import DetectionDecoder as DetectionDecoder
    from .detection import DetectStats as DetectStats
    from .detection import GridLevel as GridLevel
    from .detection import RawHeadDecoder as RawHeadDecoder
    from .masks import MASK as MASK
    from .masks import PackedMasks as PackedMasks
    from .masks import assemble_masks as assemble_masks
    from .preprocessing import letterbox as letterbox
    from .preprocessing import preprocess as preprocess
    from .preprocessing import preprocess_into as preprocess_into
    from .resizing import resample as resample
    from .resizing import resize_map as resize_map
    from .suppression import nms as nms
    from .suppression import nms_groups as nms_groups
    from .suppression import nms_oriented as nms_oriented
    from .tracking import NO_TRACK as NO_TRACK
    from .tracking import ByteTracker as ByteTracker
    from .tracking import assign as assign

#: The names of each module.
_MODULES = {
    "alignment": "FIVE_POINTS aligned_crops similarity",
    "classification": "NO_CLASS class_map class_numbers topk",
    "detection": "DETECTION DetectionDecoder DetectStats GridLevel RawHeadDecoder",
    "masks": "MASK PackedMasks assemble_masks",
    "preprocessing": "letterbox preprocess preprocess_into",
    "resizing": "resample resize_map",
    "suppression": "nms nms_groups nms_oriented",
    "tracking": "NO_TRACK ByteTracker assign",
}

__getattr__, __dir__ = lazy(__name__, _MODULES)
if not TYPE_CHECKING:  # type checkers read the imports above
    __all__ = [name for names in _MODULES.values() for name in names.split()]
