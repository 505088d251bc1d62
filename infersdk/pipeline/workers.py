"""The threads that prepare requests, those that run batches, and the state that they share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..errors import DeadlineExceeded, PipelineError
from .request import PipelineThread, Request, RequestStages, end_request, log_error, wakes_in_turn
from .scheduler import Deadlines, InstanceGroup, Scheduler
from .stats import Statistics

if TYPE_CHECKING:
    from .batch_buffer import BatchBuffer
    from .request import BatchState

__all__ = ["BatchRunners", "PipelineState", "PrepareWorkers", "fail_expired"]


class PipelineState:
    """The state of a pipeline that its threads share, and its end by a fault. It changes under `lock`."""

    def __init__(self, lock: threading.Lock, groups: Sequence[InstanceGroup], max_delay: float, name: str) -> None:
        self.lock, self.groups = lock, groups
        self.closing = False  # no more requests come in
        self.stopped = False  # the threads end
        self.fault: BaseException | None = None  # what ended a thread of the pipeline; no batch is begun any more
        self.name = name
        self.statistics = Statistics()
        self.scheduler = Scheduler(self.groups, max_delay, self.statistics, self.lock)

    def thread(self, name: str, work: Callable[[], None]) -> PipelineThread:
        """A thread of this pipeline, which is not started. An exception of its work is a fault of the pipeline."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.thread_failed(error)

        return PipelineThread(target=run, name=f"{self.name}-{name}", daemon=True)

    def thread_failed(self, error: BaseException, requests: Sequence[Request] = ()) -> None:
        """Ends all requests, except those of batches that other threads are running, and takes no more in."""
        log_error(f"{self.name} has failed, and takes no more requests", error)
        with self.lock:
            self.fault = self.fault or error
            self.closing = self.stopped = self.scheduler.draining = True
            stranded = [*requests, *self.scheduler.queue]
            stranded += [request for request in self.scheduler.requests() if not request.dispatched]
            for request in stranded:
                request.settled = True
            self.scheduler.clear_queue()
            self.scheduler.wake_all()
        for request in stranded:
            end_request(request, self.fault_error())

    def fault_error(self) -> PipelineError:
        if isinstance(self.fault, (KeyboardInterrupt, SystemExit)):
            error = PipelineError(
                f"{self.name} was interrupted by {self.fault!r} while it changed its state; make a new one"
            )
        else:
            error = PipelineError(
                f"{self.name} has failed by a fault of its own ({self.fault!r}); make a new one, and report "
                "the fault with the traceback in the log"
            )
        error.__cause__ = self.fault
        return error


class PrepareWorkers:
    """Threads that prepare the rows of batches, and end requests whose deadline passes before their batch leaves."""

    def __init__(self, state: PipelineState, count: int) -> None:
        self._state, self._count, self._deadlines = state, count, Deadlines()
        self.threads = [state.thread(f"worker-{i}", self._work) for i in range(count)]

    def watch(self, request: Request) -> None:
        """Ends this request when its deadline passes. Under the lock."""
        if self._deadlines.add(request):  # the thread that waits for the next deadline would wait too long
            self._state.scheduler.rows_to_prepare.notify()

    def prepare_all(self, requests: Sequence[Request]) -> None:
        """Prepares rows in the thread that submits their requests: those of one batch after those of another."""
        for _, rows in groupby(requests, lambda request: request.batch):
            if (interrupt := self.prepare_rows(list(rows))) is not None:
                raise interrupt

    def prepare_rows(self, requests: Sequence[Request]) -> KeyboardInterrupt | None:
        """Prepares the rows of requests, in any thread. Returns the interrupt of the one that Ctrl-C stopped."""
        errors = dict[Request, BaseException]()
        for request in requests:
            if request.settled:
                continue
            assert request.batch is not None
            began = monotonic()
            try:
                request.batch.buffer.prepare(request.row, request.item, request.parameters)
            except BaseException as error:
                errors[request] = error
            request.prepared_at = (began, monotonic())
        try:
            self.finish(requests, errors)
            return next((error for error in errors.values() if isinstance(error, KeyboardInterrupt)), None)
        finally:
            del errors  # their tracebacks refer to this frame: images would wait for the garbage collector

    def _work(self) -> None:
        while self._work_once():
            """A waiting thread holds no requests, so their images are freed."""

    def _work_once(self) -> bool:
        """Prepares rows, or ends requests that expired, once there are some. False at the end."""
        with self._state.lock:
            expired = self._wait()
            requests = list[Request]()
            if self._state.scheduler.unprepared:
                requests = self._state.scheduler.take_unprepared(self._count)
            elif self._state.stopped and not expired:
                return False
        fail_expired(expired)
        if requests:
            self.prepare_rows(requests)
        return True

    def _wait(self) -> list[Request]:
        """Waits for rows to prepare, a deadline, or the end. Returns the requests that expired. Under the lock."""
        scheduler, expired = self._state.scheduler, list[Request]()
        scheduler.idle_workers += 1
        try:
            while not self._state.stopped:
                now = monotonic()
                expired = [request for request in self._deadlines.pop_past(now) if scheduler.settle(request, "expired")]
                if expired or scheduler.unprepared:
                    break
                deadline = self._deadlines.next()
                scheduler.rows_to_prepare.wait(None if deadline is None else max(0.0, deadline - now))
        finally:
            scheduler.idle_workers -= 1
        for request in expired:
            scheduler.remove(request)
        return expired

    def finish(self, requests: Sequence[Request], errors: Mapping[Request, BaseException]) -> None:
        """No thread prepares the rows of these requests any more; requests that failed to be prepared are ended."""
        failed = []
        with self._state.lock:
            batches = dict.fromkeys(request.batch for request in requests)
            for request in requests:
                if request in errors and self._state.scheduler.settle(request, "failed"):
                    failed.append(request)
                if self._state.fault is None:  # after a fault all requests have failed, and the state is unreliable
                    self._state.scheduler.prepared(request)
            for batch in batches:
                if batch is not None and batch.sealed:
                    self._state.scheduler.notify_prepared(batch)
        for request in failed:
            end_request(request, errors[request])


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

    def __init__(self, state: PipelineState, group: InstanceGroup, workers: PrepareWorkers) -> None:
        self._state, self._group, self._workers = state, group, workers
        self.threads = [state.thread(f"{group.index}-runner-{i}", self._work) for i in range(group.max_in_flight + 1)]

    def _work(self) -> None:
        while True:
            requests: list[Request] = []
            try:
                with self._state.lock:
                    batch = self._wait()
                    if batch is None:
                        return
                    expired = self._dispatch(batch, requests)
                fail_expired(expired)
                self._run(batch, requests)
            except BaseException as error:
                self._state.thread_failed(error, requests)
                return

    def _wait(self) -> BatchState | None:
        """Waits for a batch that leaves, and until its rows are prepared; None at the end. Under the lock."""
        state, group = self._state, self._group
        while state.fault is None:
            batch, timeout = state.scheduler.next_batch(group)
            if batch is not None:
                while not batch.prepared and state.fault is None:
                    batch.rows_prepared.wait()
                return batch if state.fault is None else None
            if state.stopped:
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
            if self._state.scheduler.settle(request, "expired"):
                expired.append(request)
            batch.rows[row] = None
        self._state.statistics.batch_left(len(requests))
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
            log_error(f"{self._state.name}: a batch buffer could not be brought up to date", error)
        done = monotonic()
        failed = sum(isinstance(result, BaseException) for result in results)
        with self._state.lock:
            submitted = [request.submitted for request in requests]
            self._state.statistics.batch_done(submitted, failed, left, ran, done, batch.bucket)
            if sizes is not None:
                self._group.batch_sizes = sizes
            to_prepare = self._state.scheduler.release(batch, prepares=True)
            for request in requests:  # last: a request without a batch says that its batch is free
                request.settled, request.batch = True, None
        if to_prepare:
            self._workers.prepare_rows(to_prepare)
        _notify_listeners(requests, left, ran, done)
        with wakes_in_turn():
            for index, request in enumerate(requests):
                end_request(request, results[index])
        del results  # tracebacks of exceptions refer to this frame and those below; see `prepare_rows()`

    def _results(self, batch: BatchState, requests: list[Request]) -> tuple[Sequence[Any], float]:
        """A result or an exception for each request, in the order of the rows, and the end of the run. Sorts `requests`
        in the same order.
        """
        buffer, count = batch.buffer, len(requests)
        compacted, results = False, list[Any]()
        try:
            try:
                if requests:
                    requests[:] = batch.compact()
                    compacted = True
                    buffer.run(count)
            except BaseException as error:
                results = self._failed_rows(buffer, count, error) if compacted else [error] * count
            ran = monotonic()
            with self._state.lock:
                self._state.scheduler.outputs_ready(self._group)
            if requests and not results:
                try:
                    return _checked_results(buffer, count), ran
                except BaseException as error:
                    results = self._failed_rows(buffer, count, error)
            return results, ran
        finally:
            del results

    def _failed_rows(self, buffer: BatchBuffer, count: int, failure: BaseException) -> list[Any]:
        """The results of the first `count` rows, whose run has failed."""
        try:
            return self._run_halves(buffer, count, failure)
        except BaseException as error:  # a row could not be moved
            return [error] * count
        finally:
            del failure

    def _run_halves(self, buffer: BatchBuffer, count: int, failure: BaseException) -> list[Any]:
        """The results of the first `count` rows, whose run has failed. Each half of them is run again, down to single
        rows, so that only the rows that cause the failure fail. There are at most `2 * count - 2` runs.
        """
        if count < 2:
            return [failure] * count
        with self._state.lock:
            self._state.statistics.reruns += 1
        del failure
        results: list[Any] = []
        first_half = count // 2
        try:
            for first, half in ((0, first_half), (first_half, count - first_half)):
                for row in range(half if first else 0):
                    buffer.move(first + row, row)
                try:
                    buffer.run(half)
                    results += _checked_results(buffer, half)
                except BaseException as error:
                    results += self._run_halves(buffer, half, error)
            return results
        finally:
            del results


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
        except BaseException as error:  # the caller's own
            log_error("a listener to the stages of a request raised", error)
