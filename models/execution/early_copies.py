"""Images of requests that are copied to a device as they come, while their batch is still filling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...memory import is_page_locked
from ...ops.batch import ImageBatch
from ..preprocessor import geometry_of_pixels, view_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...image import Geometry, HostImage
    from ...stream import Stream
    from .executor import BatchItem

__all__ = ["EarlyCopies"]


class EarlyCopies:
    """The images in the rows of one batch: each has its part of the device's memory, and is copied there at once.

    So a batch that leaves need not wait for the copies of all of its images. This is for images in page-locked memory
    of one size, the one of the batch before. Others are copied when the batch leaves.

    Any number of threads may call `copy()`, each for its own row, while no batch is on the stream.
    """

    def __init__(self, capacity: int, stream: Stream) -> None:
        self._stream = stream
        self._rows: list[ImageBatch | None] = [None] * capacity
        self._copied: list[HostImage | None] = [None] * capacity
        self._shape: tuple[int, ...] | None = None
        self._staging = self._device = self._nbytes = 0

    def expect(self, images: Sequence[HostImage], nbytes: int, staging: int, device: int) -> None:
        """The next images are like these.

        Args:
            nbytes: that one of them takes on the device.
            staging, device: addresses of memory for as many of them as there are rows.
        """
        shape = images[0].pixels.shape
        # Memory for a row begins where the device likes wide loads to begin.
        alike = all(image.pixels.shape == shape and image.format == images[0].format for image in images)
        self._shape = shape if alike and nbytes % 256 == 0 else None
        self._nbytes, self._staging, self._device = nbytes, staging, device

    def expect_nothing(self) -> None:
        """The memory may go: no image is copied early."""
        self._shape = None

    def copy(self, row: int, image: HostImage, geometry: Geometry) -> None:
        """Queues the copy of the image in this row, if it is as expected."""
        if image.pixels.shape != self._shape or not is_page_locked(image.pixels):
            return
        one = self._rows[row]
        if one is None:
            one = self._rows[row] = ImageBatch(1)
        one.fill([view_of(image)], [geometry_of_pixels(image, geometry)])
        if one.upload_nbytes > self._nbytes:
            return
        offset = row * self._nbytes
        one.upload(self._staging + offset, self._device + offset, self._nbytes, self._stream, keeps_gil=True)
        self._copied[row] = image

    def move(self, source: int, target: int) -> None:
        """Makes row `target` what row `source` is."""
        rows, copied = self._rows, self._copied
        rows[target], rows[source] = rows[source], rows[target]
        copied[target], copied[source] = copied[source], copied[target]

    def take(self, batch: Sequence[BatchItem], into: ImageBatch) -> bool:
        """Makes `into` the batch of these images, the first rows, if all of them were copied."""
        copied = self._copied
        if not all(copied[row] is item.image for row, item in enumerate(batch)):
            return False
        into.take_uploaded([one for one in self._rows[: len(batch)] if one is not None])
        return True

    def clear(self) -> None:
        """The rows are free."""
        self._copied = [None] * len(self._rows)
