"""The threads that prepare requests."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Mapping, Sequence
from itertools import count, groupby
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import DeadlineExceeded
from .request import Request, end_request, prepare_row
from .threads import Lifecycle, PipelineThread, Supervisor

if TYPE_CHECKING:
    from .scheduler import Admission, Scheduler

__all__ = ["Deadlines", "PrepareWorkers", "fail_expired"]


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


class PrepareWorkers:
    """Threads that prepare the rows of batches, and end requests whose deadline passes before their batch leaves."""

    def __init__(
        self,
        lock: threading.Lock,
        lifecycle: Lifecycle,
        scheduler: Scheduler,
        admission: Admission,
        deadlines: Deadlines,
        *,
        count: int,
        name: str,
        supervisor: Supervisor,
    ) -> None:
        self._lock, self._lifecycle, self._count = lock, lifecycle, count
        self._scheduler, self._admission, self._deadlines = scheduler, admission, deadlines
        self.threads = [PipelineThread(f"{name}-worker-{i}", self._work, supervisor) for i in range(count)]

    def watch(self, request: Request) -> None:
        """Ends this request when its deadline passes. Under the lock."""
        if self._deadlines.add(request):
            self._scheduler.rows_to_prepare.notify()  # the thread that waits for the next deadline would wait too long

    def prepare_all(self, requests: Sequence[Request]) -> None:
        """Prepares rows in the thread that submits their requests: those of one batch after those of another."""
        for _, rows in groupby(requests, lambda request: request.batch):
            errors = self.prepare_rows(list(rows))
            interrupt = next((error for error in errors.values() if isinstance(error, KeyboardInterrupt)), None)
            if interrupt is not None:
                raise interrupt

    def prepare_rows(self, requests: Sequence[Request]) -> Mapping[Request, BaseException]:
        """Prepares the rows of requests, in any thread. Returns the exceptions of those that failed."""
        errors = dict[Request, BaseException]()
        for request in requests:
            if request.settled:
                continue
            assert request.batch is not None
            try:
                prepare_row(request.batch, request)
            except BaseException as error:
                errors[request] = error
        self._finish(requests, errors)
        return errors

    def _work(self) -> None:
        while self._work_once():
            """A waiting thread holds no requests, so their images are freed."""

    def _work_once(self) -> bool:
        """Prepares rows, or ends requests that expired, once there are some. False at the end."""
        with self._lock:
            expired = self._wait()
            requests = list[Request]()
            if self._scheduler.unprepared:
                requests = self._scheduler.take_unprepared(self._count)
            elif self._lifecycle.stopped and not expired:
                return False
        fail_expired(expired)
        if requests:
            self.prepare_rows(requests)
        return True

    def _wait(self) -> list[Request]:
        """Waits for rows to prepare, a deadline, or the end. Returns the requests that expired. Under the lock."""
        scheduler, expired = self._scheduler, list[Request]()
        scheduler.idle_workers += 1
        try:
            while not scheduler.unprepared and not self._lifecycle.stopped:
                deadline = self._deadlines.next()
                if deadline is None:
                    scheduler.rows_to_prepare.wait()
                    continue
                now = monotonic()
                expired = [r for r in self._deadlines.pop_past(now) if self._admission.settle(r, "expired")]
                if expired:
                    break
                scheduler.rows_to_prepare.wait(max(0.0, deadline - now))
        finally:
            scheduler.idle_workers -= 1
        for request in expired:
            self._admission.remove(request)
        return expired

    def _finish(self, requests: Sequence[Request], errors: Mapping[Request, BaseException]) -> None:
        """The rows of these requests are prepared; requests that failed to be are ended."""
        failed = []
        with self._lock:
            batches = dict.fromkeys(request.batch for request in requests)
            for request in requests:
                if request in errors and self._admission.settle(request, "failed"):
                    failed.append(request)
                self._prepared(request)
            for batch in batches:
                if batch is not None and batch.sealed:
                    self._scheduler.notify_prepared(batch)
        for request in failed:
            end_request(request, errors[request])

    def _prepared(self, request: Request) -> None:
        """The row of this request is prepared. Under the lock."""
        # After a fault all requests have failed, and the state is not to be relied on.
        if self._lifecycle.fault is None and self._scheduler.prepared(request):
            self._admission.serve_queue()


def fail_expired(requests: Sequence[Request]) -> None:
    """Ends requests whose deadline has passed."""
    for request in requests:
        error = DeadlineExceeded(
            f"the batch of the request had not left within {request.time_limit:.3g} s; give the request more time, "
            "submit fewer at a time, or make the model faster"
        )
        end_request(request, error)
