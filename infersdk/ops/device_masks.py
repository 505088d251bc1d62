"""Masks on a CUDA device: of the detections that a `DeviceDetectionDecoder` has written, and of classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ..core._lib import check, ffi, lib
from ..core.device import Device
from ..core.stream import default_stream
from ..core.tensor import Tensor
from ..core.tensor_spec import float_code
from ..errors import InputError, OutOfMemoryError, ShapeError
from .classification import class_map_params
from .masks import MASK, PackedMasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from ..core.stream import Stream
    from ..image import Geometry
    from .device import DeviceDetectionDecoder

__all__ = ["DeviceClassMaps", "DeviceMasks"]


class DeviceMasks:
    """The masks of a batch, with the bits of `assemble_masks`, and the memory that they are written to.

    Args:
        decoder: The decoder whose detections get masks; the first of its extra numbers are the coefficients.
        max_batch: The limit on the number of images.
        capacity: Bytes of bits for each image, a multiple of 4. A mask takes an eighth of a byte for each pixel of its
            box, with rows of whole words of 4 bytes.
        threshold: The value that a pixel of a mask exceeds; at least 0, below 1.

    Attributes:
        capacity: See above.
    """

    def __init__(
        self, decoder: DeviceDetectionDecoder, max_batch: int, *, capacity: int = 1 << 20, threshold: float = 0.5
    ) -> None:
        if capacity < 0 or capacity % 4:
            raise InputError(f"capacity is {capacity}; it must be a multiple of 4, 0 or more")
        self._decoder, self.capacity, self._threshold = decoder, capacity, threshold
        self._layout = Tensor((max_batch, decoder.max_det * MASK.itemsize), "uint8", decoder.device)
        self._bits = Tensor((max_batch, capacity), "uint8", decoder.device)
        self._needed = Tensor((max_batch,), "int64", decoder.device)
        self._geometries: Sequence[Geometry] = ()

    def run(
        self,
        output: Tensor,
        prototypes: Tensor,
        geometries: Sequence[Geometry],
        block: Tensor,
        *,
        stream: Stream | None = None,
    ) -> None:
        """Queues the masks of `len(geometries)` images on `stream`, after the decoder's run.

        Args:
            output: As the decoder got it.
            prototypes: `[n or more, coefficients, height, width]` on the device, float32 or float16.
            geometries: How each image came to the network.
            block: The decoder's results.

        Raises:
            ShapeError, DTypeError, InputError.
        """
        n = len(geometries)
        if n > self._needed.shape[0]:
            raise InputError(f"{n} images do not fit the {self._needed.shape[0]} that the masks were created for")
        if prototypes.ndim != 4 or len(prototypes) < n:
            raise ShapeError(f"prototypes have shape {prototypes.shape}; use ({n}, coefficients, height, width)")
        self._decoder.check_run(output, block, n)
        params = ffi.new("ifs_mask_params *")
        params.dtype = float_code("prototypes are", prototypes.dtype)
        _, params.num_coefficients, params.height, params.width = prototypes.shape
        params.threshold = self._threshold
        queue = stream or default_stream(self._decoder.device)

        def address(tensor: Tensor, kind: str = "void *", *, write: bool = False) -> Any:
            return ffi.cast(kind, tensor.device_ptr(read=not write, write=write, stream=queue))

        geometries_c = ffi.new("ifs_geometry[]", [geometry._c[0] for geometry in geometries])
        images = address(output), address(prototypes), geometries_c, n, address(block)
        layout, bits = address(self._layout, "ifs_mask *", write=True), address(self._bits, "uint8_t *", write=True)
        masks = layout, bits, self.capacity, address(self._needed, "int64_t *", write=True)
        check(lib.ifs_cuda_masks(params, self._decoder.params, *images, *masks, queue._open))
        self._geometries = geometries

    def fetch(self, stream: Stream) -> None:
        """Queues the copies to the host on `stream`."""
        for tensor in (self._needed, self._layout, self._bits):
            tensor.fetch(stream)

    def needed(self, index: int) -> int:
        """The bytes that the masks of image `index` need. Waits for the copies."""
        return int(self._needed.numpy()[index])

    def unpack(self, index: int, count: int) -> PackedMasks:
        """The masks of image `index`, of which the decoder has returned `count` boxes. Waits for the copies.

        Raises:
            OutOfMemoryError: The masks of this image do not fit the capacity; the message says how much they need.
        """
        needed = self.needed(index)
        if needed > self.capacity:
            raise OutOfMemoryError(
                f"the {count} masks of image {index} need {needed} bytes, but the capacity is {self.capacity}; create "
                f"DeviceMasks with a larger one"
            )
        layout = self._layout.numpy()[index].view(MASK)[:count].copy()
        return PackedMasks(self._geometries[index].source, layout, self._bits.numpy()[index, :needed].copy())

    def close(self) -> None:
        """Frees the memory."""
        for tensor in (self._needed, self._layout, self._bits):
            tensor.close()


class DeviceClassMaps:
    """The class maps of a batch, and the memory that they are written to, which grows with the largest batch.

    Args:
        max_batch: the limit on the number of images.
        device: where the scores are.
        layout, threshold: as for `class_map`.
    """

    def __init__(
        self,
        max_batch: int,
        device: str | Device = "cuda:0",
        *,
        layout: Literal["chw", "hwc"] = "chw",
        threshold: float = 0.5,
    ) -> None:
        self._device, self._max_batch = Device.parse(device), max_batch
        self._layout, self._threshold = layout, threshold
        self._workspace = Tensor((0,), "uint8", self._device)
        self._maps = Tensor((0,), "uint8", self._device)
        self._offsets: list[int] = []
        self._sizes: list[tuple[int, int]] = []

    def run(self, scores: Tensor, geometries: Sequence[Geometry], *, stream: Stream | None = None) -> None:
        """Queues the class maps of `len(geometries)` images on `stream`.

        Args:
            scores: `[n or more, classes, height, width]`, or `[n or more, height, width, classes]`, on the device.
            geometries: how each image came to the network.

        Raises:
            ShapeError, DTypeError, InputError.
        """
        n = len(geometries)
        if n > self._max_batch:
            raise InputError(f"{n} images do not fit the {self._max_batch} that the class maps were created for")
        if scores.ndim != 4 or len(scores) < n:
            raise ShapeError(f"scores have shape {scores.shape}; {n} images need ({n}, and three dimensions of each)")
        params = class_map_params(scores.shape[1:], scores.dtype, layout=self._layout, threshold=self._threshold)
        geometries_c = ffi.new("ifs_geometry[]", [geometry._c[0] for geometry in geometries])
        offsets, nbytes = ffi.new("int64_t[]", max(n, 1)), ffi.new("size_t *")
        check(lib.ifs_cuda_class_maps_layout(geometries_c, n, offsets, nbytes))
        self._maps.resize((nbytes[0],))
        self._workspace.resize((n * params.width * params.height,))
        queue = stream or default_stream(self._device)
        source = ffi.cast("void *", scores.device_ptr(stream=queue))
        workspace, maps = (
            (ffi.cast("uint8_t *", tensor.device_ptr(read=False, write=True, stream=queue)), tensor.nbytes)
            for tensor in (self._workspace, self._maps)
        )
        check(lib.ifs_cuda_class_maps(params, source, geometries_c, n, *workspace, *maps, queue._open))
        self._offsets, self._sizes = list(offsets[0:n]), [geometry.source for geometry in geometries]

    def fetch(self, stream: Stream) -> None:
        """Queues the copy to the host on `stream`."""
        self._maps.fetch(stream)

    def unpack(self, index: int) -> npt.NDArray[np.uint8]:
        """The class map of image `index`, as `class_map` returns it. Waits for the copy."""
        width, height = self._sizes[index]
        start = self._offsets[index]
        result: npt.NDArray[np.uint8] = self._maps.numpy()[start : start + width * height].reshape(height, width).copy()
        return result

    def close(self) -> None:
        """Frees the memory."""
        self._workspace.close()
        self._maps.close()
