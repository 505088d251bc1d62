"""What the shapes of a Reshape, and the limits of levels in one axis, become for another size."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from .grids import Sizes

__all__ = ["level_limits", "regroup", "resolve_target"]


def regroup(
    old: Sequence[int], new: Sequence[int], result: Sequence[int], sizes: Sizes, *, free_batch: bool
) -> tuple[int, ...]:
    """What the shape of a Reshape's result becomes.

    The axes before and behind it are read as groups of the same number of elements: [1, 255, 80, 80] to
    [1, 3, 85, 80, 80] as 1 to 1, 255 to 3 x 85, and twice 80 to 80.

    Args:
        old, new: the shape of its input, before and after.
        result: the shape of its result before.
        sizes: of the feature maps of the model.
        free_batch: the first axis is what changes.

    Raises:
        ValueError: it is not known; the text says why.
    """
    wanted, i, j = list(result), 0, 0
    while i < len(old) or j < len(result):
        start, first = i, j
        left, right = 1, 1
        while True:
            if i < len(old) and (left < right or i == start):
                left, i = left * old[i], i + 1
            elif j < len(result) and (right < left or j == first):
                right, j = right * result[j], j + 1
            else:
                break
        if left != right:
            raise ValueError(f"it makes {list(result)} of {list(old)}")
        if tuple(old[start:i]) != tuple(new[start:i]):
            wanted[first:j] = _split_group(old[start:i], new[start:i], result[first:j], sizes, free_batch)
    return tuple(wanted)


def _split_group(
    old: Sequence[int], new: Sequence[int], result: Sequence[int], sizes: Sizes, free_batch: bool
) -> Sequence[int]:
    """The axes that a group of axes becomes, one of which at least changes."""
    count = prod(new)
    if len(result) == 1:
        return [count]
    if not result:
        raise ValueError(f"it takes {list(old)} together to one number")
    if len(result) == 2 and (pair := sizes.get((result[0], result[1]))) and prod(pair) == count:
        return pair
    changes = {a: b for a, b in zip(old, new, strict=True) if a != b}
    found = [
        [*result[:index], changes[size], *result[index + 1 :]]
        for index, size in enumerate(result)
        if size in changes and prod(result) // size * changes[size] == count
    ]
    if len(found) != 1 and free_batch and result[0] == old[0]:
        found = [[new[0], *result[1:]]]
    if len(found) != 1 or prod(found[0]) != count:
        raise ValueError(f"it makes {list(result)} of {list(old)}, and what of {list(new)} is not known")
    return found[0]


def resolve_target(target: npt.NDArray[Any], shape: Sequence[int], keeps_zero: bool) -> tuple[int, ...] | None:
    """The shape that a Reshape with this target gives; None if it does not fit."""
    sizes = [int(entry) for entry in target]
    for index, entry in enumerate(sizes):
        if entry == 0 and keeps_zero:
            if index >= len(shape):
                return None
            sizes[index] = shape[index]
    if -1 in sizes:
        rest = -prod(sizes)
        if rest <= 0 or prod(shape) % rest:
            return None
        sizes[sizes.index(-1)] = prod(shape) // rest
    return tuple(sizes) if prod(sizes) == prod(shape) else None


def level_limits(sizes: Sizes, before: int, after: int) -> dict[int, int]:
    """Where levels end in an axis that holds the cells of several, one after another: before, and after."""
    known = sorted(sizes.items(), key=lambda entry: -prod(entry[0]))
    areas = [(prod(old), prod(new)) for old, new in known]
    for first in range(len(areas)):
        for last in range(first + 2, len(areas) + 1):
            totals = np.sum(areas[first:last], axis=0)
            repeat = before // int(totals[0])
            if repeat and before == repeat * totals[0] and after == repeat * totals[1]:
                steps = np.cumsum(np.repeat(areas[first:last], repeat, axis=0), axis=0)
                return {int(old): int(new) for old, new in steps}
    return {}
