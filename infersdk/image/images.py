"""Images on the host and on devices, and the views by which the native core reads their pixels in place.

An image is a uint8 ndarray of (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), or NV12 as (H * 3 / 2, W). Sizes are always
(width, height). Coordinates are pixels from the top left edge, so the centre of the first pixel is (0.5, 0.5).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np

from ..core._lib import choice, ffi, lib
from ..core.device import Device
from ..core.stream import Event, Stream
from ..core.tensor import Tensor
from ..errors import DTypeError, ImageError, InferSDKError, InputError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "DeviceImage", "DevicePixels", "HostImage", "ImageView", "PixelFormat", "address_of", "device_image_view",
    "for_other_threads", "format_of", "image_view",
]  # fmt: skip


PixelFormat = Literal["bgr", "rgb", "bgra", "rgba", "gray", "nv12"]

_BYTES = ffi.typeof("uint8_t[]")
_UINT8 = np.dtype(np.uint8)
_CHANNELS = {"bgr": 3, "rgb": 3, "bgra": 4, "rgba": 4, "gray": 1, "nv12": 1}
_FORMATS: dict[str, int] = {name: getattr(lib, f"IFS_PIXEL_{name.upper()}") for name in _CHANNELS}
_DEFAULT_FORMAT: dict[int, PixelFormat] = {1: "gray", 3: "bgr", 4: "bgra"}
_MAX_SIDE = 2**20


class ImageView:
    """An image as the core reads it, from `image_view`. It shares the memory of the array and keeps it alive."""

    __slots__ = ("_c", "_keep", "format", "on_device")

    def __init__(self, c: Any, keep: tuple[Any, ...], format: PixelFormat, on_device: bool = False) -> None:
        self._c = c
        self._keep = keep
        self.format = format
        self.on_device = on_device

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
    array: NDArray[np.uint8] | ImageView, format: PixelFormat | None = None, uv: NDArray[np.uint8] | None = None
) -> ImageView:
    """A view of an array as an image. A view is returned as it is.

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
        InputError: It is no array, or a view on a device; the format is unknown; or `uv` is given for another format.
    """
    if isinstance(array, ImageView):
        if array.on_device:
            raise InputError(f"{array!r} is on a device, but the image is read on the host; pass an array")
        return array
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
    if max(shape) > _MAX_SIDE:
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
    if not isinstance(uv, np.ndarray):
        raise InputError(f"uv is a uint8 ndarray, not {type(uv).__name__}; convert it by np.asarray")
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
    """An image on a device, for `preprocess_batch`. Functions of the host raise InputError for it.

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
    return ImageView(c, (lender,), format, on_device=True)


class HostImage(NamedTuple):
    """Pixels with their order.

    Attributes:
        pixels: uint8, (height, width) or (height, width, channels); NV12 as (height * 3 / 2, width).
        format: `"bgr"`, `"rgb"`, `"bgra"`, `"rgba"`, `"gray"` or `"nv12"`.
        decoder: what decoded the file: `"simplejpeg"`, `"pillow"`, ...; None for pixels that came as an array.
        reduced_from: (width, height) of the file, where `read_image(at_least=...)` decoded it at a reduced size.
    """

    pixels: NDArray[np.uint8]
    format: str
    decoder: str | None = None
    reduced_from: tuple[int, int] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels, of the whole image: where it was decoded at a reduced size, that of the file."""
        return self.reduced_from or self.pixel_size

    @property
    def pixel_size(self) -> tuple[int, int]:
        """(width, height) of `pixels`."""
        height, width = self.pixels.shape[:2]
        return width, height * 2 // 3 if self.format == "nv12" else height

    def view(self) -> ImageView:
        """The view for the kernels."""
        return image_view(self.pixels, cast("PixelFormat", self.format))

    def crop(self, edges: tuple[int, int, int, int]) -> HostImage:
        """A part of the image, by its left, top, right and bottom edge in pixels. It shares the pixels.

        Raises:
            ImageError: it is an NV12 frame or was decoded at a reduced size, or the part lies outside the image or is
                empty.
        """
        if self.reduced_from is not None:
            raise ImageError("a part of an image of a reduced size cannot be cut out; read the image without at_least")
        left, top, right, bottom = _check_crop(edges, self.pixel_size, self.format)
        return HostImage(self.pixels[top:bottom, left:right], self.format, self.decoder)


@dataclass(frozen=True)
class DevicePixels:
    """The pixels that a decoder wrote on a CUDA device: an image of three channels, or the planes of an NV12 frame.
    Nothing writes to them after `ready`, as long as this object lives.

    Attributes:
        address: of the first byte.
        size: (width, height) in pixels.
        stride: bytes from a row to the next, in both planes.
        device: the CUDA device.
        ready: the event after which the pixels are there.
        lender: keeps the memory.
        chroma: bytes from the first row of Y to that of U and V; None for three channels.
    """

    address: int
    size: tuple[int, int]
    stride: int
    device: Device
    ready: Event
    lender: object
    chroma: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a dense array of these pixels: (height, width, 3), or (height * 3 / 2, width) for NV12."""
        width, height = self.size
        return (height, width, 3) if self.chroma is None else (height * 3 // 2, width)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device.index  # kDLCUDA

    def to_host(self) -> NDArray[np.uint8]:
        """A copy as a dense array of `shape`."""
        self.ready.synchronize()
        width, height = self.size
        planes = {0: height} if self.chroma is None else {0: height, self.chroma: height // 2}  # their rows, by begin
        row_nbytes = 3 * width if self.chroma is None else width
        nbytes = max(begin + rows * self.stride for begin, rows in planes.items())
        memory = Tensor._over(self.address, (nbytes,), "uint8", self.device, lender=self).numpy()
        parts = [
            memory[begin : begin + rows * self.stride].reshape(rows, self.stride)[:, :row_nbytes]
            for begin, rows in planes.items()
        ]
        return np.concatenate(parts).reshape(self.shape)


class DeviceImage:
    """An image on a CUDA device: an array of torch, CuPy or another library; uint8, (H, W), (H, W, 3 or 4) or NV12.

    Args:
        source: the array, an `Upload`, or `DevicePixels`. Models read an array in other threads, where its library has
            its default stream as the current one: work on another stream must be done.
        channel_order, decoder: see `HostImage`.
        lender: is kept as long as the image and its parts.

    Attributes:
        size: (width, height) in pixels.
        format, decoder: as of `HostImage`.
        upload: the `Upload` of an image of the host, which several models share; None for an array of another library.
    """

    def __init__(
        self, source: Any, channel_order: str = "bgr", decoder: str | None = None, lender: object = None
    ) -> None:
        self._source, self._lender = source, lender
        self.upload: Any = None
        self.decoder = decoder
        shape = tuple(int(side) for side in source.shape)
        self.format = format_of(shape, channel_order)
        self.size = (shape[1], shape[0] * 2 // 3 if self.format == "nv12" else shape[0])
        self._pixel = shape[2] if len(shape) == 3 else 1
        self._decoded = source if isinstance(source, DevicePixels) else None
        self._stride = shape[1] * self._pixel if self._decoded is None else self._decoded.stride
        self._corner = (0, 0)

    @property
    def device(self) -> Device:
        """The CUDA device that it lies on."""
        return Device("cuda", int(self._source.__dlpack_device__()[1]))

    def on(self, stream: Any) -> ImageView:
        """The view for kernels on `stream`, which waits for what still writes to the image.

        The caller keeps the image and the view until these kernels have run.
        """
        chroma: int | None = None
        lender: object = None
        if self.upload is not None:
            at = self.upload.on(stream)
        elif (decoded := self._decoded) is not None:
            self._check_device(decoded.device, stream)
            stream.wait(decoded.ready)
            at, chroma, lender = decoded.address, decoded.chroma, decoded
        else:
            tensor = self._shared(stream)
            self._check_device(tensor.device, stream)
            at, lender = tensor.device_ptr(stream=stream), tensor
        x, y = self._corner
        at += y * self._stride + x * self._pixel
        uv = None if chroma is None else at + chroma
        return device_image_view(at, self.size, self.format, stride=self._stride, uv=uv, lender=lender)  # type: ignore[arg-type]

    def _shared(self, stream: Any) -> Tensor:
        tensor = Tensor.from_dlpack(self._source, stream=stream)
        if tensor.dtype != np.uint8:
            raise ImageError(f"an image has elements of uint8, not {tensor.dtype}; scale it to 0..255 and convert it")
        return tensor

    def _check_device(self, device: Any, stream: Any) -> None:
        if device != stream.device:
            raise ImageError(f"the image is on {device}, the model on {stream.device}; copy it there")

    def to_host(self) -> HostImage:
        """A copy of the image on the host."""
        if self._decoded is not None:
            pixels = self._decoded.to_host()
        else:
            pixels = (self._shared(None).numpy() if self.upload is None else self.upload.pixels).copy()
        image = HostImage(
            pixels.reshape(pixels.shape[:2]) if self.format == "nv12" else pixels, self.format, self.decoder
        )
        (left, top), (width, height) = self._corner, self.size
        whole = (left, top) == (0, 0) and self.size == image.pixel_size
        return image if whole else image.crop((left, top, left + width, top + height))

    def crop(self, edges: tuple[int, int, int, int]) -> DeviceImage:
        """A part of the image; see `HostImage.crop()`. It shares the memory."""
        left, top, right, bottom = _check_crop(edges, self.size, self.format)
        part = DeviceImage.__new__(DeviceImage)
        part.__dict__.update(self.__dict__)
        part._corner = (self._corner[0] + left, self._corner[1] + top)
        part.size = (right - left, bottom - top)
        return part

    @staticmethod
    def is_one(source: object) -> bool:
        """Whether `source` is on a CUDA device: a DeviceImage, or an array with DLPack on one."""
        if isinstance(source, DeviceImage):
            return True
        ask = getattr(source, "__dlpack_device__", None)
        if ask is None or isinstance(source, np.ndarray):
            return False
        try:
            return int(ask()[0]) == 2  # kDLCUDA
        except Exception:  # of a device that DLPack does not know, such as torch's "meta"
            return False


def for_other_threads(source: Any) -> Any:
    """The source, for a thread that reads it later: an array on a CUDA device becomes a tensor over its memory.

    Other libraries have a current stream for each thread. Readers of the tensor wait for the work that is queued on
    that of the calling thread. An array that cannot be borrowed is returned as it is: reading it raises the error.
    """
    if isinstance(source, (DeviceImage, Tensor)) or not DeviceImage.is_one(source):
        return source
    try:
        return Tensor.from_dlpack(source, stream=_stream_of(os.getpid(), int(source.__dlpack_device__()[1])))
    except InferSDKError:
        return source


@lru_cache(maxsize=16)
def _stream_of(process: int, ordinal: int) -> Stream:
    return Stream(Device("cuda", ordinal))


def _check_crop(
    edges: tuple[int, int, int, int], size: tuple[int, int], pixel_format: str
) -> tuple[int, int, int, int]:
    """The edges of a part of an image. Raises ImageError for one that cannot be cut out."""
    try:
        left, top, right, bottom = map(index, edges)
    except (TypeError, ValueError):
        raise ImageError(
            f"the edges of a part are {edges!r}; use four whole numbers: left, top, right, bottom"
        ) from None
    if pixel_format == "nv12":
        raise ImageError("a part of an NV12 frame cannot be cut out; convert the frame to BGR first")
    if not (0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]):
        raise ImageError(f"the part with edges {tuple(edges)} is empty, or outside the image of {size[0]} x {size[1]}")
    return left, top, right, bottom


def format_of(shape: tuple[int, ...], channel_order: str) -> str:
    """The format of pixels in an array of this shape. Raises ImageError for a shape that no image has."""
    channels = 1 if len(shape) == 2 else shape[2] if len(shape) == 3 else 0
    if channels not in (1, 3, 4) or 0 in shape:
        message = f"an image has shape (height, width) or (height, width, 1, 3 or 4), not {tuple(shape)}"
        if len(shape) == 3 and shape[0] in (1, 3, 4):
            message += "; its channels are first: move them to the end by .permute(1, 2, 0) or .transpose(1, 2, 0)"
        raise ImageError(message)
    if channel_order == "nv12":
        if channels != 1 or shape[0] % 3 or shape[1] % 2:
            raise ImageError(f"an NV12 frame has shape (height * 3 / 2, width), both even, not {shape}")
        return "nv12"
    if channel_order not in ("bgr", "rgb"):
        raise ImageError(f"unknown channel_order {channel_order!r}; use 'bgr', 'rgb' or 'nv12'")
    return "gray" if channels == 1 else channel_order if channels == 3 else f"{channel_order}a"
