"""A request, and the batch in which it has a row."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import CancelledError
from contextvars import ContextVar
from numbers import Real
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..errors import InputError
from .threads import PipelineThread, log_error

if TYPE_CHECKING:
    from .batch_buffer import BatchBuffer

__all__ = [
    "MOST_SECONDS",
    "BatchState",
    "Request",
    "RequestOwner",
    "RequestStages",
    "check_seconds",
    "end_request",
    "prepare_row",
    "stage_listener",
]


#: Maximum time limit of a request or a batch, in seconds; every system can wait that long.
MOST_SECONDS = 1_000_000.0


class RequestOwner(Protocol):
    """The pipeline of a request."""

    def withdraw(self, request: Request) -> bool:
        """Claims the end of a request, unless its batch has left or it has ended."""


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


class Request:
    """One item in a pipeline.

    The attributes change under the pipeline's lock. The thread that sets `settled` there, once, ends the request
    afterwards without the lock, since `on_done` runs the caller's code.

    Args:
        on_done: called once with the result, or with the exception, in the thread that ends the request.
        time_limit: seconds within which its batch has to leave.
    """

    __slots__ = (
        "_on_done", "batch", "bucket", "deadline", "dispatched", "item", "listener", "owner", "parameters",
        "prepared_at", "preparing", "quick", "row", "settled", "slot_waiter", "submitted", "time_limit",
    )  # fmt: skip

    def __init__(
        self,
        owner: RequestOwner,
        item: Any,
        parameters: Mapping[str, Any] | None,
        time_limit: float | None,
        on_done: Callable[[Any], object],
    ) -> None:
        self.owner, self.item, self.parameters = owner, item, parameters
        self._on_done: Callable[[Any], object] | None = on_done
        self.submitted = monotonic()
        self.listener = stage_listener.get()  # is called with the times of the request's stages
        self.prepared_at = (0.0, 0.0)  # where there is a listener: when its preparation began and ended
        self.time_limit = time_limit
        self.deadline = None if time_limit is None else self.submitted + time_limit  # on the monotonic clock
        self.bucket: Hashable = None  # it shares a batch with requests of this bucket
        self.batch: BatchState | None = None  # where it has its row
        self.row = -1
        self.quick = False  # preparing it takes less time than waking up a thread.
        self.preparing = False  # a thread is writing its row.
        self.dispatched = False  # its batch has left
        self.settled = False  # it has ended, or a thread is about to end it
        self.slot_waiter: Any = None  # a lock that is released when the request has a slot, or has ended

    @property
    def ended(self) -> bool:
        """Whether `on_done` was called."""
        return self._on_done is None

    def end(self, outcome: Any) -> None:
        """Calls `on_done`, unless that has happened. Its exceptions are passed on."""
        on_done, self._on_done = self._on_done, None  # it may refer to this request
        self.item = None
        if on_done is not None:
            on_done(outcome)

    def cancel(self) -> bool:
        """Cancels the request, unless its batch has left or it has ended. Its slot is free again at once."""
        if not self.owner.withdraw(self):
            return False
        self.end(CancelledError())
        return True


class BatchState:
    """A batch buffer and the requests in its rows. It changes under the pipeline's lock.

    It is free, then filling, then sealed (no more requests come in), then dispatched (it has left for
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
        self.vacant: list[int] = []  # rows without a request.
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


def end_request(request: Request, outcome: object) -> None:
    """Ends a request with a result, or with an exception.

    A thread of the pipeline logs the exceptions of the caller's code.
    """
    try:
        request.end(outcome)
    except BaseException as error:
        if not isinstance(threading.current_thread(), PipelineThread):
            raise
        log_error("ending a request failed", error)


def check_seconds(name: str, value: Any) -> float | None:
    """A time in seconds as a float; None stays None.

    Raises:
        InputError: it is no number, or is not between 0 and `MOST_SECONDS`.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{name} is a number of seconds or None, not {value!r}")
    if not 0 <= value <= MOST_SECONDS:  # type: ignore[operator]
        raise InputError(f"{name} is from 0 to {MOST_SECONDS:,.0f} seconds, not {value!r}; leave it out for no limit")
    return float(value)
