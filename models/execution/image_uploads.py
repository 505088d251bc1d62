"""The images of a batch on their way to a device: while the batch still fills, or when it leaves.

The callers of a batch come back tens of microseconds apart. Copied when the batch leaves, their images would take as
long again, and the bus would stand still before. So the copy of an image in page-locked memory is queued as soon as its
request has a row; when the batch is complete, only the last copies are still under way.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from ...errors import InferSDKError
from ...memory import is_page_locked
from ...ops.batch import ImageBatch, UploadArea
from ...tensor import Tensor
from ..preprocessor import geometry_of_pixels, view_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...image import Geometry, HostImage, ImageView
    from ...ops.batch import DeviceCopy, Workers
    from ...stream import Stream

__all__ = ["HostAddress", "ImageUploads"]


class HostAddress:
    """Where a tensor lies on the host. It may be written there at any time: the last batch of its context is done."""

    __slots__ = ("_address", "_generation")

    def __init__(self) -> None:
        self._generation, self._address = -1, 0

    def of(self, tensor: Tensor) -> int:
        # To ask only when it may have moved spares a wait for the interpreter's lock.
        if self._generation != tensor._generation:
            self._generation, self._address = tensor._generation, tensor.host_ptr(read=False, write=True)
        return self._address


class _Copy(NamedTuple):
    """An image whose copy is queued.

    Attributes:
        image: what the request has. It is kept until the copy is done.
        view, geometry: what is copied, and the geometry for it.
        result: the copy.
    """

    image: HostImage
    view: ImageView
    geometry: Geometry
    result: DeviceCopy


class ImageUploads:
    """Memory for the images of a batch on a device, and the copies to it.

    `add()` queues the copies of the batch that fills; `begin()` to `end()` are of the batch that runs. No image is
    added in between: a batch fills when the last one of its context has ended.

    Images in page-locked memory alone are copied ahead, which takes the calling thread microseconds. Other images are
    copied by the processor first, and several threads do that together when the batch leaves.

    Args:
        capacity: the most images in a batch.
        stream: of the batch. All copies are queued on it.
        workers: copy the images that are not page-locked.
        ahead: whether images may be copied ahead. Where other batches run on the same stream, a copy would wait for
            them, and its caller perhaps with it.
    """

    def __init__(self, capacity: int, stream: Stream, workers: Workers | None, *, ahead: bool) -> None:
        self._stream, self._workers, self._may_copy_ahead = stream, workers, ahead
        self._memory = Tensor((0,), "uint8", stream.device)  # the images as they are
        self._at = 0  # its address on the device
        self._staging = HostAddress()
        self._area, self._most_copies = UploadArea(), 2 * capacity  # requests that are cancelled leave their copies
        self._rest = ImageBatch(capacity)
        self._copies: dict[int, _Copy] = {}  # by the id() of their images
        self._rows: Sequence[_Copy | None] = ()  # those of the batch that runs, by its rows
        self._locked = False  # images of the batch that runs are page-locked
        self.is_open = False  # images are copied ahead

    # ---- the batch that fills ----

    def add(self, image: HostImage, geometry: Geometry) -> None:
        """Queues the copy of an image, if images are copied ahead, this one is page-locked, and memory is left.

        Any number of threads may call it at the same time.
        """
        if not self.is_open or len(self._copies) >= self._most_copies:
            return
        view, geometry = view_of(image), geometry_of_pixels(image, geometry)
        if (result := self._area.queue(view, geometry, self._stream)) is not None:
            self._copies[id(image)] = _Copy(image, view, geometry, result)

    # ---- the batch that runs ----

    def begin(
        self, images: Sequence[HostImage], geometries: Sequence[Geometry]
    ) -> tuple[list[ImageView], list[Geometry]]:
        """Takes the images of a batch; returns their views, and the geometries for their pixels."""
        copies = self._copies
        self._rows = rows = [copies.get(id(image)) for image in images]
        self._locked = any(rows) or is_page_locked(images[0].pixels)
        views = [view_of(image) if copy is None else copy.view for image, copy in zip(images, rows, strict=True)]
        return views, [
            geometry_of_pixels(image, geometry) if copy is None else copy.geometry
            for image, geometry, copy in zip(images, geometries, rows, strict=True)
        ]

    def discard(self) -> None:
        """Copies all images once more: their memory is used for something else."""
        self._rows = ()

    def upload(self, batch: ImageBatch) -> None:
        """Queues the copies of the images that are not copied yet."""
        if not (any(self._rows) and self._upload_rest(batch)):
            self._upload_all(batch)

    def _upload_rest(self, batch: ImageBatch) -> bool:
        """Whether there is memory for the images that were not copied ahead; then their copies are queued."""
        missing = []
        for row, copy in enumerate(self._rows):
            if copy is None:
                missing.append(row)
            else:
                batch.use_copy(row, copy.result)
        if missing:
            rest, used, nbytes = self._rest, self._area.used, self._memory.nbytes
            rest.fill_from(batch, missing)
            if used + rest.upload_nbytes > nbytes:
                return False
            staging = self._staging.of(self._memory) + used
            rest.upload(staging, self._at + used, nbytes - used, self._stream, workers=self._workers)
            for index, row in enumerate(missing):
                batch.use_copy(row, rest.copy_of(index))
        return True

    def _upload_all(self, batch: ImageBatch) -> None:
        nbytes = batch.upload_nbytes
        if nbytes > self._memory.nbytes:
            if self._copies:
                self._stream.synchronize()  # copies to memory that is freed now
            self._memory.resize((nbytes,))
        # Used on this stream alone, one batch after the other: the copies need no head.
        staging = self._staging.of(self._memory)
        self._at = self._memory.device_ptr(read=False, write=True, stream=self._stream)
        batch.upload(staging, self._at, self._memory.nbytes, self._stream, workers=self._workers)

    def end(self, *, uploaded: bool) -> None:
        """The batch has ended.

        Args:
            uploaded: its images were copied to the device as they are. The next ones are copied ahead then, if some of
                these were page-locked.
        """
        self._copies, self._rows = {}, ()
        self.is_open = uploaded and self._locked and self._may_copy_ahead
        if self.is_open:
            self._area.reset(self._at, self._memory.nbytes)

    def abandon(self) -> None:
        """After an error: the requests that hold the images end, and copies may be queued still."""
        self.is_open = False
        if self._copies:
            with contextlib.suppress(InferSDKError):  # the first error is reported
                self._stream.synchronize()
        self._copies, self._rows = {}, ()

    def close(self) -> None:
        self.abandon()
        self._memory.close()
