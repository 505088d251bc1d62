"""Linear assignment against SciPy, and ByteTrack against the package `trackers`."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from track_sequences import Sequence, reference_numbers
from waiting import together

from infersdk.errors import DTypeError, InputError, InUseError, ShapeError
from infersdk.ops import DETECTION, NO_TRACK, ByteTracker, assign

SIZES = [
    (0, 0), (0, 5), (5, 0), (1, 1), (1, 9), (9, 1), (2, 2), (3, 17), (17, 3), (16, 16), (33, 32), (32, 33), (70, 64),
]  # fmt: skip
MADE = {
    "unique": lambda random, size: random.normal(size=size),
    "positive": lambda random, size: 1e6 * random.random(size),
    "overlaps": lambda random, size: -np.maximum(random.random(size) - 0.7, 0),  # mostly 0
    "ties": lambda random, size: random.integers(-2, 3, size),
    "equal": lambda random, size: np.full(size, 7),
    "far apart": lambda random, size: 10.0 ** random.integers(-20, 20, size),
}  # fmt: skip


def boxes(*rows: tuple[float, ...]) -> Any:
    """Of left, top, right, bottom, score."""
    made = np.zeros(len(rows), DETECTION)
    for i, (*edges, score) in enumerate(rows):
        made["xyxy"][i], made["score"][i] = edges, score
    return made


# ---- assignment ----


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_sum_of_an_assignment_is_the_least(kind: str, size: tuple[int, int]) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    random = np.random.default_rng(len(kind) + 100 * size[0] + size[1])
    for _ in range(20):
        costs = MADE[kind](random, size).astype(np.float32)
        columns = assign(costs)
        rows = np.flatnonzero(columns >= 0)
        assert len(rows) == len(set(columns[rows])) == min(size)
        expected = optimize.linear_sum_assignment(costs)
        least = costs[expected].astype(np.float64).sum()
        assert costs[rows, columns[rows]].astype(np.float64).sum() == pytest.approx(least, rel=1e-9, abs=1e-6)
        if kind == "unique":
            np.testing.assert_array_equal((rows, columns[rows]), expected)


def test_costs_may_be_a_view() -> None:
    costs = np.random.default_rng(1).random((12, 9)).astype(np.float32)
    np.testing.assert_array_equal(assign(costs[::-2].T), assign(costs[::-2].T.copy()))


@pytest.mark.parametrize("cost", [np.nan, np.inf, -np.inf])
def test_costs_are_finite(cost: float) -> None:
    costs = np.zeros((3, 4), np.float32)
    costs[2, 1] = cost
    with pytest.raises(InputError, match="row 2 and column 1"):
        assign(costs)


def test_wrong_costs() -> None:
    with pytest.raises(DTypeError, match="float64"):
        assign(np.zeros((2, 2)))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"\(4,\)"):
        assign(np.zeros(4, np.float32))


# ---- ByteTrack ----

SETTINGS: list[dict[str, Any]] = [
    {},
    {"track_activation_threshold": 0.5, "high_conf_det_threshold": 0.4},
    {"minimum_consecutive_frames": 1, "lost_track_buffer": 0},
    {"minimum_consecutive_frames": 4, "minimum_iou_threshold": 0.3, "lost_track_buffer": 90},
    {"frame_rate": 11.0, "lost_track_buffer": 13},
]  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_the_numbers_are_those_of_the_reference(seed: int) -> None:
    pytest.importorskip("trackers")
    settings = SETTINGS[seed % len(SETTINGS)]
    frames = Sequence(seed, objects=(8, 15, 25, 60)[seed % 4]).boxes
    tracker = ByteTracker(**settings)
    theirs = list(reference_numbers(frames, **settings))
    for frame, numbers in zip(frames, theirs, strict=True):
        np.testing.assert_array_equal(tracker.update(frame), numbers)
    tracked = np.concatenate(theirs)
    assert tracked.max() >= 3
    assert np.mean(tracked != NO_TRACK) > 0.2


def test_scores_at_the_thresholds() -> None:
    """The score 0.7 in float32 is below 0.7, and an IoU of 0.1 in float32 is not below 0.1."""
    pytest.importorskip("trackers")
    frames = [boxes((0, 0, 10, 10, score)) for score in (0.7, 0.7, 0.70001, 0.6, 0.59999, 0.6)]
    frames += [boxes((0, 0, 10, 100, 0.9)), boxes((0, 0, 10, 10, 0.9)), boxes((0, 0, 10, 10, 0.9))]
    tracker = ByteTracker()
    ours = [tracker.update(frame).tolist() for frame in frames]
    assert ours == [numbers.tolist() for numbers in reference_numbers(frames)]
    assert ours[2:5] == [[-1], [0], [0]]


def test_a_reset_tracker_begins_anew() -> None:
    frames = Sequence(3).boxes
    tracker = ByteTracker()
    first = [tracker.update(frame).tolist() for frame in frames]
    tracker.reset()
    assert [tracker.update(frame).tolist() for frame in frames] == first


def test_the_order_of_the_boxes_does_not_matter() -> None:
    tracker, other = ByteTracker(), ByteTracker()
    for frame in Sequence(4).boxes:
        numbers, reversed_numbers = tracker.update(frame), other.update(frame[::-1])  # a view
        np.testing.assert_array_equal(numbers >= 0, reversed_numbers[::-1] >= 0)


@pytest.mark.parametrize("edge", [np.nan, np.inf])
def test_refused_boxes_change_nothing(edge: float) -> None:
    frames = Sequence(5).boxes
    tracker, other = ByteTracker(), ByteTracker()
    for frame in frames:
        np.testing.assert_array_equal(tracker.update(frame), other.update(frame))
        with pytest.raises(InputError, match="box 1 of 2"):
            other.update(boxes((0, 0, 1, 1, 0.9), (0, 0, edge, 1, 0.9)))
    with pytest.raises(InputError, match="score nan"):
        tracker.update(boxes((0, 0, 1, 1, np.nan)))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("frame_rate", 0), ("frame_rate", np.inf), ("lost_track_buffer", -1), ("lost_track_buffer", 2**40),
        ("minimum_consecutive_frames", 0), ("minimum_iou_threshold", 0), ("minimum_iou_threshold", 1.5),
        ("minimum_iou_threshold", 1e-60), ("frame_rate", "30"), ("lost_track_buffer", "a"),
        pytest.param("frame_rate", 10**400, id="large rate"),
        pytest.param("lost_track_buffer", 10**400, id="large buffer"),
        ("track_activation_threshold", np.nan), ("high_conf_det_threshold", np.nan),
        ("track_activation_threshold", 2), ("high_conf_det_threshold", np.inf), ("minimum_iou_threshold", "a"),
    ],
)  # fmt: skip
def test_settings_out_of_range(setting: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{setting}={value!r}; use"):
        ByteTracker(**{setting: value})


def test_a_number_of_frames_is_whole() -> None:
    with pytest.raises(InputError, match=r"minimum_consecutive_frames is 2\.0; it must be a whole number"):
        ByteTracker(minimum_consecutive_frames=2.0)  # type: ignore[arg-type]


def test_wrong_boxes() -> None:
    tracker = ByteTracker()
    with pytest.raises(DTypeError, match="float32"):
        tracker.update(np.zeros((2, 4), np.float32))
    with pytest.raises(DTypeError, match="float64"):
        tracker.update([])  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"\(2, 1\)"):
        tracker.update(np.zeros((2, 1), DETECTION))


def test_two_threads_do_not_share_a_tracker() -> None:
    """An update at the same time as another one is an error, and harms nothing."""
    tracker, frame = ByteTracker(), Sequence(6, frames=8, objects=900).boxes[-1]
    used: list[str] = []
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            try:
                tracker.update(frame)
            except InUseError as error:
                used.append(str(error))
                stop.set()

    together(work, [()] * 2)
    assert "a tracker of its own" in used[0]
    assert tracker.update(frame).shape == frame.shape
