"""A model of whole numbers for pipelines, whose runs a test can hold, watch and let fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from waiting import until

from infersdk.errors import InputError

if TYPE_CHECKING:
    from infersdk.pipeline import PipelineStats

__all__ = ["LONG", "Squares", "SquaresBuffer", "begun", "consistent", "until"]

LONG = 30.0  # nothing here takes that long unless it hangs


class Squares:
    """A model of whole numbers, and its buffers: a row holds a number, and a run squares them.

    `hold()` lets no run begin; a number below zero is a bad item.
    """

    network = None
    concurrency = 1
    serializes_runs = False

    def __init__(self, capacity: int = 4, concurrency: int = 1) -> None:
        self.capacity, self.concurrency = capacity, concurrency
        self.go = threading.Event()
        self.go.set()
        self.began = threading.Semaphore(0)
        self.batches: list[list[int]] = []
        self.bucket_of: Callable[[int], Any] | None = None  # one bucket for all
        self.buckets: Sequence[Any] = (None,)
        self.error: Exception | None = None
        self.open = 0
        self.guard = threading.Lock()

    def batch_buffer(self, capacity: int | None) -> SquaresBuffer:
        self.open += 1
        return SquaresBuffer(self, capacity or self.capacity)

    def hold(self) -> None:
        self.go.clear()


class SquaresBuffer:
    def __init__(self, model: Squares, capacity: int) -> None:
        self.model, self.capacity = model, capacity
        self.rows, self.powers = [0] * capacity, [2] * capacity
        self.out: list[Any] = []
        self.bucket: Any = None
        self.running = False

    def bucket_of(self, item: int) -> Any:
        return None if self.model.bucket_of is None else self.model.bucket_of(item)

    def set_bucket(self, bucket: Any) -> None:
        assert not self.running
        self.bucket = bucket

    def buckets(self) -> Sequence[Any]:
        return self.model.buckets

    def prepares_quickly(self, item: int) -> bool:
        return bool(item % 2)  # odd ones by their own thread

    def prepare(self, row: int, item: Any, parameters: Mapping[str, Any] | None) -> None:
        assert not self.running, "a row was written while the buffer ran"
        if item < 0:
            raise InputError(f"{item} is below zero")
        if parameters is not None and set(parameters) != {"power"}:
            raise InputError(f"unknown parameters {sorted(parameters)}")
        self.rows[row], self.powers[row] = item, (parameters or {"power": 2})["power"]

    def move(self, source: int, target: int) -> None:
        self.rows[target], self.powers[target] = self.rows[source], self.powers[source]

    def run(self, count: int) -> None:
        self.running = True
        batch = self.rows[:count]
        assert self.model.bucket_of is None or {self.model.bucket_of(item) for item in batch} == {self.bucket}
        with self.model.guard:
            self.model.batches.append(batch)
        self.model.began.release()
        assert self.model.go.wait(LONG)
        error, self.model.error = self.model.error, None
        if error is not None:
            self.running = False
            raise error
        self.out = [number**power for number, power in zip(batch, self.powers, strict=False)]

    def results(self, count: int) -> Sequence[Any]:
        self.running = False
        return [ValueError("1313 brings bad luck") if root == 1313**2 else root for root in self.out[:count]]

    def refresh(self) -> bool:
        assert not self.running
        return False

    def batch_sizes(self) -> Sequence[int]:
        return range(1, self.capacity + 1)

    def warm_up(self, count: int, example: Any = None) -> None:
        for row in range(count if example is not None else 0):
            self.prepare(row, example, None)
        self.run(count)
        self.results(count)

    def close(self) -> None:
        self.model.open -= 1


def begun(model: Squares) -> None:
    assert model.began.acquire(timeout=LONG)


def consistent(stats: PipelineStats) -> None:
    ended = stats.done + stats.failed + stats.cancelled + stats.expired
    assert stats.submitted == ended + stats.waiting + stats.queued + stats.running
    assert sum(size * times for size, times in stats.batch_sizes.items()) >= stats.done
    assert min(stats.waiting, stats.queued, stats.running) >= 0
