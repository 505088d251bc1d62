"""Ctrl-C and SIGTERM in the command line.

The initialisation of a compiled module calls Python functions. Exceptions in them pass through C++ code:
pybind11 and nanobind abort the process, and NumPy raises an ImportError. An interrupt at that time is therefore sent
again a little later.

Only the command line handles signals; the library leaves them to the application.
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

#: Seconds after which an interrupt during the initialisation of a module is sent again.
_AGAIN = 0.02


class Terminated(KeyboardInterrupt):
    """SIGTERM was received. It is handled like Ctrl-C, with exit code 143."""


class Interruption:
    """The exception to raise after the results of an interrupted command are written."""

    def __init__(self) -> None:
        self.kind: type[KeyboardInterrupt] = KeyboardInterrupt


@contextlib.contextmanager
def interrupts(number: int = signal.SIGINT) -> Iterator[Interruption]:
    """Raises KeyboardInterrupt or `Terminated` for the signal, but not while a module is initialised.

    It does nothing outside of the main thread, and if SIGINT is ignored or has a custom handler.
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
            signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt writing
        raise interruption.kind

    before = signal.getsignal(number)
    if number == signal.SIGINT and before is not signal.default_int_handler:
        yield interruption
        return
    signal.signal(number, handle)
    try:
        yield interruption
    finally:
        unsent = [*waiting]  # the block ended before the timer
        try:
            for timer in unsent:
                timer.cancel()
                timer.join()  # a signal that is sent after the next line would end the process
        finally:
            signal.signal(number, before)
        if unsent:
            raise interruption.kind


def sigterm_interrupts() -> contextlib.AbstractContextManager[Interruption]:
    """Raises `Terminated` for SIGTERM, so that partial results are written."""
    return interrupts(signal.SIGTERM)
