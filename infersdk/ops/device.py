"""The operations on a CUDA device: whole batches, queued on a stream, with the bits of the host.

::

    stream = Stream("cuda:0")
    preprocess_batch(images, geometries, transform, batch, stream=stream)  # the images are on the device
    ...                                                                    # the network, on the same stream
    decoder = DeviceDetectionDecoder(DetectionDecoder(conf=0.25), max_batch=32)
    decoder.run(output, geometries, block, stream=stream)
    block.fetch(stream)                                                    # one small copy of all results
    boxes, stats = decoder.unpack(block.numpy(), 0)                        # waits for that copy alone

Each function that takes a `stream` queues its work there and returns at once. Without a stream, the work is queued on
the legacy default stream. A call allocates nothing, so it can be captured into a `CudaGraph`; the graph keeps the
addresses, images and geometries of the call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..core._lib import Handle, check, ffi, lib, returned
from ..core.device import Device
from ..core.stream import default_stream
from ..core.tensor import Tensor
from ..errors import DTypeError, InputError, ShapeError
from .detection import DETECTION, DetectionDecoder, DetectStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ..core.stream import Stream
    from ..image import Geometry, ImageView, PixelTransform

__all__ = ["ORIENTED_DETECTION", "DeviceDetectionDecoder", "DeviceOrientedBoxes", "preprocess_batch"]


def _results_of(box: np.dtype[Any], max_det: int, nbytes: int) -> np.dtype[Any]:
    """The layout of an image's results: the statistics, the number of boxes, and space for `max_det` boxes."""
    return np.dtype(
        {
            "names": [*DetectStats._fields, "count", "reserved", "boxes"],
            "formats": [*["<i8"] * len(DetectStats._fields), "<i4", "<i4", (box, (max_det,))],
            "itemsize": nbytes,
        }
    )


def _unpacked(data: npt.NDArray[np.uint8], layout: np.dtype[Any]) -> tuple[npt.NDArray[np.void], DetectStats]:
    """A copy of the boxes of an image's results, and the statistics."""
    row = data.view(layout)[0]
    return row["boxes"][: int(row["count"])].copy(), DetectStats(*(int(row[name]) for name in DetectStats._fields))


def preprocess_batch(
    views: Sequence[ImageView],
    geometries: Sequence[Geometry],
    transform: PixelTransform,
    out: Tensor,
    *,
    stream: Stream | None = None,
) -> Tensor:
    """Preprocesses images on the device to the first slices of `out`, and returns `out`. One launch handles 40 images.

    Args:
        views: From `device_image_view`; they may differ in size and format.
        geometries: One for each image, all with one canvas.
        transform: One for all images.
        out: A tensor of the transform's type with a device side: `[len(views) or more, *transform.shape(geometry)]`.

    Raises:
        ShapeError: A geometry was made for another size, the canvases differ, or `out` is too small.
        DTypeError: `out` has not the type of the transform.
        InputError: A view is of an array on the host, or `out` has no device side.
        DeviceUnavailableError: The device does not exist, or the build is CPU-only.
    """
    if len(views) != len(geometries):
        raise ShapeError(f"{len(views)} images and {len(geometries)} geometries; give one for each image")
    if out.dtype != transform.dtype:
        raise DTypeError(f"out is {out.dtype}; the transform gives {transform.dtype}")
    if out.device.ordinal < 0:
        raise InputError(f"{out!r} has no device side; create it with device='cuda:0'")
    if on_host := next((view for view in views if not view.on_device), None):
        raise InputError(f"{on_host!r} is on the host; copy the image to {out.device} and use device_image_view()")
    images = ffi.new("ifs_image[]", [image._c[0] for image in views])
    geometries_c = ffi.new("ifs_geometry[]", [geometry._c[0] for geometry in geometries])
    whole = bool(geometries) and out.nbytes == len(views) * lib.ifs_preprocess_nbytes(geometries_c, transform._c)
    queue = stream or default_stream(out.device)
    at = ffi.cast("void *", out.device_ptr(read=not whole, write=True, stream=queue))
    check(lib.ifs_cuda_preprocess(images, geometries_c, len(views), transform._c, at, out.nbytes, queue._open))
    return out


class DeviceDetectionDecoder(Handle):
    """A `DetectionDecoder` for batches on a device: decoding, exact NMS and mapping to the images in a few launches.

    Args:
        decoder: The decoder whose parameters are taken.
        max_batch: The limit on the number of images of a run.
        device: The device on which the workspace is allocated, once.

    Attributes:
        shape, dtype: Those of the decoder.

    All runs share the workspace, so they are queued on one stream, or ordered by events. `close()` waits for the
    device.
    """

    def __init__(self, decoder: DetectionDecoder, max_batch: int = 1, device: str | Device = "cuda:0") -> None:
        self.device = Device.parse(device)
        create, params, ordinal = lib.ifs_cuda_detection_decoder_create, decoder._params, self.device.ordinal
        handle = returned("ifs_cuda_detection_decoder *", create, params, max_batch, ordinal)
        self._own(handle, lib.ifs_cuda_detection_decoder_destroy)
        self.params, self._class_mask = decoder._params, decoder._class_mask  # the one points to the other
        self.max_det = int(decoder._params.max_detections)
        self.shape, self.dtype = decoder.shape, decoder.dtype
        self.row = _results_of(DETECTION, self.max_det, int(lib.ifs_cuda_detections_nbytes(self.max_det, 1)))

    @property
    def nbytes(self) -> int:
        """The bytes of the workspace on the device."""
        return int(lib.ifs_cuda_detection_decoder_nbytes(self._open))

    def block(self, n: int) -> Tensor:
        """A tensor for the results of `n` images: `(n, row.itemsize)` bytes, on the host and the device."""
        return Tensor((n, self.row.itemsize), "uint8", self.device)

    def check_run(self, output: Tensor, block: Tensor, n: int) -> None:
        """Raises ShapeError unless `output` and `block` can be those of a run of `n` images or more."""
        if output.dtype != self.dtype or output.shape[1:] != self.shape or len(output) < n:
            raise ShapeError(f"the outputs are {output.dtype} of {output.shape}; they must be those of the decoder")
        if block.dtype != np.uint8 or block.shape[1:] != (self.row.itemsize,) or len(block) < n:
            raise ShapeError(
                f"the block is {block.dtype} of {block.shape}; {n} images need uint8 of ({n}, {self.row.itemsize}), "
                "as block() of the decoder creates it"
            )

    def run(
        self, output: Tensor | int, geometries: Sequence[Geometry], block: Tensor, *, stream: Stream | None = None
    ) -> Tensor:
        """Queues the decoding of `len(geometries)` images, and returns `block`, whose device side it writes.

        Args:
            output: `(n or more, *shape)` of the decoder's type on the device, or the address of its first element.
            geometries: How each image came to the network.
            block: From `block(n)`.

        Raises:
            ClosedError, ShapeError, DTypeError, InputError.
        """
        n = len(geometries)
        queue = stream or default_stream(self.device)
        if isinstance(output, Tensor):
            if output.dtype != self.dtype:
                raise DTypeError(f"the outputs are {output.dtype}, but the decoder was made for {self.dtype}")
            if output.shape[1:] != self.shape or len(output) < n:
                raise ShapeError(f"the outputs have shape {output.shape}; {n} images need ({n}, *{self.shape})")
            output = output.device_ptr(stream=queue)
        geometries_c = ffi.new("ifs_geometry[]", [geometry._c[0] for geometry in geometries])
        at = block.device_ptr(read=block.nbytes != n * self.row.itemsize, write=True, stream=queue)
        images, results = (ffi.cast("void *", output), geometries_c, n), ffi.cast("void *", at)
        check(lib.held_ifs_cuda_detection_decoder_run(self._open, *images, results, block.nbytes, queue._open))
        return block

    def unpack(self, block: npt.NDArray[np.uint8], index: int) -> tuple[npt.NDArray[np.void], DetectStats]:
        """The results of image `index` of a block on the host, as `DetectionDecoder` returns them.

        Args:
            block: (n, row.itemsize), once its copy is complete.
        """
        return _unpacked(block[index], self.row)


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
        self.row = _results_of(ORIENTED_DETECTION, max_det, int(lib.ifs_cuda_oriented_nbytes(max_det, 1)))
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
        self._decoder.check_run(output, candidates, n)
        self._block.resize((n, self.row.itemsize))
        queue = stream or default_stream(self._decoder.device)

        def address(tensor: Tensor, *, write: bool = False) -> Any:
            return ffi.cast("void *", tensor.device_ptr(read=not write, write=write, stream=queue))

        images = self._decoder.params, address(output), n, address(candidates), self._iou, self._max_det
        workspace = address(self._workspace, write=True), self._workspace.nbytes
        results = address(self._block, write=True), self._block.nbytes
        check(lib.ifs_cuda_oriented(*images, *workspace, *results, queue._open))

    def fetch(self, stream: Stream) -> None:
        """Queues the copy to the host on `stream`."""
        self._block.fetch(stream)

    def unpack(self, index: int) -> tuple[npt.NDArray[np.void], DetectStats]:
        """The boxes of image `index` as `ORIENTED_DETECTION`, and what became of the candidates. Waits for the copy."""
        return _unpacked(self._block.numpy()[index], self.row)

    def close(self) -> None:
        """Frees the memory."""
        self._workspace.close()
        self._block.close()
