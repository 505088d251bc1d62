"""Several requests that are submitted at once, and end by a callback."""

from __future__ import annotations

import queue
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

import pytest
from squares import LONG, Squares, begun, consistent
from waiting import together

from infersdk import Pipeline
from infersdk.errors import ClosedError, DeadlineExceeded, InputError, Overloaded


class Ends:
    """Collects the ends of requests."""

    def __init__(self) -> None:
        self._ended: queue.Queue[tuple[int, Any]] = queue.Queue()

    def __call__(self, index: int, outcome: Any) -> None:
        self._ended.put((index, outcome))

    def take(self, count: int) -> list[Any]:
        """The outcomes of so many requests, by their index."""
        found = dict(self._ended.get(timeout=LONG) for _ in range(count))
        assert sorted(found) == list(range(count)), "each ends once"
        return [found[index] for index in range(count)]

    @property
    def none(self) -> bool:
        return self._ended.empty()


@pytest.mark.parametrize("wait", [None, True, False])
def test_more_than_there_are_slots(model: Squares, wait: bool | None) -> None:
    """One that fails fails alone."""
    ends = Ends()
    with Pipeline(model, max_delay=0) as pipeline:
        requests = pipeline.submit_batch([*range(20), -3, *range(20)], ends, wait=wait)
        outcomes = ends.take(41)
        assert isinstance(outcomes[20], InputError)
        del outcomes[20]
        assert outcomes == [n * n for n in (*range(20), *range(20))]
        assert not any(request.cancel() for request in requests)
        assert pipeline.submit_batch([], ends) == []
        consistent(pipeline.stats())


def test_requests_that_find_no_slot(model: Squares) -> None:
    """All are cancelled where one is refused, and none of them calls; without waiting they stay."""
    ends = Ends()
    model.hold()
    with Pipeline(model, max_delay=0, slots=8, when_full="raise") as pipeline:
        first = pipeline.submit_many(range(4))
        begun(model)
        with pytest.raises(Overloaded):
            pipeline.submit_batch(range(8), ends)
        assert ends.none
        assert pipeline.stats().queued == 0
        requests = pipeline.submit_batch(range(8), ends, wait=False)
        assert requests[6].cancel()
        assert requests[6].cancel() is False, "it has ended"
        model.go.set()
        outcomes = ends.take(8)
        assert isinstance(outcomes.pop(6), CancelledError)
        assert outcomes == [0, 1, 4, 9, 16, 25, 49]
        assert [f.result(LONG) for f in first] == [0, 1, 4, 9]
    with pytest.raises(ClosedError):
        pipeline.submit_batch([1], ends)
    assert ends.none


def test_waiting_for_slots_has_a_limit(model: Squares) -> None:
    ends = Ends()
    model.hold()
    with Pipeline(model, max_delay=0, slots=4) as pipeline:
        running = pipeline.submit_many(range(4))
        with pytest.raises(Overloaded, match=r"were taken for 0\.05 s"):
            pipeline.submit_batch([1, 2], ends, timeout=0.05)
        assert ends.none
        assert pipeline.stats().waiting == 0
        model.go.set()
        assert [f.result(LONG) for f in running] == [0, 1, 4, 9]


def test_a_callback_may_submit_more(model: Squares) -> None:
    """As a composition does: it waits for no slot, whatever the settings say."""
    ends = Ends()
    with Pipeline(model, max_delay=0, slots=4, when_full="raise") as pipeline:

        def again(index: int, outcome: int) -> None:
            pipeline.submit_batch([outcome], lambda _, last: ends(index, last), wait=False)

        pipeline.submit_batch(range(12), again, wait=True)
        assert ends.take(12) == [n**4 for n in range(12)]


def test_deadlines_and_parameters(model: Squares) -> None:
    ends = Ends()
    with Pipeline(model, max_delay=0) as pipeline:
        pipeline.submit_batch([2, 3], ends, {"power": 3})
        assert ends.take(2) == [8, 27]
        pipeline.submit_batch([2], ends, deadline=0)
        assert isinstance(ends.take(1)[0], DeadlineExceeded)
        with pytest.raises(InputError, match="deadline is"):
            pipeline.submit_batch([2], ends, deadline=1e15)


def test_requests_keep_nothing_when_they_have_ended(model: Squares) -> None:
    ends = Ends()
    with Pipeline(model, max_delay=0) as pipeline:
        requests = pipeline.submit_batch(range(8), ends)
        ends.take(8)
        assert [(request.item, request._on_done) for request in requests] == [(None, None)] * 8


def test_threads_that_submit_at_once(model: Squares) -> None:
    with Pipeline(model, max_delay=0, slots=8) as pipeline:
        collected = [Ends() for _ in range(4)]
        submits = [partial(pipeline.submit_batch, range(30), ends, wait=wait)
                   for ends, wait in zip(collected, (None, True, False, None), strict=True)]  # fmt: skip
        together(lambda submit: submit(), submits)
        for ends in collected:
            assert ends.take(30) == [n * n for n in range(30)]
