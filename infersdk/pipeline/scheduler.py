"""Batches: which one a request joins, when a batch leaves for the model, and which requests wait for a slot.

The threads and coroutines of a web server submit a request, wait for its result, and then submit the next one. When all
of them wait, no further request is expected (`Callers`).
"""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from itertools import count
from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING

from .request import BatchState

if TYPE_CHECKING:
    from .batch_buffer import BatchBuffer
    from .request import Request
    from .stats import Statistics

__all__ = ["Callers", "Deadlines", "InstanceGroup", "Scheduler"]


#: Batches after which a peak counts as old. It is forgotten after as many again.
WINDOW = 16


class Callers:
    """The number of requests in the pipeline when all of its callers wait for results: the peak of the last batches.

    With that number in the pipeline, no other request is expected before a caller has its result. Used under the
    pipeline's lock.

    Attributes:
        expected: that number; None before it is known.
        peak: the peak of the last batches.
    """

    def __init__(self) -> None:
        self.expected: int | None = None
        self.peak = self._old_peak = self._batches = 0

    def peak_rises(self, in_pipeline: int) -> None:
        """A request has come, and more than `peak` are in the pipeline now."""
        self.peak = in_pipeline
        if self.expected is not None:
            self.expected = max(self.expected, in_pipeline)

    def batch_left(self) -> None:
        """A batch has left."""
        self._batches += 1
        if self._batches == WINDOW:
            self.expected = max(self.peak, self._old_peak)
            self._old_peak, self.peak, self._batches = self.peak, 0, 0

    def waited_in_vain(self, in_pipeline: int) -> None:
        """A batch has waited for `max_delay` with this number of requests in the pipeline: there are no others."""
        self.expected = self.peak = self._old_peak = in_pipeline
        self._batches = 0


class Deadlines:
    """Requests that have a deadline, the next one first. Used under the pipeline's lock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._order = count()  # of two requests with the same deadline the earlier one is first
        self._limit = 64

    def add(self, request: Request) -> bool:
        """Watches a request; whether its deadline is the next one of all."""
        assert request.deadline is not None
        if len(self._heap) > self._limit:  # requests that ended long ago need not stay until their deadline
            self._heap = [entry for entry in self._heap if not (entry[2].settled or entry[2].dispatched)]
            heapq.heapify(self._heap)
            self._limit = 2 * len(self._heap) + 64
        heapq.heappush(self._heap, (request.deadline, next(self._order), request))
        return self._heap[0][2] is request

    def next(self) -> float | None:
        """The next deadline, on the monotonic clock."""
        return self._heap[0][0] if self._heap else None

    def pop_past(self, now: float) -> list[Request]:
        """Removes the requests whose deadline is past; returns those that have neither ended nor left."""
        past = []
        while self._heap and (self._heap[0][0] <= now or self._heap[0][2].settled):
            request = heapq.heappop(self._heap)[2]
            if not request.settled and not request.dispatched:
                past.append(request)
        return past


class InstanceGroup:
    """The instances of one model: each is a batch buffer with its own execution context.

    There are more of them than may run: one fills, and one waits, while the others are on the model.

    Args:
        buffers: all of one capacity.
        max_in_flight: batches that may have left and still occupy the model.
        max_running: how many of those the model runs at the same time; the others queue behind them on the device.
    """

    def __init__(
        self, index: int, buffers: Sequence[BatchBuffer], max_in_flight: int, max_running: int, lock: threading.Lock
    ) -> None:
        self.index = index
        self.batches = [BatchState(buffer, index, lock) for buffer in buffers]
        self.free: deque[BatchState] = deque(self.batches)
        self.full: deque[BatchState] = deque()  # in the order in which they became full
        self.max_in_flight, self.max_running, self.in_flight = max_in_flight, max_running, 0
        self.batch_sizes = buffers[0].batch_sizes()
        self.changed = threading.Condition(lock)  # the threads that run batches wait here for one that may leave


class Scheduler:
    """Gives requests rows of batches, fills one batch of each bucket at a time, and decides when a batch leaves.

    It has no thread, and is used under the pipeline's lock.

    A batch leaves when fewer than `max_in_flight` batches of its group are in flight, and

    - it is full; or
    - no further request can join it, since the next one in the queue is of another bucket and finds no batch; or
    - the model runs all batches of its group that have left, and no other request is expected for it (`_complete()`);
      or
    - the model is free, and the oldest request of the batch has waited `max_delay` seconds.
    """

    def __init__(
        self,
        groups: Sequence[InstanceGroup],
        max_delay: float,
        statistics: Statistics,
        lock: threading.Lock,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.groups = groups
        self.unprepared: deque[BatchState] = deque()  # with rows that no thread has begun to prepare
        self.queue: deque[Request] = deque()  # these wait for a slot
        self.drained = threading.Condition(lock)  # a slot is free, and no request waits for it
        self.rows_to_prepare = threading.Condition(lock)  # the workers wait here
        self.idle_workers = 0
        self.draining = False  # nothing waits for further requests
        self._max_delay, self._statistics, self._clock = max_delay, statistics, clock
        self._callers = Callers()
        self._filling: dict[Hashable, BatchState] = {}  # by their buckets, in the order in which they began
        self._blocked = False  # the next request of the queue finds no row, though batches are filling

    # ---- slots: rows of batches, in the order in which requests came ----

    def admit(self, request: Request, preparing: bool) -> bool:
        """Gives a request a slot, if one is free and no request waits for it. `preparing`: see `_add()`."""
        if self.queue:
            return False
        self._statistics.in_pipeline += 1
        if self._add(request, preparing):
            request.settled = False
            return True
        self._statistics.in_pipeline -= 1
        return False

    def enqueue(self, request: Request) -> None:
        """Puts a request into the queue; its `slot_waiter` is released when it leaves the queue."""
        self._statistics.in_pipeline += 1
        request.settled = False
        self.queue.append(request)

    def settle(self, request: Request, outcome: str) -> bool:
        """Claims the right to end a request, once, and counts it as "failed", "cancelled", "expired" or "rejected"."""
        if request.settled:
            return False
        request.settled = True
        self._statistics.in_pipeline -= 1
        setattr(self._statistics, outcome, getattr(self._statistics, outcome) + 1)
        return True

    def remove(self, request: Request) -> None:
        """Takes a settled request out of the queue, or out of its slot unless a thread is at work on that."""
        if request.batch is not None:
            if self._leave_row(request):
                self.serve_queue()
        elif request in self.queue:
            self.queue.remove(request)
            self._left_queue(request)

    def release(self, batch: BatchState, *, prepares: bool = False) -> list[Request]:
        """A batch has been run, and its slots are free. See `serve_queue()`."""
        self._free(batch)
        return self.serve_queue(prepares=prepares)

    def serve_queue(self, *, prepares: bool = False) -> list[Request]:
        """Gives free slots to the requests that wait for them.

        Args:
            prepares: the calling thread prepares those whose preparation takes less time than waking up another thread.

        Returns:
            Those that the calling thread prepares now.
        """
        own: list[Request] = []
        while self.queue:
            request = self.queue[0]
            if not request.settled:
                preparing = prepares and request.quick
                if not self._add(request, preparing):
                    return own
                if preparing:
                    own.append(request)
            self.queue.popleft()
            self._left_queue(request)
        self.drained.notify_all()
        return own

    def clear_queue(self) -> None:
        """Ends the waiting for slots: these requests have ended."""
        while self.queue:
            self._left_queue(self.queue.popleft())

    def _left_queue(self, request: Request) -> None:
        waiter, request.slot_waiter = request.slot_waiter, None
        if waiter is not None:
            waiter.release()

    # ---- requests in and out of batches ----

    def _add(self, request: Request, preparing: bool = False) -> bool:
        """Gives a request a row, if one is free.

        Args:
            preparing: the calling thread prepares it; otherwise it is put down in `unprepared`.
        """
        bucket = request.bucket
        batch = self._filling.get(bucket) or self._full_with_a_vacant_row(bucket) or self._open(bucket)
        self._blocked = batch is None and bool(self._filling)
        if batch is None:
            for filling in self._filling.values():
                self.groups[filling.group].changed.notify()
            return False
        occupied = batch.add(request)
        if preparing:
            request.preparing = True
            batch.preparing += 1
        else:
            if not batch.unprepared:
                self.unprepared.append(batch)
            batch.unprepared.append(request)
            if self.idle_workers:
                self.rows_to_prepare.notify()
        callers, in_pipeline = self._callers, self._statistics.in_pipeline
        if in_pipeline > callers.peak:
            callers.peak_rises(in_pipeline)
        early = callers.expected is not None and in_pipeline >= callers.expected
        if (early or occupied >= batch.share) and not batch.sealed and self._complete(batch, occupied):
            self._seal(batch)
        if occupied == 1:
            batch.oldest = request.submitted
            group = self.groups[batch.group]
            # A sealed batch wakes a thread when its rows are prepared, and the end of a batch wakes one.
            if not batch.sealed and group.in_flight < group.max_running:
                group.changed.notify()  # a thread waits until the batch is due
        return True

    def _full_with_a_vacant_row(self, bucket: Hashable) -> BatchState | None:
        """A full batch that has not left, of which a request has gone."""
        full = (batch for group in self.groups for batch in group.full)
        return next((batch for batch in full if batch.vacant and batch.bucket == bucket), None)

    def _open(self, bucket: Hashable) -> BatchState | None:
        """Begins a batch on the model that has the least to do."""
        free = [group for group in self.groups if group.free]
        if not free:
            return None
        group = min(free, key=lambda group: (group.in_flight + len(group.full)) / group.max_in_flight)
        self._filling[bucket] = batch = group.free.popleft()
        batch.bucket, batch.share = bucket, self._share(group)
        if bucket is not None:
            batch.buffer.set_bucket(bucket)
        return batch

    def _seal(self, batch: BatchState) -> None:
        batch.sealed = True
        group = self.groups[batch.group]
        group.full.append(batch)
        del self._filling[batch.bucket]
        if batch.prepared:
            group.changed.notify()

    def _leave_row(self, request: Request) -> bool:
        """Takes a request out of its row, unless a thread prepares it, or it has left. Whether a row is free now."""
        batch = request.batch
        assert batch is not None
        if request.preparing or request.row >= len(batch.rows) or batch.rows[request.row] is not request:
            return False
        if request in batch.unprepared:
            batch.unprepared.remove(request)
            if not batch.unprepared:
                self.unprepared.remove(batch)
        self._vacate(batch, request.row)
        return True

    def _vacate(self, batch: BatchState, row: int) -> None:
        """The request in this row has gone."""
        batch.vacate(row)
        empty = not batch.occupied and not batch.preparing
        if not batch.sealed:
            if empty:
                del self._filling[batch.bucket]
                self._free(batch)
        elif batch not in self.groups[batch.group].full:
            batch.rows_prepared.notify()  # a thread is about to run it, and may be waiting for this very row
        elif empty:
            self.groups[batch.group].full.remove(batch)
            self._free(batch)

    # ---- rows to prepare ----

    def take_unprepared(self, workers: int) -> list[Request]:
        """The rows that one of the workers prepares next: its share of the oldest batch."""
        batch = self.unprepared[0]
        share = -(-len(batch.unprepared) // workers)
        requests = [batch.unprepared.popleft() for _ in range(share)]
        if not batch.unprepared:
            self.unprepared.popleft()
        for request in requests:
            request.preparing = True
        batch.preparing += share
        return requests

    def prepared(self, request: Request) -> None:
        """A thread is done with the row of this request, which is free now if the request has ended."""
        batch = request.batch
        assert batch is not None
        request.preparing = False
        batch.preparing -= 1
        if request.settled:
            self._vacate(batch, request.row)
            self.serve_queue()

    def notify_prepared(self, batch: BatchState) -> None:
        """Wakes the thread that waits for the rows of this sealed batch, if all are prepared."""
        if batch.prepared:
            group = self.groups[batch.group]
            if batch in group.full:
                group.changed.notify()
            else:
                batch.rows_prepared.notify()

    # ---- batches out ----

    def next_batch(self, group: InstanceGroup) -> tuple[BatchState | None, float | None]:
        """A batch that leaves now; otherwise the seconds until one may leave, None if that depends on other events."""
        if group.in_flight >= group.max_in_flight:
            return None, None
        if group.full:
            batch = group.full.popleft()
        else:
            filling = [batch for batch in self._filling.values() if self.groups[batch.group] is group]
            if not filling:
                return None, None
            ready = next((one for one in filling if self.draining or self._complete(one, one.occupied)), None)
            if ready is None:
                # Behind a batch that runs these would only wait, so they go on filling.
                if group.in_flight >= group.max_running:
                    return None, None
                ready = min(filling, key=attrgetter("oldest"))
                wait = ready.oldest + self._max_delay - self._clock()
                if wait > 0:
                    return None, wait
                if self._max_delay > 0:
                    self._callers.waited_in_vain(self._statistics.in_pipeline)
            batch = ready
            del self._filling[batch.bucket]
        batch.sealed = True
        group.in_flight += 1
        self._callers.batch_left()
        return batch, None

    def _complete(self, batch: BatchState, occupied: int) -> bool:
        """Whether a batch with this number of requests leaves rather than waits for more."""
        if occupied >= batch.capacity or self._blocked:
            return True
        expected, group = self._callers.expected, self.groups[batch.group]
        return (
            expected is not None
            and (occupied >= batch.share or self._statistics.in_pipeline >= expected)
            and group.in_flight + len(group.full) < min(group.max_running + 1, group.max_in_flight)
        )

    def _share(self, group: InstanceGroup) -> int:
        """How many callers share a batch: rounded up to a size that the model runs, because padding does no work."""
        expected = self._callers.expected
        if expected is None:
            return group.batches[0].capacity
        share = expected / sum(group.max_running + 1 for group in self.groups)
        sizes = group.batch_sizes
        return sizes[min(bisect_left(sizes, share), len(sizes) - 1)]

    def outputs_ready(self, group: InstanceGroup) -> None:
        """A batch of this group is off the model."""
        group.in_flight -= 1
        # A thread without work would take the interpreter's lock from one that has work.
        if group.full or any(batch.group == group.index for batch in self._filling.values()):
            group.changed.notify()

    def _free(self, batch: BatchState) -> None:
        """This batch has no request any more."""
        batch.clear()
        self._blocked = False
        self.groups[batch.group].free.append(batch)

    @property
    def idle(self) -> bool:
        """Whether all batches are free."""
        return all(len(group.free) == len(group.batches) for group in self.groups)

    def requests(self) -> list[Request]:
        """All requests that have rows."""
        return [
            request for group in self.groups for batch in group.batches for request in batch.rows if request is not None
        ]

    def wake_all(self) -> None:
        """Wakes all threads that wait for rows to prepare, for batches or for the end."""
        self.rows_to_prepare.notify_all()
        self.drained.notify_all()
        for group in self.groups:
            group.changed.notify_all()
            for batch in group.batches:
                batch.rows_prepared.notify_all()
