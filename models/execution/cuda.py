"""Batches on a CUDA device: images in, results out, without stopping in between.

Several batches are in flight at a time. Each has a stream, a clone of the model, and memory of its own. On its stream
are queued, one after the other: the copy in, the preprocessing, the model, the postprocessing and one small copy out.
So the copies of one batch run while another's model does, and the host waits for a batch only when its memory is
needed again.
"""

from __future__ import annotations

import contextlib
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np

from ...errors import InferSDKError
from ...image import DeviceImage, HostImage, SharedImage
from ...image.uploads import bring_in
from ...ops.batch import ImageBatch, shared_workers
from ...stream import Event
from ..preprocessor import geometry_of_pixels, view_of
from .device_decoding import DeviceDecoding
from .executor import BatchItem, DevicePostprocess, HostOutputs, ModelStages, Parameters, Timings
from .image_uploads import HostAddress, ImageUploads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...image import Geometry
    from ...image.nvimgcodec import DecodedBatch, EncodedImage
    from ...infer import Infer
    from ...tensor import Tensor
    from .placement import PreprocessPlacement
    from .run_order import RunOrder

__all__ = ["CudaExecutor", "InFlightBatch"]

Result = TypeVar("Result")

#: Batches in flight at once: one is copied in, one runs, one is copied out.
IN_FLIGHT = 3
#: Image shapes that a batch of requests remembers.
KNOWN_SHAPES = 64
#: Rows that are copied ahead together. To queue the copies takes the thread that comes last 0.1 ms; with fewer rows it
#: takes more than is gained.
ROWS_AHEAD = 16


class FetchOutputs:
    """The postprocessing of a wrapper that has none for a device: the outputs are copied home, and the host does it."""

    def __init__(self, infer: Infer, stages: ModelStages[Any]) -> None:
        self._infer, self._stages = infer, stages

    def queue(self, geometries: Sequence[Geometry], parameters: Sequence[Parameters]) -> None:
        assert self._infer.stream is not None
        for tensor in self._infer.outputs.values():
            tensor.fetch(self._infer.stream)

    def collect(self, geometries: Sequence[Geometry], parameters: Sequence[Parameters]) -> list[Any]:
        return self._stages.postprocess_rows(HostOutputs(self._infer), geometries, parameters)

    def close(self) -> None:
        """It holds nothing of its own."""


class InFlightBatch:
    """One execution context with its stream and memory, and the batch that is on it.

    Args:
        infer: the context.
        stages: of the model.
        capacity: the most images in a batch.
        shares_cpu: see `shared_workers()`.
        order: of the runs on the device; None is whatever the device does.

    Attributes:
        uploads: of the images on the host.
    """

    def __init__(
        self, infer: Infer, stages: ModelStages[Any], capacity: int, shares_cpu: bool, order: RunOrder | None = None
    ) -> None:
        assert infer.stream is not None
        self.infer, self.stream = infer, infer.stream
        self._stages, self._capacity = stages, capacity
        self._workers = shared_workers(self.stream.device.index, shares_cpu=shares_cpu)
        self._batch = ImageBatch(capacity)
        self.uploads = ImageUploads(self._batch, self.stream, self._workers, may_copy_ahead=not infer.shares_stream)
        self._postprocess: DevicePostprocess = stages.device_postprocess(infer, capacity) or FetchOutputs(infer, stages)
        self._queued: tuple[Sequence[Geometry], Sequence[Parameters]] | None = None
        self._host_input = HostAddress()
        self._order = order
        self._run_end = Event(self.stream.device)
        self._borrowed: list[DeviceImage] = []
        self._decoders: list[str | None] = []

    @property
    def is_busy(self) -> bool:
        return self._queued is not None

    def begin(
        self,
        batch: Sequence[BatchItem],
        geometries: Sequence[Geometry],
        placement: PreprocessPlacement,
    ) -> None:
        """Queues a batch of images that all lie on the device, or all on the host."""
        try:
            with self.infer.charging(), self.infer.stream_guard:
                self._begin(batch, geometries, placement)
        except BaseException:
            self._return_borrowed()
            self.uploads.forget_ahead()
            raise

    def _begin(
        self, batch: Sequence[BatchItem], geometries: Sequence[Geometry], placement: PreprocessPlacement
    ) -> None:
        images: list[HostImage] = []
        if isinstance(batch[0].image, DeviceImage):
            self._borrow([cast("DeviceImage", item.image) for item in batch])
            self._batch.fill([image.view() for image in self._borrowed], geometries)
            location = "resident"
        else:
            images = [cast("HostImage", item.image) for item in batch]
            sampled = [geometry_of_pixels(image, geometry) for image, geometry in zip(images, geometries, strict=True)]
            location = placement.choose(images, lambda location: self.measure(images, sampled, location))
            self._batch.fill([view_of(image) for image in images], sampled)
        preprocessor = self._stages.canvases.on(geometries[0].canvas)
        tensor = preprocessor.input.tensor(self.infer, len(batch), self._capacity)
        self._bring_in(tensor, location, images, geometries)
        parameters = [item.parameters for item in batch]
        self._queue_run(geometries, parameters)
        self._queued = geometries, parameters
        self._decoders = [item.image.decoder for item in batch]

    def _borrow(self, images: list[DeviceImage]) -> None:
        """Borrows images on the device; those that models share are copied there together first."""
        self._borrowed = images
        if uploads := [image.upload for image in images if image.upload is not None]:
            bring_in(uploads, self.stream, self._workers)
        for image in images:
            image.on(self.stream)

    def _return_borrowed(self) -> None:
        """After an error: what reads the images may be queued still, and their memory is used again."""
        if self._borrowed:
            with contextlib.suppress(InferSDKError):  # the first error is reported
                self.stream.synchronize()
            self._borrowed = []

    def _queue_run(self, geometries: Sequence[Geometry], parameters: Sequence[Parameters]) -> None:
        """Queues the model and the postprocessing."""
        order = self._order
        if order is None:
            self.infer.enqueue()
        else:
            order.wait(self.stream)
            self.infer.enqueue()
            order.queued(self._run_end, self.stream)
        try:
            if not self._stages.verified:
                self._stages.verify_once(HostOutputs(self.infer))
            self._postprocess.queue(geometries, parameters)
        except BaseException:
            if order is not None:
                order.finished()
            raise

    def _bring_in(
        self, tensor: Tensor, location: str, images: Sequence[HostImage], geometries: Sequence[Geometry]
    ) -> None:
        """Queues what brings the batch's images into the model's input; `location` is where they are preprocessed."""
        batch, transform, stream = self._batch, self._stages.preprocessor.transform, self.stream
        if location == "host":
            host = self._host_input.of(tensor)
            at = tensor.device_ptr(read=False, write=True, stream=stream)
            batch.preprocess(transform, host, tensor.nbytes, workers=self._workers, device=at, stream=stream)
            return
        if location == "device":
            self.uploads.upload(images, geometries)
        else:
            batch.use_device_images()
        at = tensor.device_ptr(read=False, write=True, stream=stream)
        batch.preprocess_on_device(transform, at, tensor.nbytes, stream)

    def measure(self, images: Sequence[HostImage], geometries: Sequence[Geometry], location: str) -> float:
        """Seconds that bringing a batch in takes at this location: the better of two runs, after one to warm up."""
        self.uploads.forget_ahead()  # each run copies all
        self._batch.fill([view_of(image) for image in images], geometries)
        preprocessor = self._stages.canvases.on(geometries[0].canvas)
        tensor = preprocessor.input.tensor(self.infer, len(images), self._capacity)
        best = float("inf")
        for _ in range(3):
            start = perf_counter()
            self._bring_in(tensor, location, images, geometries)
            self.stream.synchronize()
            best = min(best, perf_counter() - start)
        return best

    def finish(self) -> list[Any]:
        """Waits for the batch that was begun; returns its results."""
        queued, self._queued = self._queued, None
        assert queued is not None
        try:
            with self.infer.stream_guard:
                results = self._postprocess.collect(*queued)
            self._borrowed = []
            self.uploads.ended()
        finally:
            self._return_borrowed()
            self.uploads.forget_ahead()
            if self._order is not None:
                self._order.finished()
        self._stages.name_decoders(results, self._decoders)
        return results

    def close(self) -> None:
        self._postprocess.close()
        self.uploads.close()


class CudaExecutor(Generic[Result]):
    """See `Executor`.

    Args:
        infer: the network; the first batch in flight uses it, others use clones of it.
        stages: of the model.
        capacity: the most images in a batch.
        placement: where images are preprocessed; shared by a model and its clones.
        shares_cpu: see `shared_workers()`.
        order: in which the device runs the batches of several executors, each with one in flight at a time.
    """

    def __init__(
        self,
        infer: Infer,
        stages: ModelStages[Result],
        capacity: int,
        placement: PreprocessPlacement,
        *,
        shares_cpu: bool = False,
        order: RunOrder | None = None,
    ) -> None:
        assert infer.stream is not None
        self.infer, self.capacity, self._device = infer, capacity, infer.stream.device
        self.timings = Timings()
        self._stages, self._placement, self._shares_cpu = stages, placement, shares_cpu
        self._canvas = stages.preprocessor  # of the rows
        self._decoding = DeviceDecoding.of(stages.decode, infer)
        self._contexts = [InFlightBatch(infer, stages, capacity, shares_cpu, order)]  # more when batches overlap
        self._next_context = 0
        self._items: list[BatchItem | None] = [None] * capacity
        self._geometries: list[Geometry | None] = [None] * capacity
        self._results: list[Any] = []
        # Frames repeat their shape: its format and geometry are looked up then.
        self._known: dict[tuple[int, ...], tuple[str, Geometry]] = {}

    def read(self, source: Any) -> HostImage | DeviceImage | EncodedImage:
        if isinstance(source, SharedImage):
            return self._read_shared(source)
        encoded = None if self._decoding is None else self._decoding.read(source)
        return self._stages.preprocessor.read_any(source) if encoded is None else encoded

    def _read_shared(self, source: SharedImage) -> HostImage | DeviceImage:
        preprocessor = self._stages.preprocessor
        if preprocessor.interpolation != "bilinear":  # it is resampled on the host
            return preprocessor.read(source)  # type: ignore[arg-type]
        return source.on_device(self._device, preprocessor.channel_order)

    # ---- whole batches ----

    def run(self, batch: Sequence[BatchItem]) -> list[Result]:
        start = perf_counter()
        decoded = None
        if self._decoding is not None:
            batch, decoded = self._decoding.decode(batch)
        results = self._run(batch, self._geometries_of(batch))
        self._recycle(decoded)
        self.timings.infer += perf_counter() - start
        return results

    def run_one(self, source: Any, parameters: Parameters) -> Result:
        return self.run([BatchItem(self.read(source), parameters)])[0]

    def run_arrays(self, sources: Sequence[Any], parameters: Parameters) -> list[Result] | None:
        return None  # `stream()` copies one batch while it runs another

    def stream(self, batches: Iterator[Sequence[BatchItem]]) -> Iterator[list[Result]]:
        begun: deque[tuple[InFlightBatch, DecodedBatch | None]] = deque()
        start = perf_counter()
        with contextlib.ExitStack() as stack:
            decoded_batches: Iterator[tuple[Sequence[BatchItem], DecodedBatch | None]]
            if self._decoding is None:
                decoded_batches = ((batch, None) for batch in batches)
            else:
                decoded_batches = stack.enter_context(self._decoding.ahead(batches))
            try:
                for batch, decoded in decoded_batches:
                    context = self._free_context(len(begun))
                    if context.is_busy:
                        yield self._finish(*begun.popleft())
                    context.begin(batch, self._geometries_of(batch), self._placement)
                    begun.append((context, decoded))
                while begun:
                    yield self._finish(*begun.popleft())
            finally:
                for context, _ in begun:  # an image could not be read, or the caller stopped asking
                    if context.is_busy:
                        context.finish()
                self.timings.infer += perf_counter() - start

    def warm_up(self, count: int, canvas: tuple[int, int], source: Any) -> None:
        batch, decoded = [BatchItem(self.read(source))] * count, None
        if self._decoding is not None:
            batch, decoded = self._decoding.decode(batch)
        preprocessor = self._stages.canvases.on(canvas)
        geometries = [preprocessor.geometry_of(item.image.size) for item in batch]
        for _ in range(self.infer.runs_to_warm_up(count)):
            self._run(batch, geometries)
        self._recycle(decoded)

    def _finish(self, context: InFlightBatch, decoded: DecodedBatch | None) -> list[Result]:
        results = context.finish()
        self._recycle(decoded)
        return results

    def _recycle(self, decoded: DecodedBatch | None) -> None:
        if self._decoding is not None:
            self._decoding.recycle(decoded)

    def _geometries_of(self, batch: Sequence[BatchItem]) -> list[Geometry]:
        """All on the canvas of the first image."""
        preprocessor = self._stages.canvases.of(batch[0].image.size)
        return [preprocessor.geometry_of(item.image.size) for item in batch]

    def _free_context(self, begun: int) -> InFlightBatch:
        """The next context in turn; a new one as long as there are few and all are busy."""
        if begun == len(self._contexts) < IN_FLIGHT:
            infer = self.infer.clone()
            try:
                with infer.charging():
                    context = InFlightBatch(infer, self._stages, self.capacity, self._shares_cpu)
            except BaseException:
                infer.close()
                raise
            self._contexts.append(context)
            self._next_context = begun
        elif begun == 0:
            self._next_context = 0
        context = self._contexts[self._next_context]
        following = self._next_context + 1
        self._next_context = following % IN_FLIGHT if len(self._contexts) == IN_FLIGHT else following
        return context

    def _run(self, batch: Sequence[BatchItem], geometries: Sequence[Geometry]) -> list[Result]:
        context = self._contexts[0]
        context.begin(batch, geometries, self._placement)
        return context.finish()

    # ---- rows of requests ----

    def open_rows(self) -> None:
        """There is nothing to prepare: rows hold images until the batch runs."""

    def set_canvas(self, canvas: tuple[int, int]) -> None:
        if canvas != self._canvas.input.size:
            self._canvas = self._stages.canvases.on(canvas)
            self._known = {}

    def prepares_quickly(self, item: Any) -> bool:
        # An image that is decoded is only kept here until the batch runs.
        if isinstance(item, SharedImage):
            return item.is_decoded
        return isinstance(item, (np.ndarray, HostImage)) or DeviceImage.is_one(item)

    def prepare(self, row: int, item: Any, parameters: Parameters) -> None:
        known = self._known.get(item.shape) if type(item) is np.ndarray else None
        if known is not None and item.dtype == np.uint8:
            self._items[row], self._geometries[row] = BatchItem(HostImage(item, known[0]), parameters), known[1]
        else:
            image = self.read(item)
            geometry = self._canvas.geometry_of(image.size)
            self._items[row], self._geometries[row] = BatchItem(image, parameters), geometry
            if isinstance(image, HostImage) and image.pixels is item and len(self._known) < KNOWN_SHAPES:
                self._known[item.shape] = image.format, geometry
        if row % ROWS_AHEAD == ROWS_AHEAD - 1:
            self._contexts[0].uploads.copy_ahead(self._items[: row + 1], self._geometries[: row + 1])

    def move(self, source: int, target: int) -> None:
        self._items[target], self._geometries[target] = self._items[source], self._geometries[source]

    def run_rows(self, count: int) -> None:
        """Images on the device and images on the host do not mix: two runs then, and the first one is waited for."""
        batch: list[BatchItem] = self._items[:count]  # type: ignore[assignment]
        geometries: list[Geometry] = self._geometries[:count]  # type: ignore[assignment]
        decoded = None
        if self._decoding is not None:
            batch, decoded = self._decoding.decode(batch)
            geometries = [
                geometry if geometry.source == item.image.size else self._canvas.geometry_of(item.image.size)
                for item, geometry in zip(batch, geometries, strict=True)
            ]
        self._results = [None] * count
        for kind in (HostImage, DeviceImage):
            if rows := [row for row, item in enumerate(batch) if isinstance(item.image, kind)]:
                context = self._contexts[0]
                context.begin([batch[row] for row in rows], [geometries[row] for row in rows], self._placement)
                for row, result in zip(rows, context.finish(), strict=True):
                    self._results[row] = result
        self._recycle(decoded)

    def row_results(self, count: int) -> list[Result]:
        results, self._results = self._results, []
        self._items[:count] = [None] * count
        return results

    def close(self) -> None:
        for context in self._contexts:
            if context.is_busy:  # of a stream that waits for its caller
                with contextlib.suppress(InferSDKError):
                    context.finish()
            context.close()
            if context.infer is not self.infer:
                context.infer.close()
