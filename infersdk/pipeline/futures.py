"""Futures of requests: `concurrent.futures` and asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol

from .lazy_future import LazyFuture
from .threads import PipelineThread, log_error

__all__ = ["AsyncResults", "RequestFuture", "outcome_of"]


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
        """As `Future.add_done_callback()`. In a thread of the pipeline even SystemExit and KeyboardInterrupt end
        nothing but the callback that raises them: they are logged, as other exceptions are, and the next one runs.
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
    """A callback of a future that does not end a thread of a pipeline."""

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
    """Brings the results of requests into one event loop, and wakes its thread once for those that end together.

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
