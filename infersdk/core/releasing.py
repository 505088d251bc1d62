"""The part that an Infer and its clones share: `infer.release()` frees it, and a later use makes it again.

A backend that can be released keeps in host memory the data for a load in milliseconds: the graph as the runtime
executes it, a compiled model, an engine.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SharedRuntime"]

T = TypeVar("T")


class SharedRuntime(Generic[T]):
    """The part that an Infer and its clones share (a session, an engine), as long as one of them has it.

    Args:
        value: the current part; None before the first `get()`.
    """

    def __init__(self, value: T | None = None) -> None:
        self._alive: Callable[[], T | None] = (lambda: None) if value is None else weakref.ref(value)
        self._lock = threading.Lock()
        self._make: Callable[[], T] | None = None

    def keep(self, prepare: Callable[[], Callable[[], T]]) -> None:
        """Before the last one lets go of it: keeps the data to make it again. `prepare` is called once."""
        with self._lock:
            if self._make is None:
                self._make = prepare()

    def get(self, make: Callable[[], T] | None = None) -> T:
        """The value that a clone still has, or a new one.

        Args:
            make: makes it where nothing was kept.
        """
        with self._lock:
            value = self._alive()
            if value is None:
                make = self._make or make
                assert make is not None
                value = make()
                self._alive = weakref.ref(value)
            return value
