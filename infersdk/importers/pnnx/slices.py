"""Tensor.slice: its two forms in the file, one axis or several, as one list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import ModelFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .graph import Operator

__all__ = ["SliceEntry", "slice_entries"]

#: Stands in the file for "to the end", and for "no index".
_NONE = 2**31 - 1


@dataclass(frozen=True)
class SliceEntry:
    """What happens to one axis: a range, or an index that takes the axis out."""

    axis: int
    start: Any
    end: Any
    step: Any
    select: Any = None


def slice_entries(one: Operator, rank: int, given: Callable[[str], Any]) -> list[SliceEntry]:
    """The ranges of an operator. Axes count from the front; limits are numbers, or values that `given` returns.

    Args:
        given: the input of a name (`start`, `end`, `starts`...), None where there is none.

    Raises:
        ModelFormatError: its lists differ in length, or an axis does not exist.
    """

    def of(name: str) -> Any:
        value = given(name)
        return value if value is not None else one.params.get(name)

    if "dim" in one.params:
        lists: list[Sequence[Any]] = [[one.params["dim"]], [of("start")], [of("end")], [of("step")], [of("select")]]
    else:
        dims = one.params.get("dims", ())
        names = ("starts", "ends", "steps", "selects")
        lists = [dims, *(_sequence(of(name), len(dims)) for name in names)]
    if len({len(column) for column in lists}) != 1:
        raise ModelFormatError(f"operator {one.name!r} (Tensor.slice) has lists of different lengths: {one.params}")
    entries = []
    for axis, start, end, step, select in zip(*lists, strict=True):
        if not isinstance(axis, int) or not -rank <= axis < rank:
            raise ModelFormatError(f"operator {one.name!r} (Tensor.slice): axis {axis!r} of {rank}")
        taken = None if isinstance(select, int) and select == _NONE else select
        first = 0 if start is None or (isinstance(start, int) and start == _NONE) else start
        entries.append(
            SliceEntry(axis % rank, first, _NONE if end is None else end, 1 if step is None else step, taken)
        )
    return entries


def _sequence(value: Any, count: int) -> Sequence[Any]:
    if value is None:
        return [None] * count
    return value if isinstance(value, (list, tuple)) else [value]
