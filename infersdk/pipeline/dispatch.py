"""How many callers a pipeline has, so that batches leave before they are full and before `max_delay`.

Most callers submit a request, wait for its result, and come back with the next one: the threads and coroutines of a web
server. For so many callers it is known when waiting is in vain.
"""

from __future__ import annotations

__all__ = ["Callers"]

#: Batches after which a peak counts as old. It is forgotten after as many again.
WINDOW = 16


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
