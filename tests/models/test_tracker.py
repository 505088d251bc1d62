"""Track numbers: those of a stream do not depend on the streams that share its batches."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from track_sequences import reference_numbers

from infersdk.errors import BackendUnavailableError, ConfigError, InputError
from infersdk.models import Detections, Tracker, load

SIZE = (400, 200)


def moving(frame: int, *, order: int = 1) -> Detections:
    """Two objects that move towards each other, and one that is there for six frames."""
    xyxy = [(10 + 4 * frame, 20, 50 + 4 * frame, 60), (340 - 4 * frame, 120, 380 - 4 * frame, 160)]
    if 4 <= frame < 10:
        xyxy.append((200, 20, 240, 60))
    return Detections.of(xyxy, np.linspace(0.9, 0.8, len(xyxy)), names=("ball",), size=SIZE)[::order]


def test_an_object_keeps_its_number() -> None:
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
    tracker = Tracker(lost_track_buffer=10)
    nothing = Detections.of(np.zeros((0, 4)), [], names=(), size=SIZE)
    assert tracker.update(nothing).columns["track_id"].shape == (0,)
    for frame in range(5):
        before = tracker.update(moving(frame))
    assert len(tracker.update(nothing)) == 0
    assert tracker.update(moving(6))[:2].columns["track_id"].tolist() == before.columns["track_id"][:2].tolist()


def test_the_numbers_are_drawn_and_exported() -> None:
    tracker = Tracker()
    for frame in range(4):
        tracked = tracker.update(moving(frame))
    assert [row["track_id"] for row in tracked.to_dicts()] == [0, 1]
    image = np.zeros((200, 400, 3), np.uint8)
    assert tracked.draw(image).tobytes() != moving(3).draw(image).tobytes()
    untracked = moving(3).with_columns(track_id=np.array([-1, -1]))
    assert (tracked[0].tracker_id, untracked[0].tracker_id, moving(3)[0].tracker_id) == (0, -1, None)
    assert untracked.draw(image).tobytes() == moving(3).draw(image).tobytes()


@pytest.mark.parametrize("method", ["sort", "oc-sort"])
def test_methods_of_the_package(method: str) -> None:
    pytest.importorskip("trackers")
    tracker = Tracker(method)
    for frame in range(12):
        tracked = tracker.update(moving(frame))
    first, second = tracked.columns["track_id"].tolist()
    assert first != second
    assert min(first, second) >= 0
    tracker.reset()
    assert tracker.update(moving(0)).columns["track_id"].max() < max(first, second)
    wrong = moving(1)
    wrong.data["xyxy"][0, 0] = np.nan
    with pytest.raises(InputError, match="not finite"):
        tracker.update(wrong)


def test_wrong_trackers(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, words in (
        ({"method": "magic"}, "unknown tracker 'magic'; use one of bytetrack"),
        ({"fps": 0}, "fps=0"),
        ({"fps": "30"}, "fps='30' is no number above 0"),
        ({"frame_rate": 25}, "frame_rate=25: .*pass fps="),
        ({"buffer_of_lost_tracks": 3}, "bytetrack: .*buffer_of_lost_tracks"),
        ({"lost_track_buffer": -1}, "lost_track_buffer=-1"),
        ({"fps": 10**400}, "fps=10+ is no number above 0 that a float can hold"),
        ({"minimum_consecutive_frames": 1.5}, "bytetrack: minimum_consecutive_frames is 1.5; it must be a whole"),
        ({"lost_track_buffer": "a"}, "bytetrack: lost_track_buffer='a'; use a number"),
    ):
        with pytest.raises(ConfigError, match=words):
            Tracker(**arguments)
    monkeypatch.setitem(sys.modules, "trackers", None)
    Tracker()  # needs no package
    with pytest.raises(BackendUnavailableError, match=r"infersdk\[tracking\]"):
        Tracker("sort")


@pytest.mark.parametrize("setting", ["buffer_of_lost_tracks", "lost_track_buffer"])
def test_a_wrong_setting_of_the_package(setting: str) -> None:
    pytest.importorskip("trackers")
    with pytest.raises(ConfigError, match=f"sort: .*{setting}"):
        Tracker("sort", **{setting: -3})


@pytest.mark.parametrize("method", ["sort", "oc-sort"])
@pytest.mark.parametrize(
    ("setting", "value"),
    [("minimum_iou_threshold", "a"), ("minimum_iou_threshold", 5), ("minimum_consecutive_frames", None)],
)
def test_a_setting_of_the_package_out_of_range(method: str, setting: str, value: object) -> None:
    pytest.importorskip("trackers")
    with pytest.raises(ConfigError, match=f"{method}: {setting}={value!r}; use a number of at most"):
        Tracker(method, **{setting: value})


def test_a_source_without_a_frame_rate() -> None:
    found = moving(0)
    for absent, number in ((30, 0), (31, -1)):
        for fps in (None, 30):
            tracker = Tracker(fps=fps)
            for frame in [found] * 3 + [found[:0]] * absent:
                tracker.update(frame)
            assert tracker.update(found).columns["track_id"][0] == number


def test_wrong_boxes() -> None:
    found = Detections.of([(0, 0, 1, 1)], [0.9], names=(), size=SIZE)
    found.data["xyxy"][0, 2] = np.nan
    with pytest.raises(InputError, match="box 0 of 1"):
        Tracker().update(found)
    for wrong in ([found], [], "frame.jpg", None):
        with pytest.raises(InputError, match=r"a \w+ is not the Detections of one frame; pass model\(frame\)"):
            Tracker().update(wrong)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "video", "step"),
    [("yolov8n", "video/people.mp4", 6), ("yolov5n", "video/people.mp4", 6), ("yolov5n", "driving/drive.mp4", 1)],
)
def test_videos_against_the_reference(network: str, video: str, step: int, assets: Path) -> None:
    """Each box of each `step`-th frame has the number that the package `trackers` gives it."""
    for module in ("trackers", "onnxruntime", "av"):
        pytest.importorskip(module)
    from infersdk.video import VideoReader

    with load(assets / "models" / f"{network}.onnx", conf=0.1) as detector, VideoReader(assets / video) as reader:
        results = list(detector.map(itertools.islice(reader, 0, 200 * step, step)))
        fps = reader.fps / step
    tracker = Tracker(fps=fps)
    ours = [tracker.update(found).columns["track_id"] for found in results]
    assert max(numbers.max(initial=-1) for numbers in ours) >= 3
    for own, theirs in zip(ours, reference_numbers([found.data for found in results], frame_rate=fps), strict=True):
        np.testing.assert_array_equal(own, theirs)
