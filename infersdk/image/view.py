"""Images as the native core reads them: pixels in their own memory, on the host or on a device.

An image is a uint8 ndarray of (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), or NV12 as (H * 3 / 2, W). Sizes are always
(width, height). Coordinates are pixels from the top left edge, so the centre of the first pixel is (0.5, 0.5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..core._lib import ffi, lib
from ..errors import DTypeError, InputError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ImageView", "PixelFormat", "address_of", "choice", "device_image_view", "image_view"]


PixelFormat = Literal["bgr", "rgb", "bgra", "rgba", "gray", "nv12"]

_BYTES = ffi.typeof("uint8_t[]")
_UINT8 = np.dtype(np.uint8)
_FORMATS: dict[str, int] = {
    "bgr": lib.IFS_PIXEL_BGR,
    "rgb": lib.IFS_PIXEL_RGB,
    "bgra": lib.IFS_PIXEL_BGRA,
    "rgba": lib.IFS_PIXEL_RGBA,
    "gray": lib.IFS_PIXEL_GRAY,
    "nv12": lib.IFS_PIXEL_NV12,
}
_CHANNELS = {"bgr": 3, "rgb": 3, "bgra": 4, "rgba": 4, "gray": 1, "nv12": 1}
_DEFAULT_FORMAT: dict[int, PixelFormat] = {1: "gray", 3: "bgr", 4: "bgra"}
_INT32_MAX = 2**31 - 1


class ImageView:
    """An image as the core reads it, from `image_view`. It shares the memory of the array and keeps it alive."""

    __slots__ = ("_c", "_keep", "format")

    def __init__(self, c: Any, keep: tuple[Any, ...], format: PixelFormat) -> None:
        self._c = c
        self._keep = keep
        self.format = format

    @property
    def width(self) -> int:
        return int(self._c.width)

    @property
    def height(self) -> int:
        return int(self._c.height)

    @property
    def size(self) -> tuple[int, int]:
        """(width, height), as `Geometry` takes it."""
        return self._c.width, self._c.height

    def __repr__(self) -> str:
        return f"<ImageView {self.width} x {self.height} {self.format}>"


def _dense_rows(array: NDArray[np.uint8], pixel: int) -> tuple[NDArray[np.uint8], int]:
    """An array whose pixels are adjacent and whose rows ascend in memory, and the bytes from row to row.

    It is `array` itself if that has this form, else a copy. The strides of axes of length 1 have no meaning in NumPy.
    """
    strides, row = array.strides, pixel * array.shape[1]
    if strides[1] == pixel and strides[0] >= row and (array.ndim == 2 or strides[2] == 1):
        return array, strides[0]
    return np.ascontiguousarray(array), row


def _is_padded(array: NDArray[np.uint8]) -> bool:
    """Whether these are the first three of four channels in one block of memory that holds the last fourth one too."""
    base, (height, width), strides = array.base, array.shape[:2], array.strides
    if (
        strides[1:] != (4, 1)
        or strides[0] < 4 * width
        or not isinstance(base, np.ndarray)
        or not base.flags.c_contiguous
    ):
        return False
    beyond = address_of(array) + (height - 1) * int(strides[0]) + 4 * width
    return bool(beyond <= address_of(base) + base.nbytes)


def address_of(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _pointer(array: NDArray[np.uint8]) -> Any:
    if array.flags.c_contiguous:
        return ffi.from_buffer(_BYTES, array)  # a fifth of the time of the interface below
    return ffi.cast("uint8_t *", address_of(array))


def image_view(
    array: NDArray[np.uint8], format: PixelFormat | None = None, uv: NDArray[np.uint8] | None = None
) -> ImageView:
    """A view of an array as an image.

    Args:
        array: uint8. Rows may be any distance apart, as in a region of a larger image. Three channels of four, as
            `bgra[..., :3]`, are read in place. An array that the core cannot read in place (mirrored rows, every second
            pixel, channels reversed by `[..., ::-1]`) is copied here, once.
        format: By default gray, bgr or bgra, by the number of channels.
        uv: For "nv12" only: (H / 2, W) or (H / 2, W / 2, 2), with `array` the Y plane (H, W). Without `uv`, `array` is
            one array of (H * 3 / 2, W).

    Raises:
        DTypeError: The array is not uint8.
        ShapeError: The shape is not that of an image of this format.
        InputError: It is not an array, the format is unknown, or `uv` is given for another format.
    """
    if not isinstance(array, np.ndarray):
        raise InputError(f"an image is a uint8 ndarray, not {type(array).__name__}; convert it by np.asarray")
    if array.dtype != _UINT8:
        raise DTypeError(f"an image is uint8, not {array.dtype}; scale it to 0..255 and use .astype(np.uint8)")
    shape = array.shape
    channels = shape[2] if array.ndim == 3 else 1
    if format is None:
        format = _DEFAULT_FORMAT.get(channels)  # noqa: A001
    if format is None or array.ndim not in (2, 3) or 0 in shape:
        raise ShapeError(f"an image of shape {shape}; use (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), none of them 0")
    code = _FORMATS[format] if format in _FORMATS else choice("format", format, _FORMATS)
    if channels != _CHANNELS[format]:
        raise ShapeError(f"an image of shape {shape} is not {format!r}, which has {_CHANNELS[format]} channels")
    if max(shape) > _INT32_MAX:
        raise ShapeError(f"an image of shape {shape}; a side can be at most 2**20 pixels")
    c = ffi.new("ifs_image *")
    if array.flags.c_contiguous:
        c.data, stride = ffi.from_buffer(_BYTES, array), channels * shape[1]
    else:
        if channels == 3 and _is_padded(array):
            stride, code = array.strides[0], _FORMATS[f"{format}a"]
        else:
            array, stride = _dense_rows(array, channels)
        c.data = _pointer(array)
    c.stride = stride
    c.height, c.width = shape[0], shape[1]
    c.format = code
    if format != "nv12":
        if uv is not None:
            raise InputError(f"uv is for format='nv12'; this image is {format!r}")
        return ImageView(c, (array,), format)
    if uv is None:
        if shape[0] % 3 or shape[1] % 2:
            raise ShapeError(f"NV12 of shape {shape}; one array has (H * 3 / 2, W), with H and W even")
        c.height = shape[0] // 3 * 2
        c.uv = c.data + c.height * stride
        c.uv_stride = stride
        return ImageView(c, (array,), format)
    if uv.dtype != np.uint8:
        raise DTypeError(f"uv is uint8, not {uv.dtype}")
    if uv.shape not in ((shape[0] // 2, shape[1]), (shape[0] // 2, shape[1] // 2, 2)) or shape[0] % 2 or shape[1] % 2:
        raise ShapeError(
            f"Y of shape {shape} and uv of {uv.shape}; uv has (H / 2, W) or (H / 2, W / 2, 2), with H and W even"
        )
    uv, c.uv_stride = _dense_rows(uv, 1 if uv.ndim == 2 else 2)
    c.uv = _pointer(uv)
    return ImageView(c, (array, uv), format)


def device_image_view(
    address: int,
    size: tuple[int, int],
    format: PixelFormat = "bgr",
    *,
    stride: int | None = None,
    uv: int | None = None,
    uv_stride: int | None = None,
    lender: object = None,
) -> ImageView:
    """An image on a device, for `preprocess_batch`. Functions of the host must not get it.

    Args:
        address: The address of its first pixel.
        size: (width, height).
        format: As for `image_view`.
        stride: Bytes from a row to the next; None is dense rows.
        uv, uv_stride: For "nv12" only: the plane of U and V. Without `uv`, it follows the rows of Y.
        lender: Kept alive with the image.
    """
    width, height = size
    c = ffi.new("ifs_image *")
    c.format = choice("format", format, _FORMATS)
    c.width, c.height = width, height
    c.stride = width * _CHANNELS[format] if stride is None else stride
    c.data = ffi.cast("uint8_t *", address)
    if format == "nv12":
        c.uv = ffi.cast("uint8_t *", address + height * c.stride if uv is None else uv)
        c.uv_stride = c.stride if uv_stride is None else uv_stride
    elif uv is not None:
        raise InputError(f"uv is for format='nv12'; this image is {format!r}")
    return ImageView(c, (lender,), format)


def choice(what: str, value: str, table: dict[str, int]) -> int:
    """The number of `value` in `table`.

    Raises:
        InputError: `value` is not in `table`; `what` names the parameter.
    """
    try:
        return table[value]
    except (KeyError, TypeError):
        raise InputError(f"{what} is {value!r}; use one of {', '.join(map(repr, table))}") from None
