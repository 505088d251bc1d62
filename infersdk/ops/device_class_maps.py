"""Class maps on a CUDA device: those of a batch, with the bits of `class_map`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ..core._lib import check, ffi, lib
from ..core.device import Device
from ..core.stream import default_stream
from ..core.tensor import Tensor
from ..errors import InputError, ShapeError
from .class_maps import class_map_params

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from ..core.stream import Stream
    from ..image import Geometry

__all__ = ["DeviceClassMaps"]


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
        check(
            lib.ifs_cuda_class_maps(
                params,
                ffi.cast("void *", scores.device_ptr(stream=queue)),
                geometries_c,
                n,
                ffi.cast("uint8_t *", self._workspace.device_ptr(read=False, write=True, stream=queue)),
                self._workspace.nbytes,
                ffi.cast("uint8_t *", self._maps.device_ptr(read=False, write=True, stream=queue)),
                self._maps.nbytes,
                queue._open,
            )
        )
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
