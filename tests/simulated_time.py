"""A pipeline in simulated time: the scheduler itself, with a device and callers that are made up.

The time is that of the events, so a run is the same on every machine, however busy it is.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from infersdk.pipeline.request import Request
from infersdk.pipeline.scheduler import InstanceGroup, Scheduler
from infersdk.pipeline.stats import Statistics

if TYPE_CHECKING:
    from infersdk.pipeline.request import BatchState

__all__ = ["Simulation", "h200_seconds"]


def h200_seconds(count: int) -> float:
    """Seconds that an H200 takes for so many images: FP16 YOLOv5s on TensorRT-RTX, measured at batch 1, 8 and 32."""
    return float(np.interp(count, (1, 8, 32), (0.42e-3, 1.16e-3, 3.69e-3)))


class _Buffer:
    def __init__(self, capacity: int, sizes: Sequence[int]) -> None:
        self.capacity, self._sizes = capacity, sizes

    def batch_sizes(self) -> Sequence[int]:
        return self._sizes


class Simulation:
    """Requests, a host and a device.

    Args:
        callers: each submits a request, waits for its result, and comes back.
        seconds: that a batch of so many is on the model.
        copy: seconds for each image to get to the device, one batch after another.
        host: seconds of the interpreter for each request: its submission, and the end of its waiting.
        lag: seconds until a thread that is woken up runs.
        think: seconds for which a caller stays away.
        sizes: the batches that the model runs; others are padded to the next one. None is all.
        learns: as the pipeline does; otherwise batches leave only full or after `max_delay`.
    """

    def __init__(
        self,
        callers: int = 0,
        *,
        capacity: int = 32,
        max_in_flight: int = 3,
        max_running: int = 1,
        max_delay: float = 2e-3,
        seconds: Callable[[int], float] = h200_seconds,
        copy: float = 40e-6,
        host: float = 40e-6,
        lag: float = 60e-6,
        think: Callable[[], float] = lambda: 0.0,
        sizes: Sequence[int] | None = None,
        learns: bool = True,
    ) -> None:
        self.now = 0.0
        lock = threading.Lock()
        lock.acquire()  # one thread has it all the time
        self.statistics = Statistics()
        self._sizes = sizes or range(1, capacity + 1)
        buffers: list[Any] = [_Buffer(capacity, self._sizes) for _ in range(max_in_flight + 2)]
        self.group = InstanceGroup(0, buffers, max_in_flight, max_running, lock)
        self.scheduler = Scheduler([self.group], max_delay, self.statistics, lock, lambda: self.now)
        if not learns:
            self.scheduler._complete = lambda batch, occupied: occupied >= batch.capacity  # type: ignore[method-assign]
        self._seconds, self._copy, self._host, self._lag, self._think = seconds, copy, host, lag, think
        self._max_delay = max_delay
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._host_free = self._copy_free = 0.0
        self._models_free = [0.0] * max_running
        self._model_free_since = 0.0
        self._timer = 0.0
        self.callers = self._present = callers  # those that are to stay, and those that have not gone
        self.busy = 0.0  # seconds of the model
        self.batches: list[tuple[float, int]] = []  # when each one left, and how many it were
        self.longest_wait = 0.0  # of a request while the model was free
        for _ in range(callers):
            self.submit_at(0.0)

    # ---- what tests ask for ----

    def submit_at(self, time: float, *, comes_back: bool = True) -> None:
        """A request comes at this time."""
        self._at(time, lambda: self._on_host(self._host, lambda: self._submit(comes_back)))

    def run(self, seconds: float) -> float:
        """Goes on for so long; results per second."""
        end, done, start = self.now + seconds, self.statistics.done, self.now
        while self._events and self._events[0][0] <= end:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = end
        return (self.statistics.done - done) / (self.now - start)

    # ---- events ----

    def withdraw(self, request: Request) -> bool:
        raise NotImplementedError

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def _on_host(self, seconds: float, then: Callable[[], None]) -> None:
        """Work that needs the interpreter's lock, one piece after another."""
        self._host_free = max(self._host_free, self.now) + seconds
        self._at(self._host_free, then)

    def _submit(self, comes_back: bool) -> None:
        request = Request(self.withdraw, comes_back, None, None, lambda _: None)
        request.submitted = self.now
        if self.scheduler.admit(request, True):
            self.scheduler.prepared(request)
        else:
            self.scheduler.enqueue(request)
        self._dispatch()

    def _dispatch(self) -> None:
        """What the threads do that run batches."""
        while self.scheduler.unprepared:
            for request in self.scheduler.take_unprepared(1):
                self.scheduler.prepared(request)
        while True:
            batch, wait = self.scheduler.next_batch(self.group)
            if batch is None:
                break
            self._leave(batch)
        if wait is not None and not self.now < self._timer <= self.now + wait:
            self._timer = self.now + wait
            self._at(self._timer, self._dispatch)

    def _leave(self, batch: BatchState) -> None:
        requests = [request for request in batch.rows if request is not None]
        for request in requests:
            request.dispatched = True
        self.statistics.batch_left(len(requests))
        self.batches.append((self.now, len(requests)))
        if self.group.in_flight <= self.group.max_running:  # it was free when this one left
            waited = self.now - max(batch.oldest, self._model_free_since)
            self.longest_wait = max(self.longest_wait, waited)
        self._at(self.now + self._lag, lambda: self._on_host(0.1e-3, lambda: self._on_device(batch, requests)))

    def _on_device(self, batch: BatchState, requests: list[Request]) -> None:
        self._copy_free = max(self._copy_free, self.now) + self._copy * len(requests)
        model = min(range(len(self._models_free)), key=self._models_free.__getitem__)
        seconds = self._seconds(min(size for size in self._sizes if size >= len(requests)))
        self._models_free[model] = max(self._copy_free, self._models_free[model]) + seconds
        self.busy += seconds
        self._at(self._models_free[model], lambda: self._on_host(0.1e-3, lambda: self._finish(batch, requests)))

    def _finish(self, batch: BatchState, requests: list[Request]) -> None:
        if self.group.in_flight <= self.group.max_running:
            self._model_free_since = self.now
        self.scheduler.outputs_ready(self.group)
        self.statistics.batch_done([request.submitted for request in requests], 0, self.now, self.now, self.now)
        for request in requests:
            request.settled, request.batch = True, None
            if request.item and self._present > self.callers:
                self._present -= 1
            elif request.item:
                self.submit_at(self.now + self._lag + self._think())
        self.scheduler.release(batch)
        self._dispatch()
