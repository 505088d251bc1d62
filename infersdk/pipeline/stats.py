"""What a pipeline counts and measures, in memory that does not grow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["BOUNDS", "Durations", "Percentiles", "PipelineStats"]

#: Upper bounds of the buckets that durations fall into, seconds: 8 an octave from 1 us to 1,074 s, so that a percentile
#: read from them is within 4.5% of the truth.
BOUNDS: tuple[float, ...] = tuple(1e-6 * 2 ** (i / 8) for i in range(241))


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Durations of one stage, in seconds; all 0 while `count` is."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Durations:
    """A histogram of durations. One thread at a time adds to it."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum, self.max, self.count = 0.0, 0.0, 0

    def add(self, seconds: float, times: int = 1) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += times
        self.sum += seconds * times
        self.count += times
        self.max = max(self.max, seconds)

    def add_all(self, durations: Sequence[float]) -> None:
        counts = self.counts
        for seconds in durations:
            counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += sum(durations)
        self.count += len(durations)
        self.max = max(self.max, max(durations, default=0.0))

    def quantile(self, q: float) -> float:
        """The middle of the bucket that holds the quantile `q` (0 to 1), in seconds."""
        rank, seen = q * self.count, 0
        for i, count in enumerate(self.counts):
            seen += count
            if count and seen >= rank:
                middle = BOUNDS[min(i, len(BOUNDS) - 1)] * 2 ** (-1 / 16)
                return min(middle, self.max)
        return 0.0

    def percentiles(self) -> Percentiles:
        mean = self.sum / self.count if self.count else 0.0
        return Percentiles(self.count, mean, self.quantile(0.5), self.quantile(0.9), self.quantile(0.99), self.max)


@dataclass(frozen=True, slots=True)
class PipelineStats:
    """What a pipeline has done since it was made; `Pipeline.stats()` takes it.

    Attributes:
        submitted: requests that were taken in. Each of them is waiting, in a slot, running, or counted in one of
            `done`, `failed`, `cancelled` and `expired`.
        done: ended in a result.
        failed: ended in an exception that is none of the others here.
        cancelled: cancelled before their batch left.
        expired: not on their way by their deadline.
        rejected: refused with `Overloaded`, and not counted in `submitted`.
        waiting: submitters that wait for a slot now.
        queued: requests in slots now, whose batch has not left.
        running: requests in batches that have left now.
        slots: how many there are.
        batch_sizes: how many batches of each size have run, by size.
        seconds: since the pipeline was made.
        queue: from submission until the batch leaves.
        run: of a batch on the model.
        postprocess: of a batch behind it.
        total: from submission to the result.
    """

    submitted: int
    done: int
    failed: int
    cancelled: int
    expired: int
    rejected: int
    waiting: int
    queued: int
    running: int
    slots: int
    seconds: float
    batch_sizes: dict[int, int]
    queue: Percentiles
    run: Percentiles
    postprocess: Percentiles
    total: Percentiles

    @property
    def throughput(self) -> float:
        """Results a second, over the whole time."""
        return self.done / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class Counters:
    """The numbers behind `PipelineStats`, changed under the pipeline's lock."""

    submitted: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    rejected: int = 0
    running: int = 0
    batch_sizes: dict[int, int] = field(default_factory=dict)
    queue: Durations = field(default_factory=Durations)
    run: Durations = field(default_factory=Durations)
    postprocess: Durations = field(default_factory=Durations)
    total: Durations = field(default_factory=Durations)
