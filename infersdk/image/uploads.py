"""Images of the host that several models read on a CUDA device: each is copied there once.

The first batch that needs images copies all of them together, in one native call, into one block of memory: on several
threads, through page-locked memory where theirs is not. Other batches wait for that copy on the device. A block is used
again when the last of its images is gone, so nothing is allocated from frame to frame.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.stream import Event, Stream, default_stream
from ..core.tensor import Tensor
from ..errors import ImageError
from .batch import ImageBatch
from .geometry import Geometry
from .images import image_view

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..core.device import Device
    from .batch import Workers

__all__ = ["Upload", "UploadPools", "bring_in"]


class _Block:
    """Memory for the images of one upload: page-locked on the host, and on the device."""

    def __init__(self, device: Device) -> None:
        self._tensor = Tensor((0,), "uint8", device)
        self.copied = Event(device)
        self.nbytes = self.host = self.at = 0

    def reserve(self, nbytes: int) -> None:
        """Allocates this number of bytes, unless it has them. Only while nothing uses the block."""
        if nbytes > self.nbytes:
            self.nbytes = 0
            self._tensor.resize((nbytes,))
            # Without a stream: `copied` orders the work on the block, and the tensor knows of none.
            self.host = self._tensor.host_ptr(read=False, write=True)
            self.at = self._tensor.device_ptr(read=False, write=True)
            self.nbytes = nbytes


class _Lease:
    """A block in use, until the last image in it is gone.

    Attributes:
        streams: whose further work comes after the copies: the one that they are queued on, and those that wait.
    """

    __slots__ = ("_free", "block", "streams")

    def __init__(self, block: _Block, stream: Stream, free: list[_Block]) -> None:
        self.block, self.streams, self._free = block, {stream}, free

    def __del__(self) -> None:
        self._free.append(self.block)  # atomic: any thread may get here, at any moment


class Upload:
    """The pixels of an image on a device. They are copied there by the first `bring_in()`.

    Args:
        pixels: uint8 on the host. They do not change as long as something borrows the copy.
        pool: of the device.

    Attributes:
        shape: of the pixels; on the device they are dense.
    """

    __slots__ = ("_at", "_lease", "pixels", "pool", "shape")

    def __init__(self, pixels: npt.NDArray[np.uint8], pool: _Pool) -> None:
        self.pixels, self.pool, self.shape = np.ascontiguousarray(pixels), pool, pixels.shape
        self._lease: _Lease | None = None
        self._at = 0

    def on(self, stream: Stream) -> int:
        """The address on the device, for work on `stream`, which waits for the copy.

        The caller keeps the upload until that work is done: then its memory is used again.
        """
        if self._lease is None or stream not in self._lease.streams:
            bring_in([self], stream)
        return self._at

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.pool.device.index

    def __dlpack__(self, **options: Any) -> Any:
        """For other libraries. Waits for the copy."""
        stream = default_stream(self.pool.device)
        at = self.on(stream)
        stream.synchronize()
        return Tensor._over(at, self.shape, "uint8", self.pool.device, lender=self).__dlpack__(**options)


class _Pool:
    """The blocks of one device. Any number of threads may use it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._lock = threading.Lock()
        self._free: list[_Block] = []
        self._largest = 1  # bytes of an upload so far
        self._batch = ImageBatch(0)

    def bring_in(self, uploads: Sequence[Upload], stream: Stream, workers: Workers | None) -> None:
        """See the function of this name. All uploads are of this pool."""
        if stream.device != self.device:
            raise ImageError(f"the image is for {self.device}, the model on {stream.device}; copy it there")
        if any(upload._lease is None for upload in uploads):
            with self._lock:
                if missing := [upload for upload in uploads if upload._lease is None]:
                    self._copy(list(dict.fromkeys(missing)), stream, workers)
        # Without the lock: another thread may hold it for the time of a copy.
        for lease in {upload._lease for upload in uploads}:
            if lease is not None and stream not in lease.streams:
                stream.wait(lease.block.copied)
                lease.streams.add(stream)

    def _copy(self, uploads: list[Upload], stream: Stream, workers: Workers | None) -> None:
        """Queues the copies of images that have none yet. Under the lock."""
        if len(uploads) > self._batch.capacity:
            self._batch = ImageBatch(len(uploads))
        # NV12 goes as one gray plane. The geometry says that all rows are read.
        views = [image_view(upload.pixels) for upload in uploads]
        self._batch.fill(views, [Geometry.stretch(view.size, view.size) for view in views])
        block = self._block(self._batch.upload_nbytes())
        lease = _Lease(block, stream, self._free)
        try:
            self._batch.upload(block.host, block.at, block.nbytes, stream, workers=workers)
            block.copied.record(stream)
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is reported
                stream.synchronize()  # some copies may be queued, and the block is free now
            raise
        for i, upload in enumerate(uploads):
            upload._at = self._batch.device_address(i)
            upload._lease = lease
        self._batch.fill((), ())  # lets go of the pixels

    def _block(self, nbytes: int) -> _Block:
        """A free block of this size: the smallest that fits, else the largest, which grows, else a new one.

        Whatever is allocated has the size of the largest upload so far: page-locked memory takes milliseconds, in which
        the device stands still, and batches differ a little in size.
        """
        free, size = self._free, max(self._largest, nbytes)
        fitting = [i for i, block in enumerate(free) if block.nbytes >= nbytes]
        if fitting:
            return free.pop(min(fitting, key=lambda i: free[i].nbytes))
        block = free.pop(max(range(len(free)), key=lambda i: free[i].nbytes)) if free else _Block(self.device)
        try:
            block.reserve(size)
        except BaseException:
            free.append(block)
            raise
        self._largest = size
        return block


class UploadPools(dict["Device", _Pool]):
    """The memory of uploads, by device. After `clear()`, blocks in use are freed with their last image."""

    def of(self, device: Device) -> _Pool:
        """The pool of a device. Of two threads that ask first, both get the same one."""
        return self.get(device) or self.setdefault(device, _Pool(device))


def bring_in(uploads: Iterable[Upload], stream: Stream, workers: Workers | None = None) -> None:
    """Queues the copies of images that are not on the device yet, and lets `stream` wait for those of the others.

    The caller keeps the uploads until its work on them is done. Any number of threads may call.

    Args:
        workers: fill page-locked memory with the images that are not in such memory; None is the calling thread alone.

    Raises:
        ImageError: an image is for another device than that of the stream.
        OutOfMemoryError: the copies do not fit on the device.
    """
    by_pool: dict[_Pool, list[Upload]] = {}
    for upload in uploads:
        by_pool.setdefault(upload.pool, []).append(upload)
    for pool, own in by_pool.items():
        pool.bring_in(own, stream, workers)
