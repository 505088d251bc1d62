"""Rectangles around lines of text, by their four corners, and the maps that bring them upright.

The corners of a line go clockwise from where it begins above: begins above, ends above, ends below, begins below.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ...image import Geometry

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["LINE_HEIGHT", "along_the_text", "line_width", "sides", "upright_geometry"]

#: The height of a line, as the networks take it.
LINE_HEIGHT = 48
#: Minimum height by width of a line that is written from top to bottom.
VERTICAL = 1.5


def sides(quad: npt.NDArray[np.float32]) -> tuple[int, int]:
    """The width and height of a rectangle, in whole pixels: the longer ones of opposite sides."""
    lengths = np.linalg.norm(quad - np.roll(quad, -1, axis=0), axis=1)
    return int(max(lengths[0], lengths[2])), int(max(lengths[1], lengths[3]))


def along_the_text(quad: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The corners from where the line begins: text from top to bottom begins at the upper right corner."""
    width, height = sides(quad)
    return quad[[1, 2, 3, 0]] if height >= VERTICAL * width else quad


def line_width(quad: npt.NDArray[np.float32]) -> int:
    """The width of a line that is 48 pixels high."""
    width, height = sides(quad)
    return max(math.ceil(LINE_HEIGHT * width / max(height, 1)), 1)


def upright_geometry(size: tuple[int, int], quad: npt.NDArray[np.float32], width: int) -> Geometry:
    """The map from a canvas of `width` x 48 to an image of `size`, along the sides of the line."""
    begin, end, below = quad[0], quad[1], quad[3]
    matrix = np.column_stack([(end - begin) / width, (below - begin) / LINE_HEIGHT, begin])
    return Geometry.affine(size, (width, LINE_HEIGHT), matrix.astype(np.float64))
