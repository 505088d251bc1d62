"""Futures of requests: `concurrent.futures` and asyncio."""

from __future__ import annotations

import asyncio
import threading
from _thread import RLock, allocate_lock
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures._base import PENDING
from contextlib import contextmanager
from typing import Any, Protocol

from .threads import PipelineThread, log_error

__all__ = ["AsyncResults", "RequestFuture", "outcome_of", "wake_waiters", "wakes_in_turn"]

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


class _Condition(RLock):
    """The part of a `threading.Condition` that a `Future` uses, made in a tenth of its time; see `wakes_in_turn()`."""

    __slots__ = ("_blocked",)

    def __init__(self) -> None:
        self._blocked: list[_Waiter] = []

    def wait(self, timeout: float | None = None) -> None:
        """As `Condition.wait()`."""
        waiter = _Waiter()
        self._blocked.append(waiter)
        self.release()
        try:
            waiter.lock.acquire(timeout=-1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX))
        finally:
            self.acquire()
            if waiter in self._blocked:
                self._blocked.remove(waiter)
            else:
                if not waiter.woken:  # the time was up, but the notifying thread has it in turn
                    waiter.lock.acquire()
                if waiter.following is not None:
                    waiter.following.wake()

    def notify_all(self) -> None:
        """As `Condition.notify_all()`."""
        blocked, self._blocked = self._blocked, []
        if _turns.waiters is not None:
            _turns.waiters += blocked
            return
        for waiter in blocked:
            waiter.wake()


class _Cancellable(Protocol):
    """A request of a pipeline, or of a composition."""

    def cancel(self) -> bool: ...


class RequestFuture(Future[Any]):
    """The future of a request: `end()` is the request's `on_done`.

    Attributes:
        request: what `cancel()` cancels; None before it is made and after it has ended.
    """

    def __init__(self) -> None:  # not that of `Future`: making a `threading.Condition` takes most of its time
        self._condition = _Condition()  # type: ignore[assignment]
        self._state = PENDING
        self._result = self._exception = None
        self._waiters = []
        self._done_callbacks = []
        self.request: _Cancellable | None = None

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
        wake_waiters()
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
