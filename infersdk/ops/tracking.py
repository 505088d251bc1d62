"""Linear assignment, and ByteTrack on it: track numbers for the boxes of a video."""

from __future__ import annotations

import math
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core._lib import Handle, check, ffi, int32, lib, returned
from ..core.tensor_spec import aligned, as_array
from ..errors import DTypeError, InputError, ShapeError
from .detection import DETECTION

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["NO_TRACK", "ByteTracker", "assign", "is_finite"]

NO_TRACK: int = lib.IFS_NO_TRACK
"""The number of a box that belongs to no track, or to one that has no number yet."""
#: The frame rate that `lost_track_buffer` refers to.
_BUFFER_FPS = 30.0
_MAX_INT32 = 2**31 - 1


def is_finite(value: object) -> bool:
    """Whether a value is a number that a float can hold."""
    try:
        return isinstance(value, (float, Real)) and math.isfinite(value)
    except OverflowError:  # an int
        return False


def assign(costs: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
    """The assignment of rows to columns with the minimum sum of costs, each row and column at most once.

    Args:
        costs: (rows, columns) float32, finite.

    Returns:
        (rows,) int32: the column of each row. With more rows than columns, -1 for the rows that have none.

    Raises:
        ShapeError, DTypeError: `costs` has another shape or type.
        InputError: a cost is not finite.
    """
    costs = as_array(costs)
    if costs.ndim != 2:
        raise ShapeError(f"costs have shape {costs.shape}; use (rows, columns)")
    if costs.dtype != np.float32:
        raise DTypeError(f"costs are {costs.dtype}; use float32")
    columns = np.empty(len(costs), np.int32)
    source = ffi.from_buffer("float[]", aligned(np.ascontiguousarray(costs)))
    check(lib.ifs_assign(source, *costs.shape, ffi.from_buffer("int32_t[]", columns)))
    return columns


class ByteTracker(Handle):
    """ByteTrack on the boxes of one stream. `infersdk.models.Tracker` uses it for `Detections`.

    Args:
        frame_rate: frames a second.
        lost_track_buffer: how long a lost object is searched for, in frames at 30 a second.
        track_activation_threshold: the minimum score of the first box of a track, 0 to 1.
        minimum_consecutive_frames: the frames in a row in which an object is found before it gets a number, at the
            earliest in its second frame.
        minimum_iou_threshold: the minimum IoU of a box and its track, above 0 and at most 1.
        high_conf_det_threshold: boxes with at least this score, 0 to 1, are associated first.

    Raises:
        InputError: an argument is out of range; the message names it.
    """

    def __init__(
        self,
        *,
        frame_rate: float = 30.0,
        lost_track_buffer: int = 30,
        track_activation_threshold: float = 0.7,
        minimum_consecutive_frames: int = 2,
        minimum_iou_threshold: float = 0.1,
        high_conf_det_threshold: float = 0.6,
    ) -> None:
        for name, value in (("frame_rate", frame_rate), ("lost_track_buffer", lost_track_buffer)):
            if not is_finite(value):
                raise InputError(f"{name}={value!r}; use a number that is finite")
        if not frame_rate > 0:
            raise InputError(f"frame_rate={frame_rate}; use a number above 0")
        max_lost = frame_rate / _BUFFER_FPS * lost_track_buffer
        if not 0 <= max_lost <= _MAX_INT32:
            raise InputError(f"lost_track_buffer={lost_track_buffer}; use 0 or more, and at most {_MAX_INT32} frames")
        minimum_consecutive_frames = int32("minimum_consecutive_frames", minimum_consecutive_frames)
        if minimum_consecutive_frames < 1:
            raise InputError(f"minimum_consecutive_frames={minimum_consecutive_frames}; use 1 to {_MAX_INT32}")
        for name, value, least in (
            ("track_activation_threshold", track_activation_threshold, 0),
            ("minimum_iou_threshold", minimum_iou_threshold, 1e-45),  # in float32, a smaller one is 0
            ("high_conf_det_threshold", high_conf_det_threshold, 0),
        ):
            if not (isinstance(value, (float, Real)) and least <= value <= 1):
                raise InputError(f"{name}={value!r}; use {least} to 1")
        params = ffi.new("ifs_tracker_params *")
        params.high_score = high_conf_det_threshold
        params.iou_threshold = minimum_iou_threshold
        params.start_score = track_activation_threshold
        params.min_consecutive = minimum_consecutive_frames
        params.max_lost = math.ceil(max_lost)
        self._own(returned("ifs_tracker *", lib.ifs_tracker_create, params), lib.ifs_tracker_destroy)

    def update(self, boxes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """The track numbers of the boxes of the next frame.

        Args:
            boxes: (N,) of `DETECTION`; `xyxy` and `score` count.

        Returns:
            (N,) int64, in the order of the boxes; `NO_TRACK` for a box without a number.

        Raises:
            DTypeError, ShapeError: the boxes are another array.
            InputError: an edge is not finite, or a score is NaN.
            InUseError: another thread updates the tracker.
        """
        boxes = as_array(boxes)
        if boxes.dtype != DETECTION:
            raise DTypeError(f"boxes are {boxes.dtype}; use infersdk.ops.DETECTION")
        if boxes.ndim != 1:
            raise ShapeError(f"boxes have shape {boxes.shape}; use (boxes,)")
        numbers = np.empty(len(boxes), np.int64)
        source = ffi.from_buffer("ifs_detection[]", np.array(boxes, order="C"))
        check(lib.ifs_tracker_update(self._open, source, len(boxes), ffi.from_buffer("int64_t[]", numbers)))
        return numbers

    def reset(self) -> None:
        """Forgets all tracks: numbers begin at 0 again."""
        check(lib.ifs_tracker_reset(self._open))
