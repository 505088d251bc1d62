"""Futures of requests: `concurrent.futures` and asyncio."""

from __future__ import annotations

import asyncio
import threading
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, LOGGER, PENDING, RUNNING
from contextlib import contextmanager
from typing import Any, Protocol

from .threads import PipelineThread, log_error

__all__ = ["AsyncResults", "LazyFuture", "RequestFuture", "outcome_of", "wake_waiters", "wakes_in_turn"]

_CANCELLED = (CANCELLED, CANCELLED_AND_NOTIFIED)
_DONE = (FINISHED, CANCELLED, CANCELLED_AND_NOTIFIED)

# Which state follows which.
_BEGIN = {PENDING: RUNNING, CANCELLED: CANCELLED_AND_NOTIFIED}
_CANCEL = {PENDING: CANCELLED}
_FINISH = {PENDING: FINISHED, RUNNING: FINISHED}


#: Number of threads that are woken at a time.
ABREAST = 2


class _Waiter:
    """A thread that waits for a future.

    Attributes:
        following: the thread that this one wakes when it has been woken.
    """

    __slots__ = ("_lock", "following", "woken")

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()
        self.following: _Waiter | None = None
        self.woken = False

    def wake(self) -> None:
        self.woken = True
        self._lock.release()

    def wait(self, timeout: float) -> None:
        """Waits for `wake()`; -1 is without limit."""
        self._lock.acquire(timeout=timeout)

    def wake_following(self) -> None:
        """After the wait for a future that has ended: whoever ended it wakes this thread, if that has not happened."""
        if not self.woken:
            self._lock.acquire()
        if self.following is not None:
            self.following.wake()


class _Turns(threading.local):
    """The waiters that the calling thread has to wake; None where it wakes each one at once."""

    waiters: list[_Waiter] | None = None


_turns = _Turns()


@contextmanager
def wakes_in_turn() -> Iterator[None]:
    """Wakes the threads that wait for futures of this block at its end, `ABREAST` at a time. Each of them wakes another
    one: woken at the same time, all would wait for the interpreter's lock.
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


class LazyFuture(Future[Any]):
    """A `Future` that makes its `Condition` only for `concurrent.futures.wait()` and `as_completed()`. Making it takes
    most of the time of making a `Future`.

    As long as there is no `Condition`, a lock of its own guards each change of the state, and the making of the
    `Condition` as well. From then on each change holds both: the `Condition` first.
    """

    # Until an instance has its own.
    _state: str = PENDING
    _result: Any = None
    _exception: BaseException | None = None
    _done_callbacks: Sequence[Callable[[Future[Any]], object]] = ()
    _own_condition: threading.Condition | None = None
    _blocked: Sequence[_Waiter] = ()

    def __init__(self) -> None:  # not that of `Future`, which makes a Condition
        self._change = allocate_lock()

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        condition = self._own_condition
        if condition is None:
            with self._change:
                condition = self._own_condition
                if condition is None:
                    self._waiters = []
                    condition = self._own_condition = threading.Condition()
        return condition

    # ---- for the thread that waits ----

    def cancelled(self) -> bool:
        return self._state in _CANCELLED

    def running(self) -> bool:
        return self._state == RUNNING

    def done(self) -> bool:
        return self._state in _DONE

    def result(self, timeout: float | None = None) -> Any:
        """As `Future.result()`."""
        error = self.exception(timeout)
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del self, error  # the traceback of the exception would keep it in a cycle

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As `Future.exception()`."""
        try:
            if self._state not in _DONE:
                self._wait(timeout)
            state = self._state
            if state == FINISHED:
                return self._exception
            raise CancelledError if state in _CANCELLED else FutureTimeoutError
        finally:
            del self

    def _wait(self, timeout: float | None) -> None:
        waiter = _Waiter()
        with self._change:
            if self._state in _DONE:
                return
            self._blocked = [*self._blocked, waiter]
        try:
            waiter.wait(-1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX))
        finally:
            with self._change:
                ended = self._state in _DONE
                if not ended:
                    self._blocked = [other for other in self._blocked if other is not waiter]
            if ended:
                waiter.wake_following()

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """As `Future.add_done_callback()`."""
        with self._change:
            if self._state not in _DONE:
                self._done_callbacks = [*self._done_callbacks, fn]
                return
        try:
            fn(self)
        except Exception:
            LOGGER.exception("exception calling callback for %r", self)

    # ---- for the thread that ends it ----

    def cancel(self) -> bool:
        """As `Future.cancel()`."""
        before = self._follow(_CANCEL)
        if before != PENDING:
            return before in _CANCELLED
        self._ended()
        return True

    def set_running_or_notify_cancel(self) -> bool:
        """As `Future.set_running_or_notify_cancel()`."""
        before = self._follow(_BEGIN)
        if before == PENDING:
            return True
        if before == CANCELLED:
            return False
        LOGGER.critical("Future %s in unexpected state: %s", id(self), before)
        raise RuntimeError(f"the future is {before.lower()} already; only one that is pending can begin")

    def set_result(self, result: Any) -> None:
        """As `Future.set_result()`."""
        self._finish(result, None)

    def set_exception(self, exception: BaseException | None) -> None:
        """As `Future.set_exception()`."""
        self._finish(None, exception)

    def _finish(self, result: Any, exception: BaseException | None) -> None:
        before = self._follow(_FINISH, result, exception)
        if before in _DONE:
            raise InvalidStateError(f"{before}: {self!r}")
        self._ended()

    def _ended(self) -> None:
        """The state is final."""
        if self._blocked:
            waiters = _turns.waiters
            if waiters is None:
                for waiter in self._blocked:
                    waiter.wake()
            else:
                waiters += self._blocked
        if self._done_callbacks:
            wake_waiters()
            self._invoke_callbacks()  # type: ignore[attr-defined]

    def _follow(self, following: Mapping[str, str], result: Any = None, exception: BaseException | None = None) -> str:
        """Changes the state to the one that follows, if one does, with the outcome; returns the state before."""
        with self._change:
            condition = self._own_condition
            if condition is None:
                return self._write(following, result, exception)
        with condition:
            with self._change:
                before = self._write(following, result, exception)
            if before in following and self._state in _DONE:
                self._inform_waiters()
        return before

    def _write(self, following: Mapping[str, str], result: Any, exception: BaseException | None) -> str:
        """Under the lock."""
        before = self._state
        if before in following:
            self._result, self._exception = result, exception
            self._state = following[before]  # last: others read it without the lock
        return before

    def _inform_waiters(self) -> None:
        """Informs those of `concurrent.futures.wait()` and `as_completed()` of the state. Under the `Condition`."""
        for waiter in self._waiters:
            if self._state == CANCELLED_AND_NOTIFIED:
                waiter.add_cancelled(self)
            elif self._state == FINISHED and self._exception is None:
                waiter.add_result(self)
            elif self._state == FINISHED:
                waiter.add_exception(self)


class _Cancellable(Protocol):
    """A request of a pipeline, or of a composition."""

    def cancel(self) -> bool: ...


class RequestFuture(LazyFuture):
    """The future of a request: `end()` is the request's `on_done`.

    Attributes:
        request: what `cancel()` cancels; None before it is made and after it has ended.
    """

    request: _Cancellable | None = None

    def running(self) -> bool:
        return not self.done() and bool(getattr(self.request, "dispatched", False))

    def cancel(self) -> bool:
        """Cancels the request, unless its batch has left. Its slot is free again at once."""
        request = self.request
        return (request is not None and request.cancel()) or self.cancelled()

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
        super().add_done_callback(_Guarded(fn))


def outcome_of(future: Future[Any], return_exceptions: bool) -> Any:
    """The result of a request, once there is one; its exception is raised.

    Args:
        return_exceptions: return the exception instead, unless the request was cancelled.
    """
    try:
        return future.result()
    except CancelledError:
        raise
    except Exception as error:
        if not return_exceptions:
            raise
        return error


class _Guarded:
    """A callback of a future whose exceptions do not end a thread of a pipeline."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[Future[Any]], object]) -> None:
        self.callback = callback

    def __call__(self, future: Future[Any]) -> None:
        try:
            self.callback(future)
        except Exception:
            raise  # the future logs it
        except BaseException as error:
            if not isinstance(threading.current_thread(), PipelineThread):
                raise
            log_error(f"the callback {self.callback!r} of a future raised", error)


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
