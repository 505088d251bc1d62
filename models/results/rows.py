"""A result of several rows: how it is indexed, and how it leaves as plain data."""

from __future__ import annotations

import operator
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

import numpy as np

from ..._files import atomic_path, atomic_write
from ..._text import json_text
from ...errors import ConfigError, InputError, ShapeError

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image
    from typing_extensions import Self

__all__ = ["Rows", "class_label", "save_rows"]

Row = TypeVar("Row")


class Rows(Sequence[Row]):
    """A sequence of rows that takes the indices of a list and those of an array."""

    __slots__ = ()

    @abstractmethod
    def _row(self, index: int) -> Row:
        """One row; `index` counts from 0 or, negative, from the end."""

    @abstractmethod
    def _take(self, index: slice | npt.NDArray[Any]) -> Self:
        """The same with the rows that `index` chooses, with all that belongs to them."""

    @abstractmethod
    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as dicts of plain Python values."""

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

    def to_json(self, *, indent: int | None = None) -> str:
        """`to_dicts()` as JSON; with an indent, the coordinates of a box are on one line.

        Raises:
            ValueError: a number that JSON cannot hold: infinity or NaN.
        """
        return json_text(self.to_dicts(), indent=indent, ensure_ascii=False, allow_nan=False)

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


class Exportable(Protocol):
    """A result that is JSON."""

    def to_json(self, *, indent: int | None = None) -> str: ...


def save_rows(rows: Exportable, path: str | os.PathLike[str], draw: Callable[[], Image.Image] | None) -> Path:
    """Writes a result to a file, by its suffix: `.json` holds `to_dicts()`, any other an image.

    Args:
        draw: Makes the image; None for results that are saved as JSON alone.

    Raises:
        ConfigError: The suffix names an image, and `draw` is None.
        OutputError: The file cannot be written.
    """
    target = Path(path)
    if target.suffix.lower() == ".json":
        return atomic_write(target, rows.to_json(indent=2) + "\n")
    if draw is None:
        raise ConfigError(f"{str(target)!r}: {type(rows).__name__} are saved as JSON; use a name such as out.json")
    with atomic_path(target) as sibling:
        draw().save(sibling)
    return target


def class_label(names: Sequence[str], class_id: int) -> str:
    """The name of a class; its number where it has no name."""
    return names[class_id] if class_id < len(names) else str(class_id)
