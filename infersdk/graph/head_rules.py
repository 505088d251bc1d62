"""Recognises graphs that end with the decoding of a detector's head.

A walk from the output stops at the maps of the head. A check then evaluates the graph on random maps and compares the
result with the formulas of the head. Names are ignored. The formulas are, with the sigmoid s::

    YOLOv5:  centre = (2 s(xy) - 0.5 + cell) * stride,  size = (2 s(wh))^2 * anchor,  scores = s(x)
    YOLOv8:  x1y1 = cell + 0.5 - lt,  x2y2 = cell + 0.5 + rb,  box = ((x1y1 + x2y2) / 2, x2y2 - x1y1) * stride
             each distance is the mean of its bins, weighted by the softmax of their logits
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from .graph_end import GraphEnd, UnprovenError, is_pointwise
from .operators import sigmoid
from .raw_head import MOST_ANCHORS, MOST_BINS, MOST_LEVELS, HeadLevel, RawHead

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["find_head"]

Array = Any
_FLOAT, _FLOAT16 = 1, 10


@dataclass(frozen=True)
class _Map:
    """A value where a walk stops: a map [n, channels, h, w]."""

    name: str
    dims: tuple[int, ...]
    stride: int

    @property
    def channels(self) -> int:
        return self.dims[1]

    @property
    def grid(self) -> tuple[int, int]:
        return self.dims[2], self.dims[3]


def find_head(proto: Any, name: str, dims: Sequence[int]) -> tuple[RawHead, GraphEnd]:
    """Finds the head at the end of a model, with the names of the values at which its graph is cut.

    Args:
        proto: an `onnx.ModelProto`.
        name, dims: the name and fixed dimensions of its image input.

    Returns:
        The head, and the graph with the dimensions and types of these values.

    Raises:
        UnprovenError: the model does not end with a known head; the message gives the reason.
    """
    if len(proto.graph.output) != 1:
        raise UnprovenError(f"it has {len(proto.graph.output)} outputs")
    end, output = GraphEnd(proto, {name: dims}), proto.graph.output[0].name
    sides = tuple(dims[1:3] if dims[1] != 3 and dims[3] == 3 else dims[2:])
    nodes, names = end.walk(output, lambda one: _stops(end, one, dims[0], sides))
    if not names:
        raise UnprovenError("its output is not made of maps")
    maps = [_Map(name, tuple(end.dims(name)), sides[0] // end.dims(name)[2]) for name in names]
    kinds = {end.dtype(one.name) for one in maps}
    if kinds not in ({_FLOAT}, {_FLOAT16}):
        raise UnprovenError("its maps are not all float32, or all float16")
    draw = np.random.default_rng(0)
    random = {one: draw.uniform(-4, 4, one.dims) for one in maps}
    decoded = end.compute(nodes, {one.name: array for one, array in random.items()}, output)
    if decoded.ndim != 3 or decoded.shape[0] != dims[0]:
        raise UnprovenError(f"its output has shape {decoded.shape}, which is not a list of boxes")
    near = 2e-3 if _FLOAT16 in kinds else 1e-5
    if all(node.op_type != "Conv" for node in nodes):
        head = _anchor_head(maps, random, decoded, near)
    else:
        head = _distance_head(end, nodes, maps, random, decoded, near)
    return _at_features(end, msgspec.structs.replace(head, output=output)), end


# ---- the pattern ----


def _stops(end: GraphEnd, name: str, batch: int, sides: tuple[int, ...]) -> bool:
    """Whether a value is a map of the image."""
    if end.maker(name, "Concat") is not None:
        return False  # it joins the boxes and classes of a level
    dims = end.dims(name)
    stride = sides[0] // dims[2] if len(dims) == 4 and dims[0] == batch else 0
    return stride > 1 and (stride * dims[2], stride * dims[3]) == sides


# ---- the checks ----


def _anchor_head(maps: Sequence[_Map], random: dict[_Map, Array], decoded: Array, near: float) -> RawHead:
    """Checks a YOLOv5 head: [n, boxes, values] from one map per level."""
    values, first, levels = decoded.shape[2], 0, []
    for one in maps:
        height, width = one.grid
        count = one.channels // values
        if values < 6 or count * values != one.channels:
            raise UnprovenError(f"its boxes have {values} values, and {one.name!r} {one.channels} channels")
        logits = random[one].reshape(len(decoded), count, values, height, width).transpose(0, 1, 3, 4, 2)
        box = decoded[:, first : first + count * height * width].reshape(logits.shape)
        first += count * height * width
        s = sigmoid(logits)
        cells = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1)
        anchors = (box[0, :, 0, 0, 2:4] / (2 * s[0, :, 0, 0, 2:4]) ** 2).astype(np.float32)
        sizes = (2 * s[..., 2:4]) ** 2 * anchors[:, None, None].astype(np.float64)
        if not _is_close(box[..., :2], (2 * s[..., :2] - 0.5 + cells) * one.stride, near * one.stride):
            raise UnprovenError(
                f"the centres of its boxes are not (2 s - 0.5 + cell) * {one.stride} of {width} x {height} cells"
            )
        if not np.isfinite(anchors).all() or (anchors <= 0).any() or not _is_close(box[..., 2:4], sizes, 0, 10 * near):
            raise UnprovenError("the sizes of its boxes are not (2 s)^2 times an anchor")
        if not _is_close(box[..., 4:], s[..., 4:], near):
            raise UnprovenError("its scores are not sigmoids of its maps")
        pairs = tuple((float(w), float(h)) for w, h in anchors)
        levels.append(HeadLevel(maps=(one.name,), stride=one.stride, anchors=pairs))
    if first != decoded.shape[1]:
        raise UnprovenError(f"its output has {decoded.shape[1]} boxes, and its maps {first}")
    _check_limit("anchors a cell", max(len(level.anchors) for level in levels), MOST_ANCHORS)
    return RawHead(layout="yolov5", output="", values=values, levels=tuple(levels))


def _distance_head(
    end: GraphEnd, nodes: Sequence[Any], maps: Sequence[_Map], random: dict[_Map, Array], decoded: Array, near: float
) -> RawHead:
    """Checks a YOLOv8 head: [n, values, boxes] from two maps per level, of distances and of classes."""
    sums = [weights for node in nodes if node.op_type == "Conv" if (weights := end.constant(node.input[1])) is not None]
    if len(sums) != 1 or len(maps) % 2 or not np.isfinite(sums[0]).all():
        raise UnprovenError("its distances are not one weighted sum of bins with two maps per level")
    bins = sums[0].reshape(-1).astype(np.float64)
    half = len(maps) // 2
    joined = maps[0].grid == maps[1].grid
    pairs = list(zip(maps[::2], maps[1::2], strict=True) if joined else zip(maps[:half], maps[half:], strict=True))
    first, levels = 0, []
    for boxes, classes in pairs:
        count, cells = len(bins), boxes.grid[0] * boxes.grid[1]
        fits = boxes.channels == 4 * count and boxes.grid == classes.grid and 4 + classes.channels == decoded.shape[1]
        if not fits:
            raise UnprovenError(f"{boxes.name!r} and {classes.name!r} are not the maps of a level")
        part = decoded[:, :, first : first + cells]
        logits = random[boxes].reshape(len(decoded), 4, count, cells)
        shares = np.exp(logits - logits.max(axis=2, keepdims=True))
        left, upper, right, lower = (shares.swapaxes(1, 2) / shares.sum(axis=2)[:, None]).transpose(2, 0, 3, 1) @ bins
        y, x = np.divmod(np.arange(cells), boxes.grid[1])
        wanted = np.stack([x + 0.5 + (right - left) / 2, y + 0.5 + (lower - upper) / 2, left + right, upper + lower])
        scores = sigmoid(random[classes].reshape(len(decoded), -1, cells))
        first += cells
        if part.shape[2] != cells or not _is_close(
            part[:, :4], wanted.swapaxes(0, 1) * boxes.stride, near * boxes.stride
        ):
            raise UnprovenError(
                f"the boxes of its level of {boxes.grid[1]} x {boxes.grid[0]} cells are not the means of bins from "
                f"cell + 0.5, times {boxes.stride}"
            )
        if not _is_close(part[:, 4:], scores, near):
            raise UnprovenError("its scores are not sigmoids of its maps")
        levels.append(HeadLevel(maps=(boxes.name, classes.name), stride=boxes.stride))
    if first != decoded.shape[2]:
        raise UnprovenError(f"its output has {decoded.shape[2]} boxes, and its maps {first}")
    _check_limit("bins a distance", len(bins), MOST_BINS)
    return RawHead(layout="yolov8", output="", values=decoded.shape[1], levels=tuple(levels), bins=tuple(bins.tolist()))


def _is_close(array: Array, wanted: Array, off: float, share: float = 5e-7) -> bool:
    """Whether values match a formula, except for the rounding of constants by the exporter."""
    return bool(np.all(np.abs(array - wanted) <= off + share * np.abs(wanted)))


def _check_limit(what: str, count: int, most: int) -> None:
    if count > most:
        raise UnprovenError(f"its head has {count} {what}, and the maximum of the native decoder is {most}")


# ---- features ----


def _at_features(end: GraphEnd, head: RawHead) -> RawHead:
    """Moves the cut of YOLOv5 levels to the input of the 1 x 1 convolution that computes their map.

    The convolution must have constant float32 weights; other levels are cut at their maps.
    """
    _check_limit("levels", len(head.levels), MOST_LEVELS)
    levels, names = list(head.levels), list(head.names)
    found = [_features(end, level) if head.layout == "yolov5" else None for level in levels]
    named = [*names, *(one.maps[0] for one in found if one is not None)]
    for index, one in enumerate(found):
        if one is not None and named.count(one.maps[0]) == 1:  # outputs must be distinct
            levels[index] = one
    return msgspec.structs.replace(head, levels=tuple(levels))


def _features(end: GraphEnd, level: HeadLevel) -> HeadLevel | None:
    """The level cut at its features; None if its map is not computed by such a convolution."""
    conv = end.maker(level.maps[0], "Conv")
    weights = end.constant(conv.input[1]) if conv is not None else None
    if conv is None or weights is None or not is_pointwise(conv.attribute, weights):
        return None
    bias = end.constant(conv.input[2]) if len(conv.input) > 2 else np.zeros(len(weights), np.float32)
    features = conv.input[0]
    if bias is None or bias.shape != weights.shape[:1] or not np.isfinite(bias).all():
        return None
    is_float = end.dtype(features) == _FLOAT and weights.dtype == bias.dtype == np.float32
    grid = end.dims(level.maps[0])[2:]
    if not is_float or not end.is_made(features) or end.dims(features)[1:] != [weights.shape[1], *grid]:
        return None
    return msgspec.structs.replace(
        level, maps=(features,), weights=weights.astype("<f4").tobytes(), bias=bias.astype("<f4").tobytes()
    )
