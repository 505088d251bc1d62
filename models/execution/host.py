"""Batches on a network that runs on the host, or that waits for its device by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ...ops import preprocess_into
from ...pipeline.side_by_side import SideBySide
from ..preprocessor import geometry_of_pixels, view_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ...image import Geometry, HostImage
    from ...infer import Infer
    from ..preprocessor import Preprocessor
    from .stages import ModelStages, Parameters

__all__ = ["HostBuffer", "HostOutputs"]

Result = TypeVar("Result")


class HostOutputs(Mapping[str, "npt.NDArray[Any]"]):
    """A network's outputs as arrays on the host, each fetched when it is looked at. They are those of its last run.

    Attributes:
        tensors: the outputs by name.
    """

    def __init__(self, infer: Infer) -> None:
        self.tensors = infer.outputs

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.tensors[name].numpy()

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


class HostBuffer(Generic[Result]):
    """See `ModelBuffer`. Images are preprocessed straight into the rows of the network's bound input.

    Args:
        infer: the network; it stays the caller's.
        stages: of the model.
        capacity: maximum number of images in a batch.
    """

    decodes = False

    def __init__(self, infer: Infer, stages: ModelStages[Result], capacity: int) -> None:
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
        return False

    def begin(self, canvas: Preprocessor, count: int) -> None:
        self._canvas = canvas
        # What fits the count keeps its address, so it holds for smaller batches too.
        tensor = canvas.input.tensor(self.infer, count, self.capacity)
        self._address, self._stride = tensor.host_ptr(read=False, write=True), canvas.input.image_nbytes
        self._begun = count

    def write(self, row: int, image: HostImage, parameters: Parameters) -> None:
        preprocessor = self._canvas
        geometry = preprocessor.geometry_of(image.size)
        sampled = geometry if image.reduced_from is None else geometry_of_pixels(image, geometry)
        address = self._address + row * self._stride
        preprocess_into(view_of(image), sampled, preprocessor.transform, address, self._stride)
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
        image = self.read(source)
        for _ in range(self.infer.scheduling.warm_up_runs):
            for row in range(count):
                self.write(row, image, None)
            self.run(count)
            self.results(count)
            self._runs.warm_up()

    def close(self) -> None:
        self._runs.close()
