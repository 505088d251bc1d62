"""The deadlines of the requests in a pipeline."""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .request import Request

__all__ = ["Deadlines"]


class Deadlines:
    """Requests that have a deadline, the next one first. Used under the pipeline's lock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._order = count()  # of two requests with the same deadline the earlier one is first
        self._limit = 64

    def add(self, request: Request) -> bool:
        """Watches a request; whether its deadline is the next one of all."""
        assert request.deadline is not None
        if len(self._heap) > self._limit:  # requests that ended long ago need not stay until their deadline
            self._heap = [entry for entry in self._heap if not (entry[2].settled or entry[2].dispatched)]
            heapq.heapify(self._heap)
            self._limit = 2 * len(self._heap) + 64
        heapq.heappush(self._heap, (request.deadline, next(self._order), request))
        return self._heap[0][2] is request

    def next(self) -> float | None:
        """The next deadline, on the monotonic clock."""
        return self._heap[0][0] if self._heap else None

    def pop_past(self, now: float) -> list[Request]:
        """Removes the requests whose deadline is past; returns those that have neither ended nor left."""
        past = []
        while self._heap and (self._heap[0][0] <= now or self._heap[0][2].settled):
            request = heapq.heappop(self._heap)[2]
            if not request.settled and not request.dispatched:
                past.append(request)
        return past
