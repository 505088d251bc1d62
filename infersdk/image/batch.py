"""Batches of images on the processor's threads: preprocessed there, or copied to a device.

One call handles a whole batch and releases the GIL.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..core._lib import Handle, address, check, ffi, int32, lib, returned
from ..core.processors import available_processors
from ..errors import InputError

if TYPE_CHECKING:
    from ..core.stream import Stream
    from .geometry import Geometry
    from .images import ImageView
    from .transforms import PixelTransform

__all__ = ["ImageBatch", "Workers", "shared_workers"]


class Workers(Handle):
    """A pool of native threads. The calling thread is one of them.

    Args:
        threads: 1 to 256. None is one for each processor that this process may use, at most 16.
    """

    def __init__(self, threads: int | None = None) -> None:
        threads = min(available_processors(), 16) if threads is None else int32("threads", threads)
        self._own(returned("ifs_workers *", lib.ifs_workers_create, threads), lib.ifs_workers_destroy)
        self._process = os.getpid()

    @property
    def threads(self) -> int:
        return int(lib.ifs_workers_threads(self._open))

    @property
    def _open(self) -> Any:
        if self._process != os.getpid():
            raise InputError("these workers were created before a fork, and a fork has no threads; create new ones")
        return super()._open


@lru_cache(maxsize=32)
def _workers_of(process: int, device: int, shares_cpu: bool) -> Workers:
    return Workers(max(min(available_processors() // 2, 12), 1) if shares_cpu else None)


def shared_workers(device: int = 0, *, shares_cpu: bool = False) -> Workers:
    """The pool that the wrappers of this process share on a device. The first call starts its threads.

    Each device has its own pool, so that one device does not wait for another.

    Args:
        shares_cpu: whether many other threads share the processors, as in a pipeline. The pool then has half of the
            processors, at most 12, so that it does not delay the threads that submit requests.
    """
    return _workers_of(os.getpid(), device, shares_cpu)


class ImageBatch:
    """Images and their geometries in native arrays, which are created once and filled for each batch.

    Args:
        capacity: The number of images that fit.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._images = ffi.new("ifs_image[]", capacity)
        self._on_device = ffi.new("ifs_image[]", capacity)
        self._geometries = ffi.new("ifs_geometry[]", capacity)
        self._geometries_on_device = ffi.new("ifs_geometry[]", capacity)
        self._keep: Sequence[ImageView] = ()

    def fill(self, images: Sequence[ImageView], geometries: Sequence[Geometry]) -> None:
        """Sets the images of a batch. They are kept alive until the next batch is set."""
        if len(images) > self.capacity:
            raise InputError(f"{len(images)} images do not fit a batch of {self.capacity}; create a larger one")
        if len(images) != len(geometries):
            raise InputError(
                f"there are {len(images)} images and {len(geometries)} geometries; give one for each image"
            )
        self._keep = ()  # an error leaves an empty batch, without images that nothing keeps alive
        for i, (image, geometry) in enumerate(zip(images, geometries, strict=True)):
            self._images[i] = image._c[0]
            self._geometries[i] = geometry._c[0]
        self._keep = tuple(images)  # its length is that of the native arrays in use

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
        """Preprocesses the images to the address `host`, where `nbytes` bytes may be written.

        With `device`, an address on the device of `stream`, the copy of each output to it is queued as soon as the
        output is complete.
        """
        pool = ffi.NULL if workers is None else workers._open
        queue = ffi.NULL if stream is None else stream._open
        images = self._images, self._geometries, len(self._keep)
        target, copy = ffi.cast("void *", host), ffi.cast("void *", device)
        check(lib.ifs_preprocess_batch(pool, *images, transform._c, target, nbytes, copy, queue))

    def upload_nbytes(self) -> int:
        """The bytes that `upload` copies to a device."""
        return int(returned("size_t", lib.held_ifs_upload_nbytes, self._images, self._geometries, len(self._keep)))

    @property
    def needs_staging(self) -> bool:
        """Whether an image is not in page-locked memory, so that `upload` copies it through `staging`."""
        planes = (plane for image in self._images[0 : len(self._keep)] for plane in (image.data, image.uv) if plane)
        return not all(map(lib.held_ifs_is_page_locked, planes))

    def upload(self, staging: int, device: int, nbytes: int, stream: Stream, *, workers: Workers | None = None) -> None:
        """Queues copies of the images to the address `device`. Images that are not page-locked go through `staging`.

        If a resize divides the height of an image by a whole number above 2, only the rows that it reads are copied.
        For a height of 360 of 1080 it copies every third row.

        Args:
            staging: an address in page-locked memory of `nbytes` bytes, as `device` has them; 0 is allowed unless
                `needs_staging`.
        """
        pool = ffi.NULL if workers is None else workers._open
        images = self._images, self._geometries, len(self._keep)
        memory = ffi.cast("void *", staging), ffi.cast("void *", device), nbytes
        check(lib.ifs_upload(pool, *images, *memory, stream._open, self._on_device, self._geometries_on_device))

    def device_address(self, index: int) -> int:
        """Where `upload` has put an image on the device. Its rows are dense, unless only some of them were copied."""
        return address(self._on_device[index].data)

    def use_device_images(self) -> None:
        """Says that the images are on the device already, so that no upload is needed."""
        for i in range(len(self._keep)):
            self._on_device[i], self._geometries_on_device[i] = self._images[i], self._geometries[i]

    def preprocess_on_device(self, transform: PixelTransform, device: int, nbytes: int, stream: Stream) -> None:
        """Queues the preprocessing of the images on the device to the address `device`, on `stream`."""
        images = self._on_device, self._geometries_on_device, len(self._keep)
        check(lib.held_ifs_cuda_preprocess(*images, transform._c, ffi.cast("void *", device), nbytes, stream._open))
