"""`infersdk detect` on a video: detects frame by frame, shows progress, and draws the boxes into another video."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .common import console, json_text
from .progress import show_progress

if TYPE_CHECKING:
    from ..models import Detections, Tiled, VisionModel
    from ..video import Frame, VideoReader

__all__ = ["detect_video"]

#: Frames a second of a source that does not say it.
DEFAULT_FPS = 30.0


def detect_video(
    model: VisionModel[Detections] | Tiled,
    source: str,
    target: Path | None,
    *,
    as_json: bool,
    font: Path | None = None,
    track: bool = False,
) -> None:
    """Runs the detector on each frame of a video.

    Args:
        target: the video into which the boxes are drawn; None draws none. If this function is interrupted or fails, the
            video has the frames up to then.
        as_json: print a line of JSON for each frame, and the summary as the last line.
        font: for the labels.
        track: give the objects numbers, which they keep from frame to frame.
    """
    from ..models import Tracker
    from ..video import VideoReader, VideoWriter

    labels: Counter[str] = Counter()
    done = 0
    start = perf_counter()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "the video .* is damaged", RuntimeWarning)  # the summary reports it
        reader = stack.enter_context(VideoReader(source))
        tracker = Tracker(fps=reader.fps or DEFAULT_FPS) if track else None
        progress = stack.enter_context(show_progress(quiet=as_json))
        advance = stack.enter_context(progress.stage(Path(source).name or source, reader.frames, "frames"))
        writer = stack.enter_context(VideoWriter(target, reader.size, reader.fps)) if target is not None else None
        start = perf_counter()
        try:
            for frame, detections in _detections(model, reader):
                result = detections if tracker is None else tracker.update(detections)
                if writer is not None:
                    writer.write(result.draw(frame, font=font), frame.time)
                if as_json:
                    _print_frame(source, frame, result)
                labels.update(result.labels)
                done += 1
                advance(done)
        finally:
            stack.close()  # the last frames are encoded before the time is taken
            seconds = perf_counter() - start
            summary = {
                "source": source,
                "frames": done,
                "seconds": round(seconds, 3),
                "fps": round(done / seconds, 2) if seconds else 0.0,
                "dropped": reader.dropped,
                "labels": dict(labels.most_common()),
            }
            if reader.damage:
                summary["damage"] = reader.damage
            if target is not None and done:
                summary["output"] = str(target)
            _print_summary(summary, as_json)


def _detections(model: VisionModel[Detections] | Tiled, reader: VideoReader) -> Iterator[tuple[Frame, Detections]]:
    """Each frame with its boxes. The model runs on its own threads while the frame before is drawn."""
    from ..video import paired

    return paired(model.map, reader)


def _print_frame(source: str, frame: Frame, found: Detections) -> None:
    row: dict[str, Any] = {
        "source": source,
        "frame": frame.number,
        "time": round(frame.time, 6),
        "size": list(found.size),
        "detections": [box.to_dict() for box in found],
    }
    sys.stdout.write(json_text(row) + "\n")


def _print_summary(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json_text({"summary": summary}) + "\n")
        return
    out = console()
    note = f"  → {summary['output']}" if "output" in summary else ""
    dropped = f", {summary['dropped']} dropped" if summary["dropped"] else ""
    out.print(
        f"{summary['source']}: {summary['frames']} frames in {summary['seconds']:.1f} s, {summary['fps']:.1f} fps"
        f"{dropped}{note}",
        markup=False,
    )
    if "damage" in summary:
        out.print(f"{summary['source']} is damaged: {summary['damage']}", style="yellow", markup=False)
    counts = (f"{count} x {label}" for label, count in summary["labels"].items())
    out.print(", ".join(counts) or "nothing found", markup=False)
