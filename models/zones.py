"""Counting in zones and over lines, and the time that objects spend in a zone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, InputError
from ..ops import NO_TRACK
from .results.detections import check_detections

if TYPE_CHECKING:
    import numpy.typing as npt

    from .results import Detections

__all__ = ["Line", "Zone"]

#: The points of a box by name: their position between left and right edge, and between top and bottom edge.
_ANCHORS = {
    f"{vertical}_{horizontal}": (x, y)
    for vertical, y in (("top", 0.0), ("center", 0.5), ("bottom", 1.0))
    for horizontal, x in (("left", 0.0), ("center", 0.5), ("right", 1.0))
}
_ANCHORS["center"] = _ANCHORS.pop("center_center")
_CORNERS = ("top_left", "top_right", "bottom_left", "bottom_right")


def _points_of(points: npt.ArrayLike, what: str) -> npt.NDArray[np.float64]:
    try:
        return np.array(points, np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{what} is made of points (x, y), not {str(points)!r:.100}") from None


class Zone:
    """A polygon in the image.

    ::

        entrance = Zone([(0, 200), (320, 200), (320, 480), (0, 480)])
        for frame, people in paired(detector.map, reader):
            tracked = tracker.update(people)
            print(entrance.count_in(tracked))
            waiting = tracked[entrance.time_in(tracked, frame.time) > 30]

    A box is in the zone if its anchors are in the polygon or on its edge.

    Args:
        polygon: (corners, 2): x and y in pixels. Where edges cross, the even-odd rule applies.
        anchors: points of a box: `"center"`, `"top_left"`, `"top_center"`, `"top_right"`, `"center_left"`,
            `"center_right"`, `"bottom_left"`, `"bottom_center"`, `"bottom_right"`. They refer to `xyxy`.
        require_all: all anchors have to be in the zone; False: one of them.
        max_absence: seconds outside of the zone after which `time_in()` begins again at 0 for an object.

    Raises:
        ConfigError: the polygon is no polygon, an anchor is unknown, or `max_absence` is no number from 0.
    """

    def __init__(
        self,
        polygon: npt.ArrayLike,
        *,
        anchors: Sequence[str] = ("bottom_center",),
        require_all: bool = True,
        max_absence: float = 60.0,
    ) -> None:
        corners = _points_of(polygon, "a polygon")
        if corners.ndim != 2 or corners.shape[1] != 2 or len(corners) < 3 or not np.isfinite(corners).all():
            raise ConfigError(f"a polygon of shape {corners.shape}; use (corners, 2), 3 or more, finite")
        if not (isinstance(max_absence, (float, Real)) and max_absence >= 0):
            raise ConfigError(f"max_absence={max_absence!r}; use 0 or more seconds")
        self.polygon = corners
        self._anchors, self._reduce = _checked_anchors(anchors), np.all if require_all else np.any
        self._max_absence = max_absence
        self.reset()

    def reset(self) -> None:
        """Forgets the times of all objects."""
        self._times: dict[int, tuple[float, float]] = {}  # first and last seen in the zone, by track number
        self._now = -np.inf

    def contains(self, found: Detections) -> npt.NDArray[np.bool_]:
        """(N,) bool: the boxes in the zone."""
        x, y = _points(found, self._anchors)
        x, y = x[..., None], y[..., None]  # (anchors, N, 1), against (corners,)
        (x1, y1), (x2, y2) = self.polygon.T, np.roll(self.polygon, -1, axis=0).T
        side = (x2 - x1) * (y - y1) - (y2 - y1) * (x - x1)
        crossings = ((y1 > y) != (y2 > y)) & ((side > 0) == (y2 > y1))  # of a ray to the right
        between = (np.minimum(x1, x2) <= x) & (x <= np.maximum(x1, x2))
        between &= (np.minimum(y1, y2) <= y) & (y <= np.maximum(y1, y2))
        inside = (crossings.sum(axis=-1) % 2 == 1) | ((side == 0) & between).any(axis=-1)
        held: npt.NDArray[np.bool_] = self._reduce(inside, axis=0)
        return held

    def count_in(self, found: Detections) -> int:
        """The number of boxes in the zone."""
        return int(np.count_nonzero(self.contains(found)))

    def time_in(self, tracked: Detections, time: float) -> npt.NDArray[np.float64]:
        """The seconds since each object was first seen in the zone. Call it for each frame of one stream.

        Shorter absences than `max_absence` count as time in the zone.

        Args:
            tracked: the result of `Tracker.update()`.
            time: of the frame, in seconds, such as `frame.time`.

        Returns:
            (N,) float64; NaN for boxes outside of the zone and for boxes without a number.

        Raises:
            InputError: the boxes have no column `track_id`, or `time` is not finite, or before that of the last
                call.
        """
        if not (isinstance(time, (float, Real)) and -np.inf < time < np.inf and time >= self._now):
            raise InputError(
                f"a frame at {time!r} s after one at {self._now} s; pass finite times in order, or call reset()"
            )
        before, self._now = self._now, time
        numbers = _track_ids(tracked)
        seconds = np.full(len(tracked), np.nan)
        for i in np.flatnonzero(self.contains(tracked) & (numbers != NO_TRACK)).tolist():
            first, last = self._times.get(number := int(numbers[i]), (time, time))
            if last < before and time - last > self._max_absence:  # it was outside in the last frame
                first = time
            self._times[number] = (first, time)
            seconds[i] = time - first
        for number in [number for number, (_, last) in self._times.items() if time - last > self._max_absence]:
            del self._times[number]
        return seconds


class Line:
    """A line that objects cross in two directions.

    ::

        door = Line((320, 0), (320, 360), anchors=["center"])
        for frame, people in paired(detector.map, reader):
            went_in, went_out = door.crossed(tracker.update(people))
        print(door.in_count, door.out_count)

    An object crosses the line when all its anchors change from one side to the other, between the two
    perpendiculars through `start` and `end`. It goes in if it arrives on the left of the direction from `start` to
    `end`. Frames in which its anchors are on both sides, on the line, or beyond the ends, change nothing. After an
    absence of more than `min_frames` frames an object is a new one.

    Args:
        start, end: x and y in pixels.
        anchors: points of a box; see `Zone`. The default is its four corners.
        min_frames: the number of frames on the other side after which an object has crossed. Frames in which it was
            not found do not count. Larger numbers ignore objects that return at once.

    Attributes:
        in_count, out_count: the number of crossings so far.

    Raises:
        ConfigError: the ends are equal, an anchor is unknown, or `min_frames` is no number from 1.
    """

    def __init__(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        *,
        anchors: Sequence[str] = _CORNERS,
        min_frames: float = 1,
    ) -> None:
        ends = _points_of([start, end], "a line")
        if ends.shape != (2, 2) or not np.isfinite(ends).all() or (ends[0] == ends[1]).all():
            raise ConfigError(f"a line from {start} to {end}; use two different points (x, y)")
        if not (isinstance(min_frames, (float, Real)) and min_frames >= 1):
            raise ConfigError(f"min_frames={min_frames!r}; use 1 or more")
        self._start, self._end = ends
        self._anchors, self._min_frames = _checked_anchors(anchors), min_frames
        self.reset()

    def reset(self) -> None:
        """Forgets all objects, and counts from 0 again."""
        self.in_count = self.out_count = 0
        self._states: dict[int, _Side] = {}

    def crossed(self, tracked: Detections) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """The objects that crossed the line with this frame: in, and out. Call it for each frame of one stream.

        Args:
            tracked: the result of `Tracker.update()`. Boxes without a number do not count.

        Returns:
            Two arrays (N,) bool.

        Raises:
            InputError: the boxes have no column `track_id`.
        """
        numbers = _track_ids(tracked)
        self._forget(set(numbers.tolist()))
        x, y = _points(tracked, self._anchors)
        (x1, y1), (x2, y2) = self._start, self._end
        dx, dy = x2 - x1, y2 - y1
        side = dx * (y - y1) - dy * (x - x1)
        along = (dx * (x - x1) + dy * (y - y1) >= 0) & (dx * (x - x2) + dy * (y - y2) <= 0)
        clear = along.all(axis=0) & ((side < 0).all(axis=0) | (side > 0).all(axis=0)) & (numbers != NO_TRACK)
        went = np.zeros((2, len(tracked)), np.bool_)  # in, out
        for i in np.flatnonzero(clear).tolist():
            is_left = bool(side[0, i] < 0)
            state = self._states.setdefault(int(numbers[i]), _Side(is_left))
            state.frames = 0 if is_left == state.left else state.frames + 1
            if state.frames >= self._min_frames:
                state.left, state.frames = is_left, 0
                went[0 if is_left else 1, i] = True
        self.in_count += int(went[0].sum())
        self.out_count += int(went[1].sum())
        return went[0], went[1]

    def _forget(self, present: set[int]) -> None:
        """Drops the objects that were absent for more than `min_frames` frames."""
        for number, state in list(self._states.items()):
            state.absent = 0 if number in present else state.absent + 1
            if state.absent > self._min_frames:
                del self._states[number]


@dataclass(slots=True)
class _Side:
    """The side of a line on which an object is, and since when it is on the other one or absent, in frames."""

    left: bool
    frames: int = 0
    absent: int = 0


def _checked_anchors(names: Sequence[str]) -> npt.NDArray[np.float64]:
    """(anchors, 2) positions within a box."""
    known = isinstance(names, Collection) and set(map(str, names)) <= _ANCHORS.keys()
    if isinstance(names, str) or not names or not known:
        raise ConfigError(f"anchors={names!r}; use a list of {', '.join(_ANCHORS)}")
    return np.array([_ANCHORS[name] for name in names])


def _points(found: Detections, anchors: npt.NDArray[np.float64]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """x and y of each anchor of each box: twice (anchors, N). Raises InputError for anything but `Detections`."""
    check_detections(found)
    x1, y1, x2, y2 = found.xyxy.T.astype(np.float64)
    across, down = anchors.T[..., None]
    return x1 + across * (x2 - x1), y1 + down * (y2 - y1)


def _track_ids(tracked: Detections) -> npt.NDArray[np.int64]:
    check_detections(tracked)
    if "track_id" not in tracked.columns:
        raise InputError("these boxes have no column 'track_id'; pass the result of Tracker.update()")
    return np.asarray(tracked.columns["track_id"], np.int64)
