"""Computes Reshape targets, level limits and grids of cells for another input size.

Detectors add the position of each cell and multiply by its stride. Exports often store these as constants: YOLOv5 one
grid per level, [1, 3, h, w, 2]; YOLOv8 and YOLOX all levels along one axis, [1, 2, 8400]. Within a level such a
constant is `a + b * column + c * row`, so it can be computed exactly for another size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["Sizes", "level_limits", "regrid", "regroup", "resolve_target"]


def regroup(old: Sequence[int], new: Sequence[int], result: Sequence[int], sizes: Sizes) -> tuple[int, ...]:
    """The new output shape of a Reshape.

    Input and output axes are matched in groups with equal numbers of elements. For [1, 255, 80, 80] and
    [1, 3, 85, 80, 80] the groups are 1 and 1, 255 and 3 x 85, 80 and 80, 80 and 80.

    Args:
        old, new: the old and new shape of its input.
        result: the old shape of its output.
        sizes: the sizes of the feature maps of the model.

    Raises:
        ValueError: the shape cannot be determined; the message gives the reason.
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
            raise ValueError(f"it reshapes {list(old)} to {list(result)}")
        if tuple(old[start:i]) != tuple(new[start:i]):
            wanted[first:j] = _split_group(old[start:i], new[start:i], result[first:j], sizes)
    return tuple(wanted)


def _split_group(old: Sequence[int], new: Sequence[int], result: Sequence[int], sizes: Sizes) -> Sequence[int]:
    """The new output axes of a group in which an input axis changes."""
    count = prod(new)
    if len(result) == 1:
        return [count]
    if not result:
        raise ValueError(f"it reduces {list(old)} to a scalar")
    if len(result) == 2 and (pair := sizes.get((result[0], result[1]))) and prod(pair) == count:
        return pair
    changes = {a: b for a, b in zip(old, new, strict=True) if a != b}
    found = [
        [*result[:index], changes[size], *result[index + 1 :]]
        for index, size in enumerate(result)
        if size in changes and prod(result) // size * changes[size] == count
    ]
    if len(found) != 1 or prod(found[0]) != count:
        raise ValueError(f"it reshapes {list(old)} to {list(result)}, and the result for {list(new)} is ambiguous")
    return found[0]


def resolve_target(target: npt.NDArray[Any], shape: Sequence[int], keeps_zero: bool) -> tuple[int, ...] | None:
    """The output shape of a Reshape with this target; None if the target does not fit."""
    try:
        sizes = [shape[index] if entry == 0 and keeps_zero else int(entry) for index, entry in enumerate(target)]
        return np.broadcast_to(0, shape).reshape(sizes).shape  # copies no elements
    except (IndexError, ValueError):
        return None


def level_limits(sizes: Sizes, before: int, after: int) -> dict[int, int]:
    """Maps the old to the new ends of levels along an axis with the cells of several levels."""
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


#: Old to new rows and columns of feature maps.
Sizes = Mapping[tuple[int, int], tuple[int, int]]
#: A resized constant, and the old sizes of its levels.
Grid = tuple["npt.NDArray[Any]", list[tuple[int, int]]]

#: Smaller steps between cells are normalised coordinates, which do not scale like positions.
_MIN_STEP = 0.5


def regrid(array: npt.NDArray[Any], axes: Sequence[int], new: Sequence[int], sizes: Sizes) -> Grid | None:
    """Resizes `axes` of a constant to the sizes `new`; None if it is not a grid.

    Args:
        array: the constant.
        axes: the axes of cells: rows and columns, or one axis of rows, of columns, or of the cells of one or several
            levels.
        new: the new sizes of these axes.
        sizes: the sizes of the feature maps of the model.

    Returns:
        The new constant, and the old sizes of its levels in their order; none for an axis of rows or of columns.
    """
    moved = np.moveaxis(array, axes, range(array.ndim - len(axes), array.ndim))
    rest = moved.shape[: array.ndim - len(axes)]
    flat = moved.reshape(-1, *(array.shape[axis] for axis in axes))
    found: Grid | None = None
    if len(axes) == 2 and axes[1] == axes[0] + 1:
        plane = _plane(flat, (new[0], new[1]))
        found = None if plane is None else (plane, [(flat.shape[1], flat.shape[2])])
    elif len(axes) == 1:
        found = next(_cells(flat, new[0], sizes), None)
    if found is None:
        return None
    made = np.moveaxis(found[0].reshape(*rest, *new), range(array.ndim - len(axes), array.ndim), axes)
    return made.astype(array.dtype), found[1]


def _plane(cells: npt.NDArray[Any], new: tuple[int, int]) -> npt.NDArray[Any] | None:
    """Resizes [k, h, w] where each k is `a + b * column + c * row`; None if it is not, or if these depend on h or w."""
    wide = cells.astype(np.float64)
    start, end = wide[:, 0, 0], wide[:, -1, -1]
    right = wide[:, 0, 1] - start if cells.shape[2] > 1 else np.zeros_like(start)
    down = wide[:, 1, 0] - start if cells.shape[1] > 1 else np.zeros_like(start)

    def plane(rows: int, columns: int) -> npt.NDArray[Any]:
        along = right[:, None, None] * np.arange(columns)[None, None, :]
        return start[:, None, None] + along + down[:, None, None] * np.arange(rows)[None, :, None]

    steps = np.abs(np.concatenate([right, down]))
    if np.any((steps > 0) & (steps < _MIN_STEP)) or not np.array_equal(plane(*cells.shape[1:]), wide):
        return None
    across, along = np.abs(right), np.abs(down)
    if np.any((across * along > 0) & ((along == cells.shape[2] * across) | (across == cells.shape[1] * along))):
        return None  # numbers of the cells
    step = np.maximum(across, along)
    from_start = (np.abs(end) > np.abs(start)) | (2 * np.abs(start) <= step)
    if np.any(step) and not np.any(from_start & (step > 0)):
        return None  # positions from the centre or from the end
    return plane(*new)


def _cells(cells: npt.NDArray[Any], new: int, sizes: Sizes) -> Iterator[Grid]:
    """Candidates for [k, n] with another n: rows, columns, or consecutive levels of `sizes`."""
    known = sorted(sizes, key=lambda size: -size[0] * size[1])
    for made, levels in _levels(cells, known, sizes):
        if made.shape[1] == new:
            yield made, levels
    if (line := _plane(cells[:, None, :], (1, new))) is not None:
        yield line[:, 0, :], []


def _levels(cells: npt.NDArray[Any], known: Sequence[tuple[int, int]], sizes: Sizes) -> Iterator[Grid]:
    """All ways to divide the cells into levels, the largest first. A level may repeat, once per anchor."""
    if not cells.shape[1]:
        yield cells, []
        return
    for index, (rows, columns) in enumerate(known):
        count = rows * columns
        if count > cells.shape[1]:
            continue
        plane = _plane(cells[:, :count].reshape(-1, rows, columns), sizes[rows, columns])
        if plane is not None:
            for tail, levels in _levels(cells[:, count:], known[index:], sizes):
                yield np.concatenate([plane.reshape(len(cells), -1), tail], axis=1), [(rows, columns), *levels]
