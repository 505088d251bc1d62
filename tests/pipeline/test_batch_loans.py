"""Batches that a thread borrows from a pipeline, fills and runs itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from squares import LONG, Squares, SquaresBuffer, begun, consistent, until

from infersdk import Pipeline
from infersdk.errors import ClosedError, InputError, PipelineError

if TYPE_CHECKING:
    from infersdk.pipeline.batch_loans import BorrowedBatch


def run(batch: BorrowedBatch, items: Sequence[int], **parameters: Any) -> list[Any]:
    batch.begin(items, [monotonic()] * len(items), parameters or None)
    return batch.results()


def borrowed(pipeline: Pipeline[int]) -> BorrowedBatch:
    batch = pipeline.borrow_batch()
    assert batch is not None
    return batch


def test_each_item_has_its_result_or_its_error() -> None:
    with Pipeline(Squares(capacity=4)) as pipeline:
        assert run(borrowed(pipeline), [1, 2, 3], power=3) == [1, 8, 27]
        first, bad, unlucky, last = run(borrowed(pipeline), [5, -1, 1313, 6])
        assert (first, last) == (25, 36)
        assert isinstance(bad, InputError)
        assert isinstance(unlucky, ValueError)
        (alone,) = run(borrowed(pipeline), [-2])
        assert isinstance(alone, InputError)
        stats = pipeline.stats()
        consistent(stats)
        assert (stats.done, stats.failed, stats.batch_sizes) == (5, 3, {1: 1, 3: 1, 4: 1})
        assert pipeline.submit(7).result(LONG) == 49


def test_a_run_that_fails_fails_its_items() -> None:
    model = Squares(capacity=4)
    with Pipeline(model) as pipeline:
        model.error = ValueError("no luck")
        first, bad, last = run(borrowed(pipeline), [1, -1, 2])
        assert first is last
        assert str(first) == "no luck"
        assert isinstance(bad, InputError)
        assert run(borrowed(pipeline), [3]) == [9]


def test_a_buffer_that_can_queue_begins_before_its_results_are_asked_for() -> None:
    calls: list[str] = []

    class Queuing(SquaresBuffer):
        def begin(self, count: int) -> None:
            calls.append(f"begin {count}")

        def run(self, count: int) -> None:
            calls.append(f"run {count}")
            super().run(count)

    class Model(Squares):
        def batch_buffer(self, capacity: int | None) -> SquaresBuffer:
            self.open += 1
            return Queuing(self, capacity or self.capacity)

    with Pipeline(Model(capacity=4, concurrency=2)) as pipeline:
        one, other = borrowed(pipeline), borrowed(pipeline)
        one.begin([1, 2], [0.0, 0.0])
        other.begin([3], [0.0])
        assert calls == ["begin 2", "begin 1"]
        assert pipeline.stats().running == 3
        assert (one.results(), other.results()) == ([1, 4], [9])
        assert pipeline.stats().running == 0


def test_requests_come_first_where_they_wait() -> None:
    """And the borrower has its share all the same."""
    model = Squares(capacity=2, concurrency=2)
    with Pipeline(model, max_delay=LONG) as pipeline:
        one, other = borrowed(pipeline), borrowed(pipeline)
        assert pipeline.borrow_batch() is None  # as many as may be in flight
        future = pipeline.submit(5)  # waits for another one to fill the batch
        assert run(one, [1]) == [1]
        assert pipeline.borrow_batch() is None
        assert run(other, [2]) == [4]
        patient = pipeline.borrow_batch(wait=True)
        assert patient is not None
        assert run(patient, [3, 4]) == [9, 16]
        assert pipeline.submit(6).result(LONG) == 36
        assert future.result(LONG) == 25
        consistent(pipeline.stats())


def test_a_borrower_waits_for_a_batch() -> None:
    model = Squares(capacity=1)
    with Pipeline(model, max_delay=0, slots=1) as pipeline:
        model.hold()
        slots = pipeline.slots
        futures = [pipeline.submit(number) for number in range(slots)]
        begun(model)
        more = threading.Thread(target=lambda: futures.append(pipeline.submit(7)))
        more.start()
        until(lambda: pipeline.stats().waiting == 1)
        got: list[list[Any]] = []

        def borrow() -> None:
            batch = pipeline.borrow_batch(wait=True)
            assert batch is not None
            got.append(run(batch, [8]))

        borrowing = threading.Thread(target=borrow)
        borrowing.start()
        until(lambda: pipeline._core._scheduler._borrowers == 1)
        model.go.set()
        borrowing.join(LONG)
        more.join(LONG)
        assert got == [[64]]
        assert [future.result(LONG) for future in futures] == [*(number**2 for number in range(slots)), 49]
        consistent(pipeline.stats())


def test_closing_waits_for_batches_on_loan() -> None:
    model = Squares(capacity=2)
    pipeline = Pipeline(model)
    batch = borrowed(pipeline)
    closing = threading.Thread(target=pipeline.close)
    closing.start()
    until(lambda: pipeline._core._lifecycle.closing)
    with pytest.raises(ClosedError):
        pipeline.borrow_batch()
    assert model.open
    assert run(batch, [3]) == [9]
    closing.join(LONG)
    assert model.open == 0


@pytest.mark.parametrize("fault", [False, True])
def test_the_end_of_the_pipeline_ends_the_waiting(fault: bool) -> None:
    model = Squares(capacity=1)
    pipeline = Pipeline(model, slots=1, max_delay=0)
    batches = []
    while (batch := pipeline.borrow_batch()) is not None:
        batches.append(batch)
    free = pipeline._core.groups[0].free
    model.hold()
    futures = [pipeline.submit(number) for number in range(len(free))]
    raised: list[BaseException] = []

    def borrow() -> None:
        try:
            pipeline.borrow_batch(wait=True)
        except (ClosedError, PipelineError) as error:
            raised.append(error)

    borrowing = threading.Thread(target=borrow)
    borrowing.start()
    until(lambda: pipeline._core._scheduler._borrowers == 1)
    if fault:
        pipeline._core.thread_failed(RuntimeError("on purpose"))
        borrowing.join(LONG)
    closing = threading.Thread(target=pipeline.close, kwargs={"drain": False})
    closing.start()
    borrowing.join(LONG)
    assert [type(error) for error in raised] == [PipelineError if fault else ClosedError]
    model.go.set()
    for batch in batches:
        assert run(batch, [4]) == [16]
    closing.join(LONG)
    assert all(future.done() for future in futures)


@pytest.mark.parametrize("begins", [False, True])
def test_an_exception_between_borrowing_and_the_results_does_not_block_the_end(begins: bool) -> None:
    model = Squares(capacity=2)
    kept: list[BorrowedBatch] = []

    raised: list[KeyError] = []

    def work() -> None:
        try:
            with Pipeline(model) as pipeline:
                kept.append(borrowed(pipeline))
                if begins:
                    kept[0].begin([3], [monotonic()])
                raise KeyError("mine")
        except KeyError as error:
            raised.append(error)

    working = threading.Thread(target=work, daemon=True)
    working.start()
    working.join(LONG)
    assert len(raised) == 1
    assert model.open == 0
    with pytest.raises(ClosedError, match="given back before"):
        kept[0].results()


def test_a_batch_is_given_back_once() -> None:
    with Pipeline(Squares(capacity=2)) as pipeline:
        batch = borrowed(pipeline)
        assert run(batch, [3]) == [9]
        with pytest.raises(ClosedError, match="given back before"):
            batch.results()
        assert run(borrowed(pipeline), [4]) == [16]
        consistent(pipeline.stats())


def test_buffers_stay_until_batches_on_loan_are_back_after_a_fault() -> None:
    """Their memory is in use."""
    model = Squares(capacity=2)
    pipeline = Pipeline(model)
    batch = borrowed(pipeline)
    pipeline._core.thread_failed(RuntimeError("on purpose"))
    closing = threading.Thread(target=pipeline.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    assert model.open
    assert run(batch, [3]) == [9]
    closing.join(LONG)
    assert not closing.is_alive()
    assert model.open == 0


@pytest.mark.parametrize("slots", [None, 1])
def test_borrowers_and_requests_take_turns(slots: int | None) -> None:
    """Even if each borrower wants the next batch at the moment at which it has given one back."""

    class Slow(SquaresBuffer):
        def run(self, count: int) -> None:
            time.sleep(0.005)
            super().run(count)

    class Model(Squares):
        def batch_buffer(self, capacity: int | None) -> SquaresBuffer:
            self.open += 1
            return Slow(self, capacity or self.capacity)

    model = Model(capacity=1)
    settings = {} if slots is None else {"slots": slots}
    with Pipeline(model, max_delay=0, **settings) as pipeline:
        ended = threading.Event()

        def borrow(number: int) -> None:
            while not ended.is_set():
                batch = pipeline.borrow_batch(wait=True)
                assert batch is not None
                assert run(batch, [number]) == [number**2]

        borrowing = [threading.Thread(target=borrow, args=(number,)) for number in (2, 3)]
        for thread in borrowing:
            thread.start()
        until(lambda: len(model.batches) > 4)
        try:
            for number in range(10, 30):
                before = len(model.batches)
                assert pipeline.submit(number).result(LONG) == number**2
                (at,) = [index for index, rows in enumerate(model.batches) if rows == [number]]
                assert at - before < 12, "a few may run until the request is in its batch"
        finally:
            ended.set()
            for thread in borrowing:
                thread.join(LONG)
        assert not any(thread.is_alive() for thread in borrowing)
        consistent(pipeline.stats())
