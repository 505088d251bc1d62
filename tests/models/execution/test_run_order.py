"""The order of runs on a device: one after another, and two at a time while more are in flight."""

from __future__ import annotations

from typing import Any

from infersdk.models.execution import RunOrder


class _Event:
    """The end of a run."""

    def record(self, stream: _Stream) -> None:
        stream.recorded.append(self)


class _Stream:
    def __init__(self) -> None:
        self.waits: list[_Event] = []
        self.recorded: list[_Event] = []

    def wait(self, event: _Event) -> None:
        self.waits.append(event)


def queue(order: RunOrder) -> tuple[_Stream, _Event]:
    """A batch that is queued."""
    stream: Any = _Stream()
    end: Any = _Event()
    order.wait(stream)
    order.queued(end, stream)
    assert stream.recorded == [end]
    return stream, end


def test_a_batch_alone_waits_for_nothing() -> None:
    order = RunOrder()
    for _ in range(3):
        stream, _ = queue(order)
        assert stream.waits == []
        order.finished()


def test_the_second_batch_runs_after_the_first() -> None:
    order = RunOrder()
    _, first = queue(order)
    for _ in range(4):  # callers that come back in two groups
        stream, second = queue(order)
        assert stream.waits == [first]
        order.finished()
        first = second


def test_more_batches_run_two_at_a_time() -> None:
    order = RunOrder()
    ends = [queue(order)[1] for _ in range(2)]
    for _ in range(4):
        stream, end = queue(order)
        assert stream.waits == [ends[-2]]
        order.finished()
        ends.append(end)
