"""Track numbers: those of a stream do not depend on the streams that share its batches."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk.errors import BackendUnavailableError, ConfigError
from infersdk.models import Detections, Tracker, load

SIZE = (400, 200)


def moving(frame: int, *, order: int = 1) -> Detections:
    """Two objects that move towards each other, and one that is there for six frames."""
    xyxy = [(10 + 4 * frame, 20, 50 + 4 * frame, 60), (340 - 4 * frame, 120, 380 - 4 * frame, 160)]
    if 4 <= frame < 10:
        xyxy.append((200, 20, 240, 60))
    return Detections.of(xyxy, np.linspace(0.9, 0.8, len(xyxy)), names=("ball",), size=SIZE)[::order]


def test_an_object_keeps_its_number() -> None:
    pytest.importorskip("trackers")
    tracker = Tracker(fps=30)
    numbers = []
    for frame in range(30):
        found = moving(frame, order=-1 if frame % 2 else 1)  # the order of the boxes does not matter
        tracked = tracker.update(found)
        np.testing.assert_array_equal(tracked.xyxy, found.xyxy)
        assert tracked.columns["track_id"].dtype == np.int64
        numbers.append(tracked.columns["track_id"][:: -1 if frame % 2 else 1])
    assert numbers[0].tolist() == [-1, -1], "a track begins with its second frame"
    first, second = numbers[2][:2]
    assert first != second
    assert all(row[:2].tolist() == [first, second] for row in numbers[2:])
    assert {row[2] for row in numbers[6:10]} == {2}
    tracker.reset()
    for frame in range(3):
        again = tracker.update(moving(frame)).columns["track_id"]
    assert again.tolist() == [0, 1], "numbers begin anew"


def test_frames_without_objects() -> None:
    pytest.importorskip("trackers")
    tracker = Tracker(lost_track_buffer=10)
    nothing = Detections.of(np.zeros((0, 4)), [], names=(), size=SIZE)
    assert tracker.update(nothing).columns["track_id"].shape == (0,)
    for frame in range(5):
        before = tracker.update(moving(frame))
    assert len(tracker.update(nothing)) == 0
    assert tracker.update(moving(6))[:2].columns["track_id"].tolist() == before.columns["track_id"][:2].tolist()


def test_the_numbers_are_drawn_and_exported() -> None:
    pytest.importorskip("trackers")
    tracker = Tracker()
    for frame in range(4):
        tracked = tracker.update(moving(frame))
    assert [row["track_id"] for row in tracked.to_dicts()] == [0, 1]
    image = np.zeros((200, 400, 3), np.uint8)
    assert tracked.draw(image).tobytes() != moving(3).draw(image).tobytes()
    untracked = moving(3).with_columns(track_id=np.array([-1, -1]))
    assert untracked.draw(image).tobytes() == moving(3).draw(image).tobytes()


def test_wrong_trackers(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, words in (
        ({"method": "magic"}, "unknown tracker 'magic'; use one of bytetrack"),
        ({"fps": 0}, "fps=0"),
    ):
        with pytest.raises(ConfigError, match=words):
            Tracker(**arguments)
    monkeypatch.setitem(sys.modules, "trackers", None)
    with pytest.raises(BackendUnavailableError, match=r"infersdk\[tracking\]"):
        Tracker()


def test_a_wrong_setting() -> None:
    pytest.importorskip("trackers")
    with pytest.raises(ConfigError, match="buffer_of_lost_tracks"):
        Tracker(buffer_of_lost_tracks=3)


FRAMES, STREAMS = 20, 8


def frames_of(videos: Sequence[Path], starts: Sequence[int]) -> list[list[Any]]:
    """FRAMES frames from each start on, out of the videos in turns; each video is decoded once."""
    from infersdk.video import VideoReader

    first, end = min(starts), max(starts) + FRAMES
    frames: list[list[Any]] = []
    for video in videos:
        with VideoReader(video) as reader:
            frames.append(list(itertools.islice(reader, first, end)))
    return [frames[i % len(videos)][start - first :][:FRAMES] for i, start in enumerate(starts)]


@pytest.mark.slow
@pytest.mark.assets
def test_eight_videos_together_have_the_numbers_of_each_alone(assets: Path) -> None:
    pytest.importorskip("trackers")
    pytest.importorskip("av")
    pytest.importorskip("onnxruntime")
    videos = [assets / "video" / "people.mp4", assets / "driving" / "drive.mp4"]
    cuts = frames_of(videos, [200 + 11 * i for i in range(STREAMS)])
    path, names = assets / "models" / "yolov5n.onnx", assets / "models" / "coco80.txt"
    settings = {"track_activation_threshold": 0.5, "high_conf_det_threshold": 0.4}
    with load(path, names=names, max_batch=STREAMS) as model:
        together: list[list[list[int]]] = [[] for _ in cuts]
        trackers = [Tracker(**settings) for _ in cuts]
        interleaved = (frame for row in zip(*cuts, strict=True) for frame in row)
        for number, found in enumerate(model.map(interleaved)):
            stream = number % STREAMS
            together[stream].append(trackers[stream].update(found).columns["track_id"].tolist())
    with load(path, names=names, max_batch=1) as model:
        for cut, expected in zip(cuts, together, strict=True):
            tracker = Tracker(**settings)
            alone = [tracker.update(found).columns["track_id"].tolist() for found in model.map(cut)]
            assert alone == expected
    assert all(len(numbers) == FRAMES for numbers in together)
    tracked = {max(itertools.chain(*numbers), default=-1) for numbers in together}
    assert max(tracked) >= 1, "there is something to follow"
