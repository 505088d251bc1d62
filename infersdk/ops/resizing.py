"""Resizing with a filter: images as Pillow does, byte for byte, and maps of numbers (depth, anomaly scores, mattes)."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..core._lib import check, choice, ffi, lib
from ..core.tensor_spec import aligned, as_array, float_code
from ..errors import InputError, ShapeError
from ..image.images import ImageView, PixelFormat, image_view

if TYPE_CHECKING:
    import numpy.typing as npt
    from numpy.typing import NDArray

    from ..image import Geometry

__all__ = ["resample", "resize_map"]

_MAX_SIDE = 1 << 20  # of native/src/geometry.h
_FILTERS = {"bilinear": lib.IFS_FILTER_BILINEAR, "bicubic": lib.IFS_FILTER_BICUBIC}


def resample(
    image: ImageView | NDArray[np.uint8],
    size: tuple[int, int],
    *,
    filter: str = "bicubic",
    crop: tuple[int, int, int, int] | None = None,
    format: PixelFormat | None = None,
) -> NDArray[np.uint8]:
    """Resizes an image with a filter that takes all its pixels into account: the bytes of Pillow's `Image.resize`.

    Args:
        image: without a view, a uint8 array as `image_view` takes it. NV12 is not taken.
        size: (width, height) of the resized image.
        filter: `"bilinear"` or `"bicubic"`. (`preprocess()` resizes as OpenCV's INTER_LINEAR does.)
        crop: left, top, right and bottom of the part of the resized image that is returned; None is all of it. Only
            that part is computed.
        format: of an array, as for `image_view`.

    Returns:
        (height, width, 3) uint8 in the image's own order of channels, without an alpha channel; (height, width) of a
        gray image.

    Raises:
        InputError: the filter is unknown, a side is out of range, or the part lies outside the resized image.
        NativeError: the format cannot be resampled.
    """
    code = choice("filter", filter, _FILTERS)
    view = image_view(image, format)
    try:
        width, height = map(index, size)
        left, top, right, bottom = map(index, crop) if crop is not None else (0, 0, width, height)
    except (TypeError, ValueError):
        raise InputError(
            f"size is {size!r} and crop {crop!r}; use whole numbers, (width, height) and (left, top, right, bottom)"
        ) from None
    size, part = (width, height), (left, top, right, bottom)
    for side, first, end in zip(size, part[:2], part[2:], strict=True):
        if not 0 < side <= _MAX_SIDE:
            raise InputError(f"a side is {side} pixels; it must be 1 to {_MAX_SIDE}")
        if first >= end:
            raise InputError(f"the part {part} is empty; use (left, top, right, bottom)")
        if first < 0 or end > side:
            raise InputError(f"the part {part} lies outside the resized image of {size[0]} x {size[1]}")
    width, height = right - left, bottom - top
    out = np.empty((height, width) if view.format == "gray" else (height, width, 3), np.uint8)
    bytes_out = ffi.from_buffer("uint8_t[]", out, require_writable=True)
    check(lib.ifs_resample(view._c, *size, code, left, top, width, height, bytes_out))
    return out


def resize_map(
    values: npt.NDArray[Any], geometry: Geometry, *, filter: Literal["bilinear", "bicubic"] = "bilinear"
) -> npt.NDArray[np.float32]:
    """A map at the size of the image, without the padding: the values of `torch.nn.functional.interpolate` with
    `align_corners=False`.

    Args:
        values: `[height, width]` of one image; float32 or float16, and no more points than the canvas has.
        geometry: how the image came to the network.
        filter: `"bilinear"`, or `"bicubic"` with a = -0.75. Neither averages pixels where the map is larger than the
            image.

    Returns:
        float32 (height, width) of the image; NaN for pixels that the canvas does not show.

    Raises:
        ShapeError, DTypeError: the map has another shape or type, or more points than the canvas.
        InputError: the filter is unknown.
        NativeError: the geometry rotates or shears the image.
    """
    code = choice("filter", filter, _FILTERS)
    values = as_array(values)
    if values.ndim != 2 or 0 in values.shape:
        raise ShapeError(f"the map has shape {values.shape}; use (height, width)")
    values = aligned(np.ascontiguousarray(values))
    params = ffi.new("ifs_float_map_params *")
    params.dtype, params.filter = float_code("the map is", values.dtype), code
    params.height, params.width = values.shape
    width, height = geometry.source
    out = np.empty((height, width), np.float32)
    out_c = ffi.from_buffer("float[]", out, require_writable=True)
    check(lib.ifs_float_map(params, ffi.from_buffer(values), geometry._c, out_c, out.nbytes))
    return out
