"""Rectangles around lines of text: from a map of where text is, and to the maps that bring them upright.

The rectangles come from differentiable binarization.

M. Liao et al., "Real-time Scene Text Detection with Differentiable Binarization", 2020. Text is where the map exceeds a
threshold, and each connected part is a line. The network is trained on lines that shrink by area * (1 - r^2) /
perimeter; here they grow by area * unclip / perimeter.

The corners of a line go clockwise from where it begins above: begins above, ends above, ends below, begins below.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import BackendUnavailableError
from ...image import Geometry

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "LINE_HEIGHT", "along_the_text", "corner_areas", "import_cv2", "line_width", "reading_order", "sides",
    "text_regions", "upright_geometry",
]  # fmt: skip

#: Sides in pixels of the map below which a part is noise: before it grows, and after.
SMALLEST, SMALLEST_GROWN = 3.0, 5.0
#: The most connected parts of a map that are looked at.
MOST_PARTS = 1000
#: The height of a line, as the networks take it.
LINE_HEIGHT = 48
#: Minimum height by width of a line that is written from top to bottom.
VERTICAL = 1.5


def import_cv2() -> Any:
    """The module `cv2`."""
    try:
        import cv2
    except ImportError as error:
        raise BackendUnavailableError(f'reading text needs OpenCV ({error}): pip install "infersdk[ocr]"') from None
    return cv2


def text_regions(
    probability: npt.NDArray[np.float32], *, threshold: float, box_threshold: float, unclip: float
) -> npt.NDArray[np.float32]:
    """The rectangles around the lines of text.

    Args:
        probability: (height, width): how sure it is that a pixel is text, 0 to 1.
        threshold, box_threshold, unclip: see `OCR`.

    Returns:
        (N, 4, 2): the corners in pixels of the map, clockwise from the upper left one.
    """
    cv2 = import_cv2()
    text = (probability > threshold).astype(np.uint8)
    # Strokes of one line that touch at a corner alone belong together.
    text = cv2.dilate(text, np.ones((2, 2), np.uint8))
    contours = cv2.findContours(text, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)[-2][:MOST_PARTS]
    result = []
    for contour in contours:
        (x, y), (width, height), angle = cv2.minAreaRect(contour)
        if min(width, height) < SMALLEST:
            continue
        if _mean_within(cv2, probability, cv2.boxPoints(((x, y), (width, height), angle))) < box_threshold:
            continue
        grown = width * height * unclip / (2 * (width + height))  # the offset polygon of a rectangle lies in this one
        width, height = width + 2 * grown, height + 2 * grown
        if min(width, height) < SMALLEST_GROWN:
            continue
        result.append(_clockwise(cv2.boxPoints(((x, y), (width, height), angle))))
    return np.array(result, np.float32).reshape(-1, 4, 2)


def _mean_within(cv2: Any, probability: npt.NDArray[np.float32], corners: npt.NDArray[np.float32]) -> float:
    height, width = probability.shape
    left, top = np.clip(np.floor(corners.min(axis=0)).astype(int), 0, (width - 1, height - 1))
    right, bottom = np.clip(np.ceil(corners.max(axis=0)).astype(int), 0, (width - 1, height - 1))
    inside = np.zeros((bottom - top + 1, right - left + 1), np.uint8)
    cv2.fillPoly(inside, [(corners - (left, top)).astype(np.int32)], 1)
    return float(cv2.mean(probability[top : bottom + 1, left : right + 1], inside)[0])


def _clockwise(corners: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Four corners from the upper left one on: of the two on the left the upper one."""
    across = corners[np.argsort(corners[:, 0], kind="stable")]
    upper_left, lower_left = across[:2][np.argsort(across[:2, 1], kind="stable")]
    upper_right, lower_right = across[2:][np.argsort(across[2:, 1], kind="stable")]
    return np.stack([upper_left, upper_right, lower_right, lower_left])


def reading_order(regions: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
    """The order in which regions are read: rows from top to bottom, and in a row from left to right.

    Two regions are in one row if their upper left corners are less than 10 pixels apart in height.
    """
    corner = regions[:, 0]
    order = list(np.lexsort((corner[:, 0], corner[:, 1])))
    for end in range(1, len(order)):
        for at in range(end, 0, -1):
            before, own = corner[order[at - 1]], corner[order[at]]
            if not (abs(own[1] - before[1]) < 10 and own[0] < before[0]):
                break
            order[at - 1], order[at] = order[at], order[at - 1]
    return np.array(order, np.intp)


def sides(quad: npt.NDArray[np.float32]) -> tuple[int, int]:
    """The width and height of a rectangle, in whole pixels: the longer ones of opposite sides."""
    lengths = np.linalg.norm(quad - np.roll(quad, -1, axis=0), axis=1)
    return int(max(lengths[0], lengths[2])), int(max(lengths[1], lengths[3]))


def corner_areas(quad: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """(4,): the area of the parallelogram that the two sides at each corner span. `upright_geometry()` needs one."""
    after = np.roll(quad, -1, axis=0).astype(np.float64) - quad
    before = np.roll(after, 1, axis=0)
    areas: npt.NDArray[np.float64] = np.abs(after[:, 0] * before[:, 1] - after[:, 1] * before[:, 0])
    return areas


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
