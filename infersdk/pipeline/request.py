"""A request, its row in a batch, and its end: by a callback, a future of `concurrent.futures`, or one of asyncio."""

from __future__ import annotations

import contextlib
import sys
import threading
from _thread import RLock, allocate_lock
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures._base import PENDING
from contextvars import ContextVar
from numbers import Integral, Real
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.text import logger
from ..errors import ConfigError, InputError
from ..image.sources import check_several

if TYPE_CHECKING:
    import asyncio

    from .batch_buffer import BatchBuffer

__all__ = [
    "MOST_SECONDS", "AsyncResults", "BatchState", "OpenCalls", "PipelineThread", "Request", "RequestFuture",
    "RequestStages", "UntilError", "check_in_flight", "check_seconds", "end_request", "log_error", "results_in_order",
    "run_elsewhere", "stage_listener", "wake_waiters", "wakes_in_turn",
]  # fmt: skip

_log = logger("infersdk.pipeline")

#: Maximum time limit of a request or a batch, in seconds; every system can wait that long.
MOST_SECONDS = 1_000_000.0


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
        withdraw: claims the end of a request, unless it was not taken in, its batch has left, or it has ended.
        on_done: called once with the result, or with the exception, in the thread that ends the request.
        time_limit: seconds within which its batch has to leave.
        owner: is kept alive until the request has ended.
    """

    __slots__ = (
        "_on_done", "_withdraw", "batch", "bucket", "deadline", "dispatched", "item", "listener", "owner",
        "parameters", "prepared_at", "preparing", "quick", "row", "settled", "slot_waiter", "submitted", "time_limit",
    )  # fmt: skip

    def __init__(
        self,
        withdraw: Callable[[Request], bool],
        item: Any,
        parameters: Mapping[str, Any] | None,
        time_limit: float | None,
        on_done: Callable[[Any], object],
        owner: object = None,
    ) -> None:
        self.owner = owner
        self._withdraw, self.item, self.parameters = withdraw, item, parameters
        self._on_done: Callable[[Any], object] | None = on_done
        self.submitted = monotonic()
        self.listener = stage_listener.get()  # is called with the times of the request's stages
        self.prepared_at = (0.0, 0.0)  # when its preparation began and ended
        self.time_limit = time_limit
        self.deadline = None if time_limit is None else self.submitted + time_limit  # on the monotonic clock
        self.bucket: Hashable = None  # it shares a batch with requests of this bucket
        self.batch: BatchState | None = None  # where it has its row
        self.row = -1
        self.quick = False  # preparing it takes less time than waking up a thread.
        self.preparing = False  # a thread is writing its row.
        self.dispatched = False  # its batch has left
        #: It was not taken in, it has ended, or a thread is about to end it.
        self.settled = True
        self.slot_waiter: Any = None  # a lock that is released when the request has a slot, or has ended

    def end(self, outcome: Any) -> None:
        """Calls `on_done`, unless that has happened. Its exceptions are passed on."""
        on_done, self._on_done = self._on_done, None  # it may refer to this request
        self.item = self.owner = None
        if on_done is not None:
            on_done(outcome)

    def discard(self) -> None:
        """Lets the request end without a call of `on_done`."""
        self._on_done = None

    def cancel(self) -> bool:
        """Cancels the request, unless its batch has left or it has ended. Its slot is free again at once."""
        if not self._withdraw(self):
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


class PipelineThread(threading.Thread):
    """A thread of a pipeline; `end_request()` in it logs the exceptions of callers' code."""


def log_error(message: str, error: BaseException) -> None:
    """Logs an exception with its traceback. Exceptions of log handlers are suppressed."""
    with contextlib.suppress(BaseException):
        _log.error("%s: %r", message, error, exc_info=error)


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


def check_seconds(name: str, value: Any, without: str = "no limit") -> float | None:
    """A time in seconds as a float; None stays None.

    Args:
        without: what None stands for, for messages.

    Raises:
        InputError: it is no number, or is not between 0 and `MOST_SECONDS`.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{name} is a number of seconds or None, not {value!r}")
    if not 0 <= value <= MOST_SECONDS:  # type: ignore[operator]
        raise InputError(f"{name} is from 0 to {MOST_SECONDS:,.0f} seconds, not {value!r}; leave it out for {without}")
    return float(value)


#: Number of threads that are woken at a time.
ABREAST = 2


class _Waiter:
    """A thread that waits for a future.

    Attributes:
        following: the thread that this one wakes when it has been woken.
    """

    __slots__ = ("following", "lock", "woken")

    def __init__(self) -> None:
        self.lock = allocate_lock()
        self.lock.acquire()
        self.following: _Waiter | None = None
        self.woken = False

    def wake(self) -> None:
        self.woken = True
        self.lock.release()


class _Turns(threading.local):
    """The waiters that the calling thread has to wake; None where it wakes each one at once."""

    waiters: list[_Waiter] | None = None


_turns = _Turns()


@contextlib.contextmanager
def wakes_in_turn() -> Iterator[None]:
    """Wakes the threads that wait for futures of this block at its end, `ABREAST` at a time. Each of them wakes another
    one: woken at the same time, all would wait for the interpreter's lock. On 16 cores with a GPU, 16 threads then have
    a fifth more results a second, and 64 threads a sixth.
    """
    _turns.waiters = []
    try:
        yield
    finally:
        wake_waiters()
        _turns.waiters = None


def wake_waiters() -> None:
    """Wakes the threads that the calling thread has not woken yet. Called before user code runs."""
    waiters = _turns.waiters
    if waiters:
        _turns.waiters = []
        for waiter, following in zip(waiters, waiters[ABREAST:], strict=False):
            waiter.following = following
        for waiter in waiters[:ABREAST]:
            waiter.wake()


class _Condition(RLock):  # type: ignore[misc]  # the type stubs call it final, and it is not
    """The part of a `threading.Condition` that a `Future` uses, made in a tenth of its time; see `wakes_in_turn()`."""

    _blocked: Sequence[_Waiter] = ()

    def wait(self, timeout: float | None = None) -> None:
        """As `Condition.wait()`."""
        waiter = _Waiter()
        self._blocked = [*self._blocked, waiter]
        try:
            self.release()  # in here: the handler of a signal may raise an exception after it
            waiter.lock.acquire(timeout=-1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX))
        finally:
            self.acquire()
            if waiter in self._blocked:
                self._blocked = [other for other in self._blocked if other is not waiter]
            else:
                if not waiter.woken:  # the time was up, but the notifying thread has it in turn
                    waiter.lock.acquire()
                if waiter.following is not None:
                    waiter.following.wake()

    def notify_all(self) -> None:
        """As `Condition.notify_all()`."""
        blocked, self._blocked = self._blocked, ()
        if not blocked:
            return
        if _turns.waiters is not None:
            _turns.waiters += blocked
            return
        for waiter in blocked:
            waiter.wake()


class RequestFuture(Future[Any]):
    """The future of a request: `end()` is the request's `on_done`.

    Attributes:
        request: the `Request`, or that of a composition, with a method `cancel()`; None before it is made and after it
            has ended.
    """

    def __init__(self) -> None:  # not that of `Future`: making a `threading.Condition` takes most of its time
        self._condition = _Condition()  # type: ignore[assignment]
        self._state = PENDING
        self._result = self._exception = None
        self._waiters = []
        self._done_callbacks: list[Callable[[Future[Any]], object]] = []
        self.request: Any = None

    def running(self) -> bool:
        return not self.done() and bool(getattr(self.request, "dispatched", False))

    def cancel(self) -> bool:
        """Cancels the request, unless its batch has left. Its slot is free again at once."""
        request = self.request
        return bool(request is not None and request.cancel()) or self.cancelled()

    def result(self, timeout: float | None = None) -> Any:
        """As `Future.result()`, but it also raises exceptions whose truth value is false."""
        error = self.exception(timeout)
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del self, error  # the traceback of the exception must not keep them alive

    def end(self, outcome: Any) -> None:
        """Ends the future with a result, or with an exception."""
        self.request = None
        if isinstance(outcome, CancelledError):
            super().cancel()
            self.set_running_or_notify_cancel()  # informs the threads in concurrent.futures.wait()
        elif isinstance(outcome, BaseException):
            self.set_exception(outcome)
        else:
            self.set_result(outcome)

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """As `Future.add_done_callback()`. A thread of the pipeline logs every exception of a callback, also SystemExit
        and KeyboardInterrupt, and runs the next one.
        """

        def guarded(future: Future[Any]) -> None:
            wake_waiters()
            try:
                fn(future)
            except Exception:
                raise  # the future logs it
            except BaseException as error:
                if not isinstance(threading.current_thread(), PipelineThread):
                    raise
                log_error(f"the callback {fn!r} of a future raised", error)

        super().add_done_callback(guarded)


class AsyncResults:
    """Passes the results of requests to one event loop, and wakes its thread once for those that end together.

    Any number of threads may use it.
    """

    def __init__(self) -> None:
        self._ended: deque[tuple[asyncio.Future[Any], Any]] = deque()
        self._called = False  # the event loop has been woken, and has not begun to take them

    def put(self, future: asyncio.Future[Any], outcome: Any) -> None:
        """A request has ended."""
        self._ended.append((future, outcome))
        if self._called:
            return
        self._called = True
        loop = future.get_loop()
        try:
            loop.call_soon_threadsafe(self._take)
        except BaseException as error:
            if not loop.is_closed():  # otherwise the coroutines have ended with their loop
                log_error("an event loop did not take the results of its requests", error)

    def _take(self) -> None:
        self._called = False  # first: what comes from now on calls again
        while self._ended:
            _resolve(*self._ended.popleft())


def _resolve(future: asyncio.Future[Any], outcome: Any) -> None:
    """In the thread of the event loop."""
    if future.done():  # the coroutine was cancelled meanwhile
        return
    if isinstance(outcome, CancelledError):
        future.cancel()
    elif isinstance(outcome, StopIteration):  # no coroutine can raise it
        error = RuntimeError("the request raised StopIteration")
        error.__cause__ = outcome
        future.set_exception(error)
    elif isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class OpenCalls:
    """The threads that are in calls of a model or pipeline. In its `with` block the calling thread is in one."""

    def __init__(self) -> None:
        self._threads: list[int] = []

    def __enter__(self) -> None:
        self._threads.append(threading.get_ident())

    def __exit__(self, *error: object) -> None:
        self._threads.remove(threading.get_ident())

    def each(self, results: Iterator[Any]) -> Iterator[Any]:
        """The results of a generator. The calling thread is in a call while it makes one of them."""
        with contextlib.closing(results):  # type: ignore[type-var]
            while True:
                with self:
                    result = next(results, self)
                if result is self:
                    return
                yield result

    def close_later(self, close: Callable[[], object]) -> bool:
        """Whether the calling thread is in a call, which the handler of a signal or a callback has interrupted, or runs
        callbacks for a pipeline.

        `close()` waits for calls and for those threads, so another thread then runs it.
        """
        if threading.get_ident() not in self._threads and not isinstance(threading.current_thread(), PipelineThread):
            return False
        threading.Thread(target=close, name="infersdk-close").start()
        return True


#: Maximum seconds that `run_elsewhere()` waits.
PATIENCE = 0.02


def run_elsewhere(task: Callable[[], object]) -> None:
    """Runs a function in another thread, and waits for it up to `PATIENCE` seconds. Its exceptions are logged.

    The garbage collector may end an abandoned generator in any thread, also in one that holds a lock that the function
    needs.
    """

    def run() -> None:
        try:
            task()
        except BaseException as error:  # of a callback
            log_error("ending an iteration that was abandoned failed", error)

    if sys.is_finalizing():
        return  # no thread starts any more, and all pipelines are closed
    thread = threading.Thread(target=run, name="infersdk-abandoned", daemon=True)
    thread.start()
    thread.join(PATIENCE)


class UntilError:
    """An iterator that ends where these items raise an exception, so that the results of earlier ones are not lost."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = iter(items)
        self._error: Exception | None = None

    def __iter__(self) -> UntilError:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._items)
        except StopIteration:
            raise
        except Exception as error:
            self._error = error
            raise StopIteration from None

    def check(self) -> None:
        """Raises the exception of the items, if there was one."""
        error, self._error = self._error, None
        if error is not None:
            raise error


def check_in_flight(count: int) -> int:
    """The number of items that are read ahead. Raises ConfigError if it is no whole number from 1."""
    if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
        raise ConfigError(f"in_flight is at least 1, not {count!r}; use a whole number")
    return int(count)


def results_in_order(
    items: Iterable[Any], begin: Callable[[Any, RequestFuture], object], in_flight: int, return_exceptions: bool
) -> Iterator[Any]:
    """The results of one request for each item. Requests that are left when the iteration ends early are cancelled.
    An exception of the items themselves is raised after the results of the items before it.

    Args:
        begin: makes the request of an item, and sets `request` of its future, whose `end()` is the request's `on_done`.
        in_flight: items that are read ahead of the result that is returned.
        return_exceptions: return the exception of a request in place of its result, unless it was cancelled.

    Raises:
        ConfigError: `in_flight` is less than 1.
        InputError: the items are one image.
    """
    check_in_flight(in_flight)
    check_several(items, arrays=False)
    source, pending = UntilError(items), deque[RequestFuture]()

    def result() -> Any:
        try:
            return pending.popleft().result()
        except CancelledError:
            raise
        except Exception as error:
            if not return_exceptions:
                raise
            return error

    def cancel() -> None:
        for future in pending:
            future.cancel()

    def results() -> Iterator[Any]:
        try:
            for item in source:
                future = RequestFuture()
                pending.append(future)
                begin(item, future)
                if len(pending) >= in_flight:
                    yield result()
            while pending:
                yield result()
            source.check()
        except GeneratorExit:
            if pending:
                run_elsewhere(cancel)
            raise
        except BaseException:
            cancel()
            raise

    return results()
