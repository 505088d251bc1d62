"""Track numbers: each object of a video keeps its number from frame to frame."""

from __future__ import annotations

import importlib
import sys
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BackendUnavailableError, ConfigError, InputError
from ..ops import NO_TRACK, ByteTracker
from ..ops.tracking import is_finite
from .results.detections import check_detections

if TYPE_CHECKING:
    import numpy.typing as npt

    from .results import Detections


__all__ = ["Tracker"]

#: The methods of the package `trackers`, with their classes.
_PACKAGE_METHODS = {"sort": "SORTTracker", "oc-sort": "OCSORTTracker"}


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
        method: `"bytetrack"`; `"sort"` and `"oc-sort"` need the package `trackers`.
        fps: frames a second; None, as of a source that does not state it, is 30.
        settings: those of the method. `"bytetrack"` has those of `infersdk.ops.ByteTracker`. The others have those of
            their class in the package `trackers`. `lost_track_buffer` is how long a lost object is searched for, in
            frames at 30 a second.

    Raises:
        BackendUnavailableError: the method needs a package that is not installed.
        ConfigError: the method or a setting is unknown, or a setting is out of range.
    """

    def __init__(self, method: str = "bytetrack", *, fps: float | None = 30.0, **settings: Any) -> None:
        methods = ("bytetrack", *_PACKAGE_METHODS)
        if method not in methods:
            raise ConfigError(f"unknown tracker {method!r}; use one of {', '.join(methods)}")
        fps = 30.0 if fps is None else fps
        if not (is_finite(fps) and fps > 0):
            raise ConfigError(f"fps={fps!r} is no number above 0 that a float can hold")
        if "frame_rate" in settings:
            raise ConfigError(f"frame_rate={settings['frame_rate']!r}: the frame rate of a Tracker is fps; pass fps=")
        settings["frame_rate"] = float(fps)
        try:
            self._tracker: ByteTracker | _PackageTracker = (
                ByteTracker(**settings)
                if method == "bytetrack"
                else _PackageTracker(_PACKAGE_METHODS[method], settings)
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"{method}: {error}") from None
        self.method = method

    def update(self, found: Detections) -> Detections:
        """The boxes of the next frame with their numbers, in the same order; -1 for those of no track, or not yet.

        Call it for each frame, also where nothing was found.

        Raises:
            InputError: this is not the `Detections` of one frame, an edge is not finite, or a score is NaN.
            InUseError: another thread updates the tracker.
        """
        check_detections(found)
        return found.with_columns(track_id=self._tracker.update(found.data))

    def reset(self) -> None:
        """Forgets all objects: the next frame is the first one of a stream."""
        self._tracker.reset()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.method}>"


class _PackageTracker:
    """A tracker of the package `trackers`."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        try:
            package = importlib.import_module("trackers")
            self._supervision = importlib.import_module("supervision")
        except ImportError as error:
            raise BackendUnavailableError(
                f'this method needs the package trackers: pip install "infersdk[tracking]" ({error}); '
                '"bytetrack" needs no package'
            ) from None
        self._tracker = getattr(package, name)(**settings)
        for setting, value in settings.items():
            most = 1.0 if setting.endswith("_threshold") else sys.float_info.max
            is_number = isinstance(value, (float, Real)) and value <= most
            if not is_number and setting not in ("iou", "state_estimator_class"):
                raise InputError(f"{setting}={value!r}; use a number of at most {most:g}")

    def update(self, boxes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        if not np.isfinite(boxes["xyxy"]).all() or np.isnan(boxes["score"]).any():
            raise InputError("a box has an edge that is not finite, or a score that is NaN; leave such boxes out")
        numbers = np.full(len(boxes), NO_TRACK, np.int64)
        theirs = self._supervision.Detections(
            xyxy=boxes["xyxy"].astype(np.float64),
            confidence=boxes["score"].copy(),
            class_id=boxes["class_id"].astype(int),
            data={"index": np.arange(len(boxes))},
        )
        tracked = self._tracker.update(theirs)
        if len(tracked):  # in another order, perhaps without some
            numbers[tracked.data["index"]] = tracked.tracker_id
        return numbers

    def reset(self) -> None:
        self._tracker.reset()
