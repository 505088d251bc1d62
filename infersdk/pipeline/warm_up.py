"""Running batches of all sizes on all instances before the first request does."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ..errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.backend import Progress
    from .request import BatchState
    from .scheduler import Admission, Scheduler
    from .threads import Lifecycle

__all__ = ["WarmUp", "sizes_to_run"]


class WarmUp:
    """Takes the batch buffers of a pipeline out of service one after another, and runs all batch sizes of each bucket.

    Args:
        freed: notified when a batch buffer may be free.
    """

    def __init__(
        self, scheduler: Scheduler, admission: Admission, lifecycle: Lifecycle, freed: threading.Condition
    ) -> None:
        self._scheduler, self._admission = scheduler, admission
        self._lifecycle, self._freed = lifecycle, freed

    def run(self, progress: Progress | None, example: Any) -> None:
        """See `Pipeline.warm_up()`."""
        from .stats import bucket_name

        batches = [batch for group in self._scheduler.groups for batch in group.batches]
        for done, batch in enumerate(batches):
            self._take(batch)
            try:
                buckets, sizes = batch.buffer.buckets(), sizes_to_run(batch.buffer.batch_sizes(), batch.buffer.capacity)
                runs = [(bucket, size) for bucket in reversed(buckets) for size in sizes]
                for i, (bucket, size) in enumerate(runs):
                    self._check_open()
                    if progress is not None:
                        what = f"Warming up: instance {done + 1} of {len(batches)}, batch {size}"
                        if len(buckets) > 1:
                            what += f" of {bucket_name(bucket)}"
                        progress(what, (done + i / len(runs)) / len(batches))
                    batch.buffer.set_bucket(bucket)
                    batch.buffer.warm_up(size, example)
            finally:
                with self._freed:
                    self._admission.release(batch)
        if progress is not None:
            progress("Warmed up", 1.0)

    def _take(self, batch: BatchState) -> None:
        """Waits until this batch has no requests, and takes it out of service."""
        free = self._scheduler.groups[batch.group].free
        with self._freed:
            while batch not in free:
                self._check_open()
                self._freed.wait()
            self._check_open()
            free.remove(batch)

    def _check_open(self) -> None:
        if self._lifecycle.closing:
            raise ClosedError("the pipeline was closed while it warmed up; make a new one")


def sizes_to_run(sizes: Sequence[int], capacity: int) -> list[int]:
    """Which of the batch sizes of a model to run, the largest first, since it allocates the memory for all of them.

    A backend that pads batches prepares itself for each size. For others a new size costs little: sizes that double
    are enough.

    Args:
        sizes: those that the model runs.
        capacity: the largest batch.
    """
    if len(sizes) == capacity:
        sizes = [size for size in sizes if size == capacity or not size & (size - 1)]
    return sorted(sizes, reverse=True)
