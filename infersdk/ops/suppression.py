"""Non-maximum suppression: which boxes of an image are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..core._lib import check, choice, ffi, lib, returned
from ..core.tensor_spec import aligned, as_array, as_numbers
from ..errors import DTypeError, InputError, ShapeError
from .detection import fraction

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["nms", "nms_groups", "nms_oriented"]

_MATCHES = {"iou": lib.IFS_MATCH_IOU, "smaller": lib.IFS_MATCH_SMALLER}


def nms(
    boxes: npt.ArrayLike,
    scores: npt.ArrayLike,
    class_ids: npt.ArrayLike | None = None,
    *,
    iou: float = 0.45,
    max_det: int | None = None,
) -> npt.NDArray[np.int64]:
    """Exact greedy NMS: the indices of the boxes that are kept, best first, equal scores by index.

    Args:
        boxes: `[n, 4]` of x1, y1, x2, y2; used as float32. A box without area is kept, and suppresses no other.
        scores: `[n]`; used as float32.
        class_ids: `[n]` integers; only boxes of one class suppress one another. None: all boxes have one class.
        iou: A kept box suppresses another one if `inter > iou * (area_a + area_b - inter)`, in float32.
        max_det: The limit on the number of indices; None is no limit.

    Raises:
        ShapeError: The numbers of boxes, scores and classes differ.
        DTypeError: `class_ids` are not integers that fit 32 bits.
        InputError: A box or score is no finite number, or `iou` is not 0 to 1.
    """
    _check_max_det(max_det)
    keep, _ = _suppress(boxes, scores, class_ids, lib.IFS_MATCH_IOU, fraction("iou", iou), grouped=False)
    return keep if max_det is None else keep[:max_det].copy()


def nms_groups(
    boxes: npt.ArrayLike,
    scores: npt.ArrayLike,
    class_ids: npt.ArrayLike | None = None,
    *,
    threshold: float = 0.5,
    match: Literal["iou", "smaller"] = "smaller",
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Exact greedy NMS that says which kept box suppressed each one, for merging boxes of several views of an image.

    Args:
        boxes, scores, class_ids: as `nms()` takes them.
        threshold: A kept box suppresses another one if their match is above it.
        match: "iou" is the intersection over the union; "smaller" is the intersection over the area of the smaller box,
            which finds a box that was cut in the whole one.

    Returns:
        The indices of the boxes that are kept, best first, equal scores by index; and for each box the index of its
        keeper: the best kept box that suppresses it, or itself.

    Raises:
        ShapeError, DTypeError: As `nms()`.
        InputError: A box or score is no finite number, `threshold` is not 0 to 1, or `match` is unknown.
    """
    return _suppress(boxes, scores, class_ids, choice("match", match, _MATCHES), threshold, grouped=True)


def _arguments(
    boxes: npt.ArrayLike, scores: npt.ArrayLike, class_ids: npt.ArrayLike | None, numbers: int
) -> tuple[Any, Any, Any, int]:
    """Boxes, scores and classes as the C function takes them, and how many boxes there are. They keep the arrays alive.

    Args:
        numbers: of a box: 4, or 5 of an oriented one.

    Raises:
        ShapeError, DTypeError: As `nms()`.
    """
    boxes = np.ascontiguousarray(as_numbers("boxes", boxes, np.float32))
    scores = np.ascontiguousarray(as_numbers("scores", scores, np.float32))
    n = len(scores) if scores.ndim == 1 else -1
    if boxes.shape != (n, numbers) and not (n == 0 and boxes.size == 0):
        raise ShapeError(
            f"boxes have shape {boxes.shape} and scores {scores.shape}; they must be (n, {numbers}) and (n,)"
        )
    classes: Any = ffi.NULL
    if class_ids is not None:
        classes = ffi.from_buffer("int32_t[]", _int32_classes(class_ids, n))
    return ffi.from_buffer("float[]", boxes), ffi.from_buffer("float[]", scores), classes, n


def _check_max_det(max_det: int | None) -> None:
    """Raises InputError for a limit below 0."""
    if max_det is not None and max_det < 0:
        raise InputError(f"max_det is {max_det}; it must be 0 or more, or None for no limit")


def _int32_classes(class_ids: npt.ArrayLike, n: int) -> npt.NDArray[np.int32]:
    """The classes of `n` boxes as a contiguous array. Raises ShapeError, DTypeError."""
    ids = as_array(class_ids)
    if ids.shape != (n,):
        raise ShapeError(f"class_ids have shape {ids.shape}, but there are {n} boxes")
    if ids.dtype != np.int32:
        if n and (ids.dtype.kind not in "iu" or ids.max() > 2**31 - 1 or ids.min() < -(2**31)):
            raise DTypeError(f"class_ids are {ids.dtype}; they must be integers that fit 32 bits")
        ids = ids.astype(np.int32)
    return aligned(np.ascontiguousarray(ids))


def _suppress(
    boxes: npt.ArrayLike,
    scores: npt.ArrayLike,
    class_ids: npt.ArrayLike | None,
    match: int,
    threshold: float,
    *,
    grouped: bool,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The kept boxes, and with `grouped` the keeper of each one."""
    boxes_c, scores_c, classes, n = _arguments(boxes, scores, class_ids, 4)
    keep = np.empty(n, np.int64)
    keepers = np.empty(n if grouped else 0, np.int64)
    count = ffi.new("int64_t *")
    keep_c = ffi.from_buffer("int64_t[]", keep, require_writable=True)
    keepers_c = ffi.from_buffer("int64_t[]", keepers, require_writable=True) if grouped else ffi.NULL
    check(lib.ifs_nms(boxes_c, scores_c, classes, n, match, threshold, keep_c, count, keepers_c))
    return keep[: count[0]].copy(), keepers


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
        scores, class_ids, max_det: as `nms()` takes them.
        iou: 0 to 1.

    Raises:
        ShapeError, DTypeError, InputError: as `nms()`.
    """
    boxes_c, scores_c, classes, n = _arguments(boxes, scores, class_ids, 5)
    _check_max_det(max_det)
    keep = np.empty(n, np.int64)
    keep_c = ffi.from_buffer("int64_t[]", keep, require_writable=True)
    count = returned("int64_t", lib.ifs_nms_oriented, boxes_c, scores_c, classes, n, fraction("iou", iou), keep_c)
    kept: npt.NDArray[np.int64] = keep[: count if max_det is None else min(count, max_det)].copy()
    return kept
