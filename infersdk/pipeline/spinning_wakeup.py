"""Waking threads ahead of the time at which they may run, where there are processors for that.

It takes a thread some ten microseconds to wake up, about as long as it works until it waits again: it takes a result,
and submits the next image. While one thread works, the next ones wake up, and spin in the native core, without the
interpreter's lock, until that one waits again. So the lock never lies idle, and no thread falls asleep at it.
"""

from __future__ import annotations

import sys
from time import monotonic_ns
from typing import Any

from .._lib import check, ffi, lib, out
from ..ops.batch import available_processors
from .staggered_wakeup import StaggeredWakeup, Wakeup

__all__ = ["SpinningWakeup", "best_wakeup"]

#: Processors from which on some of them may spin.
MANY_PROCESSORS = 8
#: Threads that are awake at a time: one works, and the others spin.
CONCURRENT = 4
#: Seconds that a thread spins for another one at most.
PATIENCE = 200e-6
#: Seconds. Longer timeouts are as this one.
LONGEST = 1e9

_WAITER = ffi.typeof("ifs_waiter *")


class SpinningWakeup:
    """A `Wakeup` whose threads wake up ahead; on Linux.

    Args:
        concurrent: threads that are awake at a time.
        patience: seconds that they spin for one another at most.

    Raises:
        UnsupportedError: the system is not Linux.
    """

    def __init__(self, concurrent: int = CONCURRENT, patience: float = PATIENCE) -> None:
        handle = out("ifs_wakeup *")
        check(lib.ifs_wakeup_create(concurrent, round(patience * 1e9), handle))
        self._c = ffi.gc(handle[0], lib.ifs_wakeup_destroy)

    def waiter(self) -> Any:
        return ffi.new(_WAITER)

    def wait(self, waiter: Any, timeout: float | None = None) -> bool:
        deadline = -1 if timeout is None else monotonic_ns() + int(min(max(timeout, 0.0), LONGEST) * 1e9)
        try:
            while lib.ifs_wakeup_wait(self._c, waiter, deadline) < 0:
                """Here the interpreter runs the handlers of signals, which may raise."""
        finally:  # also when Ctrl-C ends the waiting: the other threads must not wait for this one
            lib.held_ifs_wakeup_forget(self._c, waiter)
        return bool(waiter.released)

    def forget(self, waiter: Any) -> None:
        lib.held_ifs_wakeup_forget(self._c, waiter)

    def release(self, waiter: Any) -> None:
        lib.held_ifs_wakeup_release(self._c, waiter)

    def hold(self) -> None:
        lib.held_ifs_wakeup_hold(self._c)

    def let_go(self) -> None:
        lib.held_ifs_wakeup_let_go(self._c)


def best_wakeup() -> Wakeup:
    """The one that suits this machine: where processors are few, those that spin would be missing elsewhere."""
    if sys.platform == "linux" and available_processors() >= MANY_PROCESSORS:
        return SpinningWakeup()
    return StaggeredWakeup()
