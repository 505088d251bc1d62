"""The proof that the end of a graph is the decoding of the head of YOLOv8 and YOLO11, and what it decodes with.

A box has the distances of its edges from the centre of a cell. Each distance is the mean of some bins, weighted by the
softmax of their logits. Nothing is taken from names: the nodes are followed from the output back to the maps, and the
constants are compared with the grids that they stand for.

    x1y1 = cell + 0.5 - lt,  x2y2 = cell + 0.5 + rb,  box = ((x1y1 + x2y2) / 2, x2y2 - x1y1) * stride
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .factors import constant_of
from .head_levels import HeadProof, UnprovenError, is_close, is_pointwise, node_of
from .polynomials import operands
from .raw_head import HeadLevel, RawHead

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["find_distance_head"]

#: A box has so many distances: left, upper, right, lower.
_SIDES = 4


@dataclass(frozen=True)
class _Channels:
    """Some channels of a value whose axis 1 they are.

    Attributes:
        value: [n, channels, ...].
        first, count: which.
    """

    value: ir.Value
    first: int
    count: int


def find_distance_head(proof: HeadProof) -> tuple[RawHead, list[ir.Value]]:
    """The head that a model ends with, and its maps: of each level that of the boxes and that of the classes.

    Raises:
        UnprovenError: it ends with something else; the message has the reason.
    """
    output, value = proof.only_output()
    joined = node_of(value, "Concat")
    if joined is None or len(joined.inputs) != 2:
        raise UnprovenError("its output is not a concatenation of boxes and scores")
    boxes, sigmoid = joined.inputs[0], node_of(joined.inputs[1], "Sigmoid")
    scaled = node_of(boxes, "Mul")
    if sigmoid is None or scaled is None:
        raise UnprovenError("its output is not a concatenation of boxes that are scaled, and of the sigmoids of scores")
    dims = proof.dims(value)
    if len(dims) != 3 or joined.attributes.get_int("axis", 0) not in (1, -2) or None in dims[1:]:
        raise UnprovenError(f"its output of shape {dims} does not have boxes and scores along its axis 1")
    logits, bins, cells, strides = _boxes(proof, scaled)
    box_maps = _level_maps(proof, _whole(proof, logits))
    class_maps = _level_maps(proof, _whole(proof, sigmoid.inputs[0]))
    levels = _levels(proof, box_maps, class_maps)
    found = _check_grids(levels, cells, strides, proof.dtype(box_maps[0]))
    named = tuple(
        HeadLevel(maps=(box.name or "", classes.name or ""), stride=stride)
        for box, classes, stride in zip(box_maps, class_maps, found, strict=True)
    )
    classes = proof.side(sigmoid.outputs[0], 1)
    if classes is None:
        raise UnprovenError("the number of its classes is not known")
    head = RawHead(layout="yolov8", output=output.name or "", values=_SIDES + classes, levels=named, bins=bins)
    return head, [value for pair in zip(box_maps, class_maps, strict=True) for value in pair]


# ---- boxes ----

Array = Any


def _boxes(proof: HeadProof, scaled: ir.Node) -> tuple[ir.Value, tuple[float, ...], Array, Array]:
    """What boxes are computed from: the logits [n, 4 * bins, positions], the bins, cells and strides."""
    found = operands(scaled)
    box = node_of(found[0], "Concat") if found is not None else None
    if found is None or box is None or len(box.inputs) != 2 or box.attributes.get_int("axis", 0) not in (1, -2):
        raise UnprovenError("its boxes are not centres and sizes times a stride")
    low, high = _corners(box)
    corners = []
    for corner, operator in ((low, "Sub"), (high, "Add")):
        node = node_of(corner, operator)
        parts = operands(node) if node is not None else None
        if parts is None or (operator == "Sub" and not parts[2]):
            raise UnprovenError(f"{corner.name!r} is not the centre of a cell and a distance")
        corners.append(parts)
    (near, cells, _), (far, other, _) = corners
    if cells.shape != other.shape or not np.array_equal(cells, other):
        raise UnprovenError("the corners of its boxes are of different grids")
    first, second = (_channels(proof, _Channels(value, 0, 2)) for value in (near, far))
    if first.value is not second.value or (first.first, second.first) != (0, 2):
        raise UnprovenError("the distances of its boxes are not those of left and upper, right and lower edge")
    if proof.side(first.value, 1) != _SIDES:
        raise UnprovenError(f"{first.value.name!r} of shape {proof.dims(first.value)} is not four distances")
    logits, bins = _mean_bins(proof, first.value)
    return logits, bins, cells, found[1]


def _corners(box: ir.Node) -> tuple[ir.Value, ir.Value]:
    """The upper left and lower right corners that centres and sizes are computed from."""
    size = node_of(box.inputs[1], "Sub")
    centre, half = box.inputs[0], None
    for operator, number in (("Div", 2.0), ("Mul", 0.5)):
        node = node_of(centre, operator)
        parts = operands(node) if node is not None else None
        if parts is not None and parts[1].size == 1 and parts[1].item() == number and not (parts[2] and number == 2):
            half = node_of(parts[0], "Add")
    if size is None or half is None or None in size.inputs or set(half.inputs) != set(size.inputs):
        raise UnprovenError("its boxes are not the middle and the difference of two corners")
    high, low = size.inputs
    assert low is not None
    assert high is not None
    return low, high


def _mean_bins(proof: HeadProof, distances: ir.Value) -> tuple[ir.Value, tuple[float, ...]]:
    """The logits of the bins whose mean the distances are, [n, 4 * bins, positions], and the bins.

    The axes are followed through each Transpose, so that any order of them is one.
    """
    flat = node_of(distances, "Reshape")
    mean = node_of(flat.inputs[0], "Conv") if flat is not None else None
    weights = constant_of(mean.inputs[1]) if mean is not None else None
    if mean is None or weights is None or not _is_weighted_sum(mean, weights):
        raise UnprovenError(f"{distances.name!r} is not a weighted sum of bins")
    bins = weights.astype(np.float64).reshape(-1)
    moves: list[list[int]] = []
    value, softmax = mean.inputs[0], None
    while (node := node_of(value, "Transpose") or node_of(value, "Softmax")) is not None:
        if node.op_type == "Softmax":
            if softmax is not None:
                raise UnprovenError("its distances have two softmaxes")
            softmax, softmax_at = node, len(moves)
        else:
            moves.append(list(node.attributes.get_ints("perm", [])))
            if sorted(moves[-1]) != [0, 1, 2, 3]:
                raise UnprovenError(f"{node.name!r} does not say how it orders four axes")
        value = node.inputs[0]
    grouped = node_of(value, "Reshape")
    logits = grouped.inputs[0] if grouped is not None else None
    if softmax is None or grouped is None or logits is None:
        raise UnprovenError("its distances are not means of the softmax of logits")
    dims = proof.dims(grouped.outputs[0])
    positions = proof.dims(logits)[-1:]
    if dims[1:] != [_SIDES, len(bins), *positions] or proof.dims(logits)[1:] != [_SIDES * len(bins), *positions]:
        raise UnprovenError(f"{grouped.name!r} of shape {dims} does not split channels into 4 times {len(bins)} bins")
    axes = ["batch", "side", "bin", "position"]
    for number, perm in enumerate(reversed(moves)):
        if number == len(moves) - softmax_at:
            _check_softmax(proof, softmax, axes)
        axes = [axes[index] for index in perm]
    if softmax_at == 0:
        _check_softmax(proof, softmax, axes)
    if axes != ["batch", "bin", "side", "position"] or proof.dims(distances)[1:] != [_SIDES, *positions]:
        raise UnprovenError(f"the axes in front of {mean.name!r} are {', '.join(axes)}")
    return logits, tuple(bins.tolist())


def _check_softmax(proof: HeadProof, softmax: ir.Node, axes: Sequence[str]) -> None:
    """It is of the bins alone. Before opset 13 it takes all axes behind its own as one."""
    old = proof.opset < 13
    axis = softmax.attributes.get_int("axis", 1 if old else -1)
    if not -len(axes) <= axis < len(axes) or axes[axis] != "bin" or (old and axis not in (-1, len(axes) - 1)):
        raise UnprovenError(f"{softmax.name!r} is not the softmax of the bins")


def _is_weighted_sum(conv: ir.Node, weights: npt.NDArray[Any]) -> bool:
    """Whether a convolution adds up its channels, each times a weight."""
    inputs = [one for one in conv.inputs if one is not None]
    return len(inputs) == 2 and is_pointwise(conv, weights) and weights.shape[0] == 1


# ---- levels ----


def _whole(proof: HeadProof, value: ir.Value | None) -> _Channels:
    """All channels of a value, as part of what they are taken from."""
    count = proof.side(value, 1)
    if value is None or count is None:
        raise UnprovenError("the channels of its scores are not known")
    return _channels(proof, _Channels(value, 0, count))


def _channels(proof: HeadProof, part: _Channels) -> _Channels:
    """The channels of the value that a Split or Slice takes them from."""
    while (node := node_of(part.value, "Split") or node_of(part.value, "Slice")) is not None:
        first, count = proof.range_of(node, part.value, axis=1)
        if count != part.count:
            raise UnprovenError(f"{node.name!r} gives {count} channels where {part.count} are used")
        source = node.inputs[0]
        assert source is not None
        part = _Channels(source, first + part.first, part.count)
    return part


def _level_maps(proof: HeadProof, part: _Channels) -> list[ir.Value]:
    """The map of each level that has these channels: [n, count, h, w]."""
    joined = node_of(part.value, "Concat")
    if joined is None or joined.attributes.get_int("axis", 0) not in (2, -1) or len(proof.dims(part.value)) != 3:
        raise UnprovenError(f"{part.value.name!r} is not a concatenation of levels")
    return [_map(proof, one, part) for one in joined.inputs if one is not None]


def _map(proof: HeadProof, flat: ir.Value, part: _Channels) -> ir.Value:
    """The map of these channels that a Reshape makes [n, channels, h * w] of."""
    reshape = node_of(flat, "Reshape")
    source = reshape.inputs[0] if reshape is not None else None
    dims = proof.dims(source)
    if source is None or len(dims) != 4 or dims[2] is None or dims[3] is None:
        raise UnprovenError(f"{flat.name!r} is not a Reshape of a map")
    if proof.dims(flat)[1:] != [dims[1], dims[2] * dims[3]]:
        raise UnprovenError(f"{flat.name!r} of shape {proof.dims(flat)} is not the positions of a map of shape {dims}")
    first, joined = 0, node_of(source, "Concat")
    if joined is not None and joined.attributes.get_int("axis", 0) == 1:
        for one in joined.inputs:
            count = proof.side(one, 1)
            if one is None or count is None:
                break
            if (first, count) == (part.first, part.count):
                return one
            first += count
    elif (part.first, part.count) == (0, dims[1]):
        return source
    raise UnprovenError(f"its channels {part.first} to {part.first + part.count} are not a map of their own")


def _levels(proof: HeadProof, boxes: Sequence[ir.Value], classes: Sequence[ir.Value]) -> list[tuple[int, int]]:
    """The (height, width) of each level."""
    sizes = [[proof.dims(one)[2:] for one in maps] for maps in (boxes, classes)]
    if sizes[0] != sizes[1]:
        raise UnprovenError(f"its maps of boxes have sizes {sizes[0]}, and those of classes {sizes[1]}")
    levels = []
    for height, width in sizes[0]:
        assert height is not None
        assert width is not None
        levels.append((height, width))
    return levels


def _check_grids(
    levels: Sequence[tuple[int, int]], cells: Array, strides: Array, kind: ir.DataType | None
) -> list[int]:
    """The stride of each level; the constants are those of its grid.

    Raises:
        UnprovenError: they are not.
    """
    total = sum(height * width for height, width in levels)
    if cells.shape not in ((1, 2, total), (2, total)) or strides.size != total or strides.shape[-1] != total:
        raise UnprovenError(f"its grids have shapes {cells.shape} and {strides.shape}, and its levels {total} cells")
    first, found = 0, []
    for height, width in levels:
        part = slice(first, first + height * width)
        stride, rows = float(strides.reshape(-1)[first]), np.divmod(np.arange(height * width), width)
        wanted = np.stack([rows[1], rows[0]]) + 0.5
        if stride < 1 or stride != round(stride) or np.any(strides.reshape(-1)[part] != stride):
            raise UnprovenError(f"the stride of its level of {width} x {height} cells is not one whole number")
        if not is_close(cells.reshape(2, -1)[:, part], wanted, 1.0, kind):
            raise UnprovenError(f"the grid of its level of {width} x {height} cells is not cell + 0.5")
        found.append(int(stride))
        first += height * width
    return found
