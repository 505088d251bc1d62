"""Constants that have a value for each cell of a feature map, for feature maps of another size.

Detectors add the position of each cell and multiply by its stride. Exports often hold these as constants: YOLOv5 one
grid for each level, [1, 3, h, w, 2]; YOLOv8 and YOLOX all levels in one axis, [1, 2, 8400]. Within a level such a
constant is `a + b * column + c * row`, so it can be written for another size, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Sizes", "regrid"]

#: Rows and columns of feature maps, before and after.
Sizes = Mapping[tuple[int, int], tuple[int, int]]

#: A smaller step from cell to cell is that of coordinates from 0 to 1, which depends on the size in another way.
_LEAST_STEP = 0.5


def regrid(array: npt.NDArray[Any], axes: Sequence[int], new: Sequence[int], sizes: Sizes) -> npt.NDArray[Any] | None:
    """The constant with `axes` of the sizes `new`; None if it is not a grid.

    Args:
        array: the constant.
        axes: the axes that count cells: rows and columns; or one axis for rows, for columns, or for the cells of one
            level or several, one after another.
        new: what the sizes of these axes become.
        sizes: of the feature maps of the model.
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
    """[k, h, w] of `a + b * column + c * row` for each k, with other h and w; None if it is not that."""
    wide = cells.astype(np.float64)
    start = wide[:, 0, 0]
    right = wide[:, 0, 1] - start if cells.shape[2] > 1 else np.zeros_like(start)
    down = wide[:, 1, 0] - start if cells.shape[1] > 1 else np.zeros_like(start)

    def plane(rows: int, columns: int) -> npt.NDArray[Any]:
        along = right[:, None, None] * np.arange(columns)[None, None, :]
        return start[:, None, None] + along + down[:, None, None] * np.arange(rows)[None, :, None]

    steps = np.abs(np.concatenate([right, down]))
    if np.any((steps > 0) & (steps < _LEAST_STEP)) or not np.array_equal(plane(*cells.shape[1:]), wide):
        return None
    return plane(*new)


def _cells(cells: npt.NDArray[Any], new: int, sizes: Sizes) -> Iterator[npt.NDArray[Any]]:
    """[k, n] with another n: rows or columns alone, or levels of `sizes` one after another."""
    known = sorted(sizes, key=lambda size: -size[0] * size[1])
    for made in _levels(cells, known, sizes):
        if made.shape[1] == new:
            yield made
    if (line := _plane(cells[:, None, :], (1, new))) is not None:
        yield line[:, 0, :]


def _levels(cells: npt.NDArray[Any], known: Sequence[tuple[int, int]], sizes: Sizes) -> Iterator[npt.NDArray[Any]]:
    """All ways to read the cells as levels, the largest first. A level may repeat: once for each anchor."""
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
