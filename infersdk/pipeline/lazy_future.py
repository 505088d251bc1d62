"""A `concurrent.futures.Future` that costs little where one thread waits for it."""

from __future__ import annotations

import threading
from _thread import allocate_lock
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, LOGGER, PENDING, RUNNING
from typing import Any

__all__ = ["LazyFuture"]

_CANCELLED = (CANCELLED, CANCELLED_AND_NOTIFIED)
_DONE = (FINISHED, CANCELLED, CANCELLED_AND_NOTIFIED)

# Which state follows which.
_BEGIN = {PENDING: RUNNING, CANCELLED: CANCELLED_AND_NOTIFIED}
_CANCEL = {PENDING: CANCELLED}
_FINISH = {PENDING: FINISHED, RUNNING: FINISHED}


class LazyFuture(Future[Any]):
    """Keeps the contract of `Future`, and makes its `Condition` only for who asks for that: `concurrent.futures.wait()`
    and `as_completed()` do, and threads that wait for the result. The `Condition` is most of what a `Future` costs.

    As long as there is no `Condition`, a lock of its own guards each change of the state, and the making of the
    `Condition` as well. From then on each change holds both: the `Condition` first.
    """

    # Until an instance has its own.
    _state: str = PENDING
    _result: Any = None
    _exception: BaseException | None = None
    _done_callbacks: Sequence[Callable[[Future[Any]], object]] = ()
    _own_condition: threading.Condition | None = None

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

    # ---- for who waits ----

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
            del self, error  # otherwise the traceback of the exception keeps it in a cycle

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As `Future.exception()`."""
        try:
            if self._state not in _DONE:
                with self._condition:
                    if self._state not in _DONE:
                        self._condition.wait(timeout)
            state = self._state
            if state == FINISHED:
                return self._exception
            raise CancelledError if state in _CANCELLED else FutureTimeoutError
        finally:
            del self

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

    # ---- for who ends it ----

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
        if self._done_callbacks:
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
                self._inform_waiters(condition)
        return before

    def _write(self, following: Mapping[str, str], result: Any, exception: BaseException | None) -> str:
        """Under the lock."""
        before = self._state
        if before in following:
            self._result, self._exception = result, exception
            self._state = following[before]  # last: others read it without the lock
        return before

    def _inform_waiters(self, condition: threading.Condition) -> None:
        """Informs those of `concurrent.futures.wait()` and `as_completed()` of the state. Under the `Condition`."""
        for waiter in self._waiters:
            if self._state == CANCELLED_AND_NOTIFIED:
                waiter.add_cancelled(self)
            elif self._state == FINISHED and self._exception is None:
                waiter.add_result(self)
            elif self._state == FINISHED:
                waiter.add_exception(self)
        condition.notify_all()
