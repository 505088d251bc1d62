"""Which graphs end with the decoding of a detector's head: each rule is a pattern, and a check with a reason.

The pattern is where a walk from the output stops: at the maps of the head. The check computes what the graph makes of
random maps, and compares it with the formulas of the head. Nothing is taken from names.

    YOLOv5:  centre = (2 s(xy) - 0.5 + cell) * stride,  size = (2 s(wh))^2 * anchor,  the others = s(x)
    YOLOv8:  x1y1 = cell + 0.5 - lt,  x2y2 = cell + 0.5 + rb,  box = ((x1y1 + x2y2) / 2, x2y2 - x1y1) * stride;
             each distance is the mean of some bins, weighted by the softmax of their logits
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from .graph_end import GraphEnd, UnprovenError, is_pointwise
from .raw_head import MOST_ANCHORS, MOST_BINS, MOST_LEVELS, HeadLevel, RawHead

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["HeadEnd", "find_head"]

Array = Any
_FLOAT, _FLOAT16 = 1, 10
#: The attributes of a Gemm that is a matrix product with a bias, and no more.
_GEMM = {"transA": 0, "transB": 0, "alpha": 1.0, "beta": 1.0}
#: The element types of the codes of its operands: weights, and a bias.
_CODES = {1: ("int8", "uint8"), 2: ("int32",)}


@dataclass(frozen=True)
class HeadEnd:
    """A head, and the values at which its graph is cut.

    Attributes:
        head: with the names of these values; of a level of several products, the name of what the first one gives.
        products: for each of these levels, by that name, the results of its matrix products in the order of channels.
        dims, types: of the values, by name; of several products, those of the map.
    """

    head: RawHead
    products: dict[str, list[str]]
    dims: dict[str, list[int]]
    types: dict[str, int]


@dataclass(frozen=True)
class _Map:
    """Where a walk stops: a map [n, channels, h, w], or with its channels last; of products, their results joined."""

    names: tuple[str, ...]
    dims: tuple[int, ...]
    channels_last: bool
    stride: int

    @property
    def channels(self) -> int:
        return self.dims[3 if self.channels_last else 1]

    @property
    def grid(self) -> tuple[int, int]:
        height, width = self.dims[1:3] if self.channels_last else self.dims[2:]
        return height, width

    def first(self, array: Array) -> Array:
        """An array of these dims with its channels first."""
        return array.transpose(0, 3, 1, 2) if self.channels_last else array


def find_head(proto: Any, name: str, dims: Sequence[int]) -> HeadEnd:
    """The head that a model ends with.

    Args:
        proto: an `onnx.ModelProto`.
        name, dims: of its input of images, in numbers.

    Raises:
        UnprovenError: it ends with something else; the message has the reason.
    """
    if len(proto.graph.output) != 1:
        raise UnprovenError(f"it has {len(proto.graph.output)} outputs")
    end, output = GraphEnd(proto, {name: dims}), proto.graph.output[0].name
    sides = tuple(dims[1:3] if dims[1] != 3 and dims[3] == 3 else dims[2:])
    nodes, names = end.walk(output, lambda one: _stops(end, one, dims[0], sides))
    maps = _maps(end, names, dims[0], sides)
    kinds = {end.dtype(one) for found in maps for one in found.names}
    if kinds not in ({_FLOAT}, {_FLOAT16}):
        raise UnprovenError("its maps are not all float32, or all float16")
    rng, random = np.random.default_rng(0), {}
    for one in maps:
        random[one] = rng.random(one.dims, np.float32).astype(np.float64) * 8 - 4
    given: dict[str, Array] = {}
    for one, array in random.items():
        parts = np.split(array, _columns(end, one), axis=-1) if len(one.names) > 1 else [array]
        given |= {name: part.reshape(end.dims(name)) for name, part in zip(one.names, parts, strict=True)}
    decoded = end.compute(nodes, given, output)
    if decoded.ndim != 3 or decoded.shape[0] != dims[0]:
        raise UnprovenError(f"its output has shape {decoded.shape}, which is not that of boxes")
    near = 2e-3 if _FLOAT16 in kinds else 1e-5
    if all(node.op_type != "Conv" for node in nodes):
        head = _anchor_head(maps, random, decoded, near)
    else:
        head = _distance_head(end, nodes, maps, random, decoded, near)
    return _at_features(end, msgspec.structs.replace(head, output=output), maps)


# ---- the pattern ----


def _stops(end: GraphEnd, name: str, batch: int, sides: tuple[int, ...]) -> bool:
    """Whether a value is a map of the image, or a matrix product."""
    if end.maker(name, "Concat") is not None:
        return False  # of the boxes and classes of a level
    if end.maker(name, "Gemm") is not None:
        return True
    dims = end.dims(name)
    return len(dims) == 4 and dims[0] == batch and _stride(dims, sides) != (0, False)


def _stride(dims: Sequence[int], sides: tuple[int, ...]) -> tuple[int, bool]:
    """The pixels from cell to cell of a map, and whether its channels come last; 0 for what is no map."""
    for first, last in ((2, False), (1, True)):
        stride = sides[0] // dims[first]
        if stride > 1 and (stride * dims[first], stride * dims[first + 1]) == sides:
            return stride, last
    return 0, False


def _maps(end: GraphEnd, names: Sequence[str], batch: int, sides: tuple[int, ...]) -> list[_Map]:
    """The maps in their order; products of the same rows are one: those of boxes come first, then those of scores."""
    groups: dict[str, list[str]] = {}
    for name in names:
        gemm = end.maker(name, "Gemm")
        groups.setdefault(gemm.input[0] if gemm is not None else f"map {name}", []).append(name)
    result = []
    for key, group in groups.items():
        dims = end.dims(group[0])
        if key == f"map {group[0]}":
            stride, last = _stride(dims, sides)
            result.append(_Map((group[0],), tuple(dims), last, stride))
            continue
        half = len(group) // 2
        ordered = [group[index % 2 * half + index // 2] for index in range(2 * half)]
        _check_products(end, group, batch)
        stride = isqrt(sides[0] * sides[1] * batch // dims[0])
        columns = sum(end.dims(name)[1] for name in group)
        grid = sides[0] // max(stride, 1), sides[1] // max(stride, 1)
        if len(group) % 2 or batch * grid[0] * grid[1] != dims[0]:
            raise UnprovenError(f"the products {group} are not boxes and scores of each cell and anchor")
        result.append(_Map(tuple(ordered), (batch, *grid, columns), True, stride))
    if not result:
        raise UnprovenError("its output is not made of maps")
    return result


def _columns(end: GraphEnd, one: _Map) -> Array:
    """Where the columns of each product but the first begin."""
    return np.cumsum([end.dims(name)[1] for name in one.names])[:-1]


def _check_products(end: GraphEnd, names: Sequence[str], batch: int) -> None:
    """Their columns can be those of one product."""
    first = end.maker(names[0], "Gemm")
    rows = {end.dims(name)[0] if len(end.dims(name)) == 2 else 0 for name in names}
    if len(rows) != 1 or rows == {0}:
        raise UnprovenError(f"the products {list(names)} do not have the same rows")
    for name in names:
        gemm, columns = end.maker(name, "Gemm"), end.dims(name)[1]
        for attribute in gemm.attribute:
            value = attribute.f if attribute.type == attribute.FLOAT else attribute.i
            if _GEMM.get(attribute.name) != value:
                raise UnprovenError(f"{gemm.name!r} is not a plain product: {attribute.name} is {value:g}")
        if len(gemm.input) != len(first.input):
            raise UnprovenError(f"{gemm.name!r} has other operands than {first.name!r}")
        for index in range(1, len(gemm.input)):
            codes, scales, zeros = _operand(end, gemm, index)
            others = _operand(end, first, index)
            same = (
                codes.shape == (*others[0].shape[:-1], columns)
                and scales.shape == zeros.shape == (columns,)
                and (codes.dtype, scales.dtype, zeros.dtype) == tuple(one.dtype for one in others)
                and codes.dtype == zeros.dtype
            )
            if not same:
                raise UnprovenError(f"operand {index} of {gemm.name!r} does not have a scale for each column")


def _operand(end: GraphEnd, gemm: Any, index: int) -> list[Array]:
    """The codes, scales and zero points of an operand of a product: weights [channels, columns], or a bias [columns].

    Raises:
        UnprovenError: it is not constant, or of another form than a DequantizeLinear of codes along the columns.
    """
    restore = end.maker(gemm.input[index], "DequantizeLinear")
    parts = [end.constant(name) for name in restore.input] if restore is not None else []
    found = [part for part in parts if part is not None]
    if len(parts) != 3 or len(found) != 3 or found[0].dtype.name not in _CODES[index]:
        raise UnprovenError(f"operand {index} of {gemm.name!r} is not constant in {' or '.join(_CODES[index])}")
    attributes = {one.name: one.i for one in restore.attribute}
    if set(attributes) - {"axis"} or attributes.get("axis", 1) not in (2 - index, -1):
        raise UnprovenError(f"operand {index} of {gemm.name!r} does not have its scales along the columns")
    return found


# ---- the checks ----


def _anchor_head(maps: Sequence[_Map], random: dict[_Map, Array], decoded: Array, near: float) -> RawHead:
    """As YOLOv5's: [n, boxes, values], of a map a level."""
    values, first, levels = decoded.shape[2], 0, []
    for one in maps:
        height, width = one.grid
        count = one.channels // values
        if values < 6 or count * values != one.channels:
            raise UnprovenError(f"its boxes have {values} values, and {one.names[0]!r} {one.channels} channels")
        logits = one.first(random[one]).reshape(len(decoded), count, values, height, width).transpose(0, 1, 3, 4, 2)
        box = decoded[:, first : first + count * height * width].reshape(logits.shape)
        first += count * height * width
        s = 1 / (1 + np.exp(-logits))
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
        levels.append(HeadLevel(maps=one.names[:1], stride=one.stride, anchors=pairs, channels_last=one.channels_last))
    if first != decoded.shape[1]:
        raise UnprovenError(f"its output has {decoded.shape[1]} boxes, and its maps {first}")
    _check_limit("anchors a cell", max(len(level.anchors) for level in levels), MOST_ANCHORS)
    return RawHead(layout="yolov5", output="", values=values, levels=tuple(levels))


def _distance_head(
    end: GraphEnd, nodes: Sequence[Any], maps: Sequence[_Map], random: dict[_Map, Array], decoded: Array, near: float
) -> RawHead:
    """As YOLOv8's: [n, values, boxes], of two maps a level: the logits of distances, and of classes."""
    sums = [weights for node in nodes if node.op_type == "Conv" if (weights := end.constant(node.input[1])) is not None]
    if len(sums) != 1 or len(maps) % 2 or not np.isfinite(sums[0]).all():
        raise UnprovenError("its distances are not one weighted sum of bins, of two maps a level")
    bins = sums[0].reshape(-1).astype(np.float64)
    half = len(maps) // 2
    joined = maps[0].grid == maps[1].grid
    pairs = list(zip(maps[::2], maps[1::2], strict=True) if joined else zip(maps[:half], maps[half:], strict=True))
    first, levels = 0, []
    for boxes, classes in pairs:
        count, cells = len(bins), boxes.grid[0] * boxes.grid[1]
        fits = boxes.channels == 4 * count and boxes.grid == classes.grid and 4 + classes.channels == decoded.shape[1]
        if not fits or boxes.channels_last or classes.channels_last:
            raise UnprovenError(f"{boxes.names[0]!r} and {classes.names[0]!r} are not the maps of a level")
        part = decoded[:, :, first : first + cells]
        logits = random[boxes].reshape(len(decoded), 4, count, cells)
        shares = np.exp(logits - logits.max(axis=2, keepdims=True))
        left, upper, right, lower = (shares.swapaxes(1, 2) / shares.sum(axis=2)[:, None]).transpose(2, 0, 3, 1) @ bins
        y, x = np.divmod(np.arange(cells), boxes.grid[1])
        wanted = np.stack([x + 0.5 + (right - left) / 2, y + 0.5 + (lower - upper) / 2, left + right, upper + lower])
        scores = 1 / (1 + np.exp(-random[classes].reshape(len(decoded), -1, cells)))
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
        levels.append(HeadLevel(maps=(boxes.names[0], classes.names[0]), stride=boxes.stride))
    if first != decoded.shape[2]:
        raise UnprovenError(f"its output has {decoded.shape[2]} boxes, and its maps {first}")
    _check_limit("bins a distance", len(bins), MOST_BINS)
    return RawHead(layout="yolov8", output="", values=decoded.shape[1], levels=tuple(levels), bins=tuple(bins.tolist()))


def _is_close(array: Array, wanted: Array, off: float, share: float = 5e-7) -> bool:
    """Whether values are those of a formula, but for the rounding of an exporter that computes in their type."""
    return bool(np.all(np.abs(array - wanted) <= off + share * np.abs(wanted)))


def _check_limit(what: str, count: int, most: int) -> None:
    if count > most:
        raise UnprovenError(f"its head has {count} {what}, and the native decoder takes at most {most}")


# ---- features ----


def _at_features(end: GraphEnd, head: RawHead, maps: Sequence[_Map]) -> HeadEnd:
    """Levels of YOLOv5 end at their features, where a convolution of 1 x 1 with constant weights in float32 makes the
    map of them. Other levels stay.
    """
    _check_limit("levels", len(head.levels), MOST_LEVELS)
    by_name = {one.names[0]: one for one in maps}
    levels, names = list(head.levels), list(head.names)
    found = [_features(end, level) if head.layout == "yolov5" else None for level in levels]
    named = [*names, *(one.maps[0] for one in found if one is not None)]
    for index, one in enumerate(found):
        if one is not None and named.count(one.maps[0]) == 1:  # each level is an output of its own
            levels[index] = one
    head = msgspec.structs.replace(head, levels=tuple(levels))
    dims = {name: list(by_name[name].dims) if name in by_name else end.dims(name) for name in head.names}
    products = {name: list(one.names) for name, one in by_name.items() if len(one.names) > 1}
    return HeadEnd(head, products, dims, {name: end.dtype(name) for name in head.names})


def _features(end: GraphEnd, level: HeadLevel) -> HeadLevel | None:
    """A level at its features; None where what makes its map is not such a convolution."""
    conv = end.maker(level.maps[0], "Conv")
    weights = end.constant(conv.input[1]) if conv is not None else None
    if conv is None or weights is None or level.channels_last or not is_pointwise(conv.attribute, weights):
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
