"""Which requests go on to a pipeline, which wait, and which are refused at once. In the thread of the event loop.

A pipeline serves in the order in which requests come, and does not know priorities. Here a request waits until the
pipeline has a slot; among those that wait the lowest number goes first. The queue is bounded, and a request that would
still wait at its deadline is refused when it comes.
"""

from __future__ import annotations

import asyncio
import heapq
from itertools import count
from time import monotonic

from ..errors import DeadlineExceeded, Overloaded

__all__ = ["Admission"]

#: Priority 0, "none given", goes after all others.
_LAST = 1 << 62
#: Of the time between two requests that end: how much the newest one counts.
_WEIGHT = 0.05


class Admission:
    """Lets requests through to a pipeline.

    Args:
        slots: how many the pipeline holds.
        queue: how many may wait here.
        name: of the model, for messages.
    """

    def __init__(self, slots: int, queue: int, name: str) -> None:
        self.slots, self.queue_limit = slots, queue
        self.running = 0
        self._name = name
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._waiting_count = 0  # without those that have gone
        self._order = count()
        self._interval = 0.0  # seconds from one end to the next while all slots are taken
        self._last_end: float | None = None

    @property
    def waiting(self) -> int:
        """How many requests wait for a slot."""
        return self._waiting_count

    def estimate(self) -> float:
        """Seconds that a new request will wait, as far as the last ones tell; 0 as long as a slot is free."""
        if self.running < self.slots:
            return 0.0
        return (self._waiting_count + 1) * self._interval

    async def enter(self, deadline: float | None, priority: int) -> None:
        """Waits for a slot. Each successful `enter()` is followed by one `leave()`.

        Args:
            deadline: seconds from now.

        Raises:
            Overloaded: too many requests wait, or the deadline would pass before there is a slot.
            DeadlineExceeded: it has passed.
        """
        if self.running < self.slots and not self._waiting_count:
            self.running += 1
            return
        wait = self.estimate()
        if self._waiting_count >= self.queue_limit:
            raise _overloaded(
                f"model {self._name!r} has {self._waiting_count} requests waiting, the most that it takes; "
                f"send it again in {wait:.1f} s",
                wait,
            )
        if deadline is not None and wait > deadline:
            raise _overloaded(
                f"model {self._name!r} would begin this request in {wait:.2f} s, after its deadline of {deadline:g} s; "
                "send it again later",
                wait - deadline,
            )
        await self._wait(deadline, priority)

    async def _wait(self, deadline: float | None, priority: int) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        heapq.heappush(self._waiting, (priority or _LAST, next(self._order), future))
        self._waiting_count += 1
        timer = None if deadline is None else loop.call_later(deadline, self._expire, future, deadline)
        try:
            await future
        except BaseException:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.leave()  # cancelled after it got its slot
            elif future.cancelled():
                self._waiting_count -= 1
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _expire(self, future: asyncio.Future[None], deadline: float) -> None:
        if not future.done():
            self._waiting_count -= 1
            future.set_exception(
                DeadlineExceeded(f"model {self._name!r} had no slot for the request within its {deadline:g} s")
            )

    def leave(self) -> None:
        """A request has ended: the next one may go."""
        now = monotonic()
        if self._waiting_count and self._last_end is not None:
            took = now - self._last_end
            self._interval += (took - self._interval) * (_WEIGHT if self._interval else 1.0)
        self._last_end = now if self._waiting_count else None
        while self._waiting:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                self._waiting_count -= 1
                future.set_result(None)  # it takes over the slot
                return
        self.running -= 1


def _overloaded(message: str, retry_after: float) -> Overloaded:
    error = Overloaded(message)
    error.retry_after = retry_after
    return error
