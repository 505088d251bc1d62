"""Batches of images on a network that runs on the host, or that waits for its device by itself."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from ...ops import preprocess_into
from ...ops.batch import ImageBatch, shared_workers
from ..preprocessor import geometry_of_pixels, view_of
from .executor import BatchItem, HostOutputs, ModelStages, Parameters, Timings
from .placements import Placements

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...image import Geometry, HostImage
    from ...infer import Infer

__all__ = ["HostExecutor"]

Result = TypeVar("Result")


class HostExecutor(Generic[Result]):
    """See `Executor`. Images are preprocessed straight into the rows of the network's bound input.

    Args:
        infer: the network.
        stages: of the model.
        capacity: the most images in a batch.
    """

    def __init__(self, infer: Infer, stages: ModelStages[Result], capacity: int) -> None:
        self.infer, self.capacity = infer, capacity
        self.timings = Timings()
        self._stages = stages
        self._canvas = stages.preprocessor  # of the rows
        self._batch = ImageBatch(capacity)
        self._outputs = HostOutputs(infer)
        self._placements = Placements(stages.canvases)
        self._geometries: list[Geometry | None] = [None] * capacity
        self._parameters: list[Parameters] = [None] * capacity
        self._decoders: list[str | None] = [None] * capacity
        self._address = self._stride = 0  # of the first row of the input, and bytes from row to row

    def read(self, source: Any) -> HostImage:
        return self._stages.preprocessor.read(source)

    # ---- whole batches ----

    def run(self, batch: Sequence[BatchItem]) -> list[Result]:
        start = perf_counter()
        images: list[HostImage] = [item.image for item in batch]  # type: ignore[misc]
        preprocessor = self._stages.canvases.of(images[0].size)
        tensor = preprocessor.input.tensor(self.infer, len(images), self.capacity)
        address = tensor.host_ptr(read=False, write=True)
        geometries = preprocessor.write(images, address, tensor.nbytes, self._batch)
        results = self._forward(start, geometries, [item.parameters for item in batch])
        self._stages.name_decoders(results, [image.decoder for image in images])
        return results

    def run_one(self, source: Any, parameters: Parameters) -> Result:
        placed = self._placements.of(source)
        start = perf_counter()
        view, preprocessor, sampled, geometry, decoder = placed
        tensor = preprocessor.input.tensor(self.infer, 1, self.capacity)
        preprocess_into(view, sampled, preprocessor.transform, tensor.host_ptr(read=False, write=True), tensor.nbytes)
        results = self._forward(start, [geometry], [parameters])
        if decoder is not None:
            self._stages.name_decoders(results, [decoder])
        return results[0]

    def run_arrays(self, sources: Sequence[Any], parameters: Parameters) -> list[Result] | None:
        if self._stages.canvases.several or any(type(source) is not np.ndarray for source in sources):
            return None
        results: list[Result] = []
        for first in range(0, len(sources), self.capacity):
            results += self._run_arrays(sources[first : first + self.capacity], parameters)
        return results

    def _run_arrays(self, arrays: Sequence[Any], parameters: Parameters) -> list[Result]:
        """One batch."""
        start = perf_counter()
        preprocessor, count = self._stages.preprocessor, len(arrays)
        images, geometries = [], []
        for row, array in enumerate(arrays):
            placed = self._placements.of(array)
            self._batch.set_image(row, placed.view, placed.sampled)
            images.append(placed)  # its view may hold a copy of the pixels
            geometries.append(placed.geometry)
        tensor = preprocessor.input.tensor(self.infer, count, self.capacity)
        address = tensor.host_ptr(read=False, write=True)
        self._batch.preprocess(preprocessor.transform, address, tensor.nbytes, workers=shared_workers(), count=count)
        return self._forward(start, geometries, [parameters] * count)

    def _forward(self, start: float, geometries: Sequence[Geometry], parameters: Sequence[Parameters]) -> list[Result]:
        """Runs the model on the rows that were filled since `start`, and makes their results."""
        filled = perf_counter()
        self.infer.forward_rows()
        ran = perf_counter()
        results = self._results(geometries, parameters)
        timings = self.timings
        timings.preprocess += filled - start
        timings.infer += ran - filled
        timings.postprocess += perf_counter() - ran
        return results

    def stream(self, batches: Iterator[Sequence[BatchItem]]) -> Iterator[list[Result]]:
        for batch in batches:
            yield self.run(batch)

    def warm_up(self, count: int, canvas: tuple[int, int], source: Any) -> None:
        image, preprocessor = self.read(source), self._stages.canvases.on(canvas)
        geometry = preprocessor.geometry_of(image.size)
        for _ in range(self.infer.runs_to_warm_up(count)):
            preprocessor.input.tensor(self.infer, count, self.capacity).numpy(writable=True)[:] = 0
            self.infer.forward_rows()
            self._results([geometry] * count, [None] * count)

    # ---- rows of requests ----

    def open_rows(self) -> None:
        tensor = self._stages.preprocessor.input.tensor(self.infer, self.capacity, self.capacity)
        # What fits the capacity keeps its address, so it holds for smaller batches and canvases too.
        self._address = tensor.host_ptr(read=False, write=True)
        self.set_canvas(self._canvas.input.size)

    def set_canvas(self, canvas: tuple[int, int]) -> None:
        self._canvas = self._stages.canvases.on(canvas)
        self._stride = self._canvas.input.image_nbytes

    def prepares_quickly(self, item: Any) -> bool:
        return False

    def prepare(self, row: int, item: Any, parameters: Parameters) -> None:
        preprocessor = self._canvas
        image = preprocessor.read(item)
        geometry = preprocessor.geometry_of(image.size)
        address = self._address + row * self._stride
        sampled = geometry_of_pixels(image, geometry)
        preprocess_into(view_of(image), sampled, preprocessor.transform, address, self._stride)
        self._geometries[row], self._parameters[row], self._decoders[row] = geometry, parameters, image.decoder

    def move(self, source: int, target: int) -> None:
        rows_of: tuple[list[Any], ...] = (self._geometries, self._parameters, self._decoders)
        for values in rows_of:
            values[target] = values[source]
        rows = self._canvas.input.tensor(self.infer, self.capacity, self.capacity).numpy(writable=True)
        rows[target] = rows[source]

    def run_rows(self, count: int) -> None:
        tensor = self._canvas.input.tensor(self.infer, count, self.capacity)
        tensor.host_ptr(read=False, write=True)  # the rows were written through their address
        self.infer.forward_rows()

    def row_results(self, count: int) -> list[Result]:
        results = self._results(self._geometries[:count], self._parameters[:count])  # type: ignore[arg-type]
        self._stages.name_decoders(results, self._decoders[:count])
        return results

    def _results(self, geometries: Sequence[Geometry], parameters: Sequence[Parameters]) -> list[Result]:
        stages = self._stages
        if not stages.verified:
            stages.verify_once(self._outputs)
        if any(parameters):
            return stages.postprocess_rows(self._outputs, geometries, parameters)
        return stages.postprocess(self._outputs, geometries)

    def close(self) -> None:
        """It holds nothing of its own."""
