"""Indices of results and masks: those of a list and those of an array."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InputError, ShapeError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["row_number", "row_positions"]


def row_number(index: Any) -> int | None:
    """The position that an index of one row gives; None for any other index."""
    if hasattr(index, "__index__") and np.ndim(index) == 0 and np.asarray(index).dtype.kind in "iuO":
        return operator.index(index)
    return None


def row_positions(index: Any, count: int, kind: str) -> slice | npt.NDArray[Any]:
    """A slice, a mask of booleans or an array of positions, checked. `kind` is the name of the indexed type."""
    if isinstance(index, slice):
        return index
    chosen = np.asarray(index)
    if chosen.size == 0 and chosen.ndim == 1 and chosen.dtype != bool:
        chosen = chosen.astype(np.intp)  # an empty list is of float64
    if chosen.dtype == bool and chosen.shape != (count,):
        raise ShapeError(f"a mask has one value for each of {count} rows; this one has shape {chosen.shape}")
    if chosen.ndim != 1 or chosen.dtype.kind not in "bui":
        raise InputError(
            f"{kind} takes a position, a slice, a mask of booleans or an array of positions, not {index!r}"
        )
    return chosen
