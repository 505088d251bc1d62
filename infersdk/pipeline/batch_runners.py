"""The threads that run batches."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from .batch_buffer import BatchBuffer, SharingBuffer
from .futures import AsyncRequest, hand_out
from .prepare_workers import PrepareWorkers, fail_expired
from .request import BatchState, Request, RequestStages, prepare_row
from .threads import Lifecycle, PipelineThread, Supervisor, end_request, log_error

if TYPE_CHECKING:
    from .admission import Admission
    from .inline_runs import InlineRuns
    from .instance_group import InstanceGroup
    from .scheduler import Scheduler
    from .stats import Statistics

__all__ = ["BatchRunners"]


class BatchRunners:
    """Threads that take the batches of one instance group to the model, and hand out the results.

    There is one more than batches may be in flight: it postprocesses while the next batch is on the model.

    Args:
        shares_cores: a batch whose last rows leave a core idle does not count as on the model any more.
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
        inline: InlineRuns,
        *,
        shares_cores: bool,
        name: str,
        supervisor: Supervisor,
    ) -> None:
        self._lock, self._lifecycle, self._group = lock, lifecycle, group
        self._scheduler, self._admission, self._statistics = scheduler, admission, statistics
        self._workers, self._inline, self._name, self._supervisor = workers, inline, name, supervisor
        self._shares_cores = shares_cores and all(isinstance(batch.buffer, SharingBuffer) for batch in group.batches)
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

    def run_inline(self, batch: BatchState, request: AsyncRequest) -> None:
        """Prepares and runs a batch of one request, which has left, in the calling thread: that of its event loop."""
        request.in_own_loop = True
        try:
            prepare_row(batch, request)
        except BaseException as error:
            self._fail_inline(batch, request, error)
        else:
            self._run(batch, [request], prepares=False)

    def _fail_inline(self, batch: BatchState, request: AsyncRequest, error: BaseException) -> None:
        """Ends a request that could not be prepared."""
        with self._lock:
            self._scheduler.outputs_ready(self._group)
            self._statistics.batch_left(-1)
            self._admission.settle(request, "failed")
            request.batch = None
            self._admission.release(batch)
        end_request(request, error)

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
        """Marks the requests of a batch as on their way, and adds them to `requests`; returns those whose deadline is
        past. Under the lock.
        """
        now, expired = monotonic(), list[Request]()
        for row, request in enumerate(batch.rows):
            if request is None:
                continue
            if not request.settled and (request.deadline is None or request.deadline >= now):
                if request.start():
                    request.dispatched = True
                    requests.append(request)
                    continue
                self._admission.settle(request, "cancelled")  # at this very moment
            elif self._admission.settle(request, "expired"):
                expired.append(request)
            batch.rows[row] = None
        self._statistics.batch_left(len(requests))
        return expired

    def _run(self, batch: BatchState, requests: list[Request], *, prepares: bool = True) -> None:
        """Runs a batch that has left, and ends its requests.

        Args:
            prepares: this thread prepares requests that get the free slots, where that takes little. The thread of an
                event loop does not: Ctrl-C there is not for them.
        """
        left = monotonic()
        results, ran = self._results(batch, requests)
        sizes: Sequence[int] | None = None
        try:
            if batch.buffer.refresh():
                sizes = batch.buffer.batch_sizes()
        except BaseException as error:  # these requests have their results; what is wrong shows in the next run
            log_error(f"{self._name}: a batch buffer could not be brought up to date", error)
        done = monotonic()
        failed = sum(isinstance(result, BaseException) for result in results)
        with self._lock:
            submitted = [request.submitted for request in requests]
            self._statistics.batch_done(submitted, failed, left, ran, done, batch.bucket)
            if len(requests) == 1:
                self._inline.add(done - left)
            if sizes is not None:
                self._group.batch_sizes = sizes
            to_prepare = self._admission.release(batch, prepares=prepares)
            for request in requests:  # last: a request without a batch says that its batch is free
                request.settled, request.batch = True, None
        if to_prepare:
            self._workers.prepare_rows(to_prepare)
        _notify_listeners(requests, left, ran, done)
        hand_out(requests, results)

    def _results(self, batch: BatchState, requests: list[Request]) -> tuple[Sequence[Any], float]:
        """A result or an exception for each request, which are then in the order of the rows; and when the model had
        run the batch.
        """
        buffer, count = batch.buffer, len(requests)
        on_model = True
        faults: list[BaseException] = []

        def leave_model() -> None:
            nonlocal on_model
            with self._lock:
                if on_model:
                    on_model = False
                    self._scheduler.outputs_ready(self._group)

        def core_is_free() -> None:
            try:
                leave_model()
            except BaseException as error:  # a fault of the pipeline, and not of the run
                faults.append(error)

        failure: BaseException | None = None
        compacted = False
        try:
            if requests:
                requests[:] = batch.compact()
                compacted = True
                if self._shares_cores:
                    cast("SharingBuffer", buffer).core_is_free = core_is_free
                buffer.run(count)
        except BaseException as error:
            failure = error
        finally:
            if self._shares_cores:
                cast("SharingBuffer", buffer).core_is_free = None
        ran = monotonic()
        if faults:
            raise faults[0]
        if failure is None:
            leave_model()
            try:
                return _checked_results(buffer, count) if requests else (), ran
            except BaseException as error:
                failure = error
        try:
            results = self._run_halves(buffer, count, failure) if compacted else [failure] * count
        except BaseException as error:  # a row could not be moved
            results = [error] * count
        if on_model:
            ran = monotonic()
            leave_model()
        return results, ran

    def _run_halves(self, buffer: BatchBuffer, count: int, failure: BaseException) -> list[Any]:
        """The results of the first `count` rows, whose run has failed: each half of them is run again, down to single
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
