"""Where images are preprocessed for a CUDA device: measured once for each kind of batch.

While one batch is on the device, the processor prepares the next one: a batch takes as long as the busier of the
calling thread, the copies and the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ...core.text import logger

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LocationCost", "WholeBatch"]

_log = logger("infersdk.models")


class LocationCost(NamedTuple):
    """Seconds that bringing a batch into the model's input takes.

    Attributes:
        thread: time of the calling thread.
        total: time until the device has the input.
    """

    thread: float
    total: float


@dataclass
class WholeBatch:
    """One batch that was measured.

    Attributes:
        kind: the size class of its images, and whether their memory is page-locked.
        costs: of both locations, for the whole batch.
        queue: seconds of the calling thread to queue the model and the postprocessing.
        device: seconds until the device had done both.
        collect: seconds of the calling thread to make the results.
    """

    kind: tuple[int, bool]
    costs: Mapping[str, LocationCost]
    queue: float = 0.0
    device: float = 0.0
    collect: float = 0.0

    @property
    def faster_alone(self) -> str:
        """The location with the shorter time for a single batch."""
        return min(self.costs, key=lambda location: self.costs[location].total)

    def period(self, location: str) -> float:
        """Seconds from one batch to the next with this location, where batches overlap."""
        thread, total = self.costs[location]
        return max(thread + self.queue + self.collect, total, self.device)

    def faster(self) -> str:
        """The location for batches of this kind, which overlap."""
        periods = {location: self.period(location) for location in self.costs}
        if min(periods.values()) >= 0.97 * max(periods.values()):  # about even
            location = self.faster_alone
        else:
            location = min(periods, key=lambda one: periods[one])
        size_class, page_locked = self.kind
        _log.debug(
            "batches of up to %d bytes%s are preprocessed on the %s: %s", 1 << size_class,
            ", page-locked," if page_locked else "", location,
            ", ".join(f"{place} {1e3 * seconds:.2f} ms" for place, seconds in periods.items()),
        )  # fmt: skip
        return location
