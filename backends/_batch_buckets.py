"""In which batch some rows are best run, where a runtime prepares itself for each size anew."""

from __future__ import annotations

from threading import Lock

__all__ = ["BatchBuckets", "next_size"]


def next_size(n: int, largest: int | None) -> int:
    """The smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... and `largest` that holds `n`: at most half as much again."""
    power = 1 << max(n - 1, 0).bit_length()
    size = power * 3 // 4 if power >= 4 and n <= power * 3 // 4 else power
    return size if largest is None else min(size, largest)


class BatchBuckets:
    """One batch for many runs, where each change of it costs as much as many runs do.

    It grows as soon as it must, and shrinks when so many runs one after another would have fitted a smaller one. Those
    who share what is prepared (the clones of a session) share this.
    """

    #: Runs before it shrinks.
    PATIENCE = 64

    def __init__(self, largest: int | None) -> None:
        self._largest = largest
        self._lock = Lock()
        self._size = self._runs = self._batch_limit = 0

    def size_for(self, n: int) -> int:
        """The batch for the next run, of `n` rows."""
        with self._lock:
            if n > self._size:
                self._size = next_size(n, self._largest)
                self._runs = self._batch_limit = 0
            self._runs, self._batch_limit = self._runs + 1, max(self._batch_limit, n)
            if self._runs > self.PATIENCE:
                self._size = next_size(self._batch_limit, self._largest)
                self._runs = self._batch_limit = 0
            return self._size
