"""Values as plain data, for JSON."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from ...errors import DTypeError
from .masks import Mask

__all__ = ["plain_data", "plain_rows", "plain_value"]


def plain_value(value: Any) -> Any:
    """A value of a row as JSON takes it; a mask as COCO's run lengths, an exception as its message."""
    if isinstance(value, Mask):
        return value.to_coco()
    for name in ("to_dict", "to_dicts"):
        if hasattr(value, name):
            return getattr(value, name)()
    if isinstance(value, Exception):
        return {"error": str(value)}
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind in "mM" and np.datetime_data(value.dtype)[0] == "ns":  # finer than Python's own types
            value = value.astype(f"{value.dtype.kind}8[us]")
        own = value.tolist()
        return own if value.dtype.kind in "biufcUS" else plain_data(own)
    return plain_data(value) if isinstance(value, (list, tuple, dict)) else value


def plain_data(value: Any) -> Any:
    """A value with arrays, NumPy's numbers, masks and results in it as plain data."""
    return msgspec.to_builtins(value, enc_hook=_encoded, builtin_types=(bytes,))


def plain_rows(result: Any) -> Any:
    """The rows of a result as plain data; any other value as it is."""
    return plain_data(result.to_dicts() if hasattr(result, "to_dicts") else result)


def _encoded(value: Any) -> Any:
    plain = plain_value(value)
    if plain is value:
        raise DTypeError(f"a {type(value).__name__} cannot be written as JSON; leave it out or convert it")
    return plain
