"""Batches on a CUDA device, from images to results.

The calls, streams and requests of a wrapper share a few execution contexts (`CudaInstances`). Each has a stream and
memory of its own. On its stream are queued, one after the other: the copy in, the preprocessing, the model, the
postprocessing and one small copy out. So the copies of one batch run while another batch is on the model.

A batch takes an instance when it runs, and any thread may wait for its end and collect its results. A thread that needs
an instance ends the oldest batch, so an instance is never held by a thread that waits for something else.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from ...core.memory import is_page_locked
from ...core.memory_limit import charging
from ...core.tensor import Tensor
from ...errors import ClosedError, InferSDKError
from ...image import DeviceImage, HostImage
from ...image.batch import ImageBatch, shared_workers
from ...image.uploads import bring_in
from ..preprocessor import geometry_of_pixels
from .buffer import Outputs
from .placement import LocationCost, WholeBatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from ...image import Geometry, ImageView
    from ...image.batch import Workers
    from ...infer import Infer
    from .buffer import DevicePostprocess, ModelStages, Parameters, Row

__all__ = ["CudaInstance", "CudaInstances", "CudaRun"]

#: Instances of a wrapper: one batch is copied in, one runs, one is copied out.
INSTANCES = 3


class FetchOutputs:
    """The postprocessing of a wrapper that has none for a device: the outputs are copied to the host, which does it."""

    def __init__(self, infer: Infer, stages: ModelStages[Any]) -> None:
        self._infer, self._stages = infer, stages

    def queue(self, geometries: Sequence[Geometry], parameters: Sequence[Parameters]) -> None:
        assert self._infer.stream is not None
        for tensor in self._infer.outputs.values():
            tensor.fetch(self._infer.stream)

    def collect(self, geometries: Sequence[Geometry], parameters: Sequence[Parameters]) -> list[Any]:
        return self._stages.results(Outputs(self._infer.outputs), geometries, parameters)

    def close(self) -> None:
        """It holds nothing of its own."""


class CudaInstance:
    """An execution context with its stream and memory, and the batch that is on it. One thread at a time.

    The context stays the caller's.
    """

    def __init__(self, infer: Infer, stages: ModelStages[Any], capacity: int) -> None:
        assert infer.stream is not None
        self.infer, self.capacity, self.stream = infer, capacity, infer.stream
        self._stages, self._batch = stages, ImageBatch(capacity)
        self._images = Tensor((0,), "uint8", self.stream.device)  # unprocessed images, for the upload
        self._postprocess: DevicePostprocess = stages.device_postprocess(infer, capacity) or FetchOutputs(infer, stages)
        self._rows: Sequence[Row] = ()
        self._borrowed: list[DeviceImage] = []
        self._measured: WholeBatch | None = None
        self._sizes_run: set[tuple[int, tuple[int, int]]] = set()

    def queue(self, rows: Sequence[Row], workers: Workers) -> None:
        """Queues a batch of images that all lie on the device, or all on the host."""
        try:
            with charging(self.infer.memory_budget), self.infer.scheduling.stream_guard:
                self._queue(rows, workers)
        except BaseException:
            self._return_borrowed()
            raise

    def _queue(self, rows: Sequence[Row], workers: Workers) -> None:
        self._rows, self._measured = rows, None
        geometries = [row.geometry for row in rows]
        if isinstance(rows[0].image, DeviceImage):
            self._batch.fill(self._borrow([cast("DeviceImage", row.image) for row in rows], workers), geometries)
            location = "resident"
        else:
            images = [cast("HostImage", row.image) for row in rows]
            sampled = [geometry_of_pixels(image, geometry) for image, geometry in zip(images, geometries, strict=True)]
            self._batch.fill([image.view() for image in images], sampled)
            location = self._location(images, geometries[0].canvas, workers)
        started = perf_counter()
        self._bring_in(location, rows[0].geometry.canvas, len(rows), workers)
        if self._measured is not None:
            self.stream.synchronize()
            started = perf_counter()
        self.infer.enqueue()
        if not self._stages.verified:
            outputs: Mapping[str, npt.NDArray[Any]] = Outputs(self.infer.outputs)
            if len(rows) < self.infer.inputs[self._stages.preprocessor.input.spec.name].shape[0]:
                outputs = {name: array[: len(rows)] if array.ndim else array for name, array in outputs.items()}
            self._stages.verify_once(outputs)
        self._postprocess.queue(geometries, [row.parameters for row in rows])
        if self._measured is not None:
            self._measured.queue = perf_counter() - started
            self.stream.synchronize()
            self._measured.device = perf_counter() - started
        self._sizes_run.add((len(rows), rows[0].geometry.canvas))

    def _borrow(self, images: list[DeviceImage], workers: Workers) -> list[ImageView]:
        """The views of images on the device; those that models share are copied there together first."""
        self._borrowed = images
        if uploads := [image.upload for image in images if image.upload is not None]:
            bring_in(uploads, self.stream, workers)
        return [image.on(self.stream) for image in images]

    def _return_borrowed(self) -> None:
        """After an error: queued work may still read the images, and their memory is used again."""
        if self._borrowed:
            with contextlib.suppress(InferSDKError):  # the first error is reported
                self.stream.synchronize()
            self._borrowed = []

    def _bring_in(self, location: str, canvas: tuple[int, int], count: int, workers: Workers) -> None:
        """Queues what brings the images of the batch into the model's input; `location` is where they are preprocessed.

        Args:
            count: images whose rows the input has.
        """
        batch, transform, stream = self._batch, self._stages.preprocessor.transform, self.stream
        tensor = self._stages.canvases.on(canvas).input.tensor(self.infer, count, self.capacity)
        if location == "host":
            host = tensor.host_ptr(read=False, write=True)
            at = tensor.device_ptr(read=False, write=True, stream=stream)
            batch.preprocess(transform, host, tensor.nbytes, workers=workers, device=at, stream=stream)
            return
        if location == "device":
            self._upload(workers)
        else:
            batch.use_device_images()
        at = tensor.device_ptr(read=False, write=True, stream=stream)
        batch.preprocess_on_device(transform, at, tensor.nbytes, stream)

    def _upload(self, workers: Workers) -> None:
        """Queues the copies of the images to the device, straight from memory that is page-locked."""
        memory, nbytes = self._images, self._batch.upload_nbytes()
        if nbytes > memory.nbytes:
            memory.resize((nbytes,))
        staging = memory.host_ptr(read=False, write=True)
        at = memory.device_ptr(read=False, write=True, stream=self.stream)
        self._batch.upload(staging, at, memory.nbytes, self.stream, workers=workers)

    # ---- where images are preprocessed ----

    def _location(self, images: Sequence[HostImage], canvas: tuple[int, int], workers: Workers) -> str:
        if self._stages.preprocess != "auto":
            return self._stages.preprocess
        kind = sum(image.pixels.nbytes for image in images).bit_length(), is_page_locked(images[0].pixels)
        if kind in self._stages.locations:
            return self._stages.locations[kind]
        if (len(images), canvas) not in self._sizes_run:
            return "host"  # the first run of a size takes longer, so it is not measured; images take no device memory
        costs = {place: self._cost(place, canvas, len(images), workers) for place in ("device", "host")}
        self._measured = WholeBatch(kind, costs)
        return self._measured.faster_alone

    def _cost(self, location: str, canvas: tuple[int, int], count: int, workers: Workers) -> LocationCost:
        """Seconds that bringing the images in takes at this location: the second of two runs."""
        for _ in range(2):
            start = perf_counter()
            self._bring_in(location, canvas, count, workers)
            queued = perf_counter()
            self.stream.synchronize()
            cost = LocationCost(queued - start, perf_counter() - start)
        return cost

    # ---- results ----

    def collect(self) -> list[Any]:
        """Waits for the batch that was queued; returns its results."""
        rows, self._rows = self._rows, ()
        started = perf_counter()
        try:
            with self.infer.scheduling.stream_guard:
                results = self._postprocess.collect([row.geometry for row in rows], [row.parameters for row in rows])
            self._borrowed = []
            self._batch.fill((), ())  # it keeps the images of the callers
        finally:
            self._return_borrowed()
        if self._measured is not None:
            self._measured.collect = perf_counter() - started
            self._stages.locations[self._measured.kind] = self._measured.faster()
            self._measured = None
        return self._stages.with_decoders(results, [row.image.decoder for row in rows])

    def close(self) -> None:
        self._postprocess.close()
        self._images.close()


class _Slot:
    """A place for an instance in `CudaInstances`: a network, which may be swapped (`while_building`).

    Args:
        network: `network.current()` serves; None is a clone that is made when it is first needed.
    """

    def __init__(self, network: Infer | None) -> None:
        self.network = network
        self.instance: CudaInstance | None = None

    def release(self) -> None:
        """Frees the instance; the network remains."""
        instance, self.instance = self.instance, None
        if instance is not None:
            instance.close()


class CudaRun:
    """A batch that is queued on an instance, until its results are collected.

    Any thread may end it; the first one that does so collects the results for all.
    """

    def __init__(self, instances: CudaInstances, slot: _Slot, instance: CudaInstance) -> None:
        self._instances, self._slot, self._instance = instances, slot, instance
        self._lock = threading.Lock()
        self._ended = False
        self._results: list[Any] = []
        self._error: BaseException | None = None

    def end(self) -> None:
        """Waits for the device, collects the results, and gives the instance back."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            try:
                self._results = self._instance.collect()
            except BaseException as error:
                self._error = error
                if not isinstance(error, Exception):  # Ctrl-C is for the thread that is here
                    raise
            finally:
                self._instances.give_back(self._slot, self)

    def results(self) -> list[Any]:
        """The results, waited for. Raises what made the batch fail."""
        self.end()
        if self._error is not None:
            raise self._error
        return self._results


class CudaInstances:
    """The instances of a wrapper, which its calls, streams and requests share. Any number of threads may use it.

    They are made when they are first needed, on clones of the network, which is not closed here.

    Attributes:
        serving: the network of the instance that was made last; None before the first network was added.
    """

    def __init__(self, network: Infer, stages: ModelStages[Any]) -> None:
        self._network, self._stages = network, stages
        # `with` takes the lock itself: Ctrl-C in the Python code of a condition would leave it locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # Of the thread that waits for a slot. One that has just given a slot back waits behind it.
        self._turn = threading.RLock()
        self._slots: list[_Slot] = []
        self._idle: list[_Slot] = []
        self._queued: deque[CudaRun] = deque()  # the oldest one first
        self.serving: Infer | None = None
        self._capacity = 0
        self._closed = False
        self._warming = threading.Lock()
        self._warm: set[tuple[Any, ...]] = set()  # what `warm_up()` has run

    def add(self, network: Infer, serving: Infer) -> None:
        """Gives it a network for an instance, of which `serving` serves now. A clone that is not needed is closed."""
        with self._lock:
            needed = not self._closed and len(self._slots) < INSTANCES
            if needed:
                self.serving = serving  # not one that is closed below
                slot = _Slot(network)
                self._slots.append(slot)
                self._idle.append(slot)
                self._changed.notify()
        if not needed and network is not self._network:
            network.close()

    def reserve(self, capacity: int) -> None:
        """Raises the capacity of instances to this number of images."""
        self._capacity = max(self._capacity, capacity)

    def queue(self, rows: Sequence[Row], shares_cpu: bool) -> CudaRun:
        """Queues a batch, as soon as an instance is free.

        Raises:
            ClosedError: the model was closed.
        """
        slot = self._take()
        try:
            instance = self._current(slot)
            instance.queue(rows, shared_workers(instance.stream.device.index, shares_cpu=shares_cpu))
            run = CudaRun(self, slot, instance)
            with self._lock:
                self._queued.append(run)
                self._changed.notify_all()
            return run
        except BaseException:
            self.give_back(slot)
            raise

    def _current(self, slot: _Slot) -> CudaInstance:
        """The instance of a slot, on the network that serves now."""
        if slot.network is None:
            slot.network = self._network.clone()
        infer, instance = slot.network.current(), slot.instance
        if instance is None or instance.infer is not infer or instance.capacity < self._capacity:
            slot.release()
            with charging(infer.memory_budget):
                slot.instance = instance = CudaInstance(infer, self._stages, self._capacity)
            self.serving = infer
        return instance

    def _take(self) -> _Slot:
        with self._turn:
            while True:
                with self._lock:
                    self._check_open()
                    if self._idle:
                        return self._idle.pop()
                    if len(self._slots) < INSTANCES:
                        slot = _Slot(None)
                        self._slots.append(slot)
                        return slot
                    oldest = self._queued[0] if self._queued else None
                    if oldest is None:  # other threads are about to queue theirs
                        self._changed.wait()
                if oldest is not None:
                    oldest.end()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the {self._network.backend} model {self._network.model.name} was closed; load it again")

    def give_back(self, slot: _Slot, run: CudaRun | None = None) -> None:
        """The batch that had this slot has ended."""
        with self._lock:
            if run is not None:
                self._queued.remove(run)
            self._idle.append(slot)
            self._changed.notify_all()

    def warm_up(self, rows: Sequence[Row], shares_cpu: bool) -> None:
        """Runs a batch on each instance, until a further run takes no longer than usual."""
        image = rows[0].image
        locked = isinstance(image, HostImage) and is_page_locked(image.pixels)
        key = (len(rows), rows[0].geometry.canvas, type(image), image.size, locked)
        with self._warming:
            if key in self._warm:
                return
            slots: list[_Slot] = []
            try:
                while len(slots) < INSTANCES:
                    slots.append(self._take())
                for slot in slots:
                    # One more: in the second run it is measured where images are preprocessed.
                    for _ in range(self._current(slot).infer.scheduling.warm_up_runs + 1):
                        instance = self._current(slot)
                        instance.queue(rows, shared_workers(instance.stream.device.index, shares_cpu=shares_cpu))
                        instance.collect()
            finally:
                for slot in slots:
                    self.give_back(slot)
            self._warm.add(key)

    def release(self) -> None:
        """Waits for the batches that are queued, and frees all instances. The next batch makes them again."""
        for slot in self._emptied():
            self._free(slot)
            if slot.network is self._network:
                self.add(self._network, self._network)
        self._warm.clear()

    def close(self) -> None:
        """As `release()`; later batches are refused."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        for slot in self._emptied():
            self._free(slot)

    def _free(self, slot: _Slot) -> None:
        """Frees the instance of a slot, and closes its network, if that is a clone."""
        slot.release()
        if slot.network is not None and slot.network is not self._network:
            slot.network.close()

    def _emptied(self) -> list[_Slot]:
        """All slots, once no batch is on them; none is left here."""
        while True:
            with self._lock:
                if len(self._idle) == len(self._slots):
                    slots, self._slots, self._idle = self._slots, [], []
                    return slots
                oldest = self._queued[0] if self._queued else None
                if oldest is None:
                    self._changed.wait()
            if oldest is not None:
                oldest.end()
