"""Resizing with a filter, byte for byte as Pillow does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..core._lib import check, ffi, lib
from ..errors import InputError
from ..image.view import ImageView, PixelFormat, image_view

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["resample"]

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
    if filter not in _FILTERS:
        raise InputError(f"filter is {filter!r}; use one of {', '.join(_FILTERS)}")
    view = image if isinstance(image, ImageView) else image_view(image, format)
    left, top, right, bottom = crop if crop is not None else (0, 0, *size)
    width, height = right - left, bottom - top
    if width < 1 or height < 1:
        raise InputError(f"crop {crop} is empty; use (left, top, right, bottom)")
    out = np.empty((height, width) if view.format == "gray" else (height, width, 3), np.uint8)
    bytes_out = ffi.from_buffer("uint8_t[]", out, require_writable=True)
    check(lib.ifs_resample(view._c, *size, _FILTERS[filter], left, top, width, height, bytes_out))
    return out
