"""The proof that the end of a graph is the decoding of YOLOv5's head, and what it decodes with.

Nothing is taken from names. Each level is followed from the output back to its map: the parts of the last axis, the
sigmoid, the move of the channels to the end. What the chains of elementwise nodes in between compute is compared with
the formulas, with strides, anchors and grids as the constants have them.

    centre = (2 s(xy) - 0.5 + cell) * stride,  size = (2 s(wh))^2 * anchor,  the others = s(x)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from .head_levels import HeadProof, UnprovenError, is_close, node_of, operator_of
from .polynomials import Polynomial, polynomial_of
from .raw_head import HeadLevel, RawHead

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["find_anchor_head"]

#: What gives the parts of a box, and their sigmoids.
_TAKEN_FROM = ("Sigmoid", "Split", "Slice")


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
    """A level: its map [n, A * values, h, w], and what follows from its decoding."""

    map: ir.Value
    stride: int
    anchors: tuple[tuple[float, float], ...]
    values: int


def find_anchor_head(proof: HeadProof) -> tuple[RawHead, list[ir.Value]]:
    """The head that a model ends with, and its maps.

    Raises:
        UnprovenError: it ends with something else; the message has the reason.
    """
    output, value = proof.only_output()
    joined = node_of(value, "Concat")
    if joined is None or any(_joined_parts(one) is None for one in joined.inputs):
        raise UnprovenError("its output is not a concatenation of levels whose boxes are joined from parts")
    if joined.attributes.get_int("axis", 0) not in (1, -2) or len(proof.dims(value)) != 3:
        raise UnprovenError(f"its output concatenates {joined.name!r} along another axis than the boxes")
    levels = [_level(proof, one) for one in joined.inputs if one is not None]
    sizes = {level.values for level in levels}
    if len(sizes) != 1 or levels[0].values < 6:
        raise UnprovenError(f"its levels have {sorted(sizes)} values a box")
    named = tuple(
        HeadLevel(maps=(level.map.name or "",), stride=level.stride, anchors=level.anchors) for level in levels
    )
    head = RawHead(layout="yolov5", output=output.name or "", values=levels[0].values, levels=named)
    return head, [level.map for level in levels]


def _level(proof: HeadProof, flat: ir.Value) -> _Level:
    """The level whose decoding gives `flat`, [n, A * h * w, values]."""
    joined = _joined_parts(flat)
    assert joined is not None
    dims = proof.dims(joined.outputs[0])
    if len(dims) != 5 or joined.attributes.get_int("axis", 0) not in (4, -1):
        raise UnprovenError(f"{joined.name!r} does not concatenate the values of a box: it has shape {dims}")
    sizes = [dim for dim in dims[1:] if dim is not None]
    if len(sizes) != 4 or proof.dims(flat)[1:] != [prod(sizes[:3]), sizes[3]]:
        raise UnprovenError(f"{flat.name!r} has shape {proof.dims(flat)}, and is made of {dims}")
    anchors, height, width, values = sizes
    parts = [_part(proof, one, values) for one in joined.inputs if one is not None]
    _check_parts(parts, values)
    xy, wh = parts[:2]
    source = _map(proof, parts[0].grouped, (anchors, height, width, values))
    stride = _stride(xy.polynomial, (anchors, height, width), proof.dtype(source))
    boxes = _anchors(wh.polynomial, anchors, height, width)
    return _Level(source, stride, boxes, values)


def _joined_parts(flat: ir.Value | None) -> ir.Node | None:
    """The Concat of the parts of boxes that a Reshape flattens."""
    reshape = node_of(flat, "Reshape")
    return node_of(reshape.inputs[0], "Concat") if reshape is not None else None


def _check_parts(parts: Sequence[_Part], values: int) -> None:
    """The parts are centre, size and the others of one tensor, in order, and the others are sigmoids alone."""
    starts = [0, 2, *(part.first for part in parts[2:])]
    ends = [part.first + part.count for part in parts]
    in_order = [part.first for part in parts] == starts and ends == [*starts[1:], values]
    if len(parts) < 3 or not in_order or len({part.grouped for part in parts}) != 1 or starts[2] != 4:
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


def _map(proof: HeadProof, grouped: ir.Value, dims: tuple[int, int, int, int]) -> ir.Value:
    """The map [n, A * values, h, w] that a Reshape and a Transpose make [n, A, h, w, values] of."""
    anchors, height, width, values = dims
    moved = node_of(grouped, "Transpose")
    split = node_of(moved.inputs[0], "Reshape") if moved is not None else None
    source = split.inputs[0] if split is not None else None
    if moved is None or split is None or source is None:
        raise UnprovenError(f"{grouped.name!r} is not a Reshape and a Transpose of a map")
    if list(moved.attributes.get_ints("perm", [])) != [0, 1, 3, 4, 2]:
        raise UnprovenError(f"{moved.name!r} does not move the values of a box to the end")
    if proof.dims(split.outputs[0])[1:] != [anchors, values, height, width]:
        raise UnprovenError(f"{split.name!r} does not split the channels of a map into anchors and values")
    if proof.dims(source)[1:] != [anchors * values, height, width] or source.producer() is None:
        raise UnprovenError(
            f"{source.name!r} of shape {proof.dims(source)} is not a map of {anchors} x {values} channels"
        )
    return source


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
