"""The batch buffer of a wrapper: its rows are on the host here, or on a CUDA device (`cuda_buffer`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from ...errors import ConfigError
from ...ops import preprocess_into
from ...pipeline.batch_buffer import SideBySide
from ..preprocessor import geometry_of_pixels
from .stages import HostOutputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...image import Geometry
    from ...infer import Infer
    from ..preprocessor import ImageInput, Preprocessor
    from .cuda import CudaInstances
    from .cuda_buffer import CudaBuffer
    from .stages import ModelStages, Parameters

__all__ = ["HostBuffer", "ModelBuffer"]

Result = TypeVar("Result")


class HostBuffer(Generic[Result]):
    """The rows of a batch on the host. Images are preprocessed straight into the rows of the network's bound input.

    One thread at a time uses it; several threads write rows. `CudaBuffer` has the same methods.

    Args:
        infer: the network; it stays the caller's.
        stages: of the model.
        capacity: maximum number of images in a batch.

    Raises:
        ConfigError: the files are to be decoded on a CUDA device.
    """

    decodes = False  # files on the device

    def __init__(self, infer: Infer, stages: ModelStages[Result], capacity: int) -> None:
        if stages.decode == "gpu":
            raise ConfigError(
                f"decode='gpu' needs a model on a CUDA device, and {infer.model.name} is on {infer.device}; "
                "use decode='cpu' or decode='auto'"
            )
        self.infer, self.capacity = infer, capacity
        self._stages, self._canvas = stages, stages.preprocessor
        self._runs, self._outputs = SideBySide(infer), HostOutputs(infer)
        self._geometries: list[Geometry | None] = [None] * capacity
        self._parameters: list[Parameters] = [None] * capacity
        self._decoders: list[str | None] = [None] * capacity
        self._address = self._stride = 0  # of the first row of the input, and bytes from row to row
        self._begun = 0  # rows of the input, until it runs
        self.read = stages.preprocessor.read

    def prepares_quickly(self, item: Any) -> bool:
        """Whether reading and writing the item takes less time than waking up a thread."""
        return False

    def begin(self, canvas: Preprocessor, count: int) -> None:
        """The next rows are `count` images on this canvas, or fewer. Called while no row is in use."""
        self._canvas = canvas
        # What fits the count keeps its address, so it holds for smaller batches too.
        tensor = canvas.input.tensor(self.infer, count, self.capacity)
        self._address, self._stride = tensor.host_ptr(read=False, write=True), canvas.input.image_nbytes
        self._begun = count

    def write(self, row: int, image: Any, parameters: Parameters) -> None:
        """Writes an image that was read into a row."""
        preprocessor = self._canvas
        geometry = preprocessor.geometry_of(image.size)
        sampled = geometry if image.reduced_from is None else geometry_of_pixels(image, geometry)
        address = self._address + row * self._stride
        preprocess_into(image.view(), sampled, preprocessor.transform, address, self._stride)
        self._geometries[row], self._parameters[row], self._decoders[row] = geometry, parameters, image.decoder

    def decode(self, count: int) -> None:
        """They are decoded."""

    def move(self, source: int, target: int) -> None:
        rows_of: tuple[list[Any], ...] = (self._geometries, self._parameters, self._decoders)
        for values in rows_of:
            values[target] = values[source]
        rows = self._canvas.input.tensor(self.infer, self.capacity, self.capacity).numpy(writable=True)
        rows[target] = rows[source]

    def run(self, count: int) -> None:
        if self._begun != count:
            tensor = self._canvas.input.tensor(self.infer, count, self.capacity)
            tensor.host_ptr(read=False, write=True)  # the rows were written through their address
        self._begun = 0
        self._outputs.tensors = self._runs.forward()

    def wait(self) -> None:
        """`run()` has waited."""

    def results(self, count: int) -> list[Result]:
        """The results of these rows."""
        stages = self._stages
        geometries: Sequence[Any] = self._geometries[:count]
        parameters, decoders = self._parameters[:count], self._decoders[:count]
        if not stages.verified:
            stages.verify_once(self._outputs)
        if any(parameters):
            results = stages.postprocess_rows(self._outputs, geometries, parameters)
        else:
            results = stages.postprocess(self._outputs, geometries)
        return stages.with_decoders(results, decoders) if any(decoders) else results

    def warm_up(self, count: int, source: Any) -> None:
        """Runs `count` rows of an image until a further run takes no longer than usual."""
        image = self.read(source)
        for _ in range(self.infer.scheduling.warm_up_runs):
            for row in range(count):
                self.write(row, image, None)
            self.run(count)
            self.results(count)
            self._runs.warm_up()

    def close(self) -> None:
        self._runs.close()


class ModelBuffer(Generic[Result]):
    """A `BatchBuffer` of a wrapper. It follows a hot swap (`while_building`) between batches.

    Args:
        network: `network.current()` serves; None for a buffer on the instances of a device.
        owned: whether the network is closed with the buffer.
        input: of the network.
        stages: of the model.
        instances: returns those of the wrapper on a CUDA device.
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
        instances: Callable[[], CudaInstances],
        check_parameters: Callable[[Parameters], None],
        *,
        capacity: int | None = None,
        of_pipeline: bool = False,
    ) -> None:
        self._network, self._owned, self._input = network, owned, input
        self._stages, self._instances = stages, instances
        self._check_parameters, self._asked, self._of_pipeline = check_parameters, capacity, of_pipeline
        self._canvas = stages.preprocessor
        self._follow(self._current())

    def _current(self) -> Infer:
        """The network that serves now."""
        serving = self._instances().serving if self._network is None else self._network.current()
        assert serving is not None
        return serving

    def _follow(self, infer: Infer) -> None:
        """Makes the rows for this network."""
        self.serving = infer
        self.capacity = self._input.batch_limit(infer, self._asked)
        if infer.stream is None:
            self.rows: HostBuffer[Result] | CudaBuffer[Result] = HostBuffer(infer, self._stages, self.capacity)
        else:
            from .cuda_buffer import CudaBuffer

            instances = self._instances()
            self.rows = CudaBuffer(infer, instances, self._stages, self.capacity, self._of_pipeline)
            if self._network is not None:  # all buffers share a few instances there
                instances.add(self._network, self._owned, infer)
                self._network = None
        if self._of_pipeline:
            self._asked = self.capacity  # a pipeline counts on it
            self.rows.begin(self._canvas, self.capacity)

    def refresh(self) -> bool:
        infer = self._current()
        if infer is self.serving:
            return False
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
