"""From an image to a network's input, in one pass.

::

    geometry = Geometry.letterbox((1920, 1080), (640, 640))     # where the pixels go
    transform = PixelTransform()                                # RGB, CHW, float32, x / 255: the input of YOLOv5
    x = preprocess(frame, geometry, transform)                  # (3, 640, 640) float32
    boxes = geometry.to_source(points)                          # canvas points back to the image
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..core._lib import check, ffi, lib
from ..errors import DTypeError, InputError, ReadOnlyError, ShapeError
from ..image.geometry import Geometry, size_of
from ..image.images import ImageView, PixelFormat, address_of, image_view
from ..image.transforms import PixelTransform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["letterbox", "preprocess", "preprocess_into"]


def preprocess(
    image: ImageView | NDArray[np.uint8],
    geometry: Geometry,
    transform: PixelTransform,
    *,
    format: PixelFormat | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Preprocesses an image, and returns an array of `transform.shape(geometry)`.

    Args:
        image: The image; without a view, a uint8 array as `image_view` takes it.
        geometry: Where its pixels go.
        transform: What becomes of them.
        format: Of an array, as for `image_view`.
        out: The array to write and return: writable and C-contiguous, of the transform's type, with as many elements,
            such as a slice of a batch. None creates a new one.

    Raises:
        ShapeError: The geometry was made for an image of another size, or `out` has another number of elements.
        DTypeError, InputError, ReadOnlyError: The image or `out` cannot be used; the message says why.
    """
    image = image_view(image, format)
    if out is None:
        out = np.empty(transform.shape(geometry), transform._dtype)
    else:
        channels, height, width = shape = transform.shape(geometry)
        if not isinstance(out, np.ndarray):
            raise InputError(f"out is {type(out).__name__}; use an array")
        if out.dtype != transform._dtype:
            raise DTypeError(f"out is {out.dtype}; the transform gives {transform._dtype}")
        if out.size != channels * height * width:
            raise ShapeError(f"out has shape {out.shape}, {out.size} elements; the transform gives {shape}")
        if not out.flags.c_contiguous:
            raise InputError(f"out of shape {out.shape} is not C-contiguous; use a whole array or a slice of a batch")
        if not out.flags.writeable:
            raise ReadOnlyError("out is read-only; use a writable array")
        if any(np.may_share_memory(out, part) for part in image._keep):
            raise InputError("out shares memory with the image, which is read while out is written; use another array")
    check(lib.ifs_preprocess(image._c, geometry._c, transform._c, ffi.cast("void *", address_of(out)), out.nbytes))
    return out


def preprocess_into(
    image: ImageView | NDArray[np.uint8], geometry: Geometry, transform: PixelTransform, address: int, nbytes: int
) -> None:
    """As `preprocess`, to the memory at `address`, where `nbytes` bytes may be written. Nothing checks the address."""
    status = lib.ifs_preprocess(image_view(image)._c, geometry._c, transform._c, ffi.cast("void *", address), nbytes)
    if status:
        check(status)


def letterbox(
    image: ImageView | NDArray[np.uint8],
    size: int | Sequence[int],
    transform: PixelTransform | None = None,
    *,
    scale_up: bool = True,
    format: PixelFormat | None = None,
) -> tuple[NDArray[Any], Geometry]:
    """Preprocesses an image as YOLOv5 does, and returns the result and the geometry that maps boxes back.

    Args:
        image: As for `preprocess`.
        size: (width, height) of the canvas, or the side of a square one.
        transform: By default RGB, CHW, float32, divided by 255, with padding of 114.
        scale_up: Enlarge an image that is smaller than the canvas.
        format: As for `preprocess`.
    """
    image = image_view(image, format)
    geometry = Geometry.letterbox(image.size, size_of("size", size), scale_up=scale_up)
    return preprocess(image, geometry, transform or _YOLOV5), geometry


_YOLOV5 = PixelTransform()
