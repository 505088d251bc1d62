"""The instances of one model."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .dispatch import Spread
from .request import BatchState

if TYPE_CHECKING:
    from .batch_buffer import BatchBuffer

__all__ = ["InstanceGroup"]


class InstanceGroup:
    """The instances of one model: each is a batch buffer with its own execution context.

    There are more of them than may run: one fills, and one waits, while the others are on the model.

    Args:
        buffers: all of one capacity.
        max_in_flight: batches that may have left and still occupy the model; see `SharingBuffer` for those that do not.
        max_running: how many of those the model runs at the same time; the others queue behind them on the device.
    """

    def __init__(
        self, index: int, buffers: Sequence[BatchBuffer], max_in_flight: int, max_running: int, lock: threading.Lock
    ) -> None:
        self.index = index
        self.batches = [BatchState(buffer, index, lock) for buffer in buffers]
        self.free: deque[BatchState] = deque(self.batches)
        self.full: deque[BatchState] = deque()  # in the order in which they became full
        self.max_in_flight, self.max_running, self.in_flight = max_in_flight, max_running, 0
        self.batch_sizes = buffers[0].batch_sizes()
        self.spread = Spread(max_running, max_in_flight)
        self.lent_last = False  # the last batch that left for the model was borrowed
        self.changed = threading.Condition(lock)  # the threads that run batches wait here for one that may leave

    @property
    def load(self) -> float:
        """How busy the model is: full and running batches for each that may run."""
        return (self.in_flight + len(self.full)) / self.max_in_flight
