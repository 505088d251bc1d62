"""Maps of numbers (depth, anomaly scores, mattes): from points of the network's canvas to pixels of the image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..core._lib import check, ffi, lib
from ..core.dtypes import dtype_code
from ..errors import DTypeError, InputError, ShapeError

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..image import Geometry

__all__ = ["resize_map"]

_FILTERS = {"bilinear": lib.IFS_FILTER_BILINEAR, "bicubic": lib.IFS_FILTER_BICUBIC}


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
    if filter not in _FILTERS:
        raise InputError(f"filter is {filter!r}; use one of {', '.join(_FILTERS)}")
    if values.dtype not in (np.float32, np.float16):
        raise DTypeError(f"the map is {values.dtype}; use float32 or float16")
    if values.ndim != 2 or 0 in values.shape:
        raise ShapeError(f"the map has shape {values.shape}; use (height, width)")
    values = np.ascontiguousarray(values)
    params = ffi.new("ifs_float_map_params *")
    params.dtype, params.filter = dtype_code(values.dtype), _FILTERS[filter]
    params.height, params.width = values.shape
    width, height = geometry.source
    out = np.empty((height, width), np.float32)
    out_c = ffi.from_buffer("float[]", out, require_writable=True)
    check(lib.ifs_float_map(params, ffi.from_buffer(values), geometry._c, out_c, out.nbytes))
    return out
