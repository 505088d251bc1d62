"""Keeps the alternate signal stack of a thread when OpenVINO's CPU plugin replaces it.

On loading, the plugin gives the calling thread a signal stack with room for the registers of AMX. It unmaps that stack
when it is freed, in any thread. The next signal that Python handles in the first thread, Ctrl-C for instance, then ends
the process without a message. Python's handlers and its faulthandler do not need that stack.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

__all__ = ["kept_signal_stack"]


class _Stack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextlib.contextmanager
def kept_signal_stack() -> Iterator[None]:
    """Restores the stack of this thread, if the system still accepts its size."""
    if not sys.platform.startswith("linux"):
        yield
        return
    system, before = ctypes.CDLL(None), _Stack()
    known = system.sigaltstack(None, ctypes.byref(before)) == 0
    try:
        yield
    finally:
        if known:
            system.sigaltstack(ctypes.byref(before), None)
