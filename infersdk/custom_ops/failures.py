"""Transfers exceptions of kernels through runtimes that pass only text."""

from __future__ import annotations

import itertools
import re
import threading

from ..errors import CustomKernelError, ShapeError, text_of

__all__ = ["kernel_failure", "note", "raise_kernel_failure", "raised"]

#: The maximum number of stored exceptions, since a runtime may lose some.
_KEPT = 64

_numbers = itertools.count(1)
_noted: dict[int, BaseException] = {}
_guard = threading.Lock()
_MARK = re.compile(r" \[kernel failure (\d+)\]")
#: The message of the core. native/src/custom_ops_ort.c writes "[shape]" before the one of a ShapeError.
_TEXT = re.compile(r"(\[shape\] )?(operator [\w.]+::\w+, node .*)")


def note(error: BaseException) -> str:
    """Stores an exception; returns a mark to append to its message."""
    with _guard:
        number = next(_numbers)
        _noted[number] = error
        if len(_noted) > _KEPT:
            del _noted[next(iter(_noted))]
    return f" [kernel failure {number}]"


def raised(error: BaseException) -> BaseException | None:
    """The stored exception for the mark in a message; None if there is none."""
    mark = _MARK.search(text_of(error))
    if mark is None:
        return None
    with _guard:
        return _noted.pop(int(mark[1]), None)


def raise_kernel_failure(error: BaseException) -> None:
    """Raises the failure of a custom operator that caused a runtime's exception, if there is one."""
    if (failure := kernel_failure(error)) is not None:
        raise failure from failure.__cause__


def kernel_failure(error: BaseException) -> BaseException | None:
    """The failure of a custom operator that caused a runtime's exception; None if there is none.

    Failures of Python code are the original exceptions; others are a ShapeError or a CustomKernelError with the message
    of the core.
    """
    if (original := raised(error)) is not None:
        return original
    match = _TEXT.search(" ".join(_MARK.sub("", text_of(error)).split()))
    if match is None:
        return None
    return (ShapeError if match[1] else CustomKernelError)(match[2])
