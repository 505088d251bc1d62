"""Oriented boxes: NMS by the overlap of turned rectangles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..core._lib import check, ffi, lib
from .detection import check_max_det, suppression_arguments

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["nms_oriented"]


def nms_oriented(
    boxes: npt.ArrayLike,
    scores: npt.ArrayLike,
    class_ids: npt.ArrayLike | None = None,
    *,
    iou: float = 0.45,
    max_det: int | None = None,
) -> npt.NDArray[np.int64]:
    """Fast NMS of oriented boxes: the indices of the boxes that are kept, best first, equal scores by index.

    A box is dropped if a better one of its class overlaps it by more than `iou`, also one that is dropped itself (D.
    Bolya et al., "YOLACT", 2019). The overlap is the probabilistic IoU (J. M. Llerena et al., "Gaussian Bounding Boxes
    and Probabilistic Intersection-over-Union for Object Detection", 2021), as Ultralytics takes it for its oriented
    boxes. All in float32, with the same bits on every machine.

    Args:
        boxes: `[n, 5]`: x and y of the centre, width and height, and the angle in radians; used as float32. The angle
            turns the side of the width from the x axis towards the y axis.
        scores: `[n]`; used as float32.
        class_ids: `[n]` integers; only boxes of one class suppress one another. None: all boxes have one class.
        iou: 0 to 1.
        max_det: maximum number of indices; None is no limit.

    Raises:
        ShapeError: the numbers of boxes, scores and classes differ.
        DTypeError: `class_ids` are not integers that fit 32 bits.
        InputError: a number of a box or a score is not finite, or `iou` is not 0 to 1.
    """
    boxes_c, scores_c, classes, n = suppression_arguments(boxes, scores, class_ids, 5)
    check_max_det(max_det)
    keep = np.empty(n, np.int64)
    count = ffi.new("int64_t *")
    keep_c = ffi.from_buffer("int64_t[]", keep, require_writable=True)
    check(lib.ifs_nms_oriented(boxes_c, scores_c, classes, n, iou, keep_c, count))
    kept: npt.NDArray[np.int64] = keep[: count[0] if max_det is None else min(count[0], max_det)].copy()
    return kept
