"""Which requests run in the thread that asks for them, without one of the pipeline's own."""

from __future__ import annotations

__all__ = ["InlineRuns"]

#: Of the average duration of a run: how much the newest run counts.
WEIGHT = 1 / 8
#: One in so many requests goes through the pipeline's threads all the same. While it is there others can come in, and
#: the scheduler learns of callers that a thread at work hides from it.
SAMPLE = 16


class InlineRuns:
    """Knows whether runs are so short that waking another thread up for one takes longer. Used under the pipeline's
    lock.

    It begins without trust: only after dozens of short runs the average is below the limit. A long run raises the
    average at once, so that a model with runs of all lengths stays with the pipeline's threads.

    Args:
        limit: seconds that a run takes at most on average; 0 allows none.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._average = 1.0  # seconds
        self._asked = 0

    def add(self, seconds: float) -> None:
        """A batch of one request took so long, from when it left until its result was there."""
        self._average += (seconds - self._average) * WEIGHT

    def allows(self) -> bool:
        """Whether the next request may run in its caller's thread."""
        if self._average > self.limit:
            return False
        self._asked += 1
        return self._asked % SAMPLE != 0
