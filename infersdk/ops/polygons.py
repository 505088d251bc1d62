"""The outlines of a mask as polygons."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError, ShapeError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["mask_polygons"]


def mask_polygons(
    mask: npt.ArrayLike, *, offset: tuple[int, int] = (0, 0), tolerance: float = 0.0
) -> list[npt.NDArray[np.float32]]:
    """The outlines of a mask, along the edges of its pixels: filled by the even-odd rule they give the mask exactly.

    An outline runs clockwise around pixels of the mask, the outline of a hole counterclockwise. Pixels that touch by a
    corner alone have outlines of their own.

    Args:
        mask: `[height, width]`; values other than 0 belong to it.
        offset: (x, y) of its first pixel, which is added to all points.
        tolerance: The distance in pixels by which an outline may be off, by the algorithm of Douglas and Peucker; 0
            keeps every corner.

    Returns:
        An array of points `[k, 2]` (x, y) for each outline, the one with the largest area first. The last point is
        joined to the first one. An empty mask has no outlines.

    Raises:
        ShapeError: The mask has not two dimensions.
        InputError: The tolerance is negative or not finite.
    """
    pixels = np.asarray(mask)
    if pixels.ndim != 2:
        raise ShapeError(f"the mask has shape {pixels.shape}; use (height, width)")
    if not 0 <= tolerance < np.inf:
        raise InputError(f"tolerance is {tolerance}; it must be 0 or more, in pixels")
    outlines = [points + offset for points in _outlines(np.pad(pixels != 0, 1))]
    outlines.sort(key=_area, reverse=True)
    if tolerance:
        outlines = [points for outline in outlines if len(points := _simplify(outline, tolerance)) > 2]
    return [points.astype(np.float32) for points in outlines]


def _outlines(padded: npt.NDArray[np.bool_]) -> list[npt.NDArray[np.int64]]:
    """The closed chains of corners. `padded` has a border of zeros, whose width is taken off the points.

    Edges have the mask on their right. A corner where two pixels touch diagonally ends two edges and begins two; each
    chain turns right there, so that it stays with its pixel.
    """
    across, down = _edges(padded), _edges(padded.T)
    if not len(across):
        return []
    size = padded.shape[1] + 1
    # Corners by number: y * size + x. The edges of the transposed mask come as (x, y), and run the other way round.
    begin_a, end_a = (across[:, 0] * size + across[:, 1 + i] for i in (0, 1))
    begin_d, end_d = (down[:, 1 + i] * size + down[:, 0] for i in (1, 0))
    right, descends = across[:, 2] > across[:, 1], down[:, 1] > down[:, 2]
    to_down = _followers(end_a, right, begin_d, descends)
    to_across = _followers(end_d, ~descends, begin_a, right)
    following = to_across[to_down].tolist()
    corners = np.stack([begin_a, end_a], 1)
    chains, seen = [], [False] * len(following)
    for first in range(len(following)):
        if seen[first]:
            continue
        chain, edge = [], first
        while not seen[edge]:
            seen[edge] = True
            chain.append(edge)
            edge = following[edge]
        numbers = corners[chain].reshape(-1)
        chains.append(np.stack([numbers % size, numbers // size], 1))
    return chains


def _edges(padded: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The straight edges between rows of pixels: rows of (y, x of the begin, x of the end), the mask on the right."""
    above, below = padded[:-1], padded[1:]
    edge = (below.astype(np.int8) - above).astype(np.int8)  # 1: the mask is below; -1: it is above
    change = np.diff(edge, axis=1)
    y, x = np.nonzero(change)
    before, after = edge[y, x], edge[y, x + 1]
    begins, ends = after != 0, before != 0
    begin, end = np.stack([y, x], 1)[begins], np.stack([y, x], 1)[ends]  # in rows, both go from left to right
    rightward = after[begins] > 0
    first, last = np.where(rightward, begin[:, 1], end[:, 1]), np.where(rightward, end[:, 1], begin[:, 1])
    return np.stack([begin[:, 0], first, last], 1)


def _followers(
    ends: npt.NDArray[np.int64],
    prefers: npt.NDArray[np.bool_],
    begins: npt.NDArray[np.int64],
    forward: npt.NDArray[np.bool_],
) -> npt.NDArray[np.intp]:
    """The edge that begins where each edge ends; of two, the one whose direction is the preferred one."""
    keys = begins * 2 + forward
    order = np.argsort(keys)
    wanted = ends * 2 + prefers
    at = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
    missing = keys[order[at]] != wanted
    at[missing] = np.searchsorted(keys, wanted[missing] ^ 1, sorter=order)
    return order[at]


def _area(points: npt.NDArray[np.int64]) -> float:
    x, y = points[:, 0], points[:, 1]
    return abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2


def _simplify(points: npt.NDArray[np.int64], tolerance: float) -> npt.NDArray[np.int64]:
    """A closed outline by Douglas and Peucker's algorithm, divided at its first point and the one farthest from it."""
    far = int(np.argmax(np.square(points - points[0]).sum(1)))
    closed = np.concatenate([points, points[:1]])
    keep = np.zeros(len(closed), bool)
    keep[[0, far, len(points)]] = True
    parts = [(0, far), (far, len(points))]
    while parts:
        first, last = parts.pop()
        if last - first < 2:
            continue
        start, along = closed[first], (closed[last] - closed[first]).astype(np.float64)
        offsets = closed[first + 1 : last] - start
        length = float(np.hypot(*along))
        if length:
            part = np.clip(offsets @ along / length**2, 0, 1)
            offsets = offsets - part[:, None] * along
        distances = np.hypot(offsets[:, 0], offsets[:, 1])
        worst = int(np.argmax(distances))
        if distances[worst] > tolerance:
            middle = first + 1 + worst
            keep[middle] = True
            parts += [(first, middle), (middle, last)]
    return points[keep[:-1]]
