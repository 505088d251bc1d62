"""Executors that follow a hot swap: before a batch they look which network serves now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from ...image import image_size
from .cuda import CudaExecutor
from .device_decoding import DeviceDecoding
from .host import HostExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...infer import Infer
    from .executor import CanvasSet, Executor, ModelStages, Parameters
    from .placement import PreprocessPlacement
    from .run_order import RunOrder

__all__ = ["FollowingBuffer", "FollowingExecutor", "make_executor"]

Result = TypeVar("Result")


def make_executor(
    infer: Infer,
    stages: ModelStages[Result],
    capacity: int,
    placement: PreprocessPlacement,
    *,
    shares_cpu: bool = False,
    order: RunOrder | None = None,
) -> Executor[Result]:
    """The executor for where a network runs: on the device, if it has a stream of its own there."""
    if infer.stream is None:
        DeviceDecoding.of(stages.decode, infer)  # raises where it was asked for
        return HostExecutor(infer, stages, capacity)
    with infer.charging():
        return CudaExecutor(infer, stages, capacity, placement, shares_cpu=shares_cpu, order=order)


class FollowingExecutor(Generic[Result]):
    """The executor of a network that may be swapped (`while_building`).

    Args:
        network: the network; `network.current()` serves.
        make: makes an executor for it.
    """

    def __init__(self, network: Infer, make: Callable[[Infer], Executor[Result]]) -> None:
        self._network, self._make = network, make
        self.executor = make(network.current())  # of the last call of current()
        self._released = False

    def current(self) -> Executor[Result]:
        """The executor of the network that serves now. Only while no batch of the last one is on its way."""
        infer = self._network.current()
        if self._released or infer is not self.executor.infer:
            if not self._released:
                self.executor.close()
            self.executor, self._released = self._make(infer), False
        return self.executor

    def release(self) -> None:
        """Frees what the executor holds; `current()` makes another one."""
        if not self._released:
            self.executor.close()
            self._released = True

    @property
    def is_outdated(self) -> bool:
        """Whether another network serves than the one that the last `current()` was for."""
        return self._network.current() is not self.executor.infer

    def close(self) -> None:
        self.release()


class FollowingBuffer(Generic[Result]):
    """A `BatchBuffer` of a pipeline over an executor.

    Args:
        network: the buffer's own; it is closed with it.
        make: makes an executor for it.
        canvases: of the model.
        check_parameters: raises ConfigError for parameters that a request cannot have.
    """

    def __init__(
        self,
        network: Infer,
        make: Callable[[Infer], Executor[Result]],
        canvases: CanvasSet,
        check_parameters: Callable[[Parameters], None],
    ) -> None:
        self._network, self._canvases, self._check_parameters = network, canvases, check_parameters
        self._canvas = canvases.sizes[-1]
        self._following = FollowingExecutor(network, make)
        self._executor = self._following.current()
        self._executor.open_rows()
        self.capacity = self._executor.capacity

    def prepares_quickly(self, item: Any) -> bool:
        return self._executor.prepares_quickly(item)

    def bucket_of(self, item: Any) -> tuple[int, int] | None:
        """The canvas that an image goes on.

        It is the whole one for addresses and for streams that cannot seek: their size is not known before they are
        read.
        """
        if not self._canvases.several:
            return None
        size = image_size(item, self._canvases.whole.channel_order)
        return self._canvases.sizes[-1] if size is None else self._canvases.of(size).input.size

    def set_bucket(self, bucket: Any) -> None:
        if bucket is not None:
            self._canvas = bucket
            self._executor.set_canvas(bucket)

    def buckets(self) -> Sequence[tuple[int, int] | None]:
        return self._canvases.sizes if self._canvases.several else (None,)

    def prepare(self, row: int, item: Any, parameters: Parameters) -> None:
        if parameters:
            self._check_parameters(parameters)
        self._executor.prepare(row, item, parameters)

    def move(self, source: int, target: int) -> None:
        self._executor.move(source, target)

    def run(self, count: int) -> None:
        self._executor.run_rows(count)

    def results(self, count: int) -> Sequence[Result]:
        return self._executor.row_results(count)

    def refresh(self) -> bool:
        executor = self._following.current()
        if executor is self._executor:
            return False
        self._executor = executor
        executor.open_rows()
        executor.set_canvas(self._canvas)
        return True

    def batch_sizes(self) -> Sequence[int]:
        return self._executor.infer.batch_sizes(self.capacity)

    def warm_up(self, count: int, example: Any = None) -> None:
        image = np.full((64, 64, 3), 114, np.uint8) if example is None else example
        for _ in range(self._executor.infer.runs_to_warm_up(count)):
            for row in range(count):
                self._executor.prepare(row, image, None)
            self.run(count)
            self.results(count)

    def close(self) -> None:
        self._following.close()
        self._network.close()
