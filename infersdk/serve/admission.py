"""Admission control: the rows of requests enter a pipeline, wait, or are refused. It runs in the thread of the event
loop.

A pipeline runs requests in the order of arrival, without priorities. Here a row waits for a slot of the pipeline; the
lowest priority number goes first. A request is refused on arrival if the queue is full, or if it would miss its
deadline. All rows of a request are admitted with the first one.
"""

from __future__ import annotations

import asyncio
import bisect
import math
from collections.abc import Callable
from itertools import count
from time import monotonic

from ..errors import DeadlineExceeded, Overloaded

__all__ = ["Admission"]

#: Priority 0 means "none" and goes after all others.
_LAST = 1 << 62
#: Time constant in seconds of the exponential average behind `estimate()`.
_MEMORY = 10.0


class Admission:
    """Admits requests to a pipeline.

    Args:
        slots: the capacity of the pipeline.
        queue: the maximum number of waiting rows when a request is admitted.
        name: the model, for messages.
    """

    def __init__(self, slots: int, queue: int, name: str, clock: Callable[[], float] = monotonic) -> None:
        self.slots, self.queue_limit = slots, queue
        self.running = 0
        self._name, self._clock = name, clock
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # sorted: the next one is the first
        self._order = count()
        # Over about the last 10 s: the busy seconds of all slots, and the number of finished requests. Their ratio is
        # the mean time that a request occupies a slot.
        self._busy = self._ended = 0.0
        self._measured = clock()

    @property
    def waiting(self) -> int:
        """The number of rows that wait for a slot."""
        return len(self._waiting)

    def estimate(self) -> float:
        """The expected wait of a new request in seconds; 0 while a slot is free."""
        if self.running < self.slots:
            return 0.0
        self._measure()
        held = self._busy / (self._ended + 1)  # one more, for the running requests
        return (len(self._waiting) + 1) * held / self.slots

    def _measure(self) -> None:
        """Updates the averages. Called before `running` changes."""
        now = self._clock()
        passed, self._measured = now - self._measured, now
        kept = math.exp(-passed / _MEMORY)
        self._busy = self._busy * kept + self.running * passed
        self._ended *= kept

    async def enter(self, deadline: float | None, priority: int, *, admitted: bool = False) -> None:
        """Waits for a slot. Call `leave()` after each successful `enter()`.

        Args:
            deadline: seconds from now.
            admitted: whether an earlier row of the same request was admitted. The row then waits in any case.

        Raises:
            Overloaded: the queue is full, or the deadline would pass before a slot is free.
            DeadlineExceeded: the deadline has passed.
        """
        if self.running < self.slots and not self._waiting:
            self._measure()
            self.running += 1
            return
        if not admitted:
            self._check_wait(deadline)
        await self._wait(deadline, priority)

    def _check_wait(self, deadline: float | None) -> None:
        """Raises Overloaded if the queue is full, or the deadline would pass before a slot is free."""
        wait = self.estimate()
        if len(self._waiting) >= self.queue_limit:
            raise _overloaded(
                f"model {self._name!r} has {len(self._waiting)} images or rows waiting, the most that it takes is "
                f"{self.queue_limit}; send it again in {wait:.1f} s",
                wait,
            )
        if deadline is not None and wait > deadline:
            raise _overloaded(
                f"model {self._name!r} would begin this request in {wait:.2f} s, after its deadline of {deadline:g} s; "
                "send it again later",
                wait - deadline,
            )

    async def _wait(self, deadline: float | None, priority: int) -> None:
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (priority or _LAST, next(self._order), slot)
        bisect.insort(self._waiting, entry)
        try:
            await asyncio.wait([slot], timeout=deadline)
            if not slot.done():
                raise DeadlineExceeded(f"model {self._name!r} had no slot for the request within its {deadline:g} s")
        except BaseException:
            if slot.done():
                self.leave()  # it was cancelled after it got its slot
            else:
                self._waiting.remove(entry)
            raise

    def leave(self) -> None:
        """Frees the slot of a finished request for the next one."""
        self._measure()
        self._ended += 1
        if self._waiting:
            self._waiting.pop(0)[2].set_result(None)  # it inherits the slot
        else:
            self.running -= 1


def _overloaded(message: str, retry_after: float) -> Overloaded:
    error = Overloaded(message)
    error.retry_after = retry_after
    return error
