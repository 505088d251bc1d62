"""A result of several rows, and how it is indexed."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from ...errors import InputError, ShapeError
from .plain import plain_value
from .result import Result

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Self

__all__ = ["Rows", "class_label"]

Row = TypeVar("Row")


class Rows(Result, Sequence[Row]):
    """A result that is a sequence of rows, and takes the indices of a list and those of an array."""

    __slots__ = ()

    @abstractmethod
    def _row(self, index: int) -> Row:
        """One row; `index` counts from 0 or, negative, from the end."""

    @abstractmethod
    def _take(self, index: slice | npt.NDArray[Any]) -> Self:
        """The same with the rows that `index` chooses, with all that belongs to them."""

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | Sequence[bool] | npt.NDArray[Any]) -> Self: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._take(index)
        if hasattr(index, "__index__") and not isinstance(index, (bool, np.bool_, np.ndarray)):
            return self._row(operator.index(index))
        return self._take(self._positions(index))

    def __iter__(self) -> Iterator[Row]:
        return map(self._row, range(len(self)))

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as dicts of plain Python values: `to_dict()` of each row."""
        return [plain_value(row) for row in self]

    def _positions(self, index: Any) -> npt.NDArray[Any]:
        """A mask of booleans or an array of positions, checked."""
        chosen = np.asarray(index)
        if chosen.size == 0 and chosen.ndim == 1 and chosen.dtype != bool:
            chosen = chosen.astype(np.intp)  # an empty list is of float64
        if chosen.dtype == bool and chosen.shape != (len(self),):
            raise ShapeError(f"a mask has one value for each of {len(self)} rows; this one has shape {chosen.shape}")
        if chosen.ndim != 1 or chosen.dtype.kind not in "bui":
            raise InputError(
                f"{type(self).__name__} takes a position, a slice, a mask of booleans or an array of positions, "
                f"not {index!r}"
            )
        return chosen


def class_label(names: Sequence[str], class_id: int) -> str:
    """The name of a class; its number where it has no name."""
    return names[class_id] if 0 <= class_id < len(names) else str(class_id)
