"""Made-up videos: boxes that move, hide, cross, enter and leave, with the objects that they belong to; and IDF1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from infersdk.ops import DETECTION

if TYPE_CHECKING:
    import numpy.typing as npt

    Boxes = npt.NDArray[np.void]
    Numbers = npt.NDArray[np.int64]

#: The object of a false detection.
NO_OBJECT = -1


class Sequence:
    """The frames of a made-up video.

    Attributes:
        boxes: of each frame, (N,) of `DETECTION`, best first.
        objects: of each frame, (N,): the object of each box, or `NO_OBJECT`.
        visible: the number of objects that are visible, over all frames.
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
        self.objects: list[Numbers] = []
        self.visible = 0
        for frame in range(frames):
            velocity += random.normal(0, 0.4, (objects, 2))
            place += velocity  # through one another, and out of the image
            extent *= random.uniform(0.99, 1.01, (objects, 2))
            there = (begins <= frame) & (frame < ends) & ~((hidden <= frame) & (frame < shown))
            there &= ((place > 0) & (place < limits)).all(axis=1)
            self.visible += int(there.sum())
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
            order = np.argsort(-boxes["score"])
            self.boxes.append(boxes[order])
            self.objects.append(np.concatenate([found, np.full(false, NO_OBJECT)])[order])

    def idf1(self, numbers: list[Numbers]) -> float:
        """The IDF1 of track numbers (E. Ristani et al., 2016): 2 IDTP / (objects + tracked boxes), in percent."""
        from scipy.optimize import linear_sum_assignment

        objects, tracks = np.concatenate(self.objects), np.concatenate(numbers)
        together = np.zeros((objects.max() + 1, tracks.max() + 1))
        both = (objects != NO_OBJECT) & (tracks >= 0)
        np.add.at(together, (objects[both], tracks[both]), 1)
        matched = together[linear_sum_assignment(together, maximize=True)].sum()
        return float(200 * matched / (self.visible + (tracks >= 0).sum()))


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
