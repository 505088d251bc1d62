"""Heads of detectors that take channels apart and join them again, as matrix products of the parts.

YOLOv5 gives B values for each of A anchors of a position. Its decoding moves the anchors to the front, takes the B
values apart, computes those of the box, joins all, and joins the levels. Nearly all values come through that as they
are, and each of the four steps moves all of them. A matrix product computes each column of its result from that column
of its weights alone, so each part may be a product of its own:

    [rows, A * B] -> split, Transpose, Sigmoid, Split, Concat -> [n, A * h * w, B] -> Concat of levels

becomes, with two products for each anchor, one of the b values that are computed and one of the others,

    A times [rows, b] -> Concat, Sigmoid, Split -> [n, A, h * w, b]
    A times [rows, B - b] -> Sigmoid -> [n, h * w, B - b], Concat with the anchor's b -> Concat of levels

Most values are moved twice then, in parts that fit into a cache. The sums stay the same. Where all of the result
fits into one, moving it costs less than the additional nodes do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph.weights import constant_tensor

if TYPE_CHECKING:
    import onnx_ir as ir

    from ..graph.builder import GraphBuilder

__all__ = ["AnchorHead", "find_head", "write_head"]

#: Computed of each value by itself.
_ELEMENTWISE = frozenset({"HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Relu", "Sigmoid", "Tanh"})

#: The results, in bytes, that are moved at the speed of memory: more than the cache of a core holds.
_LEAST_BYTES = 4 << 20

#: ONNX Runtime computes so many columns of a product at once: 81 take as long as 96.
_BLOCK = 16

#: Writes a product of some columns of the weights: their numbers and a name to its result, [rows, columns].
Product = Callable[[Sequence[int], str], "ir.Value"]


@dataclass(frozen=True)
class AnchorHead:
    """The nodes behind a convolution, from its result to the concatenation of levels.

    Attributes:
        split: the Reshape from [n, A * B, ...] to [n, A, B, ...].
        transpose: it moves B to the end.
        functions: elementwise, of all values.
        parts: the Split of B.
        kept: which of its results goes to `join` as it is.
        kept_functions: elementwise, of that result alone.
        join: the Concat of what becomes of the parts.
        position: which of its inputs the kept part is.
        flatten: the Reshape to [n, A * positions, values].
        levels: the Concat of what several convolutions give.
        anchors: A.
        sizes: how many values each part has.
    """

    split: ir.Node
    transpose: ir.Node
    functions: tuple[ir.Node, ...]
    parts: ir.Node
    kept: int
    kept_functions: tuple[ir.Node, ...]
    join: ir.Node
    position: int
    flatten: ir.Node
    levels: ir.Node
    anchors: int
    sizes: tuple[int, ...]


def find_head(split: ir.Node) -> AnchorHead | None:
    """The head that begins with a Reshape of a convolution's result; None if it is of another form.

    Args:
        split: it makes [n, A, B, ...] of [n, A * B, ...], and only Transposes read its result.
    """
    grouped = split.outputs[0].shape
    transpose = _only_reader(split.outputs[0], "Transpose")
    if grouped is None or transpose is None:
        return None
    rank, anchors = len(grouped), grouped[1]
    order = [0, 1, *range(3, rank), 2]
    if _image_bytes(grouped) < _LEAST_BYTES:
        return None
    if not isinstance(anchors, int) or anchors < 2 or list(transpose.attributes.get_ints("perm", [])) != order:
        return None
    functions, value = _functions(transpose.outputs[0])
    parts = _only_reader(value, "Split")
    if parts is None or len(parts.outputs) < 2 or parts.attributes.get_int("axis", 0) not in (-1, rank - 1):
        return None
    sizes = [_last_side(part) for part in parts.outputs]
    kept = max(range(len(sizes)), key=sizes.__getitem__)
    kept_functions, value = _functions(parts.outputs[kept])
    join = _only_reader(value, "Concat")
    if join is None or join.attributes.get_int("axis", 0) not in (-1, rank - 1) or 0 in sizes:
        return None
    if any(part.is_graph_output() for part in parts.outputs):
        return None
    if not all(_last_side(other) for other in join.inputs):
        return None
    flatten = _only_reader(join.outputs[0], "Reshape")
    levels = _only_reader(flatten.outputs[0], "Concat") if flatten is not None else None
    if flatten is None or levels is None or not _flattens(flatten):
        return None
    if levels.attributes.get_int("axis", 0) not in (1, -2):
        return None
    return AnchorHead(
        split, transpose, functions, parts, kept, kept_functions, join, join.inputs.index(value), flatten, levels,
        anchors, tuple(sizes),
    )  # fmt: skip


def _only_reader(value: ir.Value, operator: str) -> ir.Node | None:
    """What reads a value, if it is one node of this operator, in its first input or as one of several."""
    uses, maker = list(value.uses()), value.producer()
    if len(uses) != 1 or value.is_graph_output() or maker is None:
        return None
    node, index = uses[0].node, uses[0].idx
    if node.op_type != operator or node.graph is not maker.graph:
        return None
    return node if index == 0 or operator == "Concat" else None


def _functions(value: ir.Value) -> tuple[tuple[ir.Node, ...], ir.Value]:
    """The elementwise nodes that alone read a value, one after another, and what they give."""
    found: list[ir.Node] = []
    while node := next((node for one in _ELEMENTWISE if (node := _only_reader(value, one)) is not None), None):
        found.append(node)
        value = node.outputs[0]
    return tuple(found), value


def _image_bytes(shape: ir.Shape) -> int:
    """The bytes of a tensor in floating point, for one image; 0 if its sizes are not known."""
    sides = [side for side in list(shape)[1:] if isinstance(side, int)]
    return 4 * prod(sides) if len(sides) == len(shape) - 1 else 0


def _last_side(value: ir.Value | None) -> int:
    """The size of the last axis; 0 if it is not known."""
    side = value.shape[-1] if value is not None and value.shape is not None and len(value.shape) else None
    return side if isinstance(side, int) else 0


def _flattens(node: ir.Node) -> bool:
    """Whether a Reshape makes [n, positions, values] of [n, A, ..., values]."""
    before, after = node.inputs[0], node.outputs[0].shape
    target = constant_tensor(node.inputs[1]) if node.inputs[1] is not None else None
    if before is None or before.shape is None or after is None or len(after) != 3 or target is None:
        return False
    if _last_side(before) == 0 or _last_side(before) != after[2]:
        return False
    keeps_batch = target.numpy()[0] == 0 and not node.attributes.get_int("allowzero", 0)
    sides = list(before.shape)[1:-1]
    known = [side for side in sides if isinstance(side, int)]
    return bool(keeps_batch or (len(known) == len(sides) and prod(known) == after[1]))


def write_head(build: GraphBuilder, graph: ir.Graph, head: AnchorHead, last: ir.Value, product: Product) -> None:
    """Writes a head as products of its parts, and takes its old nodes out.

    Args:
        last: what the products compute from, with the channels last: [n, ..., channels].
        product: of columns of the weights, which are the channels of the convolution's result.
    """
    count, size = sum(head.sizes), head.sizes[head.kept]
    spare = size % _BLOCK if size > _BLOCK else 0
    first = sum(head.sizes[: head.kept])
    kept = range(first + spare, first + size)
    sizes = build("Shape", last)  # not numbers: the model may be resized
    spared = _write_computed(build, head, kept, sizes, product)
    shape = build("Concat", build("Gather", sizes, build.ints(0)), build.ints(-1, len(kept)), axis=0)
    inputs = head.join.inputs[: head.position], head.join.inputs[head.position + 1 :]
    widths = [sum(map(_last_side, values)) for values in inputs]
    before = _by_anchor(build, head, [*inputs[0], *spared], widths[0] + spare)
    behind = _by_anchor(build, head, inputs[1], widths[1])
    joined = []
    for anchor in range(head.anchors):
        part = product([anchor * count + channel for channel in kept], f"anchor_{anchor}")
        part = _copied(build, (*head.functions, *head.kept_functions), part)
        part = build("Reshape", part, shape, name="positions")
        joined.append(build("Concat", *before[anchor], part, *behind[anchor], axis=2, name="joined"))
    _replace_input(head.levels, head.flatten.outputs[0], joined)
    behind_split = [head.join, *reversed(head.kept_functions), head.parts, *reversed(head.functions), head.transpose]
    for node in (head.flatten, *behind_split, head.split):
        graph.remove(node, safe=True)


def _write_computed(
    build: GraphBuilder, head: AnchorHead, kept: range, sizes: ir.Value, product: Product
) -> list[ir.Value]:
    """The parts that are computed: a product for each anchor, and then all anchors together.

    Args:
        kept: the channels that are not among them.
        sizes: of what they are computed from, [n, ..., channels].

    Returns:
        The first values of the kept part, if they are among them.
    """
    count, spare = sum(head.sizes), head.sizes[head.kept] - len(kept)
    channels = [channel for channel in range(count) if channel not in kept]
    parts = [spare if index == head.kept else size for index, size in enumerate(head.sizes)]
    rank = len(head.transpose.attributes["perm"].as_ints())
    batch, positions = build("Gather", sizes, build.ints(0)), build("Gather", sizes, build.ints(range(1, rank - 2)))
    shape = build("Concat", batch, build.ints(1), positions, build.ints(len(channels)), axis=0)
    rows = [product([anchor * count + channel for channel in channels], "computed") for anchor in range(head.anchors)]
    value = build("Concat", *(build("Reshape", one, shape) for one in rows), axis=1, name="anchors")
    value = _copied(build, head.functions, value)
    there = [index for index, size in enumerate(parts) if size]
    lengths = build.ints(parts[index] for index in there)
    results = build.node("Split", value, lengths, outputs=len(there), axis=-1) if len(there) > 1 else [value]
    spared = []
    for index, new in zip(there, results, strict=True):
        old = head.parts.outputs[index]
        if index == head.kept:
            spared.append(_copied(build, head.kept_functions, new))
        else:
            new.type, new.shape = old.type, old.shape
            old.replace_all_uses_with(new)
    return spared


def _copied(build: GraphBuilder, functions: Sequence[ir.Node], value: ir.Value) -> ir.Value:
    """What functions make of another value."""
    for function in functions:
        attributes: dict[str, Any] = dict(function.attributes)
        value = build(function.op_type, value, **attributes)
    return value


def _by_anchor(
    build: GraphBuilder, head: AnchorHead, values: Sequence[ir.Value | None], width: int
) -> list[list[ir.Value]]:
    """What is concatenated with the kept part on one side of it, for each anchor: [n, positions, b]."""
    if not values:
        return [[] for _ in range(head.anchors)]
    whole = build("Concat", *values, axis=-1) if len(values) > 1 else values[0]
    flat = build("Reshape", whole, build.ints(0, head.anchors, -1, width), name="flat")
    return [[build("Gather", flat, np.asarray(anchor, np.int64), axis=1)] for anchor in range(head.anchors)]


def _replace_input(node: ir.Node, old: ir.Value, new: Sequence[ir.Value]) -> None:
    """Puts several inputs in the place of one."""
    index = node.inputs.index(old)
    inputs = [*node.inputs[:index], *new, *node.inputs[index + 1 :]]
    node.resize_inputs(len(inputs))
    for position, value in enumerate(inputs):
        node.replace_input_with(position, value)
