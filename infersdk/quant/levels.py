"""Joins the levels of a detector with the channels last.

YOLOX's head concatenates the outputs of each level along the channels, then the levels along the positions, and
transposes the result:

    [n, a, h, w], [n, b, h, w] -> Concat -> Reshape [n, a + b, h * w] -> Concat of levels -> Transpose [n, all, a + b]

ONNX Runtime computes convolutions with blocks of channels and matrix products with channels last. It can write both
with
channels last at no extra cost, so that only copies remain:

    Transposes to [n, h, w, a], [n, h, w, b] -> Reshapes [n, h * w, ...] -> Concat -> Concat of levels

Results are identical.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..graph.builder import GraphBuilder
from ..graph.weights import constant_tensor

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["join_levels"]


@dataclass(frozen=True)
class _Level:
    """The outputs of a level.

    Attributes:
        parts: values [n, channels, h, w] in order. A concatenation that is also used elsewhere is one part.
        channels: the channels of each part.
        target: the target of the Reshape to [n, all channels, h * w].
        nodes: the Reshape, and the Concat of the parts, if any.
    """

    parts: tuple[ir.Value, ...]
    channels: tuple[int, ...]
    target: tuple[int, int, int]
    nodes: tuple[ir.Node, ...]


def join_levels(graph: ir.Graph) -> None:
    """Joins levels with the channels last if they are transposed afterwards. Nodes are not sorted afterwards."""
    for transpose in [node for node in graph if node.op_type == "Transpose"]:
        join = _only_maker(transpose.inputs[0], "Concat")
        if join is None or list(transpose.attributes.get_ints("perm", [])) != [0, 2, 1]:
            continue
        levels = [_level(value) for value in join.inputs] if join.attributes.get_int("axis", 0) in (2, -1) else []
        if levels and None not in levels:
            _write(graph, transpose, join, [level for level in levels if level is not None])


def _only_maker(value: ir.Value | None, operator: str) -> ir.Node | None:
    """The node that computes a value, if it has this operator and the value has one user."""
    maker = value.producer() if value is not None else None
    if value is None or maker is None or maker.op_type != operator or value.is_graph_output():
        return None
    return maker if len(list(value.uses())) == 1 else None


def _level(value: ir.Value | None) -> _Level | None:
    """The level of a value [n, channels, positions]; None if it is computed in another way."""
    reshape = _only_maker(value, "Reshape")
    source = reshape.inputs[0] if reshape is not None else None
    if reshape is None or source is None or source.shape is None or len(source.shape) != 4:
        return None
    target = constant_tensor(reshape.inputs[1]) if reshape.inputs[1] is not None else None
    sides = [int(side) for side in target.numpy()] if target is not None else []
    concat = _only_maker(source, "Concat")
    concat = concat if concat is not None and concat.attributes.get_int("axis", 0) in (1, -3) else None
    parts = tuple(part for part in (concat.inputs if concat is not None else [source]) if part is not None)
    channels = tuple(count for part in parts if isinstance(count := _channels(part), int))
    if len(channels) < len(parts) or len(sides) != 3 or not _flattens(list(source.shape), sides, sum(channels)):
        return None
    if reshape.attributes.get_int("allowzero", 0):
        return None
    nodes = (reshape, *([concat] if concat is not None else []))
    return _Level(parts, channels, (sides[0], sides[1], sides[2]), nodes)


def _channels(value: ir.Value) -> object:
    return value.shape[1] if value.shape is not None and len(value.shape) == 4 else None


def _flattens(shape: list[object], target: list[int], channels: int) -> bool:
    """Whether a Reshape converts [n, channels, h, w] to [n, channels, h * w]."""
    batch, count, positions = target
    if count not in (0, channels):
        return False
    if batch == 0 or batch == shape[0]:
        return positions == -1 or (positions > 0 and positions == _product(shape[2:]))
    # With -1, the batch is kept if the number of positions is.
    return batch == -1 and positions > 0 and positions == _product(shape[2:])


def _product(sides: list[object]) -> int:
    """The number of positions of a feature map; 0 if unknown."""
    height, width = sides
    return height * width if isinstance(height, int) and isinstance(width, int) else 0


def _write(graph: ir.Graph, transpose: ir.Node, join: ir.Node, levels: list[_Level]) -> None:
    """Replaces a transposed concatenation by levels with the channels last."""
    build = GraphBuilder(graph, f"{transpose.name}/")
    joined = []
    for level in levels:
        parts = []
        for part, channels in zip(level.parts, level.channels, strict=True):
            last = build("Transpose", part, perm=[0, 2, 3, 1], name="channels_last")
            parts.append(build("Reshape", last, build.ints(level.target[0], level.target[2], channels), name="rows"))
        joined.append(build("Concat", *parts, axis=2, name="level") if len(parts) > 1 else parts[0])
    old = transpose.outputs[0]
    result = build("Concat", *joined, axis=1, name="levels")
    name, result.type, result.shape = old.name, old.type, old.shape
    old.replace_all_uses_with(result, replace_graph_outputs=True)
    for node in (transpose, join, *(node for level in levels for node in level.nodes)):
        graph.remove(node, safe=True)
    result.name = name
