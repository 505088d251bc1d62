"""Semantic segmentation: from scores for each class to the class of each pixel of the image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..core._lib import check, ffi, lib
from ..core.dtypes import dtype_code
from ..errors import DTypeError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ..image import Geometry

__all__ = ["NO_CLASS", "class_map"]

#: The class of pixels that the network has not seen.
NO_CLASS: int = lib.IFS_NO_CLASS

_LAYOUTS = {"chw": lib.IFS_LAYOUT_CHW, "hwc": lib.IFS_LAYOUT_HWC}


def class_map(
    scores: npt.NDArray[Any],
    geometry: Geometry,
    *,
    layout: Literal["chw", "hwc"] = "chw",
    threshold: float = 0.5,
) -> npt.NDArray[np.uint8]:
    """The class of each pixel of an image: scores are resized bilinearly to it, without the padding, and the highest
    one wins, of equal ones the first class. With a single class, 1 where its score is above the threshold, else 0.

    Args:
        scores: of one image, `[classes, height, width]` or, for `"hwc"`, `[height, width, classes]`; float32 or
            float16, 1 to 255 classes, and no more points than the canvas has.
        geometry: how the image came to the network.
        layout: of the scores.
        threshold: for a single class.

    Returns:
        uint8 (height, width) of the image. Pixels that the canvas does not show are `NO_CLASS`.

    Raises:
        ShapeError, DTypeError: the scores have another shape or type.
        InputError: the threshold is not finite, or there are too many classes.
        NativeError: the geometry rotates or shears the image.
    """
    params = class_map_params(scores.shape, scores.dtype, layout=layout, threshold=threshold)
    scores = np.ascontiguousarray(scores)
    width, height = geometry.source
    out = np.empty((height, width), np.uint8)
    out_c = ffi.from_buffer("uint8_t[]", out, require_writable=True)
    check(lib.ifs_class_map(params, ffi.from_buffer(scores), geometry._c, out_c, out.nbytes))
    return out


def class_map_params(
    shape: Sequence[int], dtype: npt.DTypeLike, *, layout: Literal["chw", "hwc"], threshold: float
) -> Any:
    """The `ifs_class_map_params *` for scores of one image of this shape and type."""
    dtype = np.dtype(dtype)
    if dtype not in (np.float32, np.float16):
        raise DTypeError(f"scores are {dtype}; use float32 or float16")
    if len(shape) != 3 or 0 in shape:
        order = "(classes, height, width)" if layout == "chw" else "(height, width, classes)"
        raise ShapeError(f"scores have shape {tuple(shape)}; use {order}")
    params = ffi.new("ifs_class_map_params *")
    params.dtype = dtype_code(dtype)
    params.num_classes, params.height, params.width = shape if layout == "chw" else (shape[2], *shape[:2])
    params.layout = _LAYOUTS[layout]
    params.threshold = threshold
    return params
