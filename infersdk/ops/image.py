"""From a picture to a network's input, in one pass.

::

    geometry = Geometry.letterbox((1920, 1080), (640, 640))     # where the pixels go
    transform = PixelTransform()                                # RGB, CHW, float32, x / 255: what YOLOv5 wants
    x = preprocess(frame, geometry, transform)                  # (3, 640, 640) float32
    boxes = geometry.to_source(points)                          # canvas points back to the picture

A picture is a uint8 ndarray of (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), or NV12 as (H * 3 / 2, W). Sizes are
(width, height) throughout; coordinates are pixels from the top left edge, so the first pixel's centre is (0.5, 0.5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from .._lib import check, ffi, lib
from ..errors import DTypeError, InputError, ReadOnlyError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, DTypeLike, NDArray

__all__ = [
    "Geometry",
    "ImageView",
    "PixelFormat",
    "PixelTransform",
    "as_image",
    "letterbox",
    "preprocess",
    "preprocess_into",
]

PixelFormat = Literal["bgr", "rgb", "bgra", "rgba", "gray", "nv12"]

_BYTES = ffi.typeof("uint8_t[]")
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
_ORDERS = {"rgb": lib.IFS_ORDER_RGB, "bgr": lib.IFS_ORDER_BGR, "gray": lib.IFS_ORDER_GRAY}
_LAYOUTS = {"chw": lib.IFS_LAYOUT_CHW, "hwc": lib.IFS_LAYOUT_HWC}
_DTYPES = {
    np.dtype(np.float32): lib.IFS_FLOAT32,
    np.dtype(np.float16): lib.IFS_FLOAT16,
    np.dtype(np.uint8): lib.IFS_UINT8,
}
_INT32_MAX = 2**31 - 1


def _choice(what: str, value: str, table: dict[str, int]) -> int:
    try:
        return table[value]
    except (KeyError, TypeError):
        raise InputError(f"{what} is {value!r}; choose one of {', '.join(map(repr, table))}") from None


def _size(what: str, size: Sequence[int]) -> tuple[int, int]:
    """`size` as (width, height), small enough for the core to judge."""
    try:
        width, height = (int(side) for side in size)
    except (TypeError, ValueError, OverflowError):  # the last for infinity
        raise InputError(f"{what} is {size!r}; give (width, height)") from None
    if not (-_INT32_MAX <= width <= _INT32_MAX and -_INT32_MAX <= height <= _INT32_MAX):
        raise InputError(f"{what} is {width} x {height}; no side can be that long")
    return width, height


class Geometry:
    """Where the pixels of a picture go on the network's canvas, and the way back. Immutable.

    Made by one of the class methods; every size is (width, height). Raises InputError for sizes outside 1 to 2^20.
    """

    __slots__ = ("_c",)

    _c: Any  # ifs_geometry *

    def __init__(self) -> None:
        raise TypeError("make a Geometry with letterbox, letterbox_warp, stretch, resize, resize_crop or affine")

    @classmethod
    def _make(cls, function: Any, *args: Any) -> Geometry:
        geometry = cls.__new__(cls)
        geometry._c = ffi.new("ifs_geometry *")
        check(function(*args, geometry._c))
        return geometry

    @classmethod
    def letterbox(cls, source: Sequence[int], canvas: Sequence[int], *, scale_up: bool = True) -> Geometry:
        """YOLOv5's letterbox: the whole picture, its proportions kept, centred, resized as OpenCV does.

        Scale r = min(canvas_h / h, canvas_w / w), at most 1 unless `scale_up`; size round(w r) x round(h r); the odd
        pixel of padding goes to the right and the bottom.
        """
        args = (*_size("source", source), *_size("canvas", canvas), int(scale_up))
        return cls._make(lib.ifs_geometry_letterbox, *args)

    @classmethod
    def letterbox_warp(cls, source: Sequence[int], canvas: Sequence[int], *, scale_up: bool = True) -> Geometry:
        """The letterbox without rounding to whole pixels: one scale for both axes, sampled bilinearly."""
        args = (*_size("source", source), *_size("canvas", canvas), int(scale_up))
        return cls._make(lib.ifs_geometry_letterbox_warp, *args)

    @classmethod
    def stretch(cls, source: Sequence[int], canvas: Sequence[int]) -> Geometry:
        """The whole picture over the whole canvas, whatever that does to its proportions."""
        return cls._make(lib.ifs_geometry_stretch, *_size("source", source), *_size("canvas", canvas))

    @classmethod
    def resize(
        cls, source: Sequence[int], canvas: Sequence[int], resized: Sequence[int], offset: Sequence[int] = (0, 0)
    ) -> Geometry:
        """Any size at any place: the picture at `resized`, with its corner at `offset` on the canvas."""
        sizes = (*_size("source", source), *_size("canvas", canvas), *_size("resized", resized))
        return cls._make(lib.ifs_geometry_resize, *sizes, *_size("offset", offset))

    @classmethod
    def resize_crop(cls, source: Sequence[int], resize: int, crop: Sequence[int]) -> Geometry:
        """The shorter side to `resize`, then the centre of size `crop`: torchvision's Resize and CenterCrop."""
        size = _size("source", source)
        shorter, _ = _size("resize", (resize, 1))
        return cls._make(lib.ifs_geometry_resize_crop, *size, shorter, *_size("crop", crop))

    @classmethod
    def affine(cls, source: Sequence[int], canvas: Sequence[int], to_source: ArrayLike) -> Geometry:
        """Any affine map, sampled bilinearly: `to_source` is 2 x 3 and carries canvas to source in edge coordinates.

        A matrix for pixel *centres* (as cv2.warpAffine with WARP_INVERSE_MAP takes) becomes one for edges by
        m[:, 2] += 0.5 - 0.5 * (m[:, 0] + m[:, 1]). Raises InputError unless finite and invertible.
        """
        matrix = np.ascontiguousarray(to_source, dtype=np.float64)
        if matrix.shape != (2, 3):
            raise ShapeError(f"to_source has shape {matrix.shape}; an affine map is (2, 3)")
        numbers = ffi.from_buffer("double[]", matrix)
        return cls._make(lib.ifs_geometry_affine, *_size("source", source), *_size("canvas", canvas), numbers)

    @property
    def kind(self) -> Literal["resize", "warp"]:
        """How pixels are sampled: as OpenCV's INTER_LINEAR resize, or bilinearly through the affine map."""
        return "resize" if self._c.kind == lib.IFS_GEOMETRY_RESIZE else "warp"

    @property
    def source(self) -> tuple[int, int]:
        """(width, height) of the picture."""
        return self._c.source_width, self._c.source_height

    @property
    def canvas(self) -> tuple[int, int]:
        """(width, height) of the network's input."""
        return self._c.canvas_width, self._c.canvas_height

    @property
    def resized(self) -> tuple[int, int] | None:
        """(width, height) that the picture is resized to; None for a warp."""
        return (self._c.resized_width, self._c.resized_height) if self.kind == "resize" else None

    @property
    def offset(self) -> tuple[int, int] | None:
        """(x, y) of the resized picture's corner on the canvas, negative where it is cropped; None for a warp."""
        return (self._c.offset_x, self._c.offset_y) if self.kind == "resize" else None

    @property
    def matrix(self) -> NDArray[np.float64]:
        """The (2, 3) affine map from canvas to source, in edge coordinates."""
        return np.array(list(self._c.to_source), dtype=np.float64).reshape(2, 3)

    def to_source(self, points: ArrayLike) -> NDArray[np.float64]:
        """Canvas points (N, 2) to source points (N, 2), float64. Nothing is clipped."""
        xy = np.asarray(points, dtype=np.float64)
        if xy.ndim != 2 or xy.shape[1] != 2:
            raise ShapeError(f"points have shape {xy.shape}; give (N, 2), a row of x and y for each")
        matrix = self.matrix
        mapped: NDArray[np.float64] = xy @ matrix[:, :2].T + matrix[:, 2]
        return mapped

    def _key(self) -> tuple[Any, ...]:
        return self._c.kind, self.source, self.canvas, self.resized, self.offset, tuple(self._c.to_source)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Geometry) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        size = "{} x {}".format(*self.source), "{} x {}".format(*self.canvas)
        if self.resized and self.offset:
            how = "resized to {} x {} at ({}, {})".format(*self.resized, *self.offset)
        else:
            how = f"warped by {self.matrix.tolist()}"
        return f"<Geometry {size[0]} -> {size[1]}, {how}>"


class PixelTransform:
    """What the network wants: y = x * scale + bias in float32, and the channels' order, layout and type. Immutable.

    order   "rgb", "bgr" or "gray": the channels of the output, whatever the picture's own format.
    layout  "chw" or "hwc".
    dtype   float32, float16, or uint8 (rounded to nearest even, saturated).
    fill    the padding, before the scaling, in the order of the output's channels; one number or one for each.
    scale, bias   one number or one for each channel of the output.
    """

    __slots__ = ("_c", "_dtype")

    def __init__(
        self,
        order: Literal["rgb", "bgr", "gray"] = "rgb",
        layout: Literal["chw", "hwc"] = "chw",
        dtype: DTypeLike = "float32",
        *,
        fill: int | Sequence[int] = 114,
        scale: float | Sequence[float] = 1 / 255,
        bias: float | Sequence[float] = 0.0,
    ) -> None:
        c = ffi.new("ifs_pixel_transform *")
        c.order = _choice("order", order, _ORDERS)
        c.layout = _choice("layout", layout, _LAYOUTS)
        self._dtype = np.dtype(dtype)
        if self._dtype not in _DTYPES:
            raise DTypeError(f"dtype is {self._dtype}; a network's input can be float32, float16 or uint8")
        c.dtype = _DTYPES[self._dtype]
        channels = 1 if order == "gray" else 3
        colour = _per_channel("fill", fill, channels)
        if not all(value == int(value) and 0 <= value <= 255 for value in colour):
            raise InputError(f"fill is {fill!r}; give whole numbers of 0 to 255")
        scales = _per_channel("scale", scale, channels)
        biases = _per_channel("bias", bias, channels)
        for i in range(3):
            c.fill[i] = int(colour[i % channels])
            c.scale[i] = scales[i % channels]
            c.bias[i] = biases[i % channels]
        self._c = c

    @classmethod
    def normalize(
        cls,
        mean: float | Sequence[float],
        std: float | Sequence[float],
        *,
        max_value: float = 255.0,
        order: Literal["rgb", "bgr", "gray"] = "rgb",
        layout: Literal["chw", "hwc"] = "chw",
        dtype: DTypeLike = "float32",
        fill: int | Sequence[int] = 114,
    ) -> PixelTransform:
        """y = (x / max_value - mean) / std, as scale = 1 / (max_value std) and bias = -mean / std.

        Both are computed in float64 and rounded to float32 once; the result differs from the three float32 operations
        of other libraries in the last bits. ImageNet: normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)).
        """
        channels = 1 if order == "gray" else 3
        means, stds = _per_channel("mean", mean, channels), _per_channel("std", std, channels)
        if not all(s > 0 for s in stds):
            raise InputError(f"std is {std!r}; each must be above 0")
        if not max_value > 0:
            raise InputError(f"max_value is {max_value!r}; it must be above 0")
        scale = [1.0 / (float(max_value) * s) for s in stds]
        bias = [0.0 - m / s for m, s in zip(means, stds, strict=True)]
        return cls(order, layout, dtype, fill=fill, scale=scale, bias=bias)

    @property
    def order(self) -> str:
        return next(name for name, code in _ORDERS.items() if code == self._c.order)

    @property
    def layout(self) -> str:
        return next(name for name, code in _LAYOUTS.items() if code == self._c.layout)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    @property
    def channels(self) -> int:
        """1 for gray, else 3."""
        return 1 if self._c.order == lib.IFS_ORDER_GRAY else 3

    @property
    def fill(self) -> tuple[int, ...]:
        return tuple(self._c.fill)[: self.channels]

    @property
    def scale(self) -> tuple[float, ...]:
        return tuple(self._c.scale)[: self.channels]

    @property
    def bias(self) -> tuple[float, ...]:
        return tuple(self._c.bias)[: self.channels]

    def shape(self, geometry: Geometry) -> tuple[int, int, int]:
        """The shape of one picture's output."""
        width, height = geometry.canvas
        if self._c.layout == lib.IFS_LAYOUT_CHW:
            return self.channels, height, width
        return height, width, self.channels

    def _key(self) -> bytes:
        return bytes(ffi.buffer(self._c))

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, PixelTransform) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        numbers = f"fill={self.fill}, scale={self.scale}, bias={self.bias}"
        return f"PixelTransform({self.order!r}, {self.layout!r}, {str(self.dtype)!r}, {numbers})"


def _per_channel(what: str, value: float | Sequence[float], channels: int) -> list[float]:
    """One finite float for each channel."""
    try:
        numbers = (
            [float(cast("float", value))] * channels
            if np.ndim(value) == 0
            else [float(v) for v in cast("Sequence[float]", value)]
        )
    except (TypeError, ValueError):
        raise InputError(f"{what} is {value!r}; give a number, or {channels}") from None
    if len(numbers) != channels:
        raise InputError(f"{what} has {len(numbers)} numbers; the output has {channels} channels")
    if not all(abs(number) < 3.4e38 for number in numbers):
        raise InputError(f"{what} is {value!r}; numbers must be finite in float32")
    return numbers


class ImageView:
    """A picture as the core reads it: made by `as_image`. Keeps the array alive and shares its memory."""

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
    """An array whose pixels lie side by side and whose rows follow one another, and the bytes from row to row.

    That is `array` itself where it can be, else a copy. NumPy promises nothing about the strides of axes of length 1.
    """
    strides, row = array.strides, pixel * array.shape[1]
    if strides[1] == pixel and strides[0] >= row and (array.ndim == 2 or strides[2] == 1):
        return array, strides[0]
    return np.ascontiguousarray(array), row


def _is_padded(array: NDArray[np.uint8]) -> bool:
    """Whether these are the first three channels of four that lie in memory together, the last pixel's fourth too."""
    base, (height, width), strides = array.base, array.shape[:2], array.strides
    if (
        strides[1:] != (4, 1)
        or strides[0] < 4 * width
        or not isinstance(base, np.ndarray)
        or not base.flags.c_contiguous
    ):
        return False
    beyond = _address(array) + (height - 1) * int(strides[0]) + 4 * width
    return bool(beyond <= _address(base) + base.nbytes)


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _pointer(array: NDArray[np.uint8]) -> Any:
    if array.flags.c_contiguous:
        return ffi.from_buffer(_BYTES, array)  # a fifth of the time of the interface below
    return ffi.cast("uint8_t *", _address(array))


def as_image(
    array: NDArray[np.uint8], format: PixelFormat | None = None, uv: NDArray[np.uint8] | None = None
) -> ImageView:
    """A view of `array` as a picture. Without `format`: gray, bgr or bgra by the number of channels.

    NV12 (`format="nv12"`) is either one array of (H * 3 / 2, W), or the Y plane (H, W) with `uv` of (H / 2, W) or
    (H / 2, W / 2, 2). Rows may be any distance apart, as in a region of a larger picture. What the core cannot read in
    place (mirrored rows, every second pixel, channels reversed by [..., ::-1]) is copied once, here; three channels of
    four, as `bgra[..., :3]`, are read in place.
    Raises DTypeError unless uint8, ShapeError for a shape that is no picture of that format.
    """
    if not isinstance(array, np.ndarray):
        raise InputError(f"a picture is a uint8 ndarray, not {type(array).__name__}; np.asarray makes one")
    if array.dtype != np.uint8:
        raise DTypeError(f"a picture is uint8, not {array.dtype}; scale it to 0..255 and use .astype(np.uint8)")
    shape = array.shape
    channels = shape[2] if array.ndim == 3 else 1
    if format is None:
        format = _DEFAULT_FORMAT.get(channels)  # noqa: A001
    if format is None or array.ndim not in (2, 3) or 0 in shape:
        raise ShapeError(f"a picture of shape {shape}; give (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), none of them 0")
    code = _choice("format", format, _FORMATS)
    if channels != _CHANNELS[format]:
        raise ShapeError(f"a picture of shape {shape} is not {format!r}, which has {_CHANNELS[format]} channels")
    if max(shape) > _INT32_MAX:
        raise ShapeError(f"a picture of shape {shape}; no side can be that long")
    if channels == 3 and _is_padded(array):
        stride, code = array.strides[0], _FORMATS[f"{format}a"]
    else:
        array, stride = _dense_rows(array, channels)
    c = ffi.new("ifs_image *")
    c.data = _pointer(array)
    c.stride = stride
    c.height, c.width = shape[0], shape[1]
    c.format = code
    if format != "nv12":
        if uv is not None:
            raise InputError(f"uv goes with format='nv12'; this picture is {format!r}")
        return ImageView(c, (array,), format)
    if uv is None:
        if shape[0] % 3 or shape[1] % 2:
            raise ShapeError(f"NV12 of shape {shape}; one array is (H * 3 / 2, W), with H and W even")
        c.height = shape[0] // 3 * 2
        c.uv = c.data + c.height * stride
        c.uv_stride = stride
        return ImageView(c, (array,), format)
    if uv.dtype != np.uint8:
        raise DTypeError(f"uv is uint8, not {uv.dtype}")
    if uv.shape not in ((shape[0] // 2, shape[1]), (shape[0] // 2, shape[1] // 2, 2)) or shape[0] % 2 or shape[1] % 2:
        raise ShapeError(
            f"Y of shape {shape} and uv of {uv.shape}; uv is (H / 2, W) or (H / 2, W / 2, 2), H and W even"
        )
    uv, c.uv_stride = _dense_rows(uv, 1 if uv.ndim == 2 else 2)
    c.uv = _pointer(uv)
    return ImageView(c, (array, uv), format)


def preprocess(
    image: ImageView | NDArray[np.uint8],
    geometry: Geometry,
    transform: PixelTransform,
    *,
    format: PixelFormat | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """`image` through `geometry` and `transform`: an array of `transform.shape(geometry)`.

    `out` is written and returned if given: any writable C-contiguous array of the right number of elements and type,
    such as a slice of a batch. Raises ShapeError when the picture's size is not the geometry's.
    """
    if not isinstance(image, ImageView):
        image = as_image(image, format)
    if out is None:
        out = np.empty(transform.shape(geometry), transform._dtype)
    else:
        channels, height, width = shape = transform.shape(geometry)
        if out.dtype != transform._dtype:
            raise DTypeError(f"out is {out.dtype}; the transform gives {transform._dtype}")
        if out.size != channels * height * width:
            raise ShapeError(f"out has shape {out.shape}, {out.size} elements; the transform gives {shape}")
        if not out.flags.c_contiguous:
            raise InputError(f"out of shape {out.shape} is not C-contiguous; give a whole array or a slice of a batch")
        if not out.flags.writeable:
            raise ReadOnlyError("out is read-only; give an array that can be written")
    check(lib.ifs_preprocess(image._c, geometry._c, transform._c, ffi.cast("void *", _address(out)), out.nbytes))
    return out


def preprocess_into(
    image: ImageView | NDArray[np.uint8], geometry: Geometry, transform: PixelTransform, address: int, nbytes: int
) -> None:
    """As `preprocess`, to memory at `address` where `nbytes` may be written. The caller vouches for it."""
    if not isinstance(image, ImageView):
        image = as_image(image)
    check(lib.ifs_preprocess(image._c, geometry._c, transform._c, ffi.cast("void *", address), nbytes))


def letterbox(
    image: ImageView | NDArray[np.uint8],
    size: int | Sequence[int],
    transform: PixelTransform | None = None,
    *,
    scale_up: bool = True,
    format: PixelFormat | None = None,
) -> tuple[NDArray[Any], Geometry]:
    """The letterboxed picture and the geometry that leads back: YOLOv5's preprocessing in one call.

    `size` is (width, height) of the canvas, or the side of a square one. The default transform is RGB, CHW, float32,
    divided by 255, with padding of 114.
    """
    if not isinstance(image, ImageView):
        image = as_image(image, format)
    canvas = (size, size) if isinstance(size, int) else size
    geometry = Geometry.letterbox(image.size, canvas, scale_up=scale_up)
    return preprocess(image, geometry, transform or _YOLOV5), geometry


_YOLOV5 = PixelTransform()
