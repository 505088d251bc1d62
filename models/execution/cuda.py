"""Batches on a CUDA device: images in, results out, without stopping in between.

Several slots take turns. Each has a stream, a clone of the model, and memory of its own; on its stream stand, one
behind the other, the copy in, the preprocessing, the model, the postprocessing and one small copy out. So the copies
of one slot run while another's model does, and the host waits for a slot only when its turn comes again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from ...image import DeviceImage, HostImage, image_view
from ...memory import is_page_locked
from ...ops.batch import ImageBatch, shared_workers
from ...tensor import Tensor

if TYPE_CHECKING:
    from ...image import Geometry
    from ...infer import Infer
    from ...ops.batch import Workers
    from ..vision import VisionModel

__all__ = ["CudaExecutor", "PreprocessPlacement", "Stage"]

#: Batches on their way at once: one is copied in, one runs, one is copied out.
SLOTS = 3


class Stage(Protocol):
    """What comes behind the model on a slot's stream."""

    def queue(self, geometries: Sequence[Geometry]) -> None:
        """Queues the postprocessing of a batch, and the copy of its results to the host."""

    def collect(self, geometries: Sequence[Geometry]) -> list[Any]:
        """Waits for that copy; one result an image."""

    def close(self) -> None:
        """Frees what it holds."""


class InFlightBatch:
    def __init__(self, model: VisionModel[Any], infer: Infer, capacity: int, shares_cpu: bool) -> None:
        assert infer.stream is not None
        self.network, self.stream = infer, infer.stream
        self._shares_cpu = shares_cpu
        self.device = self.stream.device
        self._model = model
        self._batch = ImageBatch(capacity)
        self._frames = Tensor((0,), "uint8", self.device)  # the images as they are: page-locked, and on the device
        self._stage = model._device_stage(infer, capacity)
        self._geometries: Sequence[Geometry] | None = None
        self._host = (-1, 0)  # where the input lies on the host, for its generation
        self._lent: list[DeviceImage] = []

    @property
    def _workers(self) -> Workers:
        return shared_workers(self.device.index, shares_cpu=self._shares_cpu)

    @property
    def busy(self) -> bool:
        return self._geometries is not None

    def begin(self, images: Sequence[HostImage | DeviceImage], geometries: Sequence[Geometry], where: str) -> None:
        """Queues a batch; `where` its images are preprocessed: "device" or "host"."""
        model = self._model
        if isinstance(images[0], DeviceImage):
            self._lent = [p.on(self.stream) for p in images if isinstance(p, DeviceImage)]
            views = [p.view() for p in self._lent]
        else:
            views = [image_view(p.pixels, p.format) for p in images]  # type: ignore[arg-type, union-attr]
        self._batch.fill(views, geometries)
        tensor = model._input_of(self.network, len(views))
        self.bring(tensor, where if not self._lent else "stay")
        self.network.enqueue()
        self._stage.queue(geometries)
        self._geometries = geometries

    def bring(self, tensor: Tensor, where: str) -> None:
        """Queues the way of the batch's images into the model's input."""
        batch, transform, stream = self._batch, self._model._transform, self.stream
        if where == "host":
            if self._host[0] != tensor._generation:
                self._host = (tensor._generation, tensor.host_ptr(read=False, write=True))
            host = self._host[1]  # free to be written: the slot's last batch is done
            at = tensor.device_ptr(read=False, write=True, stream=stream)
            batch.preprocess(transform, host, tensor.nbytes, workers=self._workers, device=at, stream=stream)
            return
        if where == "device":
            nbytes = batch.upload_nbytes
            if nbytes > self._frames.nbytes:
                self._frames.resize((nbytes,))
            # Only ever used on this slot's stream, and by turns: the copies need no head.
            staging = self._frames.host_ptr(read=False, write=True)
            frames = self._frames.device_ptr(read=False, write=True, stream=stream)
            batch.upload(staging, frames, self._frames.nbytes, stream, workers=self._workers)
        else:
            batch.stay()
        at = tensor.device_ptr(read=False, write=True, stream=stream)
        batch.preprocess_on_device(transform, at, tensor.nbytes, stream)

    def measure(self, images: Sequence[HostImage], geometries: Sequence[Geometry], where: str) -> float:
        """Seconds that bringing a batch in takes this way, waited for: the better of two, after one to warm up."""
        self._batch.fill([image_view(p.pixels, p.format) for p in images], geometries)  # type: ignore[arg-type]
        tensor = self._model._input_of(self.network, len(images))
        best = float("inf")
        for _ in range(3):
            start = perf_counter()
            self.bring(tensor, where)
            self.stream.synchronize()
            best = min(best, perf_counter() - start)
        return best

    def finish(self) -> list[Any]:
        """The results of the batch that was begun; waits for it."""
        geometries, self._geometries = self._geometries, None
        assert geometries is not None
        try:
            return self._stage.collect(geometries)
        finally:
            self._lent = []

    def close(self) -> None:
        self._stage.close()
        self._frames.close()


class PreprocessPlacement:
    """What "auto" has measured for a model and its clones, by the size of a batch and whether it is page-locked."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, bool], str] = {}
        self.guard = Lock()


class CudaExecutor:
    """The slots of one wrapper; `beside` others, in a pipeline (see `shared_workers()`)."""

    def __init__(self, model: VisionModel[Any], capacity: int, preprocess: str, *, shares_cpu: bool) -> None:
        self._model = model
        self._capacity = capacity
        self._preprocess = preprocess
        self._placement = model._placement
        self._network = model.network.active  # these slots are for no other
        self._shares_cpu = shares_cpu
        self._slots = [InFlightBatch(model, self._network, capacity, shares_cpu)]  # more when batches overlap
        self._turn = 0

    def run(self, batches: Iterator[Sequence[HostImage | DeviceImage]]) -> Iterator[list[Any]]:
        """The results of each batch, in order, as few batches behind as there are slots."""
        begun: deque[InFlightBatch] = deque()
        try:
            for images in batches:
                slot = self._next(len(begun))
                if slot.busy:
                    yield begun.popleft().finish()
                geometries = [self._model._geometry(p.size) for p in images]
                slot.begin(images, geometries, self._where(slot, images, geometries))
                begun.append(slot)
            while begun:
                yield begun.popleft().finish()
        finally:
            for slot in begun:  # an image could not be read, or nobody wants the rest
                slot.finish()

    def run_one(self, images: Sequence[HostImage | DeviceImage], geometries: Sequence[Geometry]) -> list[Any]:
        """The results of one batch, waited for."""
        slot = self._slots[0]
        slot.begin(images, geometries, self._where(slot, images, geometries))
        return slot.finish()

    def _next(self, begun: int) -> InFlightBatch:
        """A free slot: a new one while there are few, else the one whose turn it is."""
        if begun == len(self._slots) < SLOTS:
            self._slots.append(InFlightBatch(self._model, self._network.clone(), self._capacity, self._shares_cpu))
            self._turn = begun
        elif begun == 0:
            self._turn = 0
        slot = self._slots[self._turn]
        self._turn = (self._turn + 1) % SLOTS if len(self._slots) == SLOTS else self._turn + 1
        return slot

    def _where(
        self, slot: InFlightBatch, images: Sequence[HostImage | DeviceImage], geometries: Sequence[Geometry]
    ) -> str:
        """Where the images are preprocessed; "auto" tries both once for each kind of batch."""
        if self._preprocess != "auto" or isinstance(images[0], DeviceImage):
            return self._preprocess
        hosts = [p for p in images if isinstance(p, HostImage)]
        size = sum(p.pixels.nbytes for p in hosts)
        key = (size.bit_length(), is_page_locked(hosts[0].pixels))
        with self._placement.guard:
            if key not in self._placement.found:
                times = {where: slot.measure(hosts, geometries, where) for where in ("device", "host")}
                # About even, the device: that leaves the processor to others, to other devices' batches for one.
                self._placement.found[key] = "host" if times["host"] < 0.9 * times["device"] else "device"
            return self._placement.found[key]

    def close(self) -> None:
        for slot in self._slots:
            slot.close()
            if slot.network is not self._network:
                slot.network.close()
