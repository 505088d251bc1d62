"""A batch of images on the processor's threads, and on its way to a device.

One call handles a whole batch, without the interpreter's lock: the threads preprocess image by image, or carry the
images as they are to the device.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .._lib import check, ffi, lib, out
from ..errors import ClosedError, InputError

if TYPE_CHECKING:
    from ..image import Geometry, ImageView, PixelTransform
    from ..stream import Stream

__all__ = ["ImageBatch", "Workers", "shared_workers"]


class Workers:
    """A pool of native threads; the calling one is one of them.

    Args:
        threads: 1 to 256; None is one for each processor that this process may use, 16 at most.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._c: Any = None
        if threads is None:
            threads = min(available_processors(), 16)
        place = out("ifs_workers *")
        check(lib.ifs_workers_create(threads, place))
        self._c = ffi.gc(place[0], lib.ifs_workers_destroy)
        self._process = os.getpid()

    @property
    def threads(self) -> int:
        return int(lib.ifs_workers_threads(self._open))

    @property
    def _open(self) -> Any:
        if self._c is None:
            raise ClosedError("these workers were closed; make new ones")
        if self._process != os.getpid():
            raise InputError("these workers were made before a fork, and their threads stayed behind; make new ones")
        return self._c

    def close(self) -> None:
        """Ends the threads."""
        handle, self._c = self._c, None
        if handle is not None:
            ffi.release(handle)


def available_processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@lru_cache(maxsize=32)
def _workers_of(process: int, device: int, shares_cpu: bool) -> Workers:
    return Workers(max(min(available_processors() // 2, 12), 1) if shares_cpu else None)


def shared_workers(device: int = 0, *, shares_cpu: bool = False) -> Workers:
    """The pool that the wrappers of this process share on a device, a pool for each: whoever feeds one device does not
    wait for another. Its threads start when it is first asked for.

    Args:
        shares_cpu: for who shares the processors with many threads of the user's, as a pipeline does: half of the
            processors, 12 at most. A pool that takes them all keeps those threads from their requests, and with them
            the next batch.
    """
    return _workers_of(os.getpid(), device, shares_cpu)


class ImageBatch:
    """Images and their geometries, as the native core takes them: made once, filled for each batch.

    Args:
        capacity: images that fit.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._images = ffi.new("ifs_image[]", capacity)
        self._on_device = ffi.new("ifs_image[]", capacity)
        self._geometries = ffi.new("ifs_geometry[]", capacity)
        self._placement = ffi.new("ifs_geometry[]", capacity)  # of the images as they lie on the device
        self._keep: Sequence[ImageView] = ()
        self._size = out("size_t")

    def __len__(self) -> int:
        return len(self._keep)

    def fill(self, images: Sequence[ImageView], geometries: Sequence[Geometry]) -> None:
        """Takes the images of a batch; they are kept alive until the next one is taken."""
        if len(images) > self.capacity:
            raise InputError(f"{len(images)} images in a batch made for {self.capacity}")
        for i, (image, geometry) in enumerate(zip(images, geometries, strict=True)):
            self._images[i] = image._c[0]
            self._geometries[i] = geometry._c[0]
        self._keep = images

    @property
    def geometries(self) -> Any:
        """The C array, for whoever maps boxes back."""
        return self._geometries

    def preprocess(
        self,
        transform: PixelTransform,
        host: int,
        nbytes: int,
        *,
        workers: Workers | None = None,
        device: int = 0,
        stream: Stream | None = None,
    ) -> None:
        """All images into memory at `host`, and each on to `device` (an address) as soon as it is done."""
        pool = ffi.NULL if workers is None else workers._open
        queue = ffi.NULL if stream is None else stream._open
        check(
            lib.ifs_preprocess_batch(
                pool,
                self._images,
                self._geometries,
                len(self._keep),
                transform._c,
                ffi.cast("void *", host),
                nbytes,
                ffi.cast("void *", device),
                queue,
            )
        )

    @property
    def upload_nbytes(self) -> int:
        """Bytes that the images take on a device; of one that is shrunk by a whole number, the rows that are read."""
        check(lib.ifs_upload_nbytes(self._images, self._geometries, len(self._keep), self._size))
        return int(self._size[0])

    def upload(self, staging: int, device: int, nbytes: int, stream: Stream, *, workers: Workers | None = None) -> None:
        """Queues the images as they are for `device`, an address, by way of `staging` unless page-locked.

        Of an image whose height is divided by a whole number above 2, only the rows that a resize reads are brought
        over: one in three of 1080 on their way to 360.
        """
        check(
            lib.ifs_upload(
                ffi.NULL if workers is None else workers._open,
                self._images,
                self._geometries,
                len(self._keep),
                ffi.cast("void *", staging),
                ffi.cast("void *", device),
                nbytes,
                stream._open,
                self._on_device,
                self._placement,
            )
        )

    def stay(self) -> None:
        """The images lie on the device already."""
        for i in range(len(self._keep)):
            self._on_device[i], self._placement[i] = self._images[i], self._geometries[i]

    def preprocess_on_device(self, transform: PixelTransform, device: int, nbytes: int, stream: Stream) -> None:
        """Queues the preprocessing of the uploaded images into `device` (an address) on `stream`."""
        check(
            lib.ifs_cuda_preprocess(
                self._on_device,
                self._placement,
                len(self._keep),
                transform._c,
                ffi.cast("void *", device),
                nbytes,
                stream._open,
            )
        )
