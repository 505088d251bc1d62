"""A request, and the batch in which it has a row."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from contextvars import ContextVar
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from .batch_buffer import BatchBuffer
    from .staggered_wakeup import Wakeup

__all__ = ["BatchState", "Request", "RequestOwner", "RequestStages", "prepare_row", "stage_listener"]


class RequestOwner(Protocol):
    """What a request knows of its pipeline."""

    wakeup: Wakeup

    def withdraw(self, request: Request) -> bool:
        """Cancels a request, unless its batch has left or it has ended."""


class RequestStages(NamedTuple):
    """When the stages of a request that was run began and ended, in seconds of `time.monotonic()`.

    Attributes:
        submitted: it was submitted.
        prepare: its row was read, decoded and preprocessed: (begin, end).
        left: its batch left for the model.
        ran: the model had run the batch.
        done: its result was there.
        batch: how many requests the batch had.
    """

    submitted: float
    prepare: tuple[float, float]
    left: float
    ran: float
    done: float
    batch: int


#: Is called for each request that is submitted in its context, by the thread that has run it: for traces.
stage_listener: ContextVar[Callable[[RequestStages], None] | None] = ContextVar("stage_listener", default=None)


class Request(ABC):
    """What a caller asked for, where it is now, and how it ends.

    The attributes change under the pipeline's lock. The thread that sets `settled` there, once, ends the request
    afterwards: `start()`, then `succeed()` or `fail()`, without the lock, since they run the caller's callbacks.
    """

    __slots__ = (
        "_end_waiters", "batch", "bucket", "deadline", "dispatched", "ended", "item", "listener", "owner", "parameters",
        "prepared_at", "preparing", "quick", "row", "settled", "slot_waiter", "submitted", "time_limit",
    )  # fmt: skip

    def __init__(
        self, owner: RequestOwner, item: Any, parameters: Mapping[str, Any] | None, time_limit: float | None
    ) -> None:
        self.owner, self.item, self.parameters = owner, item, parameters
        self.submitted = monotonic()
        self.listener = stage_listener.get()  # is called with the times of the request's stages
        self.prepared_at = (0.0, 0.0)  # where there is a listener: when its preparation began and ended
        self.time_limit = time_limit  # seconds within which its batch has to leave
        self.deadline = None if time_limit is None else self.submitted + time_limit  # on the monotonic clock
        self.bucket: Hashable = None  # it shares a batch with requests of this bucket
        self.batch: BatchState | None = None  # where it has its row
        self.row = -1
        self.quick = False  # preparing it takes less time than waking up a thread for that
        self.preparing = False  # a thread is writing its row
        self.dispatched = False  # its batch has left
        self.settled = False  # it has ended, or a thread is about to end it
        self.slot_waiter: Any = None  # the thread that waits until this request has a slot
        self.ended = False  # the caller has the result or the exception
        self._end_waiters: list[Any] = []  # the threads that wait for that

    @abstractmethod
    def start(self) -> bool:
        """From here on it cannot be cancelled. False: it was cancelled before."""

    @abstractmethod
    def succeed(self, result: Any) -> None:
        """Ends it with a result."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Ends it with an exception."""

    @abstractmethod
    def cancel(self) -> bool:
        """Cancels it, unless its batch has left or it has ended. Its slot is free again at once."""

    def wait_for_end(self, timeout: float | None = None) -> None:
        """Waits until the request has ended, at most `timeout` seconds."""
        if self.ended:
            return
        wakeup = self.owner.wakeup
        waiter = wakeup.waiter()
        self._end_waiters.append(waiter)
        # If the request has ended by now, this waiter may have been overlooked: then it must not wait.
        wakeup.wait(waiter, 0 if self.ended else timeout)

    def set_ended(self) -> None:
        """Ends the waiting of all threads."""
        self.ended = True
        for waiter in self._end_waiters:
            self.owner.wakeup.release(waiter)


class BatchState:
    """A batch buffer and the requests in its rows. It changes under the pipeline's lock.

    It is free, then filling, then sealed (no more requests come in), then dispatched (its requests are on their way to
    the model), then free again.
    """

    def __init__(self, buffer: BatchBuffer, group: int, lock: threading.Lock) -> None:
        self.buffer, self.group = buffer, group  # the index of its instance group
        self.capacity = self.share = buffer.capacity  # the share is how many requests it takes before it may leave
        self.rows_prepared = threading.Condition(lock)  # the thread that runs it waits here for the last rows
        self.clear()

    def clear(self) -> None:
        """All rows are free."""
        self.rows: list[Request | None] = []
        self.vacant: list[int] = []  # rows among these whose request has gone
        self.unprepared: deque[Request] = deque()  # requests in rows that no thread has begun to prepare
        self.preparing = 0  # rows that threads are preparing now
        self.oldest = 0.0  # when its oldest request was submitted
        self.bucket: Hashable = None  # of its requests
        self.sealed = False

    @property
    def occupied(self) -> int:
        """Rows with a request."""
        return len(self.rows) - len(self.vacant)

    @property
    def prepared(self) -> bool:
        """Whether all of its rows are prepared."""
        return not self.unprepared and not self.preparing

    def add(self, request: Request) -> int:
        """Gives a request a row, which is there; returns how many are occupied now."""
        if self.vacant:
            row = self.vacant.pop()
            self.rows[row] = request
        else:
            row = len(self.rows)
            self.rows.append(request)
        request.batch, request.row = self, row
        return len(self.rows) - len(self.vacant)

    def vacate(self, row: int) -> None:
        """The request in this row has gone."""
        self.rows[row] = None
        self.vacant.append(row)
        left = [request.submitted for request in self.rows if request is not None]
        self.oldest = min(left, default=0.0)

    def compact(self) -> list[Request]:
        """Moves the last requests into rows that are empty, so that all lie in front; returns them in their order."""
        rows = self.rows
        if None not in rows:
            return [*rows]  # type: ignore[list-item]
        count = sum(request is not None for request in rows)
        empty = [row for row in range(count) if rows[row] is None]
        behind = [row for row in range(count, len(rows)) if rows[row] is not None]
        for row, source in zip(empty, behind, strict=True):
            self.buffer.move(source, row)
            rows[row], rows[source] = rows[source], None
        return [request for request in rows if request is not None]


def prepare_row(batch: BatchState, request: Request) -> None:
    """Prepares the row of a request."""
    if request.listener is None:
        batch.buffer.prepare(request.row, request.item, request.parameters)
        return
    began = monotonic()
    try:
        batch.buffer.prepare(request.row, request.item, request.parameters)
    finally:
        request.prepared_at = (began, monotonic())
