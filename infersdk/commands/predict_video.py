"""`infersdk predict` on videos and cameras: all through one model, with progress, rows of results and drawn videos."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InferSDKError, UnsupportedModelError
from ..image import DeviceImage
from ..models import Result, Tracker
from ..video import AnyFrame, StreamHealth, StreamInfo, StreamResult, Streams, Submits, VideoWriter
from .common import print_text
from .progress import ProgressReporter, show_progress

if TYPE_CHECKING:
    from .row_files import Emit
    from .sources import Source
    from .window import Window

__all__ = ["as_result", "predict_videos"]

#: Files that are read at the same time.
FILES_AT_ONCE = 8


def predict_videos(
    model: Submits[Any],
    sources: Sequence[tuple[Source, Path | None]],
    emit: Emit | None,
    window: Window | None,
    *,
    quiet: bool,
    track: bool,
    **reading: Any,
) -> list[Exception]:
    """Runs the model on each frame of all videos. They share the model; each has a tracker and a drawing of its own.

    If this function is interrupted or fails, the drawings have the frames up to then, and the summaries are made.

    Args:
        sources: each with the video into which its results are drawn; None draws none.
        emit: gets a row for each frame, and a summary for each source at the end; None makes no rows.
        quiet: no progress and no summaries for people.
        reading: settings of `Streams`.

    Returns:
        The first error of each source that has one. The other sources are done all the same.

    Raises:
        ConfigError: two sources have one name.
        InferSDKError: the error of a single source.
    """
    alone = len(sources) == 1

    def end(name: str) -> None:
        summary = videos[name].end(streams.health()[name])
        if emit is not None:
            emit({"summary": summary})
        if not quiet:
            _print_summary(summary)

    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "the video .* is damaged", RuntimeWarning)  # the summary reports it
        streams = Streams(
            [source.name for source, _ in sources],
            files_at_once=FILES_AT_ONCE, retry_first=False, on_end=end, **reading,
        )  # fmt: skip
        videos = {
            name: _Video(name, target, emit, window, track=track)
            for name, (_, target) in zip(streams.names, sources, strict=True)
        }
        progress = stack.enter_context(show_progress(quiet=quiet))
        try:
            for item in stack.enter_context(streams).run(model):
                video = videos[item.stream]
                if item.frame is not None:
                    video.begin(item.frame, streams.info()[item.stream], progress)
                video.take(item)
                if alone and video.error is not None:
                    raise video.error
        finally:
            streams.close()
            unfinished = [name for name, video in videos.items() if not video.ended]
            for name in unfinished:
                videos[name].finish_drawing()
            for name in unfinished:
                end(name)
    return [video.error for video in videos.values() if video.error is not None]


def as_result(result: Any) -> Result:
    """The return value of a model. Raises UnsupportedModelError if it is not a `Result`."""
    if not isinstance(result, Result):
        kind = type(result).__name__
        raise UnsupportedModelError(
            f"the wrapper returns a {kind}, which is not printed or drawn; derive {kind} from infersdk.models.Result"
        )
    return result


class _Video:
    """One source: its tracker, drawing, rows and statistics."""

    def __init__(
        self, name: str, target: Path | None, emit: Emit | None, window: Window | None, *, track: bool
    ) -> None:
        self.name, self.ended = name, False
        self.error: Exception | None = None
        self._target, self._emit, self._window, self._track = target, emit, window, track
        self._labels: Counter[str] = Counter()
        self._done = 0
        self._start: float | None = None
        self._live = False
        self._stack = ExitStack()
        self._writer: VideoWriter | None = None
        self._tracker: Tracker | None = None
        self._advance: Callable[[float], None] = lambda done: None

    def begin(self, frame: AnyFrame, info: StreamInfo, progress: ProgressReporter) -> None:
        """Opens tracker and writer at the first frame; later calls do nothing."""
        if self._start is not None:
            return
        self._start, self._live = frame.decoded, info.live
        title = Path(self.name).name or self.name
        self._advance = self._stack.enter_context(progress.stage(title, info.frames, "frames"))
        if self._track:
            self._tracker = Tracker(fps=info.fps)
        with self._keeping_errors():
            if self._target is not None:
                self._writer = VideoWriter(self._target, fps=info.fps)

    def take(self, item: StreamResult[Any]) -> None:
        if item.error is not None:
            self._report(item.error, item.frame)
            return
        assert item.frame is not None
        result: Any = as_result(item.result)
        if self._tracker is not None:
            result = self._tracker.update(result)
        with self._keeping_errors():
            if self._writer is not None or self._window is not None:
                drawn = result.draw(item.frame.to_host() if isinstance(item.frame, DeviceImage) else item.frame)
                if self._writer is not None:
                    size = self._writer.size or drawn.size  # a stream may change its size, a file cannot
                    self._writer.write(drawn if drawn.size == size else drawn.resize(size), item.frame.time)
                if self._window is not None:
                    self._window.show(self.name, drawn, wait=False)
        if self._emit is not None:
            self._emit(_row(self.name, item.frame, result, self._live))
        self._labels.update(getattr(result, "labels", ()))
        self._done += 1
        self._advance(self._done)

    def finish_drawing(self) -> None:
        with self._keeping_errors():
            if self._writer is not None:
                self._writer.close()

    def end(self, health: StreamHealth) -> dict[str, Any]:
        """Finishes the drawing; returns the summary."""
        self.ended = True
        self.finish_drawing()
        self._stack.close()
        seconds = 0.0 if self._start is None else time.monotonic() - self._start
        summary = {
            "stream": self.name,
            "frames": self._done,
            "seconds": round(seconds, 3),
            "fps": round(self._done / seconds, 2) if seconds else 0.0,
            "dropped": health.dropped,
            "labels": dict(self._labels.most_common()),
        }
        if health.errors:
            summary["errors"] = health.errors
        if health.connects > 1:
            summary["connects"] = health.connects
        if self.error is not None:
            summary["error"] = str(self.error)
        elif health.error and health.state == "ended":
            summary["damage"] = health.error
        if self._writer is not None and self._writer.path.exists():
            summary["output"] = str(self._writer.path)
        return summary

    def _report(self, error: Exception, frame: AnyFrame | None) -> None:
        self.error = self.error or error
        if self._emit is not None:
            at = {} if frame is None else {"frame": frame.number, "time": round(frame.time, 6)}
            self._emit({"stream": self.name, **at, "error": str(error)})

    @contextlib.contextmanager
    def _keeping_errors(self) -> Iterator[None]:
        """An error of the drawing ends only the drawing."""
        try:
            yield
        except InferSDKError as error:
            self._report(error, None)
            self._window = None
            if self._writer is not None:
                writer, self._writer = self._writer, None
                with contextlib.suppress(InferSDKError):
                    writer.close()


def _row(name: str, frame: AnyFrame, result: Any, live: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"stream": name, "frame": frame.number, "time": round(frame.time, 6)}
    if live:  # system time, to compare streams
        row["clock"] = round(time.time() - (time.monotonic() - frame.decoded), 3)
    return {**row, "size": list(frame.size), "results": result.to_dicts()}


def _print_summary(summary: dict[str, Any]) -> None:
    note = f"  → {summary['output']}" if "output" in summary else ""
    dropped = f", {summary['dropped']} dropped" if summary["dropped"] else ""
    errors = f", {summary['errors']} without a result" if "errors" in summary else ""
    opened = f", opened {summary['connects']} times" if "connects" in summary else ""
    print_text(
        f"{summary['stream']}: {summary['frames']} frames in {summary['seconds']:.1f} s, {summary['fps']:.1f} fps"
        f"{dropped}{errors}{opened}{note}"
    )
    if "damage" in summary:
        print_text(f"{summary['stream']} is damaged: {summary['damage']}", "yellow")
    if "error" in summary:
        print_text(f"{summary['stream']} failed: {summary['error']}", "red")
    if summary["labels"]:
        counts = (f"{count} x {label}" for label, count in summary["labels"].items())
        print_text(f"  {', '.join(counts)}")
