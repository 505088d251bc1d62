"""Rewrites constants with a value per cell of a feature map for feature maps of another size.

Detectors add the position of each cell and multiply by its stride. Exports often store these as constants: YOLOv5 one
grid per level, [1, 3, h, w, 2]; YOLOv8 and YOLOX all levels along one axis, [1, 2, 8400]. Within a level such a
constant is `a + b * column + c * row`, so it can be computed exactly for another size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Sizes", "regrid"]

#: Old to new rows and columns of feature maps.
Sizes = Mapping[tuple[int, int], tuple[int, int]]

#: Smaller steps between cells are normalised coordinates, which do not scale like positions.
_MIN_STEP = 0.5


def regrid(array: npt.NDArray[Any], axes: Sequence[int], new: Sequence[int], sizes: Sizes) -> npt.NDArray[Any] | None:
    """Resizes `axes` of a constant to the sizes `new`; None if it is not a grid.

    Args:
        array: the constant.
        axes: the axes of cells: rows and columns, or one axis of rows, of columns, or of the cells of one or several
            levels.
        new: the new sizes of these axes.
        sizes: the sizes of the feature maps of the model.
    """
    moved = np.moveaxis(array, axes, range(array.ndim - len(axes), array.ndim))
    rest = moved.shape[: array.ndim - len(axes)]
    flat = moved.reshape(-1, *(array.shape[axis] for axis in axes))
    if len(axes) == 2 and axes[1] == axes[0] + 1:
        made = _plane(flat, (new[0], new[1]))
    elif len(axes) == 1:
        made = next((cells for cells in _cells(flat, new[0], sizes)), None)
    else:
        return None
    if made is None:
        return None
    result: npt.NDArray[Any] = np.moveaxis(
        made.reshape(*rest, *new), range(array.ndim - len(axes), array.ndim), axes
    ).astype(array.dtype)
    return result


def _plane(cells: npt.NDArray[Any], new: tuple[int, int]) -> npt.NDArray[Any] | None:
    """Resizes [k, h, w] where each k is `a + b * column + c * row`; None if it is not."""
    wide = cells.astype(np.float64)
    start = wide[:, 0, 0]
    right = wide[:, 0, 1] - start if cells.shape[2] > 1 else np.zeros_like(start)
    down = wide[:, 1, 0] - start if cells.shape[1] > 1 else np.zeros_like(start)

    def plane(rows: int, columns: int) -> npt.NDArray[Any]:
        along = right[:, None, None] * np.arange(columns)[None, None, :]
        return start[:, None, None] + along + down[:, None, None] * np.arange(rows)[None, :, None]

    steps = np.abs(np.concatenate([right, down]))
    if np.any((steps > 0) & (steps < _MIN_STEP)) or not np.array_equal(plane(*cells.shape[1:]), wide):
        return None
    return plane(*new)


def _cells(cells: npt.NDArray[Any], new: int, sizes: Sizes) -> Iterator[npt.NDArray[Any]]:
    """Candidates for [k, n] with another n: rows, columns, or consecutive levels of `sizes`."""
    known = sorted(sizes, key=lambda size: -size[0] * size[1])
    for made in _levels(cells, known, sizes):
        if made.shape[1] == new:
            yield made
    if (line := _plane(cells[:, None, :], (1, new))) is not None:
        yield line[:, 0, :]


def _levels(cells: npt.NDArray[Any], known: Sequence[tuple[int, int]], sizes: Sizes) -> Iterator[npt.NDArray[Any]]:
    """All ways to divide the cells into levels, the largest first. A level may repeat, once per anchor."""
    if not cells.shape[1]:
        yield cells
        return
    for index, (rows, columns) in enumerate(known):
        count = rows * columns
        if count > cells.shape[1]:
            continue
        plane = _plane(cells[:, :count].reshape(-1, rows, columns), sizes[rows, columns])
        if plane is not None:
            for tail in _levels(cells[:, count:], known[index:], sizes):
                yield np.concatenate([plane.reshape(len(cells), -1), tail], axis=1)
