"""Golden samples: images with the values that the reference backend computed from them, and their comparison.

Each stage is compared by itself, so that a failure names the stage: the input that preprocessing makes of an image, the
outputs of the network, the results of postprocessing. Of large arrays some elements are kept, at fixed positions. Where
the outputs of the network differ, its intermediate values are computed, and the first that differs names the layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..models.results.masks import decompressed_runs

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Golden", "GoldenReport", "Graph", "Limits", "Sample", "Values", "deviation", "elements", "same_results"]

#: Elements that are kept of an input, an output and an intermediate value.
INPUT_ELEMENTS, OUTPUT_ELEMENTS, LAYER_ELEMENTS = 4096, 16384, 128
#: Minimum scale of a channel, relative to that of the array.
_LEAST_SCALE = 1e-3
#: Positions are multiples of the golden ratio modulo the size: spread evenly, the same in every release.
_STEP = 0x9E3779B97F4A7C15
#: Results: rows may be missing whose score exceeds the threshold by less, and numbers may differ by this fraction.
_SCORE_MARGIN, _NUMBER = 0.03, 0.02
#: The same in INT8. On bus.jpg and zidane.jpg, scores of YOLOv8n change by up to 0.09, and edges by up to 3 %.
_NUMBER_IN_INT8 = 0.2
#: The same for a precision below FP32: the fraction of rows that may differ. NMS may keep another of two boxes that
#: overlap and score alike.
_UNMATCHED = 0.25
#: The share of the image below which a class of a map may differ as one of this size.
_LEAST_AREA = 0.01


class Values(msgspec.Struct, frozen=True):
    """Elements of an array: its shape, and where its elements begin in the part of values."""

    shape: tuple[int, ...]
    offset: int

    def count(self, most: int) -> int:
        return min(math.prod(self.shape), most)


class Sample(msgspec.Struct, frozen=True):
    """An image: the part with its PNG file, the inputs of the network by name, and the dicts of its result."""

    image: str
    inputs: dict[str, Values]
    results: list[dict[str, Any]]


class Graph(msgspec.Struct, frozen=True):
    """The outputs of one form of the network: with its head, or ending within it.

    Attributes:
        outputs: of each sample, by name.
        tolerances: by precision and output: the largest `deviation()`. An output without one is not compared.
        layers: intermediate values of the first sample by name, in topological order: the node that computes each.
    """

    outputs: list[dict[str, Values]]
    tolerances: dict[str, dict[str, float]]
    layers: dict[str, tuple[str, Values]]


class Golden(msgspec.Struct, frozen=True):
    """The part `golden.json`.

    Attributes:
        reference: the backend that computed the values.
        values: the part with all values: float32, little-endian.
        parameters: settings of each call.
    """

    reference: str
    values: str
    parameters: dict[str, Any]
    samples: list[Sample]
    graphs: list[Graph]

    def __post_init__(self) -> None:
        counts = [len(self.samples), *(len(graph.outputs) for graph in self.graphs)]
        if counts[0] == 0 or len(set(counts)) > 1:
            raise ValueError(
                f"samples: {counts[0]}, outputs of each graph: {counts[1:]}; the numbers are equal in a bundle, and at "
                "least 1"
            )


@dataclass(frozen=True)
class GoldenReport:
    """The result of a check of the golden samples.

    Attributes:
        stage: that differs: `"preprocessing"`, `"network"`, `"classes"` or `"postprocessing"`; None where all agree.
        name: the input or output that differs.
        deviation, tolerance: of that output; see `deviation()`.
        layer: the node of the first intermediate value that differs; None where that is not known.
        samples: how many were compared.
    """

    stage: str | None = None
    name: str = ""
    deviation: float = 0.0
    tolerance: float = 0.0
    layer: str | None = None
    samples: int = 0

    @property
    def passed(self) -> bool:
        return self.stage is None

    def __str__(self) -> str:
        if self.passed:
            return f"{self.samples} golden samples agree"
        text = f"the golden samples differ in {self.stage}"
        if self.name:
            text += f": {self.name!r} deviates by {self.deviation:.3g}, and {self.tolerance:.3g} is allowed"
        return text + (f"; the first layer that differs is {self.layer!r}" if self.layer else "")


# ---- elements and their comparison ----


def elements(array: npt.NDArray[Any], most: int) -> npt.NDArray[np.float32]:
    """Elements of an array at fixed positions: all of a small one."""
    flat = np.asarray(array).reshape(-1)
    return flat[_positions(flat.size, most)].astype(np.float32)


def _positions(size: int, most: int) -> npt.NDArray[np.int64]:
    if size <= most:
        return np.arange(size)
    fractions = (np.arange(most, dtype=np.uint64) * np.uint64(_STEP)) >> np.uint64(11)  # 53 bits: exact as float64
    positions: npt.NDArray[np.int64] = (fractions.astype(np.float64) * 2.0**-53 * size).astype(np.int64)
    return positions


def deviation(
    reference: npt.NDArray[np.float32], other: npt.NDArray[np.float32], shape: Sequence[int], most: int
) -> float:
    """How far elements of an array are from the reference: the largest relative root mean square error of a channel.

    The channels of an output have different scales: coordinates of boxes and scores, for example. So each is compared
    with its own. The axis of channels is the shortest of those behind the first. Scores of 1e-8 are rounding: the scale
    of a channel is at least 1/1000 of that of the array, or 1/1000 where that exceeds 1.

    Args:
        reference, other: `elements(array, most)` of arrays of this shape.

    Returns:
        sqrt(mean((other - reference)^2) / mean(reference^2)), the maximum over channels; infinity where an element is
        not finite.
    """
    if not reference.size:
        return 0.0
    squares, errors = np.square(reference, dtype=np.float64), np.square(np.subtract(other, reference, dtype=np.float64))
    axes = [axis for axis in range(1, len(shape)) if shape[axis] > 1]
    if len(axes) > 1:
        axis = min(axes, key=lambda one: shape[one])
        channel = _positions(math.prod(shape), most) // math.prod(shape[axis + 1 :]) % shape[axis]
    else:
        channel = np.zeros(reference.size, np.int64)
    if not np.isfinite(errors).all():
        return math.inf
    counts = np.maximum(np.bincount(channel), 1)
    error, square = (np.sqrt(np.bincount(channel, values) / counts) for values in (errors, squares))
    least = _LEAST_SCALE * min(1.0, math.sqrt(float(squares.mean())))
    return float((error / np.maximum(square, max(least, 1e-30))).max())


class Limits(NamedTuple):
    """How far two results may differ.

    Attributes:
        threshold: the minimum score of rows. Rows that exceed it by little may be missing on one side.
        number: numbers may differ by this fraction of the largest of their list, or of 1.
        unmatched: the fraction of rows that may be without a counterpart.
    """

    threshold: float = 0.0
    number: float = _NUMBER
    unmatched: float = 0.0

    @classmethod
    def of(cls, precision: str, threshold: float) -> Limits:
        if precision == "fp32":
            return cls(threshold)
        return cls(threshold, _NUMBER_IN_INT8 if precision == "int8" else _NUMBER, _UNMATCHED)


def same_results(reference: Any, other: Any, limits: Limits, scale: float = 1.0) -> bool:
    """Whether the dicts of two results agree. The value whose fraction numbers may differ by is at least `scale`."""
    if isinstance(reference, dict) and isinstance(other, dict):
        if reference.keys() == other.keys() == {"size", "counts"}:
            return reference == other or _same_masks(reference, other, limits)
        return reference.keys() == other.keys() and all(
            same_results(reference[key], other[key], limits) for key in reference
        )
    if isinstance(reference, (list, tuple)) and isinstance(other, (list, tuple)):
        if _have(reference, "score") or _have(other, "score"):
            return _same_rows(list(reference), list(other), limits)
        if _have([*reference, *other], "class_id", "area"):  # of class maps
            return _same_areas(reference, other, limits)
        scale = max([scale, *(abs(one) for one in (*reference, *other) if isinstance(one, (int, float)))])
        return len(reference) == len(other) and all(
            same_results(*pair, limits, scale) for pair in zip(reference, other, strict=True)
        )
    numbers = (int, float)
    if isinstance(reference, numbers) and isinstance(other, numbers):
        return abs(reference - other) <= limits.number * max(scale, abs(reference), abs(other))
    return bool(reference == other)


def _have(rows: Sequence[Any], *numbers: str) -> bool:
    return bool(rows) and all(
        isinstance(row, dict) and all(isinstance(row.get(name), (int, float)) for name in numbers) for row in rows
    )


def _same_masks(reference: Mapping[str, Any], other: Mapping[str, Any], limits: Limits) -> bool:
    """Whether no more pixels of two masks in COCO's form differ than a fraction of them, or one."""
    try:
        runs = [decompressed_runs(mask["counts"]) for mask in (reference, other)]
    except (AttributeError, ValueError, OverflowError):  # a text that is not one of run lengths
        return False
    if reference["size"] != other["size"] or runs[0].sum() != runs[1].sum() or any((one < 0).any() for one in runs):
        return False
    own, theirs = (np.repeat(np.arange(len(one)) % 2, one) for one in runs)
    return bool(np.count_nonzero(own != theirs) <= max(1, limits.number * np.count_nonzero(own | theirs)))


def _same_areas(reference: Sequence[Any], other: Sequence[Any], limits: Limits) -> bool:
    """Whether the classes of two maps have the same shares of the image. A class that is not there has none."""
    own, theirs = (
        {(row.get("map"), row["class_id"], row.get("label")): row["area"] for row in rows}
        for rows in (reference, other)
    )
    pairs = [(own.get(name, 0.0), theirs.get(name, 0.0)) for name in own.keys() | theirs.keys()]
    return all(abs(one - two) <= limits.number * max(one, two, _LEAST_AREA) for one, two in pairs)


def _same_rows(reference: list[Any], other: list[Any], limits: Limits) -> bool:
    """Whether the rows of each side with a sure score are on the other, but for a fraction."""
    sure = limits.threshold + max(_SCORE_MARGIN, limits.number)
    for own, theirs in ((reference, other), (other, reference)):
        rows = [row for row in own if row["score"] > sure]
        missing = sum(not any(same_results(row, one, limits) for one in theirs) for row in rows)
        if missing > limits.unmatched * len(rows):
            return False
    return True
