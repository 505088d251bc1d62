"""Counters and histograms of a pipeline, in memory of fixed size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from time import monotonic

__all__ = ["BOUNDS", "Durations", "Percentiles", "PipelineStats", "Statistics", "bucket_name"]

#: Upper bounds of the histogram's buckets, in seconds: 8 in each octave from 1 us to 1,074 s. A percentile read from
#: them is at most 4.5 % off.
BOUNDS: tuple[float, ...] = tuple(1e-6 * 2 ** (i / 8) for i in range(241))


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Durations of one stage, in seconds; all are 0 where `count` is 0."""

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

    def add(self, *durations: float) -> None:
        for seconds in durations:
            self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += sum(durations)
        self.count += len(durations)
        self.max = max(self.max, *durations)

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
    """The statistics of a pipeline since it was made, from `Pipeline.stats()`.

    Attributes:
        submitted: requests that were taken in. Each of them is counted in exactly one of `waiting`, `queued`,
            `running`, `done`, `failed`, `cancelled` and `expired`.
        done: requests that ended in a result.
        failed: requests that ended in an exception; those of the next two lines are counted there.
        cancelled: requests that were cancelled before their batch left.
        expired: requests whose batch had not left by their deadline.
        reruns: batches, and halves of batches, whose run failed and whose halves were run again.
        rejected: requests that were refused with `Overloaded`; they are not counted in `submitted`.
        waiting: requests that wait for a slot now.
        queued: requests that have a slot now, and whose batch has not left.
        running: requests whose batch has left, and has no results yet.
        slots: how many there are.
        batch_sizes: the number of batches that were run, by their size.
        buckets: the number of requests that were run, by their bucket: with `canvas="fit"` by the canvas, as "640x384".
            Empty where all requests share batches.
        seconds: time since the pipeline was made.
        queue: time of a request from `submit()` until its batch leaves.
        run: time of a batch on the model. On a processor it may overlap that of the next batch.
        postprocess: time of a batch from the model's outputs to the results.
        total: time of a request from `submit()` to its result.
    """

    submitted: int
    done: int
    failed: int
    cancelled: int
    expired: int
    reruns: int
    rejected: int
    waiting: int
    queued: int
    running: int
    slots: int
    seconds: float
    batch_sizes: dict[int, int]
    buckets: dict[str, int]
    queue: Percentiles
    run: Percentiles
    postprocess: Percentiles
    total: Percentiles

    @property
    def throughput(self) -> float:
        """Results per second, over the whole time."""
        return self.done / self.seconds if self.seconds else 0.0


def bucket_name(bucket: Hashable) -> str:
    """A bucket in words: `(640, 384)` as "640x384"."""
    return "x".join(map(str, bucket)) if isinstance(bucket, tuple) else str(bucket)


class Statistics:
    """The numbers behind `PipelineStats`. They change under the pipeline's lock."""

    def __init__(self) -> None:
        self.in_pipeline = self.running = 0  # requests that have not ended; those of them that are on the model
        self.done = self.failed = self.cancelled = self.expired = self.rejected = self.reruns = 0
        self.batch_sizes: dict[int, int] = {}
        self.buckets: dict[Hashable, int] = {}
        self.queue, self.run, self.postprocess, self.total = Durations(), Durations(), Durations(), Durations()
        self._started = monotonic()

    def batch_left(self, count: int) -> None:
        """Counts a batch of `count` requests that leaves for the model."""
        self.running += count

    def batch_done(
        self, submitted: Sequence[float], failed: int, left: float, ran: float, done: float, bucket: Hashable = None
    ) -> None:
        """Counts a batch that has its results. The times are those of `RequestStages`.

        Args:
            submitted: the time of each request.
            failed: how many of them ended in an exception.
        """
        count = len(submitted)
        self.running -= count
        self.in_pipeline -= count
        self.done += count - failed
        self.failed += failed
        if count:
            self.batch_sizes[count] = self.batch_sizes.get(count, 0) + 1
            if bucket is not None:
                self.buckets[bucket] = self.buckets.get(bucket, 0) + count
            self.run.add(ran - left)
            self.postprocess.add(done - ran)
            self.queue.add(*[left - then for then in submitted])
            self.total.add(*[done - then for then in submitted])

    def snapshot(self, *, waiting: int, slots: int) -> PipelineStats:
        """The numbers now."""
        submitted = self.in_pipeline + self.done + self.failed + self.cancelled + self.expired
        return PipelineStats(
            submitted=submitted, done=self.done, failed=self.failed, cancelled=self.cancelled,
            expired=self.expired, reruns=self.reruns, rejected=self.rejected, waiting=waiting,
            queued=self.in_pipeline - self.running - waiting, running=self.running, slots=slots,
            seconds=monotonic() - self._started, batch_sizes=dict(sorted(self.batch_sizes.items())),
            buckets={bucket_name(bucket): count for bucket, count in self.buckets.items()},
            queue=self.queue.percentiles(), run=self.run.percentiles(), postprocess=self.postprocess.percentiles(),
            total=self.total.percentiles(),
        )  # fmt: skip

    def durations(self) -> dict[str, tuple[list[int], float, int]]:
        """The histograms by stage: the counts of the buckets of `BOUNDS` and above, their sum, and their number."""
        stages = {"queue": self.queue, "run": self.run, "postprocess": self.postprocess, "total": self.total}
        return {name: (list(d.counts), d.sum, d.count) for name, d in stages.items()}
