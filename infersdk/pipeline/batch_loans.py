"""Batches of a pipeline that other threads fill and run themselves."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from ..errors import ClosedError
from .batch_buffer import BatchBuffer
from .threads import log_error

if TYPE_CHECKING:
    from .admission import Admission
    from .instance_group import InstanceGroup
    from .request import BatchState
    from .scheduler import Scheduler
    from .stats import Statistics

__all__ = ["BatchLoans", "BorrowedBatch", "QueuingBuffer"]


@runtime_checkable
class QueuingBuffer(BatchBuffer, Protocol):
    """A buffer that can run on a device while its thread does something else."""

    def begin(self, count: int) -> None:
        """Queues the run of the first `count` rows. `run()` waits for its end."""


class BatchLoans:
    """Lends batches. The scheduler counts them as in flight, so that all batches share the model.

    Args:
        lock: of the pipeline.
        drained: notified when a batch is back.

    Attributes:
        open: the batches that are not back, and the thread that has borrowed each.
    """

    def __init__(
        self,
        lock: threading.Lock,
        scheduler: Scheduler,
        admission: Admission,
        statistics: Statistics,
        drained: threading.Condition,
        name: str,
    ) -> None:
        self._lock, self._drained, self._name = lock, drained, name
        self.open: dict[BorrowedBatch, threading.Thread] = {}
        self._scheduler, self._admission, self._statistics = scheduler, admission, statistics
        buffer = scheduler.groups[0].batches[0].buffer
        self.begins = isinstance(buffer, QueuingBuffer)
        self.bucket = buffer.buckets()[-1]  # the one for any item

    def borrow(self, *, wait: bool) -> BorrowedBatch | None:
        """See `Pipeline.borrow_batch()`. Under the lock; None also when the pipeline closes meanwhile."""
        scheduler = self._scheduler
        batch = scheduler.lend(queue_is_empty=not self._admission.queue, patient=wait)
        if batch is None and wait:
            batch = scheduler.wait_for_batch(self._admission.queue)
        if batch is None:
            return None
        borrowed = BorrowedBatch(self, batch)
        self.open[borrowed] = threading.current_thread()
        return borrowed

    def began(self, count: int) -> None:
        """A borrowed batch of so many items is on its way to the model."""
        with self._lock:
            self._statistics.lent += count

    def give_back(
        self,
        borrowed: BorrowedBatch,
        batch: BatchState,
        submitted: Sequence[float],
        failed: int,
        left: float,
        ran: float,
        done: float,
    ) -> None:
        """A borrowed batch has its results, and is the pipeline's again. For the times see `Statistics`."""
        group: InstanceGroup = self._scheduler.groups[batch.group]
        sizes: Sequence[int] | None = None
        try:
            if batch.buffer.refresh():
                sizes = batch.buffer.batch_sizes()
        except BaseException as error:  # the items have their results; what is wrong shows in the next run
            log_error(f"{self._name}: a batch buffer could not be brought up to date", error)
        with self._lock:
            try:
                self._statistics.lent_batch_done(submitted, failed, left, ran, done, self.bucket)
                if sizes is not None:
                    group.batch_sizes = sizes
                self._scheduler.outputs_ready(group)
                self._admission.release(batch)
            finally:  # after a fault of the pipeline its state is not to be relied on, and close() waits for this
                del self.open[borrowed]
                self._drained.notify_all()

    def take_back_own(self) -> None:
        """Ends the loans of the calling thread, which closes the pipeline: it would wait for itself. An exception may
        have kept it from asking for the results.
        """
        with self._lock:
            own = [batch for batch, thread in self.open.items() if thread is threading.current_thread()]
        for batch in own:
            batch.results()


class BorrowedBatch:
    """A batch of a pipeline in the hands of one thread: `begin()` once, then `results()` once, in any case.

    Args:
        loans: takes it back.
        batch: it has no requests.

    Attributes:
        capacity: items that it takes at most.
    """

    __slots__ = ("_batch", "_left", "_loans", "_outcomes", "_rows", "_submitted", "capacity")

    def __init__(self, loans: BatchLoans, batch: BatchState) -> None:
        self._loans, self._batch = loans, batch
        self.capacity = batch.capacity
        self._rows: list[int] = []  # for each row of the buffer the index of its item
        self._outcomes: list[Any] = []
        self._submitted: Sequence[float] = ()
        self._left = 0.0

    def begin(
        self, items: Sequence[Any], submitted: Sequence[float], parameters: Mapping[str, Any] | None = None
    ) -> None:
        """Fills the rows, and queues the run. An exception is the outcome of its item, and is not raised here.

        Args:
            items: what `submit()` takes; as many as `capacity` at most.
            submitted: when each of them was ready for this model, on the monotonic clock.
            parameters: see `Pipeline.submit()`.
        """
        self._left, self._submitted = monotonic(), submitted
        self._loans.began(len(items))
        buffer, rows = self._batch.buffer, self._rows
        outcomes: list[Any] = [None] * len(items)
        self._outcomes = outcomes
        if self._loans.bucket is not None:
            buffer.set_bucket(self._loans.bucket)
        for index, item in enumerate(items):
            try:
                buffer.prepare(len(rows), item, parameters)
            except Exception as error:
                outcomes[index] = error
            else:
                rows.append(index)
        if rows and self._loans.begins:
            try:
                cast("QueuingBuffer", buffer).begin(len(rows))
            except Exception as error:
                self._fail(error)

    def results(self) -> list[Any]:
        """Waits for the run. Returns a result or an exception for each item. The batch is the pipeline's again.

        Raises:
            ClosedError: it was the pipeline's again before: `results()` was called, or the calling thread has closed
                the pipeline.
        """
        if self not in self._loans.open:
            raise ClosedError("the batch was given back before; borrow another one")
        buffer, outcomes, ran = self._batch.buffer, self._outcomes, 0.0
        try:
            if count := len(self._rows):
                buffer.run(count)
                ran = monotonic()
                results = buffer.results(count)
                if len(results) != count:
                    raise RuntimeError(f"the batch buffer returned {len(results)} results for {count} items")
                for index, result in zip(self._rows, results, strict=True):
                    outcomes[index] = result
        except Exception as error:
            self._fail(error)
        finally:
            done = monotonic()
            failed = sum(isinstance(outcome, BaseException) for outcome in outcomes)
            self._loans.give_back(self, self._batch, self._submitted, failed, self._left, ran or done, done)
        return outcomes

    def _fail(self, error: Exception) -> None:
        """The run failed, and with it all of its rows."""
        for index in self._rows:
            self._outcomes[index] = error
        self._rows = []
