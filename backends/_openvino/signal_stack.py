"""Keeps the alternate stack for signals of a thread where OpenVINO's plugin for processors replaces it.

When it is loaded the plugin gives the calling thread a stack on which signals find room for the registers of AMX, and
unmaps that stack when it is freed. Another thread may do that, or another core may have replaced the stack since: then
the thread is left with one that is gone, and the next signal that Python handles there, Ctrl-C for instance, ends the
process without a word. Handlers of Python, and of its faulthandler, do not need that stack.
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
    """Gives this thread the stack back that it had before, if the system accepts its size still."""
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
