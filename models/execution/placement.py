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

__all__ = ["LocationCost", "PreprocessPlacement", "WholeBatch"]

_log = logger("infersdk.models")


class LocationCost(NamedTuple):
    """Seconds that bringing a batch into the model's input takes.

    Attributes:
        thread: time of the calling thread.
        total: time until the device has the input.
    """

    thread: float
    total: float

    def times(self, factor: float) -> LocationCost:
        return LocationCost(self.thread * factor, self.total * factor)


@dataclass
class WholeBatch:
    """One batch that was measured.

    Attributes:
        size, page_locked: see `PreprocessPlacement.choose()`.
        costs: of both locations, for the whole batch.
        queue: seconds of the calling thread to queue the model and the postprocessing.
        device: seconds until the device had done both.
        collect: seconds of the calling thread to make the results.
    """

    size: int
    page_locked: bool
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


class PreprocessPlacement:
    """`"device"`, `"host"` (the images shrink on the processor's threads first), or `"auto"`, which measures both.

    Any number of threads may use it.

    Args:
        setting: one of these.
        measured: the faster location, by the size class of a batch and whether it is page-locked. A model and its
            clones share it.
    """

    #: Images of a batch with which both locations are measured.
    sample = 8

    def __init__(self, setting: str, measured: dict[tuple[int, bool], str]) -> None:
        self.setting, self.measured = setting, measured

    def choose(self, size: int, page_locked: bool) -> str | None:
        """The location for a batch; None where it has to be measured.

        Args:
            size: bytes of all images.
            page_locked: whether their memory is.
        """
        return self.setting if self.setting != "auto" else self.measured.get((size.bit_length(), page_locked))

    def decide(self, batch: WholeBatch) -> None:
        """Chooses the location for batches of this kind."""
        periods = {location: batch.period(location) for location in ("device", "host")}
        if min(periods.values()) >= 0.97 * max(periods.values()):  # about even: the one that is faster for one batch
            location = batch.faster_alone
        else:
            location = min(periods, key=lambda one: periods[one])
        self.measured[batch.size.bit_length(), batch.page_locked] = location
        _log.debug(
            "batches of up to %d bytes%s are preprocessed on the %s: %s", 1 << batch.size.bit_length(),
            ", page-locked," if batch.page_locked else "", location,
            ", ".join(f"{place} {1e3 * seconds:.2f} ms" for place, seconds in periods.items()),
        )  # fmt: skip
