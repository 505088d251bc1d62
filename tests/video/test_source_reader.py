"""The times of frames, for sources that do not give each frame one."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import pytest

from infersdk.video.source_reader import Clock, Decoded


def times(start: int | None, fps: float | None, given: list[float | None]) -> list[float]:
    clock = Clock(SimpleNamespace(start_time=start, time_base=Fraction(1, 1000)), fps)
    return [clock.time_of(time) for time in given]


@pytest.mark.parametrize(
    ("start", "fps", "given", "expected"),
    [
        (0, 10.0, [0.0, 0.1, 0.25], [0.0, 0.1, 0.25]),
        (2000, 10.0, [2.0, 2.1], [0.0, 0.1]),
        (2000, 10.0, [2.3, 2.4], [0.3, 0.4]),  # the first frames were left out
        (None, 10.0, [5.0, 5.1], [0.0, 0.1]),
        (9000, 10.0, [5.0, 5.1], [0.0, 0.1]),  # a start that is behind the first frame is none
        (50, 20.0, [None, None, 0.05, 0.1], [0.0, 0.05, 0.1, 0.15]),  # a stream that is joined
        (None, None, [None, None], [0.0, 1 / 30]),
        (0, 10.0, [0.0, None, 0.2], [0.0, 0.1, 0.2]),
        (0, 10.0, [50.0, 50.1, 0.0, 0.1], [50.0, 50.1, 50.2, 50.3]),  # the clock of the source began again
        (0, 10.0, [0.0, 0.1, 0.1, 0.2], [0.0, 0.1, 0.1, 0.2]),  # a damaged stream
    ],
)
def test_times(start: int | None, fps: float | None, given: list[float | None], expected: list[float]) -> None:
    assert times(start, fps, given) == pytest.approx(expected)


def test_what_is_counted() -> None:
    decoded = Decoded()
    assert [decoded.add(at, 10.0) for at in (0.0, 0.2, 0.1)] == [0, 1, 2]
    assert (decoded.frames, decoded.end) == (3, pytest.approx(0.3))
