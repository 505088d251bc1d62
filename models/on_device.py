"""Batches on a CUDA device: pictures in, results out, without stopping in between.

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

from ..memory import is_page_locked
from ..ops import as_image
from ..ops.batch import PictureBatch, shared_workers
from ..pictures import DevicePicture, Picture
from ..tensor import Tensor

if TYPE_CHECKING:
    from ..infer import Infer
    from ..ops import Geometry
    from ..ops.batch import Workers
    from .vision import VisionModel

__all__ = ["DevicePath", "Stage", "Ways"]

#: Batches on their way at once: one is copied in, one runs, one is copied out.
SLOTS = 3


class Stage(Protocol):
    """What comes behind the model on a slot's stream."""

    def queue(self, geometries: Sequence[Geometry]) -> None:
        """Queues the postprocessing of a batch, and the copy of its results to the host."""

    def collect(self, geometries: Sequence[Geometry]) -> list[Any]:
        """Waits for that copy; one result a picture."""

    def close(self) -> None:
        """Frees what it holds."""


class _Slot:
    def __init__(self, model: VisionModel[Any], infer: Infer, capacity: int, beside: bool) -> None:
        assert infer.stream is not None
        self.network, self.stream = infer, infer.stream
        self._beside = beside
        self.device = self.stream.device
        self._model = model
        self._batch = PictureBatch(capacity)
        self._frames = Tensor((0,), "uint8", self.device)  # the pictures as they are: page-locked, and on the device
        self._stage = model._device_stage(infer, capacity)
        self._geometries: Sequence[Geometry] | None = None
        self._host = (-1, 0)  # where the input lies on the host, for its generation
        self._lent: list[DevicePicture] = []

    @property
    def _workers(self) -> Workers:
        return shared_workers(self.device.index, beside=self._beside)

    @property
    def busy(self) -> bool:
        return self._geometries is not None

    def begin(self, pictures: Sequence[Picture | DevicePicture], geometries: Sequence[Geometry], where: str) -> None:
        """Queues a batch; `where` its pictures are preprocessed: "device" or "host"."""
        model = self._model
        if isinstance(pictures[0], DevicePicture):
            self._lent = [p.on(self.stream) for p in pictures if isinstance(p, DevicePicture)]
            images = [p.view() for p in self._lent]
        else:
            images = [as_image(p.pixels, p.format) for p in pictures]  # type: ignore[arg-type, union-attr]
        self._batch.fill(images, geometries)
        tensor = model._input_of(self.network, len(images))
        self.bring(tensor, where if not self._lent else "stay")
        self.network.enqueue()
        self._stage.queue(geometries)
        self._geometries = geometries

    def bring(self, tensor: Tensor, where: str) -> None:
        """Queues the way of the batch's pictures into the model's input."""
        batch, transform, stream = self._batch, self._model._transform, self.stream
        if where == "host":
            if self._host[0] != tensor._generation:
                self._host = (tensor._generation, tensor.host_ptr(read=False, write=True))
            host = self._host[1]  # free to be written: the slot's last batch is done
            at = tensor.device_address(read=False, write=True, stream=stream)
            batch.preprocess(transform, host, tensor.nbytes, workers=self._workers, device=at, stream=stream)
            return
        if where == "device":
            nbytes = batch.upload_nbytes
            if nbytes > self._frames.nbytes:
                self._frames.resize((nbytes,))
            # Only ever used on this slot's stream, and by turns: the copies need no head.
            staging = self._frames.host_ptr(read=False, write=True)
            frames = self._frames.device_address(read=False, write=True, stream=stream)
            batch.upload(staging, frames, self._frames.nbytes, stream, workers=self._workers)
        else:
            batch.stay()
        at = tensor.device_address(read=False, write=True, stream=stream)
        batch.preprocess_on_device(transform, at, tensor.nbytes, self.device.index, stream)

    def measure(self, pictures: Sequence[Picture], geometries: Sequence[Geometry], where: str) -> float:
        """Seconds that bringing a batch in takes this way, waited for: the better of two, after one to warm up."""
        self._batch.fill([as_image(p.pixels, p.format) for p in pictures], geometries)  # type: ignore[arg-type]
        tensor = self._model._input_of(self.network, len(pictures))
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


class Ways:
    """What "auto" has measured for a model and its clones, by the size of a batch and whether it is page-locked."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, bool], str] = {}
        self.guard = Lock()


class DevicePath:
    """The slots of one wrapper; `beside` others, in a pipeline (see `shared_workers()`)."""

    def __init__(self, model: VisionModel[Any], capacity: int, preprocess: str, *, beside: bool) -> None:
        self._model = model
        self._capacity = capacity
        self._preprocess = preprocess
        self._ways = model._ways
        self._network = model.network.active  # these slots are for no other
        self._beside = beside
        self._slots = [_Slot(model, self._network, capacity, beside)]  # more when batches overlap
        self._turn = 0

    def run(self, batches: Iterator[Sequence[Picture | DevicePicture]]) -> Iterator[list[Any]]:
        """The results of each batch, in order, as few batches behind as there are slots."""
        begun: deque[_Slot] = deque()
        try:
            for pictures in batches:
                slot = self._next(len(begun))
                if slot.busy:
                    yield begun.popleft().finish()
                geometries = [self._model._geometry(p.size) for p in pictures]
                slot.begin(pictures, geometries, self._where(slot, pictures, geometries))
                begun.append(slot)
            while begun:
                yield begun.popleft().finish()
        finally:
            for slot in begun:  # a picture could not be read, or nobody wants the rest
                slot.finish()

    def run_one(self, pictures: Sequence[Picture | DevicePicture], geometries: Sequence[Geometry]) -> list[Any]:
        """The results of one batch, waited for."""
        slot = self._slots[0]
        slot.begin(pictures, geometries, self._where(slot, pictures, geometries))
        return slot.finish()

    def _next(self, begun: int) -> _Slot:
        """A free slot: a new one while there are few, else the one whose turn it is."""
        if begun == len(self._slots) < SLOTS:
            self._slots.append(_Slot(self._model, self._network.clone(), self._capacity, self._beside))
            self._turn = begun
        elif begun == 0:
            self._turn = 0
        slot = self._slots[self._turn]
        self._turn = (self._turn + 1) % SLOTS if len(self._slots) == SLOTS else self._turn + 1
        return slot

    def _where(self, slot: _Slot, pictures: Sequence[Picture | DevicePicture], geometries: Sequence[Geometry]) -> str:
        """Where the pictures are preprocessed; "auto" tries both once for each kind of batch."""
        if self._preprocess != "auto" or isinstance(pictures[0], DevicePicture):
            return self._preprocess
        hosts = [p for p in pictures if isinstance(p, Picture)]
        size = sum(p.pixels.nbytes for p in hosts)
        key = (size.bit_length(), is_page_locked(hosts[0].pixels))
        with self._ways.guard:
            if key not in self._ways.found:
                times = {where: slot.measure(hosts, geometries, where) for where in ("device", "host")}
                # About even, the device: that leaves the processor to others, to other devices' batches for one.
                self._ways.found[key] = "host" if times["host"] < 0.9 * times["device"] else "device"
            return self._ways.found[key]

    def close(self) -> None:
        for slot in self._slots:
            slot.close()
            if slot.network is not self._network:
                slot.network.close()
