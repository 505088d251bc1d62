"""Models that share the processor's cores, and run one at a time."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from threading import Lock

__all__ = ["RunLock", "holding"]

_numbers = itertools.count()


class RunLock:
    """The models of one set hold it while they run. A model may belong to several sets."""

    __slots__ = ("lock", "number")

    def __init__(self) -> None:
        self.lock, self.number = Lock(), next(_numbers)


@contextlib.contextmanager
def holding(locks: Sequence[RunLock]) -> Iterator[None]:
    """Holds all of these locks. Every thread takes them in the order in which they were made, so that no two threads
    wait for each other.
    """
    taken = sorted(locks, key=lambda lock: lock.number)
    with contextlib.ExitStack() as stack:
        for one in taken:
            stack.enter_context(one.lock)
        yield
