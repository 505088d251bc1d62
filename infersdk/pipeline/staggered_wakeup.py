"""Waking threads a few at a time.

A finished batch ends the waiting of as many threads as it had requests. If all of them wake up at once, they queue for
the interpreter's lock, fall asleep again there, and the thread that has work for the device queues behind them. Here
only a few threads are waking up at a time. Each of them, once it runs, wakes the next one, which then finds the
interpreter's lock free.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Protocol

__all__ = ["StaggeredWakeup", "Waiter", "Wakeup"]

#: Threads that are waking up at a time: one gets up while another one works.
CONCURRENT_WAKEUPS = 2


class Wakeup(Protocol):
    """Ends the waiting of threads, a few at a time. Any number of threads may use it."""

    def waiter(self) -> Any:
        """For one thread that waits, once."""

    def wait(self, waiter: Any, timeout: float | None = None) -> bool:
        """Waits until `release()` is called for this waiter, or was called before; at most `timeout` seconds.

        Returns:
            Whether it was released.
        """

    def forget(self, waiter: Any) -> None:
        """Its thread does not wait any more, or never does. Each waiter comes here: others wake up when it has."""

    def release(self, waiter: Any) -> None:
        """Ends the waiting of this thread. It wakes up as soon as few enough others are waking up."""

    def hold(self) -> None:
        """The calling thread is going to release several others, which cannot run before `let_go()`."""

    def let_go(self) -> None:
        """The calling thread has released them."""


class Waiter:
    """One thread that waits, once. See `StaggeredWakeup`."""

    __slots__ = ("gone", "lock", "released", "waking")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.released = False  # its waiting has ended: it wakes up now or later
        self.waking = False  # it has been woken, and has not run yet
        self.gone = False  # it does not wait any more


class StaggeredWakeup:
    """The plain `Wakeup`: a thread that runs wakes the next one."""

    def __init__(self, concurrent: int = CONCURRENT_WAKEUPS) -> None:
        self._lock = threading.Lock()
        self._queue: deque[Waiter] = deque()  # released, and still asleep
        self._available = concurrent  # wakeups that may be started now

    def waiter(self) -> Waiter:
        return Waiter()

    def wait(self, waiter: Waiter, timeout: float | None = None) -> bool:
        try:
            waiter.lock.acquire(timeout=-1 if timeout is None else max(timeout, 0.0))
        finally:  # also when Ctrl-C ends the waiting: the other threads must not wait for this one
            self.forget(waiter)
        return waiter.released

    def forget(self, waiter: Waiter) -> None:
        with self._lock:
            if waiter.gone:
                return
            waiter.gone = True
            if waiter.waking:
                self._wake_next()
            elif waiter.released:
                self._queue.remove(waiter)

    def release(self, waiter: Waiter) -> None:
        with self._lock:
            if waiter.gone or waiter.released:
                return
            waiter.released = True
            if self._available:
                self._available -= 1
                self._wake(waiter)
            else:
                self._queue.append(waiter)

    def hold(self) -> None:
        """There is nothing to do: threads that wake up too early queue for the interpreter's lock."""

    def let_go(self) -> None:
        """See `hold()`."""

    def _wake_next(self) -> None:
        """Under the lock."""
        if self._queue:
            self._wake(self._queue.popleft())
        else:
            self._available += 1

    @staticmethod
    def _wake(waiter: Waiter) -> None:
        waiter.waking = True
        waiter.lock.release()
