"""Slots: which requests come in, which wait for a slot, and when they go again."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .request import BatchState, Request
    from .scheduler import Scheduler
    from .stats import Statistics

__all__ = ["Admission"]


class Admission:
    """Gives requests slots (rows of batches), in the order in which they came. Used under the pipeline's lock.

    Args:
        drained: notified when a slot is free and no request waits for it.
    """

    def __init__(self, scheduler: Scheduler, statistics: Statistics, drained: threading.Condition) -> None:
        self.queue: deque[Request] = deque()  # requests that wait for a slot
        self._scheduler, self._statistics, self._drained = scheduler, statistics, drained

    def admit(self, request: Request, preparing: bool) -> bool:
        """Gives a request a slot, if one is free and no request waits for it; see `Scheduler.add()`."""
        if self.queue:
            return False
        self._statistics.in_pipeline += 1
        if self._scheduler.add(request, preparing):
            return True
        self._statistics.in_pipeline -= 1
        return False

    def enqueue(self, request: Request) -> None:
        """Puts a request into the queue; its `slot_waiter` is released when it leaves the queue."""
        self._statistics.in_pipeline += 1
        self.queue.append(request)

    def settle(self, request: Request, outcome: str) -> bool:
        """Claims the right to end a request, once, and counts it as "failed", "cancelled" or "expired"."""
        if request.settled:
            return False
        request.settled = True
        self._statistics.in_pipeline -= 1
        setattr(self._statistics, outcome, getattr(self._statistics, outcome) + 1)
        return True

    def remove(self, request: Request) -> None:
        """Takes a settled request out of the queue, or out of its slot unless a thread is at work on that."""
        if request.batch is not None:
            if self._scheduler.remove(request):
                self.serve_queue()
        elif request in self.queue:
            self.queue.remove(request)
            self._left_queue(request)

    def release(self, batch: BatchState, *, prepares: bool = False) -> list[Request]:
        """A batch has been run, and its slots are free. See `serve_queue()`."""
        self._scheduler.free(batch)
        return self.serve_queue(prepares=prepares)

    def serve_queue(self, *, prepares: bool = False) -> list[Request]:
        """Gives free slots to the requests that wait for them.

        Args:
            prepares: the calling thread prepares those whose preparation takes less time than waking up another thread.

        Returns:
            Those that the calling thread prepares now.
        """
        own: list[Request] = []
        while self.queue:
            request = self.queue[0]
            if not request.settled:
                preparing = prepares and request.quick
                if not self._scheduler.add(request, preparing):
                    return own
                if preparing:
                    own.append(request)
            self.queue.popleft()
            self._left_queue(request)
        self._drained.notify_all()
        return own

    def clear_queue(self) -> None:
        """Ends the waiting for slots: these requests have ended."""
        while self.queue:
            self._left_queue(self.queue.popleft())

    def _left_queue(self, request: Request) -> None:
        waiter, request.slot_waiter = request.slot_waiter, None
        if waiter is not None:
            waiter.release()
