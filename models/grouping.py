"""Batches of items that may run together, and their results in the order of the items."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from .execution import BatchItem

__all__ = ["Grouped"]

Result = TypeVar("Result")

#: Items that wait for others of their kind, in batches: then the oldest batch leaves as it is.
MOST_WAITING = 3


class Grouped(Generic[Result]):
    """Items in batches of one kind each.

    Args:
        items: the items, in order.
        kind: what the items of one batch have in common.
        capacity: the most items in a batch; asked for each item.
    """

    def __init__(
        self, items: Iterator[BatchItem], kind: Callable[[BatchItem], Hashable], capacity: Callable[[], int]
    ) -> None:
        self._items, self._kind, self._capacity = items, kind, capacity
        self._running: deque[Sequence[int]] = deque()  # the numbers of the items of each batch that was given out
        self._done: dict[int, Result] = {}  # results whose turn has not come
        self._next = 0  # the number of the next result

    def batches(self) -> Iterator[list[BatchItem]]:
        """The batches, each as soon as it is full; those that wait longest first, where many items wait."""
        filling: dict[Hashable, tuple[list[int], list[BatchItem]]] = {}  # the one that began first is the first
        waiting = 0
        for number, item in enumerate(self._items):
            kind = self._kind(item)
            numbers, batch = filling.setdefault(kind, ([], []))
            numbers.append(number)
            batch.append(item)
            waiting += 1
            capacity = self._capacity()
            if len(batch) >= capacity:
                leaving = kind
            elif waiting >= MOST_WAITING * capacity:
                leaving = next(iter(filling))
            else:
                continue
            waiting -= len(filling[leaving][1])
            yield self._leave(*filling.pop(leaving))
        for numbers, batch in filling.values():
            yield self._leave(numbers, batch)

    def _leave(self, numbers: list[int], batch: list[BatchItem]) -> list[BatchItem]:
        self._running.append(numbers)
        return batch

    def in_order(self, results: Sequence[Result]) -> Iterator[Result]:
        """The results whose turn has come, now that those of the next batch are there."""
        self._done.update(zip(self._running.popleft(), results, strict=True))
        while self._next in self._done:
            yield self._done.pop(self._next)
            self._next += 1
