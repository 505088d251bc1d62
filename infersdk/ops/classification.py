"""From scores to classes: the best ones of an image, and the class of each of its pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..core._lib import check, choice, ffi, lib
from ..core.tensor_spec import aligned, as_array, float_code
from ..errors import DTypeError, InputError, ShapeError
from ..image.transforms import LAYOUTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ..image import Geometry

__all__ = ["NO_CLASS", "class_map", "class_numbers", "topk"]

#: The class of pixels that the network has not seen.
NO_CLASS: int = lib.IFS_NO_CLASS


def topk(
    scores: npt.NDArray[Any], k: int = 5, *, softmax: bool = True
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The `k` best classes and their scores, best first, equal ones by index.

    Args:
        scores: `[classes]`, or `[rows, classes]`, float32 or float16.
        k: The number of results, from 1 to the number of classes.
        softmax: Return exp(x - max) / sum over all classes in place of the scores. It is computed in float32, with the
            same bits on every machine.

    Returns:
        Class numbers (int32) and scores (float32), both `[k]`, or `[rows, k]`.

    Raises:
        ShapeError, DTypeError: `scores` has another shape or type.
        InputError: `k` is out of range, a score is NaN, or, with softmax, the largest score of a row is infinite.
    """
    scores = as_array(scores)
    dtype = float_code("scores are", scores.dtype)
    if scores.ndim not in (1, 2):
        raise ShapeError(f"scores have shape {scores.shape}; topk takes (classes,) or (rows, classes)")
    n = scores.shape[-1]
    if not 1 <= k <= n:
        raise InputError(f"k is {k}; with {n} classes it must be 1 to {n}")
    scores = aligned(np.ascontiguousarray(scores))
    shape = *scores.shape[:-1], k
    class_ids = np.empty(shape, np.int32)
    best = np.empty(shape, np.float32)
    source = ffi.from_buffer(scores)
    ids_c, best_c = ffi.from_buffer("int32_t[]", class_ids), ffi.from_buffer("float[]", best)
    step = n * scores.itemsize
    for row in range(scores.size // n):
        check(lib.ifs_topk(source + row * step, dtype, n, k, softmax, ids_c + row * k, best_c + row * k))
    return class_ids, best


def class_map(
    scores: npt.NDArray[Any], geometry: Geometry, *, layout: Literal["chw", "hwc"] = "chw", threshold: float = 0.5
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
    scores = as_array(scores)
    params = class_map_params(scores.shape, scores.dtype, layout=layout, threshold=threshold)
    scores = aligned(np.ascontiguousarray(scores))
    width, height = geometry.source
    out = np.empty((height, width), np.uint8)
    out_c = ffi.from_buffer("uint8_t[]", out, require_writable=True)
    check(lib.ifs_class_map(params, ffi.from_buffer(scores), geometry._c, out_c, out.nbytes))
    return out


def class_numbers(numbers: npt.NDArray[Any], geometry: Geometry) -> npt.NDArray[np.uint8]:
    """The class of each pixel of an image from a map of class numbers: that of the point which its centre lies in.

    Args:
        numbers: of one image, integers `[height, width]` from 0 to 254. The map covers the whole canvas.
        geometry: how the image came to the network.

    Returns:
        uint8 (height, width) of the image. Pixels that the canvas does not show are `NO_CLASS`.

    Raises:
        ShapeError, DTypeError: the map has another shape or type.
        InputError: a number is out of range, or the geometry rotates or shears the image.
    """
    numbers = as_array(numbers)
    if numbers.dtype.kind not in "iu":
        raise DTypeError(f"class numbers are {numbers.dtype}; use integers")
    if numbers.ndim != 2 or 0 in numbers.shape:
        raise ShapeError(f"class numbers have shape {numbers.shape}; use (height, width)")
    if numbers.min() < 0 or numbers.max() >= NO_CLASS:
        raise InputError(f"class numbers reach from {numbers.min()} to {numbers.max()}; use 0 to {NO_CLASS - 1}")
    matrix = geometry.matrix
    if matrix[0, 1] or matrix[1, 0]:
        raise InputError(
            "the geometry rotates or shears the image; for a map of class numbers use one that only scales and moves it"
        )
    points, outside = [], []
    for axis in (1, 0):
        on_canvas = (np.arange(geometry.source[axis]) + 0.5 - matrix[axis, 2]) / matrix[axis, axis]
        size = numbers.shape[1 - axis]
        point = np.floor(on_canvas / geometry.canvas[axis] * size).astype(np.int64)
        points.append(point.clip(0, size - 1))
        outside.append((point < 0) | (point >= size))
    found: npt.NDArray[np.uint8] = numbers.astype(np.uint8)[np.ix_(*points)]
    found[outside[0]] = found[:, outside[1]] = NO_CLASS
    return found


def class_map_params(
    shape: Sequence[int], dtype: npt.DTypeLike, *, layout: Literal["chw", "hwc"], threshold: float
) -> Any:
    """The `ifs_class_map_params *` for scores of one image of this shape and type."""
    if len(shape) != 3 or 0 in shape:
        order = "(classes, height, width)" if layout == "chw" else "(height, width, classes)"
        raise ShapeError(f"scores have shape {tuple(shape)}; use {order}")
    params = ffi.new("ifs_class_map_params *")
    params.dtype = float_code("scores are", dtype)
    params.num_classes, params.height, params.width = shape if layout == "chw" else (shape[2], *shape[:2])
    params.layout = choice("layout", layout, LAYOUTS)
    params.threshold = threshold
    return params
