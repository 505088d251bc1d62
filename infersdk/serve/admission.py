"""Which requests go on to a pipeline, which wait, and which are refused at once. In the thread of the event loop.

A pipeline serves in the order in which requests come, and does not know priorities. Here a request waits until the
pipeline has a slot; among those that wait the lowest number goes first. The queue is bounded, and a request that would
still wait at its deadline is refused when it comes.
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

#: Priority 0, "none given", goes after all others.
_LAST = 1 << 62
#: Seconds after which a request that ended counts a third for the estimate.
_MEMORY = 10.0


class Admission:
    """Lets requests through to a pipeline.

    Args:
        slots: how many the pipeline holds.
        queue: how many may wait here.
        name: of the model, for messages.
        clock: gives the time in seconds.
    """

    def __init__(self, slots: int, queue: int, name: str, clock: Callable[[], float] = monotonic) -> None:
        self.slots, self.queue_limit = slots, queue
        self.running = 0
        self._name, self._clock = name, clock
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # sorted: the next one is the first
        self._order = count()
        # Of about the last 10 s: the seconds that slots were taken for, and how many requests ended. The ratio is the
        # time for which a request takes a slot, whether requests wait or not.
        self._busy = self._ended = 0.0
        self._measured = clock()

    @property
    def waiting(self) -> int:
        """How many requests wait for a slot."""
        return len(self._waiting)

    def estimate(self) -> float:
        """Seconds that a new request will wait, as far as the last ones tell; 0 as long as a slot is free."""
        if self.running < self.slots:
            return 0.0
        self._measure()
        held = self._busy / (self._ended + 1)  # one more: those that run have not ended yet
        return (len(self._waiting) + 1) * held / self.slots

    def _measure(self) -> None:
        """Brings the sums up to now. Called before `running` changes."""
        now = self._clock()
        passed, self._measured = now - self._measured, now
        kept = math.exp(-passed / _MEMORY)
        self._busy = self._busy * kept + self.running * passed
        self._ended *= kept

    async def enter(self, deadline: float | None, priority: int) -> None:
        """Waits for a slot. Each successful `enter()` is followed by one `leave()`.

        Args:
            deadline: seconds from now.

        Raises:
            Overloaded: too many requests wait, or the deadline would pass before there is a slot.
            DeadlineExceeded: it has passed.
        """
        if self.running < self.slots and not self._waiting:
            self._measure()
            self.running += 1
            return
        wait = self.estimate()
        if len(self._waiting) >= self.queue_limit:
            raise _overloaded(
                f"model {self._name!r} has {len(self._waiting)} requests waiting, the most that it takes; "
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
        entry = (priority or _LAST, next(self._order), future)
        bisect.insort(self._waiting, entry)
        timer = None if deadline is None else loop.call_later(deadline, self._expire, entry, deadline)
        try:
            await future
        except BaseException:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.leave()  # cancelled after it got its slot
            elif future.cancelled():
                self._remove(entry)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _expire(self, entry: tuple[int, int, asyncio.Future[None]], deadline: float) -> None:
        if not entry[2].done():
            self._remove(entry)
            entry[2].set_exception(
                DeadlineExceeded(f"model {self._name!r} had no slot for the request within its {deadline:g} s")
            )

    def _remove(self, entry: tuple[int, int, asyncio.Future[None]]) -> None:
        index = bisect.bisect_left(self._waiting, entry)
        if index < len(self._waiting) and self._waiting[index] is entry:
            del self._waiting[index]

    def leave(self) -> None:
        """A request has ended: the next one may go."""
        self._measure()
        self._ended += 1
        while self._waiting:
            future = self._waiting.pop(0)[2]
            if not future.done():
                future.set_result(None)  # it takes over the slot
                return
        self.running -= 1


def _overloaded(message: str, retry_after: float) -> Overloaded:
    error = Overloaded(message)
    error.retry_after = retry_after
    return error
