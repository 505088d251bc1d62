"""Draws road users with track numbers, the drivable area and the lane lines into a video, by two models and a tracker.

    python examples/driving.py drive.mp4 annotated.mp4 --config examples/driving.toml

The configuration names the models: `detector`, a model that returns boxes, and `road`, one that returns class maps.
Each frame is decoded once, and copied to a GPU once. Both models run at the same time, while the previous frame is
drawn and encoded. Requires `pip install "infersdk[cpu,video]"`.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from infersdk import ModelGroup, models
from infersdk.models import Detections, GroupResult, Tracker
from infersdk.video import Frame, Prefetch, VideoReader, VideoWriter, paired

if TYPE_CHECKING:
    from PIL import Image

#: Minimum scores of a box that starts a track, and of one that continues it.
TRACK_FROM, TRACK_ON = 0.5, 0.4


def annotated(
    frames: Iterable[tuple[Frame, GroupResult]], tracker: Tracker
) -> Iterator[tuple[Frame, Image.Image, Detections, GroupResult]]:
    """Each frame drawn, with its tracked boxes. Results of a model that failed are not drawn."""
    for frame, result in frames:
        image: Any = frame if "road" in result.errors else result["road"].draw(frame, opacity=0.4)
        tracked = tracker.update(result["detector"])
        yield frame, tracked.draw(image, colour_by="track_id"), tracked, result


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description="Draw road users, the road and its lanes into a video.")
    parser.add_argument("video")
    parser.add_argument("output", type=Path)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_suffix(".toml"))
    parser.add_argument("--frames", type=int, help="maximum number of frames")
    arguments = parser.parse_args(argv)
    if arguments.frames is not None and arguments.frames < 1:
        parser.error(f"--frames is {arguments.frames}; give 1 or more, or leave it out for the whole video")

    tracks: dict[int, str] = {}
    errors, areas = Counter[str](), list[float]()
    with (
        ModelGroup(**models.create(arguments.config)) as group,
        VideoReader(arguments.video) as reader,
        VideoWriter(arguments.output, reader.size, reader.fps) as writer,
        Prefetch(
            annotated(
                paired(group.map, itertools.islice(reader, arguments.frames)),
                Tracker(fps=reader.fps, track_activation_threshold=TRACK_FROM, high_conf_det_threshold=TRACK_ON),
            )
        ) as results,
    ):
        start = perf_counter()
        for frame, image, tracked, result in results:
            fits = image.size == reader.size  # a stream may change its size, a file cannot
            writer.write(image if fits else image.resize(reader.size), frame.time)
            errors.update(f"{name}: {error}" for name, error in result.errors.items())
            if "road" not in result.errors:
                areas.append(result["road"].areas["area"])
            numbers = tracked.columns["track_id"].tolist()
            tracks |= {number: label for number, label in zip(numbers, tracked.labels, strict=True) if number >= 0}
        writer.close()
        seconds = perf_counter() - start
    followed = Counter(tracks.values())
    print(f"{writer.frames} frames in {seconds:.1f} s, {writer.frames / seconds:.1f} fps: {arguments.output}")
    print("followed:", ", ".join(f"{count} x {label}" for label, count in followed.most_common()) or "nothing")
    if areas:
        print(f"road: {sum(areas) / len(areas):.1%} of the image")
    for text, count in errors.items():
        print(f"{count} frames without {text}")
    return {"frames": writer.frames, "fps": writer.frames / seconds, "followed": followed, "areas": areas}


if __name__ == "__main__":
    main()
