"""What a kernel raised, on its way through a runtime that only passes texts on."""

from __future__ import annotations

import itertools
import re
import threading
from collections import OrderedDict

from ..errors import CustomKernelError

__all__ = ["kernel_failure", "note", "raise_kernel_failure", "raised"]

#: Failures that wait to be claimed; a runtime may swallow one.
_KEPT = 64

_numbers = itertools.count(1)
_noted: OrderedDict[int, BaseException] = OrderedDict()
_guard = threading.Lock()
_MARK = re.compile(r" \[kernel failure (\d+)\]")
_TEXT = re.compile(r"operator [\w.]+::\w+, node .*")


def note(error: BaseException) -> str:
    """Keeps an exception; returns the mark that its message carries through the runtime."""
    with _guard:
        number = next(_numbers)
        _noted[number] = error
        if len(_noted) > _KEPT:
            _noted.popitem(last=False)
    return f" [kernel failure {number}]"


def raised(error: BaseException) -> BaseException | None:
    """The exception that Python raised below the one that carries its mark; None if there is no mark."""
    mark = _MARK.search(str(error))
    if mark is None:
        return None
    with _guard:
        return _noted.pop(int(mark[1]), None)


def raise_kernel_failure(error: BaseException) -> None:
    """Raises the failure of a custom operator where a runtime's exception speaks of one; otherwise does nothing."""
    if (failure := kernel_failure(error)) is not None:
        raise failure from failure.__cause__


def kernel_failure(error: BaseException) -> BaseException | None:
    """The failure of a custom operator that a runtime's exception speaks of; None if it speaks of something else.

    It is the very exception where Python raised one, and a CustomKernelError with the core's text otherwise.
    """
    if (original := raised(error)) is not None:
        return original
    match = _TEXT.search(" ".join(_MARK.sub("", str(error)).split()))
    return CustomKernelError(match[0]) if match else None
