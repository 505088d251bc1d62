"""The batch buffer of a wrapper, on the host or on a CUDA device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from .cuda import CudaBuffer, CudaInstances
from .device_decoding import DeviceDecoding
from .host import HostBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...infer import Infer
    from ..preprocessor import ImageInput, Preprocessor
    from .stages import ModelStages, Parameters

__all__ = ["ModelBuffer"]

Result = TypeVar("Result")


class Rows(Protocol):
    """Rows on the host or on a device, for one thread at a time; several threads write rows.

    Attributes:
        decodes: whether files are decoded on the device.
    """

    decodes: bool

    def read(self, source: Any) -> Any:
        """The image that `source` is or names, where these rows can take it."""

    def prepares_quickly(self, item: Any) -> bool:
        """Whether reading and writing the item takes less time than waking up a thread."""

    def begin(self, canvas: Preprocessor, count: int) -> None:
        """The next rows are `count` images on this canvas, or fewer. Called while no row is in use."""

    def write(self, row: int, image: Any, parameters: Parameters) -> None:
        """Writes an image that was read into a row."""

    def decode(self, count: int) -> None:
        """Decodes the files among the first `count` rows on the device. `run()` does it otherwise."""

    def move(self, source: int, target: int) -> None: ...

    def run(self, count: int) -> None:
        """Runs the first `count` rows, or queues them on the device."""

    def wait(self) -> None:
        """Waits for the rows that were queued."""

    def results(self, count: int) -> list[Any]:
        """Waits, and returns the results of these rows."""

    def warm_up(self, count: int, source: Any) -> None:
        """Runs `count` rows of an image until a further run takes no longer than usual."""

    def close(self) -> None: ...


class ModelBuffer(Generic[Result]):
    """A `BatchBuffer` of a wrapper. It follows a hot swap (`while_building`) between batches.

    Args:
        network: `network.current()` serves; None for a buffer on the instances of a device.
        owned: whether the network is closed with the buffer.
        input: of the network.
        stages: of the model.
        instances: of the wrapper on a device.
        check_parameters: raises ConfigError for parameters that a request cannot have.
        capacity: maximum number of images in a batch; None is the largest batch of the network.
        of_pipeline: whether it belongs to a pipeline: `run()` then waits for the device.

    Attributes:
        capacity: the maximum number of images in a batch.
        serving: the network that serves.
    """

    def __init__(
        self,
        network: Infer | None,
        owned: bool,
        input: ImageInput,
        stages: ModelStages[Result],
        instances: CudaInstances,
        check_parameters: Callable[[Parameters], None],
        *,
        capacity: int | None = None,
        of_pipeline: bool = False,
    ) -> None:
        self._network, self._owned, self._input = network, owned, input
        self._stages, self._instances = stages, instances
        self._check_parameters, self._asked, self._of_pipeline = check_parameters, capacity, of_pipeline
        self._canvas = stages.preprocessor
        serving = instances.serving if network is None else network.current()
        assert serving is not None
        self._follow(serving)

    def _follow(self, infer: Infer) -> None:
        """Makes the rows for this network."""
        self.serving = infer
        self.capacity = self._input.batch_limit(infer, self._asked)
        if infer.stream is None:
            DeviceDecoding.of(self._stages.decode, infer)  # raises where the setting asks for a device
            self.rows: Rows = HostBuffer(infer, self._stages, self.capacity)
        else:
            self.rows = CudaBuffer(infer, self._instances, self._stages, self.capacity, self._of_pipeline)
            if self._network is not None:  # all buffers share a few instances there
                self._instances.add(self._network, self._owned, infer)
                self._network = None
        if self._of_pipeline:
            self._asked = self.capacity  # a pipeline counts on it
            self.rows.begin(self._canvas, self.capacity)

    def refresh(self) -> bool:
        infer = self._instances.serving if self._network is None else self._network.current()
        if infer is self.serving:
            return False
        assert infer is not None
        self.rows.close()
        self._follow(infer)
        return True

    # ---- rows ----

    def prepares_quickly(self, item: Any) -> bool:
        return self.rows.prepares_quickly(item)

    def bucket_of(self, item: Any) -> tuple[int, int] | None:
        return self._stages.bucket_of(item)

    def set_bucket(self, bucket: Any) -> None:
        if bucket is not None:
            self._canvas = self._stages.canvases.on(bucket)
            self.rows.begin(self._canvas, self.capacity)

    def buckets(self) -> Sequence[tuple[int, int] | None]:
        canvases = self._stages.canvases
        return canvases.sizes if canvases.several else (None,)

    def prepare(self, row: int, item: Any, parameters: Parameters) -> None:
        if parameters:
            self._check_parameters(parameters)
        self.rows.write(row, self.rows.read(item), parameters)

    def move(self, source: int, target: int) -> None:
        self.rows.move(source, target)

    def run(self, count: int) -> None:
        self.rows.run(count)
        if self._of_pipeline:
            self.rows.wait()

    def results(self, count: int) -> Sequence[Result]:
        return self.rows.results(count)

    # ---- the rest ----

    def batch_sizes(self) -> Sequence[int]:
        return self.serving.scheduling.batch_sizes(self.capacity)

    def warm_up(self, count: int, example: Any = None) -> None:
        image = np.full((64, 64, 3), 114, np.uint8) if example is None else example
        self.rows.warm_up(count, image)

    def close(self) -> None:
        self.rows.close()
        if self._network is not None and self._owned:
            self._network.close()
