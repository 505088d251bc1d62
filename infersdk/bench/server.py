"""MLPerf's server scenario: requests arrive at random, and 99 % of them have to end within a bound.

Arrivals are a Poisson process and do not wait for results. The latency of a request starts at its scheduled time, even
if the pipeline had no free slot then, so that an overload is visible. The figure is the highest rate that keeps the
bound.
"""

from __future__ import annotations

import itertools
from statistics import median
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import numpy as np

from .statistics import Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..pipeline import Pipeline

__all__ = ["Server", "keeps_bound"]

#: The share of the requests that may be late.
LATE = 0.01
#: Minimum requests, or late requests, to judge a rate.
REQUESTS, LATE_ONES = 100, 3
#: Minimum requests of a trial in the search, and the number of trials.
TRIAL, HALVINGS = 50, 6
#: A rate that was refused during the rounds is lowered by this factor.
LOWER = 0.9


def keeps_bound(requests: int, late: int) -> bool | None:
    """Whether at most 1 % of the requests were late; None where there are too few of them to judge."""
    if requests < REQUESTS and late < LATE_ONES:
        return None
    return late <= LATE * requests


class Server:
    """Requests at random to a pipeline.

    Args:
        pipeline, items: the pipeline, and the items of the requests in order.
        bound: the latency in seconds that 99 % of the requests must keep.
        clock, sleep: the time, for tests.

    Attributes:
        rate: requests a second.
    """

    def __init__(
        self,
        pipeline: Pipeline[Any],
        items: Sequence[Any],
        bound: float,
        *,
        seed: int,
        clock: Callable[[], float] = perf_counter,
        sleep: Callable[[float], None] = sleep,
    ) -> None:
        self._pipeline, self._items, self._bound = pipeline, itertools.cycle(items), bound
        self._clock, self._sleep = clock, sleep
        self._random = np.random.default_rng(seed)
        self._requests = self._late = 0
        self.rate = 0.0

    def find_rate(self, capacity: float, seconds: float, limit: float) -> bool:
        """Searches the highest rate that keeps the bound, by halving the range from 0 to `capacity`.

        Args:
            capacity: requests a second under full load, which no rate can exceed for long.
            seconds: of a trial at least; it has 50 requests at least.
            limit: seconds of the whole search; a trial that has begun is run to its end.

        Returns:
            Whether there is one. Otherwise `rate` is the lowest that was tried.
        """
        start = self._clock()
        if self._alone() > self._bound:
            return False
        low, high, lowest = 0.0, capacity, capacity
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            lowest = min(lowest, middle)
            result = self._arrive(middle, max(seconds, TRIAL / middle))
            assert result.late is not None
            if result.late > LATE * len(result.latencies):
                high = middle
            else:
                low = middle
            if self._clock() - start > limit:
                break
        self.rate = low or lowest
        return low > 0

    def run(self, seconds: float) -> Measurement:
        """Sends requests for `seconds` at the current rate; lowers the rate if they do not keep the bound."""
        result = self._arrive(self.rate, seconds)
        assert result.late is not None
        self._requests += len(result.latencies)
        self._late += result.late
        if keeps_bound(self._requests, self._late) is False:
            self.rate *= LOWER
            self._requests = self._late = 0
        return result

    def _alone(self) -> float:
        """The median seconds of requests of which each has the pipeline for itself."""
        spent = []
        for item in itertools.islice(self._items, 5):
            start = self._clock()
            self._pipeline.submit(item).result()
            spent.append(self._clock() - start)
        return median(spent)

    def _arrive(self, rate: float, seconds: float) -> Measurement:
        """Requests at random times, at `rate` a second on average, for so many seconds; one at least."""
        count = max(int(self._random.poisson(rate * seconds)), 1)
        # Given their number, the arrivals of a Poisson process are spread evenly (Ross, *Stochastic processes*, 1996).
        offsets = np.sort(self._random.uniform(0, seconds, count))
        latencies: list[float] = []
        futures, start = [], self._clock()
        for offset, item in zip(offsets, self._items, strict=False):
            due = start + float(offset)
            if (wait := due - self._clock()) > 0:
                self._sleep(wait)
            future = self._pipeline.submit(item)
            future.add_done_callback(lambda _, due=due: latencies.append(self._clock() - due))  # type: ignore[misc]
            futures.append(future)
        if failed := [error for future in futures if (error := future.exception()) is not None]:
            raise failed[0]
        while len(latencies) < count:  # a callback may run after the wait for its future
            self._sleep(1e-4)
        elapsed = max(self._clock() - start, seconds)
        late = sum(latency > self._bound for latency in latencies)
        return Measurement(count, elapsed, latencies, rate=rate, late=late)
