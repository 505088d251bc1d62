"""Ctrl-C and SIGTERM in the command line.

The initialisation of a compiled module calls Python functions. An exception in one of them goes through C++ code that
may not expect it: pybind11 and nanobind end the process then, and NumPy raises an ImportError. So an interrupt that
comes meanwhile is sent again a little later.

The library does nothing of this: signals belong to the process, and the process to the product that it runs.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Interruption", "Terminated", "interrupts", "sigterm_interrupts"]

#: Seconds after which an interrupt that came in the initialisation of a module is sent again.
_AGAIN = 0.02


class Terminated(KeyboardInterrupt):
    """SIGTERM came. What Ctrl-C ends, and what is written then, it ends and writes alike; the exit code is 143."""


class Interruption:
    """What to raise after the results of an interrupted command are written: `Terminated` once SIGTERM came."""

    def __init__(self) -> None:
        self.kind: type[KeyboardInterrupt] = KeyboardInterrupt


@contextlib.contextmanager
def interrupts(number: int = signal.SIGINT) -> Iterator[Interruption]:
    """The signal raises KeyboardInterrupt, or `Terminated`, within the block, but not while a module is initialised.

    Elsewhere than in the main thread, and where SIGINT is ignored or has a handler of the caller of `main()`, nothing
    changes.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return

    waiting: list[threading.Timer] = []

    def handle(number: int, frame: FrameType | None) -> None:
        while waiting:
            waiting.pop().cancel()
        if number == signal.SIGTERM:
            interruption.kind = Terminated
        while frame is not None:
            if isinstance(frame.f_locals.get("self"), ExtensionFileLoader):
                waiting.append(threading.Timer(_AGAIN, signal.raise_signal, (number,)))
                waiting[0].start()
                return
            frame = frame.f_back
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)  # a second one must not end the writing
        raise interruption.kind

    before = signal.getsignal(number)
    if number == signal.SIGINT and before is not signal.default_int_handler:
        yield interruption
        return
    signal.signal(number, handle)
    try:
        yield interruption
    finally:
        signal.signal(number, before)
        if waiting:  # the block ended before
            waiting[0].cancel()
            raise interruption.kind


def sigterm_interrupts() -> contextlib.AbstractContextManager[Interruption]:
    """SIGTERM raises `Terminated`, so that what was measured so far is written."""
    return interrupts(signal.SIGTERM)
