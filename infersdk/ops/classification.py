"""From a classifier's output to its best classes: softmax and top-k."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..core._lib import check, ffi, lib
from ..errors import DTypeError, InputError, ShapeError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["topk"]

_DTYPES = {np.dtype(np.float32).str: lib.IFS_FLOAT32, np.dtype(np.float16).str: lib.IFS_FLOAT16}  # native byte order
_INT32S, _FLOATS = ffi.typeof("int32_t[]"), ffi.typeof("float[]")


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
    scores = np.asarray(scores)
    dtype = _DTYPES.get(scores.dtype.str)
    if dtype is None:
        raise DTypeError(f"scores are {scores.dtype}; topk takes float32 and float16")
    if scores.ndim not in (1, 2):
        raise ShapeError(f"scores have shape {scores.shape}; topk takes (classes,) or (rows, classes)")
    n = scores.shape[-1]
    if not 1 <= k <= n:
        raise InputError(f"k is {k}; with {n} classes it must be 1 to {n}")
    scores = np.ascontiguousarray(scores)
    shape = k if scores.ndim == 1 else (len(scores), k)
    class_ids = np.empty(shape, np.int32)
    best = np.empty(shape, np.float32)
    source = ffi.from_buffer(scores)
    ids_c, best_c = ffi.from_buffer(_INT32S, class_ids), ffi.from_buffer(_FLOATS, best)
    if scores.ndim == 1:
        check(lib.ifs_topk(source, dtype, n, k, softmax, ids_c, best_c))
        return class_ids, best
    step = n * scores.itemsize
    for row in range(len(scores)):
        check(lib.ifs_topk(source + row * step, dtype, n, k, softmax, ids_c + row * k, best_c + row * k))
    return class_ids, best
