"""A result of several rows, and how it is indexed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ...errors import InputError
from .indices import row_number, row_positions
from .plain import plain_value
from .result import Result

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Self

__all__ = ["Rows", "check_names", "class_label"]

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
        if (number := row_number(index)) is not None:
            return self._row(number)
        return self._take(row_positions(index, len(self), type(self).__name__))

    def __iter__(self) -> Iterator[Row]:
        return map(self._row, range(len(self)))

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as dicts of plain Python values: `to_dict()` of each row."""
        return [plain_value(row) for row in self]


def check_names(names: Any) -> None:
    """Raises InputError unless class names can be read by class_id."""
    if isinstance(names, (str, bytes, Mapping, Set)) or not hasattr(names, "__len__"):
        raise InputError(f"names is {names!r:.80}; give a list of the class names by class_id, which may be empty")


def class_label(names: Sequence[str], class_id: int) -> str:
    """The name of a class; its number where it has no name."""
    return names[class_id] if 0 <= class_id < len(names) else str(class_id)
