"""The batch sizes in which rows run, for runtimes that prepare each size."""

from __future__ import annotations

from threading import Lock

__all__ = ["BatchBuckets", "next_size"]


def next_size(n: int, largest: int | None) -> int:
    """The smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... and `largest` that is at least `n`. A larger `n` is returned
    unchanged, and the run refuses it.
    """
    if largest is not None and n >= largest:
        return n
    power = 1 << max(n - 1, 0).bit_length()
    size = power * 3 // 4 if power >= 4 and n <= power * 3 // 4 else power
    return size if largest is None else min(size, largest)


class BatchBuckets:
    """One batch size for many runs, since a change costs as much as many runs.

    It grows for each larger batch, and shrinks after `PATIENCE` runs of smaller ones. The clones of a session share it.
    """

    #: Smaller runs before it shrinks.
    PATIENCE = 64

    def __init__(self, largest: int | None) -> None:
        self._largest = largest
        self._lock = Lock()
        self._size = self._runs = self._batch_limit = 0

    def size_for(self, n: int) -> int:
        """The batch for the next run, of `n` rows."""
        if self._largest is not None and n > self._largest:
            return n
        with self._lock:
            if n > self._size:
                self._size = next_size(n, self._largest)
                self._runs = self._batch_limit = 0
            self._runs, self._batch_limit = self._runs + 1, max(self._batch_limit, n)
            if self._runs > self.PATIENCE:
                self._size = next_size(self._batch_limit, self._largest)
                self._runs = self._batch_limit = 0
            return self._size
