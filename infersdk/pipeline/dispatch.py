"""What a pipeline learns from its traffic, so that batches leave before they are full and before `max_delay`.

Most callers submit a request, wait for its result, and come back with the next one: the threads and coroutines of a web
server. For so many callers it is known when waiting is in vain (`Callers`), and they are best spread over more than one
batch: one runs while the callers of another get their results and come back (`Spread`).
"""

from __future__ import annotations

from collections import deque

__all__ = ["Callers", "Spread"]

#: Batches after which a peak counts as old. It is forgotten after as many again.
WINDOW = 16
#: A batch counts as ready when another one ends, if it left earlier than that by this part of the time that the other
#: one took: the copy of its last images and the launch take some time, too.
LEAD = 1 / 8
#: Batches over which the balance of `Spread` is averaged.
AVERAGED = 16
#: Batches after which `Spread` tries with one batch fewer again; twice as many each time in which that fails.
RETRY, LONGEST_RETRY = 64, 4096


class Callers:
    """How many requests are in the pipeline when all of its callers wait for results: the peak of the recent past.

    When so many are in the pipeline, no other one is to be expected before some caller has its result. It is used under
    the pipeline's lock.

    Attributes:
        expected: that number; None as long as nothing is known.
        peak: the peak of the last batches.
    """

    def __init__(self) -> None:
        self.expected: int | None = None
        self.peak = self._old_peak = self._batches = 0

    def peak_rises(self, in_pipeline: int) -> None:
        """A request has come, and more than `peak` are in the pipeline now."""
        self.peak = in_pipeline
        if self.expected is not None:
            self.expected = max(self.expected, in_pipeline)

    def batch_left(self) -> None:
        """A batch has left."""
        self._batches += 1
        if self._batches == WINDOW:
            self.expected = max(self.peak, self._old_peak)
            self._old_peak, self.peak, self._batches = self.peak, 0, 0

    def waited_in_vain(self, in_pipeline: int) -> None:
        """A batch has waited for `max_delay`, and so many requests are in the pipeline now: there are no more."""
        self.expected = self.peak = self._old_peak = in_pipeline
        self._batches = 0


class Spread:
    """Over how many batches the callers of one model are spread.

    At least over one more than the model runs at a time: it is ready when a batch ends. Where callers take longer to
    get their results and come back than a batch takes to run, that one is not ready in time, and they are spread over
    more. With more batches callers come back more slowly, since those of several are under way at a time. Then it looks
    as if so many were needed, so it tries with fewer from time to time. It is used under the pipeline's lock.

    Args:
        max_running: batches that the model runs at the same time.
        max_in_flight: batches that may be on their way.

    Attributes:
        batches: that number.
    """

    def __init__(self, max_running: int, max_in_flight: int) -> None:
        self.batches = self._least = max_running + 1
        self._most = max(max_in_flight, self._least)
        self._max_running = max_running
        self._left: deque[float] = deque()  # when the batches in flight left, on the monotonic clock
        self._last_end = 0.0
        self._balance = 0.0  # between -1, the model stands still, and 1, batches wait for each other
        self._retry = RETRY
        self._since = 0  # batches since the number has changed

    def batch_left(self, now: float) -> None:
        """A batch has left for the model."""
        if self._most > self._least:
            self._left.append(now)

    def batch_ended(self, now: float) -> None:
        """The oldest batch in flight is off the model, or leaves a core of the processor idle."""
        if self._most == self._least:
            return
        lead = LEAD * (now - max(self._last_end, self._left.popleft()))
        self._last_end = now
        ready = sum(left <= now - lead for left in self._left) - self._max_running
        self._balance += (max(-1, min(1, ready)) - self._balance) / AVERAGED
        self._since += 1
        if self._balance < -0.5 and self.batches < self._most:
            # Soon after a change to fewer: these were too few. Otherwise something else has changed.
            self._retry = min(2 * self._retry, LONGEST_RETRY) if self._since < RETRY else RETRY
            self._change(1)
        elif self.batches > self._least and (self._balance > 0.5 or self._since >= self._retry):
            self._change(-1)

    def _change(self, more: int) -> None:
        self.batches += more
        self._balance, self._since = 0.0, 0
