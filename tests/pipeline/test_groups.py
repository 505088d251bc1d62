"""Several requests that are taken in at once and end together."""

from __future__ import annotations

import gc
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

import pytest
from squares import LONG, Squares, SquaresBuffer, begun, consistent, until

from infersdk import Pipeline
from infersdk.errors import ClosedError, DeadlineExceeded, InputError, Overloaded
from infersdk.pipeline.core import PipelineCore
from infersdk.pipeline.futures import RequestGroup, TaggedRequest
from infersdk.pipeline.staggered_wakeup import CONCURRENT_WAKEUPS

if TYPE_CHECKING:
    from infersdk.pipeline.request import Request


class Ends:
    """Groups that have ended, and what came of their requests."""

    def __init__(self) -> None:
        self._ended: queue.Queue[RequestGroup] = queue.Queue()

    def __call__(self, group: RequestGroup) -> None:
        self._ended.put(group)

    def next(self) -> list[Any]:
        return self._ended.get(timeout=LONG).outcomes

    @property
    def none(self) -> bool:
        return self._ended.empty()


@pytest.fixture
def model() -> Iterator[Squares]:
    squares = Squares()
    yield squares
    squares.go.set()
    assert squares.open == 0, "a buffer was not closed"


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.mark.parametrize("wait", [False, True])
def test_more_than_there_are_slots(model: Squares, ends: Ends, wait: bool) -> None:
    """In their order, from two threads at once; one that fails fails alone."""
    with Pipeline(model, max_delay=0) as pipeline:
        items = [*range(20), -3, *range(20)]
        other = threading.Thread(target=pipeline.submit_group, args=(ends, items), kwargs={"wait": wait})
        other.start()
        pipeline.submit_group(ends, items, wait=wait)
        for _ in range(2):
            outcomes = ends.next()
            failed = outcomes.pop(20)
            assert isinstance(failed, InputError)
            assert outcomes == [i * i for i in [*range(20), *range(20)]]
        other.join()
        consistent(pipeline.stats())
        assert ends.none


def test_without_waiting_they_wait_for_slots_on_their_own(model: Squares, ends: Ends) -> None:
    model.hold()
    with Pipeline(model, max_delay=0, slots=8) as pipeline:
        group = pipeline.submit_group(ends, range(10), wait=False)
        begun(model)
        assert pipeline.stats().waiting == 2
        assert ends.none
        model.go.set()
        assert ends.next() == [i * i for i in range(10)] == group.outcomes


def test_a_group_that_is_refused_leaves_nothing_behind(model: Squares, ends: Ends) -> None:
    model.hold()
    with Pipeline(model, max_delay=0, slots=8, when_full="raise") as pipeline:
        with pytest.raises(Overloaded, match="all 8 slots of .* are taken; submit later"):
            pipeline.submit_group(ends, range(10), wait=False)
        until(lambda: pipeline.stats().queued == 0)
        stats = pipeline.stats()
        assert stats.rejected == 1
        assert stats.cancelled + stats.running == 8
        model.go.set()
        pipeline.submit_group(ends, range(10), patient=True)  # waits all the same
        assert ends.next() == [i * i for i in range(10)]
        consistent(pipeline.stats())
        assert ends.none


def test_the_first_exception_ends_a_group_early(model: Squares, ends: Ends) -> None:
    """Where it is asked to: what has not left is cancelled, and the exception is known."""
    with Pipeline(model, max_batch=1, max_delay=0, slots=2) as pipeline:
        for early in (True, False):
            group = pipeline.submit_group(ends, [-3, *range(200)], wait=False, ends_early=early)
            outcomes = ends.next()
            assert isinstance(outcomes[0], ValueError)
            cancelled = [one for one in outcomes if isinstance(one, CancelledError)]
            assert (len(cancelled) > 100) == early
            assert group.first_error is (outcomes[0] if early else None)
        until(lambda: not pipeline.stats().running)
        consistent(pipeline.stats())


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_a_group_that_gets_no_slots_in_time(model: Squares, ends: Ends, timeout: float) -> None:
    model.hold()
    with Pipeline(model, max_delay=0, slots=8) as pipeline:
        start = time.monotonic()
        with pytest.raises(Overloaded, match="timeout is 0" if timeout == 0 else "were taken for 0.05 s"):
            pipeline.submit_group(ends, range(10), timeout=timeout)
        assert timeout <= time.monotonic() - start < LONG
        until(lambda: pipeline.stats().queued == 0)
        assert pipeline.stats().waiting == 0
        model.go.set()
        assert pipeline.submit(5).result(LONG) == 25
        consistent(pipeline.stats())
        assert ends.none


def test_rows_that_workers_prepare_stay_theirs_when_their_group_is_refused(
    model: Squares, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, begun_rows, go = SquaresBuffer.prepare, threading.Semaphore(0), threading.Event()

    def held(self: SquaresBuffer, row: int, item: Any, parameters: Any) -> None:
        begun_rows.release()
        assert go.wait(LONG)
        prepare(self, row, item, parameters)

    with Pipeline(model, max_delay=0.05, slots=8, workers=2) as pipeline:
        with monkeypatch.context() as patch:
            patch.setattr(SquaresBuffer, "prepare", held)
            with pytest.raises(Overloaded, match="were taken for 0.3 s"):
                pipeline.submit_group(ends, range(0, 20, 2), timeout=0.3)
            for _ in range(2):
                assert begun_rows.acquire(timeout=LONG)
            futures = pipeline.submit_many(range(100, 108, 2))
            go.set()
            assert [future.result(LONG) for future in futures] == [i * i for i in range(100, 108, 2)]
        for _ in range(20):  # each row has one request
            pipeline.submit_group(ends, range(16))
            assert ends.next() == [i * i for i in range(16)]
        until(lambda: not pipeline.stats().queued)
        consistent(pipeline.stats())
        assert pipeline.stats().running == 0


def test_rows_that_are_not_prepared_do_not_run_when_their_group_is_refused(model: Squares, ends: Ends) -> None:
    """Nor does the garbage collector have to free them."""

    freed: list[int] = []

    class Item(int):
        def __del__(self) -> None:
            freed.append(int(self))

    gc.collect()
    gc.disable()
    try:
        with Pipeline(model, max_delay=0, slots=8, when_full="raise") as pipeline:
            for _ in range(2):
                with pytest.raises(Overloaded):
                    pipeline.submit_group(ends, [Item(number) for number in range(1, 21, 2)])  # quick ones
            assert sorted(freed) == sorted(2 * [*range(1, 21, 2)])
            assert model.batches == []
            assert pipeline.stats().cancelled == 16
    finally:
        gc.enable()


def test_slots_that_come_before_a_thread_waits_for_them_keep_no_other_asleep(
    model: Squares, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that prepares its first rows while the last ones get their slots."""
    wait_for_slot, count = PipelineCore._wait_for_slot, 3 * CONCURRENT_WAKEUPS

    def late(core: PipelineCore, request: Request, *rest: Any) -> None:
        until(lambda: request.slot_waiter is None)
        wait_for_slot(core, request, *rest)

    with Pipeline(model, max_delay=0, slots=4) as pipeline:
        with monkeypatch.context() as patch:
            patch.setattr(PipelineCore, "_wait_for_slot", late)
            for _ in range(count):
                pipeline.submit_group(ends, range(10))
            for number in range(count):
                pipeline.submit_many(range(number, 10))
        for _ in range(count):
            assert ends.next() == [i * i for i in range(10)]
        done = threading.Event()

        def others() -> None:
            assert list(pipeline.map(range(50))) == [i * i for i in range(50)]
            pipeline.submit_group(ends, range(20))
            done.set()

        threading.Thread(target=others, daemon=True).start()
        assert done.wait(LONG)
        assert ends.next() == [i * i for i in range(20)]


def test_deadlines_and_cancelling(model: Squares, ends: Ends) -> None:
    model.hold()
    with Pipeline(model, max_delay=0, slots=8) as pipeline:
        pipeline.submit_group(ends, range(4))
        begun(model)
        pipeline.submit_group(ends, range(8), deadline=0.02, wait=False)  # four of them have no slot
        assert {type(outcome) for outcome in ends.next()} == {DeadlineExceeded}
        pipeline.submit_group(ends, range(3), deadline=0)
        assert {type(outcome) for outcome in ends.next()} == {DeadlineExceeded}
        group = pipeline.submit_group(ends, range(6), wait=False)
        group.cancel()
        assert {type(outcome) for outcome in ends.next()} == {CancelledError}
        group.cancel()
        assert ends.none
        model.go.set()
        assert ends.next() == [0, 1, 4, 9]
        consistent(pipeline.stats())
    with pytest.raises(ClosedError):
        pipeline.submit_group(ends, range(3))
    assert ends.none


def test_each_request_of_a_group_ends_once(ends: Ends) -> None:
    group = RequestGroup(2, ends)
    group.ended(0, None)
    group.ended(0, ValueError("again"))  # of a pipeline that fails meanwhile
    assert ends.none
    group.ended(1, 5)
    group.ended(1, 6)
    assert ends.next() == [None, 5]
    assert ends.none


def test_several_requests_that_end_on_their_own(model: Squares) -> None:
    ended: queue.Queue[tuple[int, Any]] = queue.Queue()

    def on_ends(requests: Sequence[TaggedRequest]) -> None:
        for request in requests:
            ended.put((request.tag, request.result or type(request.error)))

    def tagged(*items: int) -> list[tuple[int, int]]:
        return [(item, item) for item in items]

    with Pipeline(model, max_delay=0, slots=8) as pipeline:
        requests = pipeline.submit_each(tagged(1, 2, 3, -5, 4), on_ends)
        assert len(requests) == 5
        assert {ended.get(timeout=LONG) for _ in range(5)} == {(1, 1), (2, 4), (3, 9), (-5, InputError), (4, 16)}
        until(lambda: not pipeline.stats().running)
        while model.began.acquire(blocking=False):
            pass
        model.hold()
        first = pipeline.submit(9)
        begun(model)
        held = pipeline.submit_each(tagged(5, 6), on_ends, deadline=0.01)
        assert {ended.get(timeout=LONG) for _ in range(2)} == {(5, DeadlineExceeded), (6, DeadlineExceeded)}
        assert not held[0].cancel()
        held = pipeline.submit_each(tagged(7, 8), on_ends)
        assert held[1].cancel()
        assert ended.get(timeout=LONG) == (8, CancelledError)
        model.go.set()
        assert first.result(LONG) == 81
        assert ended.get(timeout=LONG) == (7, 49)
        consistent(pipeline.stats())
    with pytest.raises(ClosedError):
        pipeline.submit_each(tagged(1), on_ends)


def test_requests_of_a_batch_end_in_one_call(model: Squares, caplog: pytest.LogCaptureFixture) -> None:
    """Those with one callback; what it raises ends no thread."""
    model.hold()
    calls: queue.Queue[tuple[str, list[int]]] = queue.Queue()

    def callback(name: str) -> Any:
        def on_ends(requests: Sequence[TaggedRequest]) -> None:
            calls.put((name, [request.tag for request in requests]))
            raise RuntimeError("of a callback")

        return on_ends

    with Pipeline(model, max_batch=8, max_delay=60, slots=16) as pipeline:
        one, other = callback("one"), callback("other")
        pipeline.submit_each([(item, item) for item in (1, 2, 3)], one)
        pipeline.submit_each([(item, item) for item in (4, 5)], other)
        pipeline.submit_each([(item, item) for item in (6, 7, 8)], one)
        model.go.set()
        assert [calls.get(timeout=LONG) for _ in range(2)] == [("one", [1, 2, 3, 6, 7, 8]), ("other", [4, 5])]
        pipeline.submit_each([(item, item) for item in range(8)], one)
        assert calls.get(timeout=LONG) == ("one", list(range(8)))
        until(lambda: "ending requests failed" in caplog.text)
    assert calls.empty()


def test_groups_come_in_together(model: Squares, ends: Ends) -> None:
    """They share a batch; and all are refused together."""
    with Pipeline(model, max_batch=8, max_delay=60, slots=8, when_full="raise") as pipeline:
        pipeline.submit_groups([(ends, [1, 2]), (ends, [3, 4, 5]), (ends, [6, 7, 8])])
        assert [ends.next() for _ in range(3)] == [[1, 4], [9, 16, 25], [36, 49, 64]]
        until(lambda: not pipeline.stats().running)
        with pytest.raises(Overloaded):
            pipeline.submit_groups([(ends, [1, 2]), (ends, range(8))])
        until(lambda: not pipeline.stats().queued)
        consistent(pipeline.stats())
    assert ends.none


def test_a_group_has_a_request(model: Squares, ends: Ends) -> None:
    with Pipeline(model) as pipeline, pytest.raises(InputError, match="a group has one request or more"):
        pipeline.submit_group(ends, [])
