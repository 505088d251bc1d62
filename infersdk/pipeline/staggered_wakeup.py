"""Waking threads a few at a time.

A batch that is done ends the waiting of as many threads as it had requests. Woken all at once they line up for the
interpreter's lock, where they fall asleep again, and whoever has work for the device lines up behind them. Here only a
few are woken, and each wakes the next as soon as it is there: that one gets up while the first is at work, and finds
the lock free.
"""

from __future__ import annotations

import threading
from collections import deque

__all__ = ["Gate", "StaggeredWakeup"]

#: Threads that are being woken at a time: one that gets up while another works.
ABREAST = 2


class Gate:
    """What one thread waits at, once. See `StaggeredWakeup`."""

    __slots__ = ("called", "gone", "lock", "open")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.called = False  # its thread may go through,
        self.open = False  # and is being woken
        self.gone = False  # nobody waits here any more


class StaggeredWakeup:
    """Any number of threads may use it at a time."""

    def __init__(self, abreast: int = ABREAST) -> None:
        self._lock = threading.Lock()
        self._line: deque[Gate] = deque()  # those that may go through, and are asleep
        self._free = abreast

    def wait(self, gate: Gate, timeout: float | None = None) -> bool:
        """Waits until `let()` was called for this gate, before or after this call; for `timeout` seconds at most.

        Returns:
            Whether it was.
        """
        try:
            gate.lock.acquire(timeout=-1 if timeout is None else max(timeout, 0.0))
        finally:  # also when Ctrl-C ends the waiting: the others must not wait for this one
            with self._lock:
                gate.gone = True
                if gate.open:
                    self._wake_next()
                elif gate.called:
                    self._line.remove(gate)
        return gate.called

    def let(self, gate: Gate) -> None:
        """Lets the thread at this gate through, as soon as its turn comes."""
        with self._lock:
            if gate.gone or gate.called:
                return
            gate.called = True
            if self._free:
                self._free -= 1
                self._open(gate)
            else:
                self._line.append(gate)

    def _wake_next(self) -> None:
        """Under the lock."""
        if self._line:
            self._open(self._line.popleft())
        else:
            self._free += 1

    @staticmethod
    def _open(gate: Gate) -> None:
        gate.open = True
        gate.lock.release()
