"""Parses the two forms of Tensor.slice in PNNX files, for one axis or several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import ModelFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .graph import Operator

__all__ = ["SliceEntry", "slice_entries"]

#: The code for "to the end" and for "no index".
_NONE = 2**31 - 1


@dataclass(frozen=True)
class SliceEntry:
    """A range along an axis, or an index that removes the axis."""

    axis: int
    start: Any
    end: Any
    step: Any
    select: Any = None


def slice_entries(one: Operator, rank: int, given: Callable[[str], Any]) -> list[SliceEntry]:
    """The ranges of an operator, with non-negative axes. Limits are numbers or values from `given`.

    Args:
        given: returns the input with a name, such as `start` or `ends`, or None.

    Raises:
        ModelFormatError: the lists have different lengths, or an axis does not exist.
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
