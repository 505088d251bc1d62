"""The operations on a CUDA device: whole batches, queued on a stream, with the same bits as on the host.

::

    stream = Stream("cuda:0")
    preprocess_batch(images, geometries, transform, batch, stream=stream)     # images lie on the device
    ...                                                                         # the network, on the same stream
    detector = DeviceDetectionDecoder(DetectionDecoder(conf=0.25), max_batch=32)
    detector.run(output, geometries, block, stream=stream)
    block.fetch(stream)                                                         # one small copy brings all home
    boxes, stats = detector.unpack(block.numpy(), 0)                            # waits for that copy alone

Everything that takes a `stream` returns at once. Without one, work goes to the legacy default stream. Nothing is
allocated in a call, so that calls can be captured into a `CudaGraph`; it keeps the addresses, images and geometries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._lib import check, ffi, lib
from ..device import Device
from ..errors import ClosedError, DTypeError, InputError, ShapeError
from ..stream import default_stream
from ..tensor import Tensor, dtype_code
from .detection import DETECTION, DetectionDecoder, DetectStats

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    import numpy.typing as npt

    from ..image import Geometry, ImageView, PixelTransform
    from ..stream import Stream
    from .detection import HasGeometry

__all__ = ["DeviceDetectionDecoder", "preprocess_batch", "topk_rows"]


def _check_on_device(tensor: Tensor) -> None:
    if tensor.device.ordinal < 0:
        raise InputError(f"{tensor!r} has no device side; create it with device='cuda:0'")


def preprocess_batch(
    views: Sequence[ImageView],
    geometries: Sequence[Geometry],
    transform: PixelTransform,
    out: Tensor,
    *,
    stream: Stream | None = None,
) -> Tensor:
    """Images that lie on the device into the first slices of `out`, in one launch for up to 40; returns `out`.

    Args:
        views: From `device_image_view`; they may differ in size and format.
        geometries: One for each image; all of one canvas.
        transform: One for all.
        out: On the device, of the transform's type: `[len(views) or more, *transform.shape(geometry)]`.

    Raises:
        ShapeError: A geometry is not one of its image, the canvases differ, or `out` is too small.
        DTypeError: `out` is of another type than the transform's.
        DeviceUnavailableError: There is no such device, or the build is CPU-only.
    """
    if len(views) != len(geometries):
        raise ShapeError(f"{len(views)} images and {len(geometries)} geometries; give one for each")
    if out.dtype != transform.dtype:
        raise DTypeError(f"out is {out.dtype}; the transform gives {transform.dtype}")
    _check_on_device(out)
    images = ffi.new("ifs_image[]", [image._c[0] for image in views])
    geometries_c = ffi.new("ifs_geometry[]", [geometry._c[0] for geometry in geometries])
    whole = bool(geometries) and out.nbytes == len(views) * lib.ifs_preprocess_nbytes(geometries_c, transform._c)
    queue = stream or default_stream(out.device)
    at = out.device_ptr(read=not whole, write=True, stream=queue)
    check(
        lib.ifs_cuda_preprocess(
            images, geometries_c, len(views), transform._c, ffi.cast("void *", at), out.nbytes, queue._open
        )
    )
    return out


class DeviceDetectionDecoder:
    """`DetectionDecoder` for batches on a device: decoding, exact NMS and mapping to the images, in a few launches.

    Args:
        detector: Whose parameters to take.
        max_batch: The most images of a run.
        device: Where its workspace is allocated, once.

    Its runs are queued on one stream, or ordered by events: they share the workspace.
    """

    def __init__(self, detector: DetectionDecoder, max_batch: int = 1, device: str | Device = "cuda:0") -> None:
        self._c: Any = None
        self._device = Device.parse(device)
        handle = ffi.new("ifs_cuda_detection_decoder **")
        check(lib.ifs_cuda_detection_decoder_create(detector._params, max_batch, self._device.ordinal, handle))
        self._c = ffi.gc(handle[0], lib.ifs_cuda_detection_decoder_destroy)
        self._max_det = int(detector._params.max_detections)
        self._shape, self._dtype = detector.shape, detector.dtype
        names = [*DetectStats._fields, "count", "reserved", "boxes"]
        self.row = np.dtype(
            {
                "names": names,
                "formats": [*["<i8"] * len(DetectStats._fields), "<i4", "<i4", (DETECTION, (self._max_det,))],
                "offsets": [*range(0, 8 * len(DetectStats._fields), 8), 32, 36, 40],
                "itemsize": int(lib.ifs_cuda_detections_nbytes(self._max_det, 1)),
            }
        )
        """What a run writes for an image: the statistics, the number of boxes, and space for `max_det` of them."""

    @property
    def _open(self) -> Any:
        if self._c is None:
            raise ClosedError("the detector was closed; make a new one")
        return self._c

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the output of one image."""
        return self._shape

    @property
    def nbytes(self) -> int:
        """Bytes of the workspace on the device."""
        return int(lib.ifs_cuda_detection_decoder_nbytes(self._open))

    def block(self, n: int) -> Tensor:
        """A tensor for the results of `n` images: `(n, row.itemsize)` bytes, on the host and the device."""
        return Tensor((n, self.row.itemsize), "uint8", self._device)

    def run(
        self,
        output: Tensor | int,
        geometries: Sequence[HasGeometry],
        block: Tensor,
        *,
        stream: Stream | None = None,
    ) -> Tensor:
        """Queues the detection for `len(geometries)` images; returns `block`, whose device side it will write.

        Args:
            output: `(n or more, *shape)` of the detector's type, on the device; or the address of its first element.
            geometries: How each image came to the network.
            block: From `block(n)`.

        Raises:
            ClosedError, ShapeError, DTypeError, InputError.
        """
        n = len(geometries)
        queue = stream or default_stream(self._device)
        if isinstance(output, Tensor):
            if output.dtype != self._dtype:
                raise DTypeError(f"the outputs are {output.dtype}, the detector was made for {self._dtype}")
            if output.shape[1:] != self._shape or len(output) < n:
                raise ShapeError(f"the outputs have shape {output.shape}; {n} images give ({n}, *{self._shape})")
            output = output.device_ptr(stream=queue)
        geometries_c = ffi.new("ifs_geometry[]", [geometry._c[0] for geometry in geometries])
        at = block.device_ptr(read=block.nbytes != n * self.row.itemsize, write=True, stream=queue)
        check(
            lib.held_ifs_cuda_detection_decoder_run(
                self._open,
                ffi.cast("void *", output),
                geometries_c,
                n,
                ffi.cast("void *", at),
                block.nbytes,
                queue._open,
            )
        )
        return block

    def unpack(self, block: npt.NDArray[np.uint8], index: int) -> tuple[npt.NDArray[np.void], DetectStats]:
        """Image `index` of a block on the host, as `DetectionDecoder` returns it: `DETECTION` rows, and stats."""
        boxes = np.empty(self._max_det, DETECTION)
        count, stats = ffi.new("int32_t *"), ffi.new("ifs_detect_stats *")
        place = ffi.from_buffer("ifs_detection[]", boxes, require_writable=True)
        source = ffi.from_buffer(np.ascontiguousarray(block))
        check(lib.ifs_cuda_detections_unpack(source, block.nbytes, self._max_det, index, place, count, stats))
        return boxes[: count[0]].copy(), DetectStats(
            stats.candidates, stats.dropped_candidates, stats.kept, stats.dropped_detections
        )

    def close(self) -> None:
        """Frees the workspace; waits for the device. More than once is fine."""
        handle, self._c = self._c, None
        if handle is not None:
            ffi.release(handle)

    def __enter__(self) -> DeviceDetectionDecoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def topk_rows(
    scores: Tensor,
    k: int,
    class_ids: Tensor,
    best: Tensor,
    *,
    softmax: bool = True,
    stream: Stream | None = None,
) -> None:
    """The `k` best classes of each row, and their scores, as `topk` gives them; meant for small `k`.

    A row in which there is NaN (with `softmax`: or whose maximum is infinite) gets classes of -1 and scores of NaN.

    Args:
        scores: `(rows, classes)`, float32 or float16, on the device.
        class_ids, best: `(rows, k)` of int32 and float32 on the device: written.

    Raises:
        ShapeError, DTypeError, InputError.
    """
    if scores.ndim != 2:
        raise ShapeError(f"scores have shape {scores.shape}; topk_rows takes (rows, classes)")
    for name, tensor, dtype in (("class_ids", class_ids, "int32"), ("best", best, "float32")):
        if tensor.dtype != dtype:
            raise DTypeError(f"{name} is {tensor.dtype}, not {dtype}")
        if tensor.shape != (scores.shape[0], k):
            raise ShapeError(
                f"{name} has shape {tensor.shape}; the {k} best of {scores.shape} are {scores.shape[0], k}"
            )
    _check_on_device(scores)
    queue = stream or default_stream(scores.device)
    check(
        lib.ifs_cuda_topk(
            ffi.cast("void *", scores.device_ptr(stream=queue)),
            dtype_code(scores.dtype),
            *scores.shape,
            k,
            softmax,
            ffi.cast("int32_t *", class_ids.device_ptr(read=False, write=True, stream=queue)),
            ffi.cast("float *", best.device_ptr(read=False, write=True, stream=queue)),
            queue._open,
        )
    )
