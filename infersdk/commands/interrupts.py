"""SIGTERM in the command line. The library leaves signals to the application."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

__all__ = ["sigterm_interrupts"]


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[threading.Event]:
    """Raises KeyboardInterrupt for SIGTERM in the main thread, so that partial results are written. The event is then
    set.
    """
    terminated = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield terminated
        return

    def handle(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt writing
        terminated.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield terminated
    finally:
        signal.signal(signal.SIGTERM, before)
