"""Made-up videos: boxes that move, hide, cross, enter and leave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from infersdk.ops import DETECTION

if TYPE_CHECKING:
    import numpy.typing as npt

    Boxes = npt.NDArray[np.void]
    Numbers = npt.NDArray[np.int64]


class Sequence:
    """The frames of a made-up video.

    Attributes:
        boxes: of each frame, (N,) of `DETECTION`, best first.
    """

    def __init__(self, seed: int, *, frames: int = 120, objects: int = 25, size: tuple[int, int] = (960, 540)) -> None:
        random = np.random.default_rng(seed)
        limits = np.array(size)
        begins = random.integers(0, frames, objects) * (random.random(objects) < 0.5)
        ends = begins + random.integers(frames // 4, 2 * frames, objects)
        hidden = begins + random.integers(5, frames, objects)  # each is hidden once, for 3 to 39 frames
        shown = hidden + random.integers(3, 40, objects)
        place, extent = random.random((objects, 2)) * limits, random.uniform(20, 120, (objects, 2))
        velocity, quality = random.normal(0, 4, (objects, 2)), random.uniform(0.5, 0.95, objects)
        self.boxes: list[Boxes] = []
        for frame in range(frames):
            velocity += random.normal(0, 0.4, (objects, 2))
            place += velocity  # through one another, and out of the image
            extent *= random.uniform(0.99, 1.01, (objects, 2))
            there = (begins <= frame) & (frame < ends) & ~((hidden <= frame) & (frame < shown))
            there &= ((place > 0) & (place < limits)).all(axis=1)
            found = np.flatnonzero(there & (random.random(objects) < 0.93))
            false = random.poisson(0.5)
            centres = np.concatenate([place[found], random.random((false, 2)) * limits])
            sides = np.concatenate([extent[found], random.uniform(20, 120, (false, 2))])
            centres += random.normal(0, 1.5, centres.shape)
            sides *= random.uniform(0.95, 1.05, sides.shape)
            boxes = np.zeros(len(centres), DETECTION)
            boxes["xyxy"] = np.concatenate([centres - sides / 2, centres + sides / 2], axis=1)
            boxes["score"] = np.concatenate([quality[found], random.uniform(0.1, 0.8, false)])
            boxes["score"] += random.normal(0, 0.12, len(boxes)).astype(np.float32)
            self.boxes.append(boxes[np.argsort(-boxes["score"])])


def reference_numbers(frames: list[Boxes], **settings: Any) -> Iterator[Numbers]:
    """The track numbers by ByteTrack of the package `trackers`."""
    import supervision
    from trackers import ByteTrackTracker

    tracker = ByteTrackTracker(**settings)
    for boxes in frames:
        tracked = tracker.update(
            supervision.Detections(
                xyxy=boxes["xyxy"].astype(np.float64),
                confidence=boxes["score"].copy(),
                class_id=boxes["class_id"].astype(int),
                data={"index": np.arange(len(boxes))},
            )
        )
        numbers = np.full(len(boxes), -1)
        if len(tracked):
            numbers[tracked.data["index"]] = tracked.tracker_id
        yield numbers
