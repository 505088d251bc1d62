"""Requests, and the places that they take."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batcher import Batcher
    from .lanes import Lane

__all__ = ["Buffer", "Group", "Request", "Waiter"]


class Request(Future[Any]):
    """A future, and where its request is."""

    def __init__(self, batcher: Batcher, item: Any, deadline: float | None) -> None:
        super().__init__()
        self.item = item
        self.submitted = monotonic()
        self.within = deadline
        self.deadline = None if deadline is None else self.submitted + deadline  # on the monotonic clock
        self.buffer: Buffer | None = None  # where its slot is
        self.row = -1
        self.preparing = False
        self.left = False  # its batch is on its way, or has been
        self.over = False  # it is settled, or about to be: whoever sets this under the lock settles it
        self._batcher = batcher

    def cancel(self) -> bool:
        """Cancels the request, unless its batch has left. Its slot is free again at once."""
        if not super().cancel():
            return False
        self._batcher.dropped(self)
        return True


class Buffer:
    """A lane and the requests in its rows."""

    def __init__(self, lane: Lane, group: Group, lock: threading.Lock) -> None:
        self.lane, self.group = lane, group
        self.capacity = lane.capacity
        self.settled = threading.Condition(lock)  # the runner that has it waits here for its last rows
        self.clear()

    def clear(self) -> None:
        self.rows: list[Request | None] = []
        self.holes: list[int] = []  # rows whose request has gone
        self.todo: deque[Request] = deque()  # placed, and not taken by a worker yet
        self.preparing = 0  # rows that workers are at
        self.first = 0.0  # when its oldest request was submitted
        self.sealed = False  # it takes no more requests

    @property
    def live(self) -> int:
        return len(self.rows) - len(self.holes)

    @property
    def prepared(self) -> bool:
        return not self.todo and not self.preparing

    @property
    def full(self) -> bool:
        return self.live >= self.capacity

    def close_ranks(self) -> list[Request]:
        """Moves the last rows to where requests have gone, so that the rest lie in front; these, in order."""
        rows = self.rows
        there = sum(request is not None for request in rows)
        holes = [row for row in range(there) if rows[row] is None]
        behind = [row for row in range(there, len(rows)) if rows[row] is not None]
        for hole, source in zip(holes, behind, strict=True):
            self.lane.move(source, hole)
            rows[hole], rows[source] = rows[source], None
        return [request for request in rows if request is not None]


class Group:
    """Lanes that take turns on one model: `permits` of them may run at a time."""

    def __init__(self, lanes: Sequence[Lane], permits: int, lock: threading.Lock) -> None:
        self.buffers = [Buffer(lane, self, lock) for lane in lanes]
        self.free: deque[Buffer] = deque(self.buffers)
        self.ready: deque[Buffer] = deque()  # full, in the order in which they became so
        self.permits, self.running = permits, 0
        self.wake = threading.Condition(lock)  # the runners wait here for a batch that may leave

    @property
    def load(self) -> float:
        return (self.running + len(self.ready)) / self.permits


class Waiter:
    """A request in line for a slot."""

    __slots__ = ("gate", "request")

    def __init__(self, request: Request, gate: threading.Lock | None) -> None:
        self.request = request
        self.gate = gate  # held until the request has its slot, or never will; None where nobody waits
