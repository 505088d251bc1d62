"""The element types of tensors: NumPy's name of each, and its number in the native core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DTypeError
from ._lib import lib

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["DTYPES", "dtype_code"]

_NAMES = (
    "float32", "float16", "int32", "uint8", "int8", "int64",
    "bool", "float64", "int16", "uint16", "uint32", "uint64",
)  # fmt: skip
_CODES: dict[np.dtype[Any], int] = {np.dtype(name): getattr(lib, f"IFS_{name.upper()}") for name in _NAMES}

DTYPES: dict[int, np.dtype[Any]] = {code: dtype for dtype, code in _CODES.items()}
"""The NumPy type of each native number."""


def dtype_code(dtype: npt.DTypeLike) -> int:
    """The native number of a NumPy element type.

    Raises:
        DTypeError: A tensor cannot hold this type.
    """
    try:
        return _CODES[np.dtype(dtype)]
    except (KeyError, TypeError):
        raise DTypeError(f"a tensor cannot hold {dtype!r}; use one of {', '.join(_NAMES)}") from None
