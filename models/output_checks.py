"""Checks of the outputs of a first run.

Each raises UnsupportedModelError with the reason alone. None of them refuses the outputs of a trained network of the
family, on any image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UnsupportedModelError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "TOLERANCE", "check_around_cells", "check_centred_fractions", "check_class_logits", "check_corners",
    "check_exclusive", "check_finite", "check_floats", "check_fractions", "check_logits", "check_no_numbers",
    "check_no_objectness", "check_objectness", "check_offsets", "check_order", "check_pixels", "check_scores",
    "check_undecoded", "lies_in_unit",
]  # fmt: skip

#: How far a score or a fraction may lie outside 0 to 1: quantised outputs round.
TOLERANCE = 0.02
#: A statement about all boxes is true of this share of them, or may be false for this share.
MOST, FEW = 0.99, 0.1
#: Centres of boxes that lie in all cells of an input reach beyond this fraction of its shorter side.
LEAST_REACH = 0.125
#: How far the sum of a softmax may be off 1, by type.
ROUNDING = {"float32": 1e-4, "float16": 4e-3}
#: How far the centre of a box is off its cell, in cells, for most boxes.
MOST_CELLS = 2.0
#: Minimum score of the best class of most boxes without an object, in a network with objectness.
LEAST_CLASS = 0.05
#: Minimum score of an object.
LEAST_OBJECT = 0.25
#: The logarithm of a size that no box has: more than 100,000 cells.
LARGEST_LOGARITHM = 12.0


def check_floats(name: str, output: Any) -> None:
    """For outputs of float32 or float16."""
    if output.dtype.name not in ("float32", "float16"):
        raise UnsupportedModelError(f"its output {name!r} is {output.dtype}, not float32 or float16")


def check_finite(name: str, output: npt.NDArray[Any]) -> None:
    """For outputs of float32 or float16, without NaN and infinity."""
    check_floats(name, output)
    if not np.isfinite(output).all():
        raise UnsupportedModelError(f"its output {name!r} has values that are not finite in its first run")


def lies_in_unit(values: npt.NDArray[Any]) -> bool:
    """Whether all values are numbers in 0 to 1."""
    return values.size == 0 or bool(values.min() >= -TOLERANCE and values.max() <= 1 + TOLERANCE)


def check_scores(values: npt.NDArray[Any], what: str = "scores", hint: str = "") -> None:
    """For values in 0 to 1."""
    if not lies_in_unit(values):
        raise UnsupportedModelError(f"its {what} reach {_range(values)} in its first run; {what} lie in 0 to 1{hint}")


def check_exclusive(scores: npt.NDArray[Any]) -> None:
    """For scores of classes (..., n) that are independent of each other: those of a softmax add up to 1 in each row."""
    if scores.shape[-1] < 2 or not scores.size:
        return
    if (np.abs(scores.sum(axis=-1, dtype=np.float64) - 1) <= ROUNDING[scores.dtype.name]).all():
        raise UnsupportedModelError(
            "its scores of classes that are independent of each other add up to 1 in each row in its first run, as "
            "those of a softmax over classes do"
        )


def check_no_numbers(scores: npt.NDArray[Any]) -> None:
    """For scores (batch, boxes, values): class numbers are whole, and of two classes many are 1."""
    for values in (scores[..., :1], scores[..., 1:]):
        ones = np.mean(values == 1) if values.size else 0.0
        if FEW < ones < 1 - FEW and ((values == 0) | (values == 1)).all():
            raise UnsupportedModelError(
                "its scores are whole numbers, 0 and 1, in its first run: they may be class numbers"
            )


def check_objectness(scores: npt.NDArray[Any], *, needs_object: bool = False) -> None:
    """For (batch, boxes, 1 + classes) of objectness and the scores of classes given that there is an object: where
    there is none, these are not all near 0.

    Args:
        needs_object: refuse only scores of objects of which one is near 0: an untrained network has no others either.
    """
    objectness, classes = scores[..., 0], scores[..., 1:].max(axis=-1)
    if needs_object:
        found = np.maximum(objectness, classes) > LEAST_OBJECT
        if not found.any() or np.mean(np.minimum(objectness, classes)[found] < LEAST_CLASS) < MOST - FEW:
            return
    if scores.any() and np.mean(classes < LEAST_CLASS) >= 1 - FEW and not np.mean(objectness) >= MOST:
        raise UnsupportedModelError(
            f"the scores of classes are below {LEAST_CLASS} for most boxes in its first run: it may have no objectness"
        )


def check_no_objectness(scores: npt.NDArray[Any]) -> None:
    """For scores (batch, boxes, classes) that are all near 0 where there is no object: of objectness and classes given
    that there is an object, the first one alone is.
    """
    if scores.shape[-1] < 2 or not scores.size:
        return
    first, others = scores[..., 0], scores[..., 1:].max(axis=-1)
    is_objectness = np.mean(first < LEAST_CLASS) >= 1 - FEW and first.max() > LEAST_OBJECT
    if is_objectness and np.mean(others >= LEAST_CLASS) >= 1 - FEW:
        raise UnsupportedModelError(
            f"its first score alone is below {LEAST_CLASS} for most boxes in its first run: it may be an objectness"
        )


def check_fractions(
    boxes: npt.NDArray[Any], quantiles: tuple[float, float] = (0.0, 1.0), tolerance: float = TOLERANCE
) -> None:
    """For boxes (..., 4) as fractions of the input.

    Args:
        quantiles: those of the values that lie in 0 to 1.
        tolerance: how far they may lie outside.
    """
    low, high = np.quantile(boxes, quantiles) if boxes.size else (0.0, 0.0)
    if not (low >= -tolerance and high <= 1 + tolerance):
        raise UnsupportedModelError(
            f"its boxes reach from {low:.4g} to {high:.4g} in its first run; fractions of the input lie in 0 to 1"
        )


def check_centred_fractions(boxes: npt.NDArray[Any], quantiles: tuple[float, float] = (0.0, 1.0)) -> None:
    """For boxes (..., 4) of centre and size as fractions of the input; see `check_fractions()`."""
    check_fractions(boxes, quantiles)
    if not boxes[..., 2:].min(initial=0.0) >= -TOLERANCE:
        raise UnsupportedModelError(f"widths and heights of its boxes reach {_range(boxes[..., 2:])} in its first run")
    check_centred(boxes)


def check_logits(values: npt.NDArray[Any]) -> None:
    """For logits: numbers of both signs, or beyond 1."""
    if values.size and (np.isnan(values).any() or lies_in_unit(values)):
        raise UnsupportedModelError(
            f"its logits reach {_range(values)} in its first run, as probabilities do; softmax or sigmoid may have "
            "been applied to them already"
        )


def check_class_logits(logits: npt.NDArray[Any]) -> None:
    """For logits (batch, queries, classes): a query is of few classes, so those of the others are below 0."""
    check_logits(logits)
    if logits.size and not logits.min() < 0:
        raise UnsupportedModelError(
            f"its logits reach {_range(logits)} in its first run; they may be class numbers or pixels"
        )


def check_centred(boxes: npt.NDArray[Any], size: tuple[int, int] = (1, 1)) -> None:
    """For boxes (..., 4) of centre and size, on an input of (width, height). Of corners, the second ones lie beyond the
    first ones in each box, and hardly outside the input.
    """
    x, y, w, h = np.moveaxis(boxes, -1, 0)
    inside = boxes.size > 0 and boxes.max() <= 1.5 * max(size)
    if inside and np.mean((w > x) & (h > y)) >= MOST:
        raise UnsupportedModelError(
            "its boxes are corners, not centres and sizes: in its first run, the third and fourth value of each box "
            "lie beyond the first and second"
        )


def check_pixels(boxes: npt.NDArray[Any], size: tuple[int, int]) -> None:
    """For boxes (..., 4) of centre and size in pixels of an input (width, height), one or more in each of its cells."""
    check_centred(boxes, size)
    far = float(boxes[..., :2].max(initial=0.0))
    if boxes.any() and not far >= LEAST_REACH * min(size):
        raise UnsupportedModelError(
            f"the centres of its boxes reach to {far:.4g} pixels in its first run, on an input of {size[0]} x "
            f"{size[1]}; they may be fractions, or offsets to cells"
        )
    if np.mean((boxes[..., 2:] < 0).any(axis=-1)) > FEW:
        raise UnsupportedModelError(f"widths and heights of its boxes reach {_range(boxes[..., 2:])} in its first run")


def check_offsets(boxes: npt.NDArray[Any]) -> None:
    """For boxes (..., 4) of offsets to cells and logarithms of sizes in cells."""
    if not boxes[..., 2:].max(initial=0.0) <= LARGEST_LOGARITHM:
        raise UnsupportedModelError(
            f"the logarithms of sizes reach {_range(boxes[..., 2:])} in its first run; its boxes may be decoded already"
        )


def check_undecoded(
    boxes: npt.NDArray[Any], centres: npt.NDArray[Any], strides: npt.NDArray[Any], size: tuple[int, int]
) -> None:
    """For boxes (batch, cells, 4) of offsets to cells, on an input (width, height): decoded ones lie near their cells.

    Args:
        centres: (cells, 2), in pixels.
        strides: (cells, 1).
    """
    sizes = boxes[..., 2:]
    if lies_in_unit(sizes) and sizes.min(initial=0.0) >= 0 and sizes.any():
        raise UnsupportedModelError(
            f"the logarithms of sizes reach {_range(sizes)} in its first run; they may be fractions"
        )
    for what, unit in (("pixels", np.ones(2)), ("fractions of the input", np.array(size))):
        far = np.abs(boxes[..., :2] * unit - centres) / strides
        if len(centres) > 1 and np.mean(far.max(axis=-1) <= MOST_CELLS) >= MOST - FEW:
            raise UnsupportedModelError(
                f"the offsets of its boxes to their cells are centres in {what} in its first run: its boxes are "
                "decoded already"
            )


def check_around_cells(boxes: npt.NDArray[Any], centres: npt.NDArray[Any]) -> None:
    """For boxes (batch, cells, 4) of left, top, right and bottom, each around the centre of its cell, all in pixels."""
    around = (boxes[..., :2] <= centres + 1) & (boxes[..., 2:] >= centres - 1)
    if boxes.any() and not np.mean(around.all(axis=-1)) >= 1 - FEW:
        raise UnsupportedModelError(
            "its boxes do not enclose their cells in its first run: left and top, right and bottom may be exchanged"
        )


def check_order(boxes: npt.NDArray[Any]) -> None:
    """For boxes (..., 4) of left, top, right, bottom."""
    if boxes.size and np.mean((boxes[..., 2:] < boxes[..., :2]).any(axis=-1)) > FEW:
        raise UnsupportedModelError("left, top, right and bottom of its boxes are not in that order in its first run")


def check_corners(boxes: npt.NDArray[Any]) -> None:
    """For boxes (..., 4) of left, top, right, bottom in pixels."""
    check_order(boxes)
    if boxes.any() and not boxes.max() > 1 + TOLERANCE:
        raise UnsupportedModelError(
            f"its boxes reach {_range(boxes)} in its first run; they may be fractions, not pixels"
        )


def _range(values: npt.NDArray[Any]) -> str:
    return f"from {values.min():.4g} to {values.max():.4g}"
