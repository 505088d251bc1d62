"""Numbers for objects that are followed from frame to frame, by the package `trackers`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BackendUnavailableError, ConfigError

if TYPE_CHECKING:
    from .results import Detections

__all__ = ["NO_TRACK", "Tracker"]

#: The number of a box that belongs to no track, or not yet.
NO_TRACK = -1
#: The class in the package `trackers`, by name.
_METHODS = {"bytetrack": "ByteTrackTracker", "sort": "SORTTracker", "oc-sort": "OCSORTTracker"}


class Tracker:
    """Follows objects through the frames of one stream: the column `track_id` of its boxes.

    ::

        tracker = Tracker(fps=30)
        for frame, found in paired(detector.map, reader):
            tracked = tracker.update(found)
            tracked.columns["track_id"]

    Streams that share a model have a tracker each. A tracker takes the frames of its stream in order, one thread at a
    time.

    Args:
        method: `"bytetrack"`, `"sort"` or `"oc-sort"`.
        fps: frames a second.
        settings: those of the tracker's class in the package `trackers`. `lost_track_buffer` is how long a lost object
            is searched for, in frames at 30 a second; `track_activation_threshold` is the minimum score of a new track.

    Raises:
        BackendUnavailableError: the package is not installed.
        ConfigError: the method or a setting is unknown.
    """

    def __init__(self, method: str = "bytetrack", *, fps: float = 30.0, **settings: Any) -> None:
        if method not in _METHODS:
            raise ConfigError(f"unknown tracker {method!r}; use one of {', '.join(_METHODS)}")
        if not fps > 0:
            raise ConfigError(f"fps={fps} must be above 0")
        try:
            package = importlib.import_module("trackers")
            self._supervision = importlib.import_module("supervision")
        except ImportError as error:
            raise BackendUnavailableError(
                f'tracking needs the package trackers: pip install "infersdk[tracking]" ({error})'
            ) from None
        kind = getattr(package, _METHODS[method], None)
        if kind is None:
            raise BackendUnavailableError(
                f"the installed package trackers has no {_METHODS[method]}; pip install --upgrade trackers"
            )
        try:
            self._tracker = kind(frame_rate=float(fps), **settings)
        except TypeError as error:
            raise ConfigError(f"{method}: {error}") from None
        self.method = method

    def update(self, found: Detections) -> Detections:
        """The boxes of the next frame with their numbers, in the same order; -1 for those of no track, or not yet.

        Call it for each frame, also where nothing was found.
        """
        numbers = np.full(len(found), NO_TRACK, np.int64)
        theirs = self._supervision.Detections(
            xyxy=found.xyxy.astype(np.float64),
            confidence=found.scores.copy(),
            class_id=found.class_ids.astype(int),
            data={"index": np.arange(len(found))},
        )
        tracked = self._tracker.update(theirs)
        if len(tracked):  # in another order, perhaps without some
            numbers[tracked.data["index"]] = tracked.tracker_id
        return found.with_columns(track_id=numbers)

    def reset(self) -> None:
        """Forgets all objects: the next frame is the first one of a stream."""
        self._tracker.reset()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.method}>"
