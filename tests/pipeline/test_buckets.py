"""Requests of one bucket share batches, and no others."""

from __future__ import annotations

import random
from typing import Any

import pytest
from squares import LONG, Squares, begun, consistent, until

from infersdk import Pipeline
from infersdk.errors import Overloaded


def bucketed(kinds: int, **settings: Any) -> Squares:
    model = Squares(**settings)
    model.bucket_of, model.buckets = (lambda item: item % kinds), tuple(range(kinds))
    return model


@pytest.mark.parametrize("kinds", [1, 2, 3, 7])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_batches_have_one_bucket(kinds: int, concurrency: int) -> None:
    """`Squares` checks each batch that it runs."""
    model = bucketed(kinds, capacity=4, concurrency=concurrency)
    numbers = random.Random(kinds).choices(range(1000), k=500)
    with Pipeline(model) as pipeline:
        assert list(pipeline.map(numbers)) == [number**2 for number in numbers]
        stats = pipeline.stats()
    consistent(stats)
    assert stats.buckets == {str(kind): sum(n % kinds == kind for n in numbers) for kind in range(kinds)}


def test_full_batches_of_two_buckets_that_take_turns() -> None:
    model = bucketed(2, capacity=4)
    model.hold()
    with Pipeline(model, max_delay=60) as pipeline:
        futures = pipeline.submit_many(range(8))
        model.go.set()
        assert [future.result(LONG) for future in futures] == [n * n for n in range(8)]
        assert sorted(model.batches) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_batches_leave_when_no_further_request_can_join() -> None:
    """All slots but one batch's are full; what waits is of another bucket: nothing is to be waited for."""
    model = bucketed(16, capacity=4)
    with Pipeline(model, max_delay=60) as pipeline:
        results = pipeline.map(range(160), in_flight=160)
        assert [next(results) for _ in range(100)] == [n * n for n in range(100)]
        results.close()


def test_requests_without_buckets_are_counted_in_none() -> None:
    with Pipeline(Squares()) as pipeline:
        assert pipeline.submit(3).result(LONG) == 9
        assert pipeline.stats().buckets == {}


def test_a_cancelled_request_frees_its_row_for_its_bucket_alone() -> None:
    model = bucketed(2, capacity=2)
    model.hold()
    with Pipeline(model, max_delay=0, slots=6) as pipeline:
        running = pipeline.submit(0)
        begun(model)
        waiting = pipeline.submit_many([1, 3, 2, 4])
        assert waiting[0].cancel()
        more = [pipeline.submit(5, timeout=1)]  # the only row that is free is one of its bucket
        with pytest.raises(Overloaded):
            pipeline.submit(6, timeout=0.05)
        model.go.set()
        more.append(pipeline.submit(6))
        assert running.result(LONG) == 0
        assert [future.result(LONG) for future in (*waiting[1:], *more)] == [9, 4, 16, 25, 36]
        until(lambda: pipeline.stats().queued == 0)
        consistent(pipeline.stats())


def test_warming_up_runs_every_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    model, reported = bucketed(3, capacity=2), list[str]()
    ran: set[tuple[int, Any, int]] = set()
    with Pipeline(model) as pipeline:
        for group in pipeline._core.groups:
            for batch in group.batches:
                buffer: Any = batch.buffer
                monkeypatch.setattr(buffer, "warm_up", lambda n, _, b=buffer: ran.add((id(b), b.bucket, n)))
        pipeline.warm_up(lambda what, fraction: reported.append(what))
        buffers = sum(len(group.batches) for group in pipeline._core.groups)
        assert len(ran) == buffers * 3 * 2
        assert reported[0] == f"Warming up: instance 1 of {buffers}, batch 2 of 2"
        assert pipeline.submit(5).result(LONG) == 25
