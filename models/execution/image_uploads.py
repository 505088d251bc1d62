"""Images that go to a device as they are: all at once when their batch begins, or the first ones before.

Callers that each wait for their own result come back one after another. The copies of the first images of their batch
run meanwhile, so that the device has only the last ones to wait for.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from ...errors import InferSDKError
from ...image import HostImage
from ...memory import is_page_locked
from ...tensor import Tensor
from ..preprocessor import geometry_of_pixels, view_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...image import Geometry
    from ...ops.batch import ImageBatch, Workers
    from ...stream import Stream
    from .executor import BatchItem

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


class ImageUploads:
    """Copies the images of one batch after the other to the device, on one stream.

    Args:
        batch: holds the images.
        stream: of the batch's run.
        workers: copy images that are not page-locked to page-locked memory first.
        may_copy_ahead: whether images may be copied before their batch begins. The stream serves no other batch then.
    """

    def __init__(self, batch: ImageBatch, stream: Stream, workers: Workers, *, may_copy_ahead: bool) -> None:
        self._batch, self._stream, self._workers, self._may_copy_ahead = batch, stream, workers, may_copy_ahead
        self._memory = Tensor((0,), "uint8", stream.device)
        self._staging = HostAddress()
        self._copies_ahead = False  # the last batch was uploaded, out of page-locked memory
        self._ahead: list[tuple[HostImage, Geometry]] = []  # the copies of these are queued
        self._one = threading.Lock()  # one thread copies ahead at a time

    def copy_ahead(self, items: Sequence[BatchItem | None], geometries: Sequence[Geometry | None]) -> None:
        """Queues the copies of the first images of a batch that begins later, up to the first one that is not
        page-locked or not there yet.

        Any thread that prepares an image may call it; `upload()` runs when all of them are done. Where the last batch
        was not copied from page-locked memory, or another thread is at it, nothing happens.

        Args:
            items, geometries: of the rows, from the first one on; None is a row that is not prepared.
        """
        if self._copies_ahead and self._one.acquire(blocking=False):
            try:
                self._copy_ahead(items, geometries)
            except BaseException:
                self.forget_ahead()
                raise
            finally:
                self._one.release()

    def _copy_ahead(self, items: Sequence[BatchItem | None], geometries: Sequence[Geometry | None]) -> None:
        batch, ahead = self._batch, self._ahead
        images = [None if item is None else item.image for item in items]
        first = self._count_ahead(images, geometries)
        if first < len(ahead):  # requests were cancelled, and others have their rows
            self.forget_ahead()
            first = 0
        for row in range(first, len(items)):
            image, geometry = images[row], geometries[row]
            if not isinstance(image, HostImage) or geometry is None or not is_page_locked(image.pixels):
                break
            batch.set_image(row, view_of(image), geometry_of_pixels(image, geometry))
            ahead.append((image, geometry))
        count = len(ahead)
        if batch.upload_nbytes(count) > self._memory.nbytes:
            del ahead[first:]
        elif count > first:
            staging = self._staging.of(self._memory)
            at = self._memory.device_ptr(read=False, write=True, stream=self._stream)
            batch.upload(staging, at, self._memory.nbytes, self._stream, first=first, count=count, page_locked=True)

    def upload(self, images: Sequence[HostImage], geometries: Sequence[Geometry]) -> None:
        """Queues the copies of the images of the batch, which are filled in, without those that were copied ahead.

        Args:
            images, geometries: those that `copy_ahead()` saw, as far as it saw them.
        """
        batch, first = self._batch, self._count_ahead(images, geometries)
        nbytes = batch.upload_nbytes()
        if nbytes > self._memory.nbytes:
            self.forget_ahead()  # copies to memory that is freed now
            first = 0
            self._memory.resize((nbytes,))
        # Used on this stream alone, one batch after the other: the copies need no head.
        staging = self._staging.of(self._memory)
        at = self._memory.device_ptr(read=False, write=True, stream=self._stream)
        batch.upload(staging, at, self._memory.nbytes, self._stream, workers=self._workers, first=first)
        self._copies_ahead = self._may_copy_ahead and is_page_locked(images[0].pixels)

    def _count_ahead(self, images: Sequence[object], geometries: Sequence[Geometry | None]) -> int:
        """How many of the images, from the first one on, are copied in their places."""
        for row, (image, geometry) in enumerate(self._ahead):
            if row >= len(images) or images[row] is not image or geometries[row] is not geometry:
                return row
        return len(self._ahead)

    def ended(self) -> None:
        """The batch has ended, and with it all copies."""
        self._ahead.clear()

    def forget_ahead(self) -> None:
        """Waits for the copies that were queued ahead, whose images may go now."""
        if self._ahead:
            with contextlib.suppress(InferSDKError):  # whoever runs the batch on this stream gets the error
                self._stream.synchronize()
            self._ahead.clear()

    def close(self) -> None:
        self.forget_ahead()
        self._memory.close()
