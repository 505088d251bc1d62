"""The proof that the end of a graph is the decoding of YOLOv5's head, and what it decodes with.

Nothing is taken from names. Each level is followed from the output back to its map: the parts of the last axis, the
sigmoid, the move of the channels to the end. What the chains of elementwise nodes in between compute is compared with
the formulas, with strides, anchors and grids as the constants have them.

    centre = (2 s(xy) - 0.5 + cell) * stride,  size = (2 s(wh))^2 * anchor,  the others = s(x)

The channels of a map come first, or last, where a matrix product gives it; they may be those of several products
(`anchor_products`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .anchor_products import ProductMap, boxes_of_products, map_of_products
from .head_levels import HeadProof, UnprovenError, is_close, node_of, operator_of
from .polynomials import Polynomial, polynomial_of
from .raw_head import HeadLevel, RawHead

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["find_anchor_head"]

#: What gives the parts of a box, and their sigmoids.
_TAKEN_FROM = ("Sigmoid", "Split", "Slice")

_NO_LEVELS = "its output is not a concatenation of levels whose boxes are joined from parts"


@dataclass(frozen=True)
class _Part:
    """Some of the values of a box.

    Attributes:
        grouped: what they are part of: [n, A, h, w, values].
        first, count: which.
        polynomial: what is computed of their sigmoid.
    """

    grouped: ir.Value
    first: int
    count: int
    polynomial: Polynomial


@dataclass(frozen=True)
class _Level:
    """A level: its map, [n, A * values, h, w] or [n, h, w, A * values], and what follows from its decoding."""

    map: ir.Value | ProductMap
    channels_last: bool
    stride: int
    anchors: tuple[tuple[float, float], ...]
    values: int


def find_anchor_head(proof: HeadProof) -> tuple[RawHead, list[ir.Value | ProductMap]]:
    """The head that a model ends with, and its maps. A map of several products has the name of what the first gives.

    Raises:
        UnprovenError: it ends with something else; the message has the reason.
    """
    output, value = proof.only_output()
    joined = node_of(value, "Concat")
    if joined is None:
        raise UnprovenError(_NO_LEVELS)
    if joined.attributes.get_int("axis", 0) not in (1, -2) or len(proof.dims(value)) != 3:
        raise UnprovenError(f"its output concatenates {joined.name!r} along another axis than the boxes")
    levels = list(_levels(proof, joined.inputs))
    sizes = {level.values for level in levels}
    if len(sizes) != 1 or levels[0].values < 6:
        raise UnprovenError(f"its levels have {sorted(sizes)} values a box")
    named = tuple(
        HeadLevel(
            maps=(_name_of(level.map),), stride=level.stride, anchors=level.anchors, channels_last=level.channels_last
        )
        for level in levels
    )
    head = RawHead(layout="yolov5", output=output.name or "", values=levels[0].values, levels=named)
    return head, [level.map for level in levels]


def _name_of(one: ir.Value | ProductMap) -> str:
    return (one.rows if isinstance(one, ProductMap) else one).name or ""


def _levels(proof: HeadProof, values: Sequence[ir.Value | None]) -> Iterator[_Level]:
    """The levels that `values` are joined from: each is one of them, or as many as it has anchors."""
    while values:
        if values[0] is not None and _joined_parts(values[0]) is not None:
            yield _level(proof, values[0])
            values = values[1:]
        elif (found := boxes_of_products(proof, values)) is not None:
            yield _level_of_products(proof, *found)
            values = values[len(found[0]) :]
        else:
            raise UnprovenError(_NO_LEVELS)


def _level(proof: HeadProof, flat: ir.Value) -> _Level:
    """The level whose decoding gives `flat`, [n, A * h * w, values]."""
    parts, dims = _parts(proof, flat)
    anchors, height, width, values = dims
    if proof.dims(flat)[1:] != [anchors * height * width, values]:
        raise UnprovenError(f"{flat.name!r} has shape {proof.dims(flat)}, and is made of {dims}")
    source, channels_last = _map(proof, parts[0].grouped, dims)
    return _Level(source, channels_last, *_decoding(parts, dims, proof.dtype(source)), values)


def _level_of_products(proof: HeadProof, joined: Sequence[ir.Value], flat: ir.Value) -> _Level:
    """The level whose anchors give `joined`, [n, h * w, values] each, of `flat`, [n, A, h * w, b]."""
    parts, dims = _parts(proof, flat)
    anchors, height, width, computed = dims
    if proof.dims(flat)[1:] != [anchors, height * width, computed]:
        raise UnprovenError(f"{flat.name!r} has shape {proof.dims(flat)}, and is made of {dims}")
    source, values = map_of_products(proof, parts[0].grouped, joined, dims)
    return _Level(source, True, *_decoding(parts, dims, proof.dtype(source.rows)), values)


def _parts(proof: HeadProof, flat: ir.Value) -> tuple[list[_Part], tuple[int, int, int, int]]:
    """The parts that a Concat and a Reshape make `flat` of, and the sizes of their tensor but the batch: A, h, w and
    how many values.
    """
    joined = _joined_parts(flat)
    if joined is None:
        raise UnprovenError(_NO_LEVELS)
    dims = proof.dims(joined.outputs[0])
    if len(dims) != 5 or joined.attributes.get_int("axis", 0) not in (4, -1):
        raise UnprovenError(f"{joined.name!r} does not concatenate the values of a box: it has shape {dims}")
    sizes = [dim for dim in dims[1:] if dim is not None]
    if len(sizes) != 4:
        raise UnprovenError(f"{flat.name!r} has shape {proof.dims(flat)}, and is made of {dims}")
    anchors, height, width, values = sizes
    parts = [_part(proof, one, values) for one in joined.inputs if one is not None]
    _check_parts(parts, values)
    return parts, (anchors, height, width, values)


def _decoding(
    parts: Sequence[_Part], dims: tuple[int, int, int, int], kind: ir.DataType | None
) -> tuple[int, tuple[tuple[float, float], ...]]:
    """The stride and the anchors that the first two parts are computed with."""
    return _stride(parts[0].polynomial, dims[:3], kind), _anchors(parts[1].polynomial, *dims[:3])


def _joined_parts(flat: ir.Value | None) -> ir.Node | None:
    """The Concat of the parts of boxes that a Reshape flattens."""
    reshape = node_of(flat, "Reshape")
    return node_of(reshape.inputs[0], "Concat") if reshape is not None else None


def _check_parts(parts: Sequence[_Part], values: int) -> None:
    """The parts are centre, size and the others of one tensor, in order, and the others are sigmoids alone."""
    starts = [0, 2, *(part.first for part in parts[2:])]
    ends = [part.first + part.count for part in parts]
    in_order = [part.first for part in parts] == starts and ends == [*starts[1:], values]
    if len(parts) < 2 or not in_order or len({part.grouped for part in parts}) != 1 or ends[1] != 4:
        raise UnprovenError("the parts of its boxes are not centre, size and scores in this order")
    if not all(part.polynomial.is_plain for part in parts[2:]):
        raise UnprovenError("its scores are more than sigmoids")


def _part(proof: HeadProof, value: ir.Value, values: int) -> _Part:
    """The part of the values of a box that `value` is computed from."""
    polynomial = polynomial_of(value, lambda node: operator_of(node) in _TAKEN_FROM)
    if polynomial is None:
        raise UnprovenError(f"how {value.name!r} is computed is not known")
    first, count, inner = 0, values, polynomial.value
    sigmoids = 0
    while (node := inner.producer()) is not None and operator_of(node) in _TAKEN_FROM:
        if node.op_type == "Sigmoid":
            sigmoids += 1
        else:
            start, count = proof.range_of(node, inner, axis=4) if count == values else (0, -1)
            first += start
        inner = node.inputs[0]  # type: ignore[assignment]
    if sigmoids != 1 or count < 1:
        raise UnprovenError(f"{value.name!r} is not computed from the sigmoid of a part of a box")
    return _Part(inner, first, count, polynomial)


def _map(proof: HeadProof, grouped: ir.Value, dims: tuple[int, int, int, int]) -> tuple[ir.Value, bool]:
    """The map that a Reshape and a Transpose make [n, A, h, w, values] of, and whether its channels come last: it is
    [n, A * values, h, w] or [n, h, w, A * values].
    """
    anchors, height, width, values = dims
    moved = node_of(grouped, "Transpose")
    split = node_of(moved.inputs[0], "Reshape") if moved is not None else None
    source = split.inputs[0] if split is not None else None
    if moved is None or split is None or source is None:
        raise UnprovenError(f"{grouped.name!r} is not a Reshape and a Transpose of a map")
    perm = list(moved.attributes.get_ints("perm", []))
    if perm == [0, 1, 3, 4, 2]:
        channels_last, whole, parted = False, [anchors * values, height, width], [anchors, values, height, width]
    elif perm == [0, 3, 1, 2, 4]:
        channels_last, whole, parted = True, [height, width, anchors * values], [height, width, anchors, values]
    else:
        raise UnprovenError(f"{moved.name!r} does not move the values of a box to the end")
    if proof.dims(split.outputs[0])[1:] != parted:
        raise UnprovenError(f"{split.name!r} does not split the channels of a map into anchors and values")
    if proof.dims(source)[1:] != whole or source.producer() is None:
        raise UnprovenError(
            f"{source.name!r} of shape {proof.dims(source)} is not a map of {anchors} x {values} channels"
        )
    return source, channels_last


def _stride(xy: Polynomial, grid: tuple[int, int, int], kind: ir.DataType | None) -> int:
    """The stride of (2 s - 0.5 + cell) * stride."""
    stride = float(np.ravel(xy.linear)[0]) / 2
    anchors, height, width = grid
    if stride < 1 or stride != round(stride):
        raise UnprovenError(f"its boxes have a stride of {stride:g}, which is not a whole number of pixels")
    cells = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1)  # [h, w, (column, row)]
    shape = (1, anchors, height, width, 2)
    centre = np.broadcast_to((cells - 0.5) * stride, shape)
    if not (
        _equals(xy.square, 0.0, shape)
        and _equals(xy.linear, 2 * stride, shape, stride, kind)
        and _equals(xy.constant, centre, shape, stride, kind)
    ):
        raise UnprovenError(
            f"the centres of its boxes are not (2 s - 0.5 + cell) * {stride:g} of {width} x {height} cells"
        )
    return int(stride)


def _anchors(wh: Polynomial, anchors: int, height: int, width: int) -> tuple[tuple[float, float], ...]:
    """The anchors of (2 s)^2 * anchor, in pixels."""
    shape = (1, anchors, height, width, 2)
    try:
        square = np.broadcast_to(wh.square, shape)
    except ValueError:
        raise UnprovenError(f"the sizes of its boxes have factors of shape {wh.square.shape}, not {shape}") from None
    found = square[0, :, 0, 0, :] / 4
    if not (
        _equals(wh.constant, 0.0, shape)
        and _equals(wh.linear, 0.0, shape)
        and np.array_equal(square, np.broadcast_to(found[None, :, None, None] * 4, shape))
        and np.all(found > 0)
        and np.all(np.isfinite(found))
    ):
        raise UnprovenError("the sizes of its boxes are not (2 s)^2 times an anchor")
    return tuple((float(w), float(h)) for w, h in found)


def _equals(
    array: npt.NDArray[Any], wanted: Any, shape: tuple[int, ...], unit: float = 0.0, kind: ir.DataType | None = None
) -> bool:
    """Whether coefficients are these for each element, but for rounding: see `is_close`."""
    try:
        whole = np.broadcast_to(array, shape)
    except ValueError:
        return False
    return is_close(whole, wanted, unit, kind)
