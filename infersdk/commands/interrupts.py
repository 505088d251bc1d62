"""SIGTERM in the command line. The library leaves signals to the application."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

__all__ = ["Interruption", "Terminated", "sigterm_interrupts"]


class Terminated(KeyboardInterrupt):
    """SIGTERM was received. It is handled like Ctrl-C, with exit code 143."""


class Interruption:
    """What ended a command: the exception of Ctrl-C, or of SIGTERM if it was received."""

    def __init__(self) -> None:
        self.kind: type[KeyboardInterrupt] = KeyboardInterrupt


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[Interruption]:
    """Raises `Terminated` for SIGTERM in the main thread, so that partial results are written."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return

    def handle(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt writing
        interruption.kind = Terminated
        raise Terminated

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGTERM, before)
