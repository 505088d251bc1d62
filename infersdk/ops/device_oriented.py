"""Oriented boxes on a CUDA device: those of the candidates that a `DeviceDetectionDecoder` has written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..core._lib import check, ffi, lib
from ..core.stream import default_stream
from ..core.tensor import Tensor
from ..errors import InputError, ShapeError
from .detection import DetectStats

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..core.stream import Stream
    from .device import DeviceDetectionDecoder

__all__ = ["ORIENTED_DETECTION", "DeviceOrientedBoxes"]

ORIENTED_DETECTION = np.dtype([("xywhr", "<f4", (5,)), ("score", "<f4"), ("class_id", "<i4"), ("row", "<i4")])
"""One oriented box: x and y of the centre, width and height in pixels of the canvas, and the angle; score, class, and
the index of its anchor in the output. The layout of `ifs_oriented_detection`.
"""

if ORIENTED_DETECTION.itemsize != ffi.sizeof("ifs_oriented_detection"):  # pragma: no cover
    raise ImportError("ORIENTED_DETECTION is not as long as ifs_oriented_detection")


class DeviceOrientedBoxes:
    """NMS of the oriented boxes of a batch, with the boxes of `nms_oriented`, and the memory for its results.

    Args:
        decoder: The decoder that writes the candidates. Its `iou` is 1, so that it suppresses nothing; its `max_det` is
            their maximum number; the last of its extra numbers is the angle.
        max_batch: The limit on the number of images.
        iou: The overlap above which the worse of two boxes is suppressed.
        max_det: The limit on the number of boxes of an image.
    """

    def __init__(
        self, decoder: DeviceDetectionDecoder, max_batch: int, *, iou: float = 0.45, max_det: int = 300
    ) -> None:
        if decoder.params.iou_threshold != 1 or decoder.params.num_extra < 1:
            raise InputError(
                f"the decoder has iou={decoder.params.iou_threshold:g} and {decoder.params.num_extra} extra numbers; "
                "oriented boxes need iou=1, so that it suppresses nothing, and an angle"
            )
        self._decoder, self._iou, self._max_det, self._max_batch = decoder, iou, max_det, max_batch
        names = [*DetectStats._fields, "count", "reserved", "boxes"]
        self.row = np.dtype(
            {
                "names": names,
                "formats": [*["<i8"] * len(DetectStats._fields), "<i4", "<i4", (ORIENTED_DETECTION, (max_det,))],
                "offsets": [*range(0, 8 * len(DetectStats._fields), 8), 32, 36, 40],
                "itemsize": int(lib.ifs_cuda_oriented_nbytes(max_det, 1)),
            }
        )
        """The layout of an image's results: the statistics, the number of boxes, and space for `max_det` boxes."""
        self._workspace = Tensor(
            (int(lib.ifs_cuda_oriented_workspace_nbytes(decoder.max_det, max_batch)),), "uint8", decoder.device
        )
        self._block = Tensor((max_batch, self.row.itemsize), "uint8", decoder.device)

    def run(self, output: Tensor, candidates: Tensor, n: int, *, stream: Stream | None = None) -> None:
        """Queues NMS of `n` images on `stream`, after the decoder's run.

        Args:
            output: As the decoder got it.
            candidates: The decoder's block.

        Raises:
            ShapeError, InputError.
        """
        if n > self._max_batch:
            raise InputError(f"{n} images do not fit the {self._max_batch} that the boxes were created for")
        if output.dtype != self._decoder.dtype or output.shape[1:] != self._decoder.shape or len(output) < n:
            raise ShapeError(f"the outputs are {output.dtype} of {output.shape}; they must be those of the decoder")
        self._block.resize((n, self.row.itemsize))
        queue = stream or default_stream(self._decoder.device)

        def address(tensor: Tensor, *, write: bool = False) -> Any:
            return ffi.cast("void *", tensor.device_ptr(read=not write, write=write, stream=queue))

        check(
            lib.ifs_cuda_oriented(
                self._decoder.params,
                address(output),
                n,
                address(candidates),
                self._iou,
                self._max_det,
                address(self._workspace, write=True),
                self._workspace.nbytes,
                address(self._block, write=True),
                self._block.nbytes,
                queue._open,
            )
        )

    def fetch(self, stream: Stream) -> None:
        """Queues the copy to the host on `stream`."""
        self._block.fetch(stream)

    def unpack(self, index: int) -> tuple[npt.NDArray[np.void], DetectStats]:
        """The boxes of image `index` as `ORIENTED_DETECTION`, and what became of the candidates. Waits for the copy."""
        row = self._block.numpy()[index].view(self.row)[0]
        stats = DetectStats(*(int(row[name]) for name in DetectStats._fields))
        return row["boxes"][: int(row["count"])].copy(), stats

    def close(self) -> None:
        """Frees the memory."""
        self._workspace.close()
        self._block.close()
