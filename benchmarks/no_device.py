"""Models whose runs take no time: what is left is what the host costs, done as for a GPU."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter, process_time
from typing import Any

from infersdk.device import Device
from infersdk.image import HostImage, SharedImage
from infersdk.pipeline import OneBucket

DEVICE = Device.parse("cuda:0")


class NoDevice:
    """What a pipeline serves.

    Args:
        result: of each image; None is the image itself.
    """

    concurrency = 3
    serializes_runs = True

    def __init__(self, result: Any = None) -> None:
        self._result = result

    def batch_buffer(self, capacity: int | None) -> NoDeviceBuffer:
        return NoDeviceBuffer(capacity or 1, self._result)


class NoDeviceBuffer(OneBucket):
    def __init__(self, capacity: int, result: Any) -> None:
        self.capacity, self._result = capacity, result
        self._images: list[Any] = [None] * capacity

    def prepares_quickly(self, item: Any) -> bool:
        return True

    def prepare(self, row: int, item: Any, parameters: Mapping[str, Any] | None) -> None:
        if isinstance(item, SharedImage):
            self._images[row] = item.on_device(DEVICE)
        else:
            self._images[row] = item if isinstance(item, HostImage) else HostImage(item, "bgr")

    def move(self, source: int, target: int) -> None:
        self._images[target] = self._images[source]

    def run(self, count: int) -> None:
        """It takes no time."""

    def results(self, count: int) -> Sequence[Any]:
        images, self._images = self._images[:count], [None] * self.capacity
        return images if self._result is None else [self._result] * count

    def refresh(self) -> bool:
        return False

    def batch_sizes(self) -> Sequence[int]:
        return range(1, self.capacity + 1)

    def warm_up(self, count: int, example: Any = None) -> None:
        """It takes no time."""

    def close(self) -> None:
        self._images = []


def cost(results: Iterator[Any], count: int) -> tuple[float, float, float]:
    """Seconds and processor seconds, in microseconds for each frame, and how often threads went to sleep."""
    start, spent, slept = perf_counter(), process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    assert sum(1 for _ in results) == count
    slept = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - slept
    return 1e6 * (perf_counter() - start) / count, 1e6 * (process_time() - spent) / count, slept / count
