"""The threads that prepare requests, and those that run batches."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Mapping, Sequence
from itertools import count, groupby
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..errors import DeadlineExceeded
from .futures import wakes_in_turn
from .request import BatchState, Request, RequestStages, end_request, prepare_row
from .threads import Lifecycle, PipelineThread, Supervisor, log_error

if TYPE_CHECKING:
    from .batch_buffer import BatchBuffer
    from .scheduler import Admission, InstanceGroup, Scheduler
    from .stats import Statistics

__all__ = ["BatchRunners", "Deadlines", "PrepareWorkers", "fail_expired"]


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


class BatchRunners:
    """Threads that run the batches of one instance group, and end their requests.

    There is one more than batches may be in flight: it postprocesses while the next batch is on the model.
    """

    def __init__(
        self,
        lock: threading.Lock,
        lifecycle: Lifecycle,
        group: InstanceGroup,
        scheduler: Scheduler,
        admission: Admission,
        statistics: Statistics,
        workers: PrepareWorkers,
        *,
        name: str,
        supervisor: Supervisor,
    ) -> None:
        self._lock, self._lifecycle, self._group = lock, lifecycle, group
        self._scheduler, self._admission, self._statistics = scheduler, admission, statistics
        self._workers, self._name, self._supervisor = workers, name, supervisor
        self.threads = [
            PipelineThread(f"{name}-runner-{i}", self._work, supervisor) for i in range(group.max_in_flight + 1)
        ]

    def _work(self) -> None:
        while True:
            requests: list[Request] = []
            try:
                with self._lock:
                    batch = self._wait()
                    if batch is None:
                        return
                    expired = self._dispatch(batch, requests)
                fail_expired(expired)
                self._run(batch, requests)
            except BaseException as error:
                self._supervisor.thread_failed(error, requests)
                return

    def _wait(self) -> BatchState | None:
        """Waits for a batch that leaves, and until its rows are prepared; None at the end. Under the lock."""
        group, lifecycle = self._group, self._lifecycle
        while lifecycle.fault is None:
            batch, timeout = self._scheduler.next_batch(group)
            if batch is not None:
                while not batch.prepared and lifecycle.fault is None:
                    batch.rows_prepared.wait()
                return batch if lifecycle.fault is None else None
            if lifecycle.stopped:
                return None
            group.changed.wait(timeout)
        return None

    def _dispatch(self, batch: BatchState, requests: list[Request]) -> list[Request]:
        """Marks the requests of a batch as dispatched, and adds them to `requests`; returns those whose deadline is
        past. Under the lock.
        """
        now, expired = monotonic(), list[Request]()
        for row, request in enumerate(batch.rows):
            if request is None:
                continue
            if not request.settled and (request.deadline is None or request.deadline >= now):
                request.dispatched = True
                requests.append(request)
                continue
            if self._admission.settle(request, "expired"):
                expired.append(request)
            batch.rows[row] = None
        self._statistics.batch_left(len(requests))
        return expired

    def _run(self, batch: BatchState, requests: list[Request]) -> None:
        """Runs a batch that has left, and ends its requests."""
        left = monotonic()
        results, ran = self._results(batch, requests)
        sizes: Sequence[int] | None = None
        try:
            if batch.buffer.refresh():
                sizes = batch.buffer.batch_sizes()
        except BaseException as error:  # these requests have their results; the next run raises it again
            log_error(f"{self._name}: a batch buffer could not be brought up to date", error)
        done = monotonic()
        failed = sum(isinstance(result, BaseException) for result in results)
        with self._lock:
            submitted = [request.submitted for request in requests]
            self._statistics.batch_done(submitted, failed, left, ran, done, batch.bucket)
            if sizes is not None:
                self._group.batch_sizes = sizes
            to_prepare = self._admission.release(batch, prepares=True)
            for request in requests:  # last: a request without a batch says that its batch is free
                request.settled, request.batch = True, None
        if to_prepare:
            self._workers.prepare_rows(to_prepare)
        _notify_listeners(requests, left, ran, done)
        with wakes_in_turn():
            for request, result in zip(requests, results, strict=True):
                end_request(request, result)

    def _results(self, batch: BatchState, requests: list[Request]) -> tuple[Sequence[Any], float]:
        """A result or an exception for each request, in the order of the rows, and the end of the run. Sorts `requests`
        in the same order.
        """
        buffer, count = batch.buffer, len(requests)
        compacted, failure, results = False, None, list[Any]()
        try:
            if requests:
                requests[:] = batch.compact()
                compacted = True
                buffer.run(count)
        except BaseException as error:
            failure = error
            results = self._failed_rows(buffer, count, error) if compacted else [error] * count
        ran = monotonic()
        with self._lock:
            self._scheduler.outputs_ready(self._group)
        if requests and failure is None:
            try:
                return _checked_results(buffer, count), ran
            except BaseException as error:
                results = self._failed_rows(buffer, count, error)
        return results, ran

    def _failed_rows(self, buffer: BatchBuffer, count: int, failure: BaseException) -> list[Any]:
        """The results of the first `count` rows, whose run has failed."""
        try:
            return self._run_halves(buffer, count, failure)
        except BaseException as error:  # a row could not be moved
            return [error] * count

    def _run_halves(self, buffer: BatchBuffer, count: int, failure: BaseException) -> list[Any]:
        """The results of the first `count` rows, whose run has failed. Each half of them is run again, down to single
        rows, so that only the rows that cause the failure fail. There are at most `2 * count - 2` runs.
        """
        if count < 2:
            return [failure] * count
        with self._lock:
            self._statistics.reruns += 1
        results: list[Any] = []
        first_half = count // 2
        for first, half in ((0, first_half), (first_half, count - first_half)):
            for row in range(half if first else 0):
                buffer.move(first + row, row)
            try:
                buffer.run(half)
                results += _checked_results(buffer, half)
            except BaseException as error:
                results += self._run_halves(buffer, half, error)
        return results


def _checked_results(buffer: BatchBuffer, count: int) -> Sequence[Any]:
    """The results of rows that were run."""
    results = buffer.results(count)
    if len(results) != count:
        raise RuntimeError(f"the batch buffer returned {len(results)} results for {count} requests")
    return results


def _notify_listeners(requests: Sequence[Request], left: float, ran: float, done: float) -> None:
    """Calls the listeners of requests that have their results."""
    for request in requests:
        if request.listener is None:
            continue
        stages = RequestStages(request.submitted, request.prepared_at, left, ran, done, len(requests))
        try:
            request.listener(stages)
        except Exception as error:  # the caller's own
            log_error("a listener to the stages of a request raised", error)
