"""Checks of a first run: whether outputs can be the values that a wrapper reads them as.

Each raises UnsupportedModelError with the reason alone. None of them refuses what a trained network of the family
gives, whatever the image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UnsupportedModelError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "TOLERANCE",
    "check_centred",
    "check_corners",
    "check_floats",
    "check_fractions",
    "check_logits",
    "check_offsets",
    "check_pixels",
    "check_scores",
    "lies_in_unit",
]

#: How far a score or a fraction may lie outside 0 to 1: quantised outputs round.
TOLERANCE = 0.02
#: The share of boxes of which a statement about all boxes must be true, or may be false.
MOST, FEW = 0.99, 0.1
#: Centres of boxes that lie in all cells of an input reach beyond this fraction of its shorter side.
LEAST_REACH = 0.125
#: The logarithm of a size that no box has: more than 100,000 cells.
LARGEST_LOGARITHM = 12.0


def check_floats(name: str, output: Any) -> None:
    """For outputs of float32 or float16."""
    if output.dtype.name not in ("float32", "float16"):
        raise UnsupportedModelError(f"its output {name!r} is {output.dtype}, not float32 or float16")


def lies_in_unit(values: npt.NDArray[Any]) -> bool:
    """Whether all values are numbers in 0 to 1."""
    return values.size == 0 or bool(values.min() >= -TOLERANCE and values.max() <= 1 + TOLERANCE)


def check_scores(values: npt.NDArray[Any], what: str = "scores", hint: str = "") -> None:
    """For values in 0 to 1."""
    if not lies_in_unit(values):
        raise UnsupportedModelError(
            f"what should be {what} reaches {_range(values)} in its first run; {what} lie in 0 to 1{hint}"
        )


def check_fractions(boxes: npt.NDArray[Any], low: float, high: float) -> None:
    """For boxes (..., 4) as fractions of the input, whose values reach from `low` to `high`."""
    if not (low >= -TOLERANCE and high <= 1 + TOLERANCE):
        raise UnsupportedModelError(
            f"what should be boxes as fractions of the input reaches from {low:.4g} to {high:.4g} in its first run"
        )
    if not boxes[..., 2:].min(initial=0.0) >= -TOLERANCE:
        raise UnsupportedModelError(
            f"what should be widths and heights of boxes reaches {_range(boxes[..., 2:])} in its first run"
        )


def check_logits(values: npt.NDArray[Any]) -> None:
    """For logits: numbers of both signs, or beyond 1."""
    if values.size and (np.isnan(values).any() or lies_in_unit(values)):
        raise UnsupportedModelError(
            f"what should be logits reaches {_range(values)} in its first run: these are no logits; softmax or sigmoid "
            "may have been applied to them already"
        )


def check_centred(boxes: npt.NDArray[Any], size: tuple[int, int] = (1, 1)) -> None:
    """For boxes (..., 4) of centre and size, on an input of (width, height). Of corners, the second ones lie beyond the
    first ones in each box, and hardly outside the input.
    """
    x, y, w, h = np.moveaxis(boxes, -1, 0)
    inside = boxes.size > 0 and boxes.max() <= 1.5 * max(size)
    if inside and np.mean((w > x) & (h > y)) >= MOST:
        raise UnsupportedModelError(
            "what should be centres and sizes of boxes are corners: in its first run, the third and fourth value of "
            "each box lie beyond the first and second"
        )


def check_pixels(boxes: npt.NDArray[Any], size: tuple[int, int]) -> None:
    """For boxes (..., 4) of centre and size in pixels of an input (width, height), one or more in each of its cells."""
    check_centred(boxes, size)
    far = float(boxes[..., :2].max(initial=0.0))
    if boxes.any() and not far >= LEAST_REACH * min(size):
        raise UnsupportedModelError(
            f"what should be centres of boxes in pixels reaches to {far:.4g} in its first run, on an input of "
            f"{size[0]} x {size[1]}; they may be fractions, or offsets to cells"
        )
    if np.mean((boxes[..., 2:] < 0).any(axis=-1)) > FEW:
        raise UnsupportedModelError(
            f"what should be widths and heights of boxes reaches {_range(boxes[..., 2:])} in its first run"
        )


def check_offsets(boxes: npt.NDArray[Any]) -> None:
    """For boxes (..., 4) of offsets to cells and logarithms of sizes in cells."""
    if not boxes[..., 2:].max(initial=0.0) <= LARGEST_LOGARITHM:
        raise UnsupportedModelError(
            f"what should be logarithms of sizes reaches {_range(boxes[..., 2:])} in its first run; its boxes may be "
            "decoded already"
        )


def check_corners(boxes: npt.NDArray[Any]) -> None:
    """For boxes (N, 4) of left, top, right, bottom in pixels."""
    if not len(boxes):
        return
    left, top, right, bottom = boxes.T
    if np.mean((right < left) | (bottom < top)) > FEW:
        raise UnsupportedModelError(
            "what should be left, top, right and bottom of boxes is not in that order in its first run"
        )
    if boxes.any() and not boxes.max() > 1 + TOLERANCE:
        raise UnsupportedModelError(
            f"what should be boxes in pixels reaches {_range(boxes)} in its first run; these are fractions"
        )


def _range(values: npt.NDArray[Any]) -> str:
    return f"from {values.min():.4g} to {values.max():.4g}"
