"""Quantisers that stand in front of what only moves values, so that it moves 8 bits.

Rounding to codes keeps the order of values: `Q(max(a, b)) = max(Q(a), Q(b))`, and the same for what copies values. So
a quantiser behind a MaxPool or a Concat gives the same numbers in front of it. There the layer before it stores 8 bits,
and the pooling or the concatenation reads and writes a quarter of the bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Moves", "move_quantizers"]

#: What gives the values that it takes, in another order or some of them, and reads one activation.
_MOVING = frozenset(
    {"Flatten", "Identity", "MaxPool", "Reshape", "Resize", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)


@dataclass(frozen=True)
class Moves:
    """What has become of the quantisers of a graph.

    Attributes:
        points: the values that are quantised now, in order, each with the value whose range it has.
        moved: the same for values whose quantiser stands further in front now.
        nodes: names of the nodes in between, which move 8 bits.
    """

    points: dict[str, str]
    moved: dict[str, str]
    nodes: frozenset[str]


def move_quantizers(
    graph: ir.Graph, points: Mapping[str, str], chosen: Collection[str], floats: Collection[ir.Value]
) -> Moves:
    """Moves quantisers to the front of nodes that only move values.

    A quantiser moves if all readers of its value are quantised, and if then all readers of the values in front are: a
    value that is read in floating point as well would have to be stored twice.

    Args:
        graph: the nodes in order.
        points: the values that are quantised, each with the value whose range it has.
        chosen: the nodes that read them.
        floats: the activations of the graph.
    """
    at, moved, quantised, moving = dict(points), dict[str, str](), set(chosen), set[str]()
    for node in reversed(list(graph)):
        result = node.outputs[0]
        source = at.get(result.name or "")
        if source is None or result.is_graph_output() or not all(use.name in quantised for use in result.consumers()):
            continue
        group = _group(node, floats)
        if group is None or any(at.get(value.name or "", source) != source for value in group.fronts):
            continue
        names = {inner.name or "" for inner in group.nodes}
        made = {value.name or "" for inner in group.nodes for value in inner.outputs}
        moving |= names
        quantised |= names
        moved |= dict.fromkeys((at.keys() & made), source)
        at |= {value.name or "": source for value in group.fronts}
        at = {name: kept for name, kept in at.items() if name not in made}
    order = [value.name or "" for value in (*graph.inputs, *(value for node in graph for value in node.outputs))]
    return Moves({name: at[name] for name in order if name in at}, moved, frozenset(moving))


@dataclass(frozen=True)
class _Group:
    """Nodes that move 8 bits together, and the values that they read."""

    nodes: set[ir.Node]
    fronts: set[ir.Value]


def _group(first: ir.Node, floats: Collection[ir.Value]) -> _Group | None:
    """What has to move together with a node; None if one cannot.

    Poolings of one value, and a concatenation of that value and what they give (SPP), go together.
    """
    if not _moves(first):
        return None
    nodes, fronts = {first}, set(_activations(first, floats))
    while True:
        others = {reader for value in fronts for reader in value.consumers()} - nodes
        more = {reader for reader in others if _moves(reader) and reader.outputs[0] in fronts}
        if not more:
            break
        nodes |= more
        fronts |= {value for node in more for value in _activations(node, floats)}
    free = not others and fronts and not any(value.is_graph_output() for value in fronts)
    return _Group(nodes, fronts) if free else None


def _moves(node: ir.Node) -> bool:
    if sum(bool(list(value.consumers())) for value in node.outputs) != 1:
        return False
    if node.op_type == "Resize":
        return "mode" not in node.attributes or node.attributes["mode"].as_string() == "nearest"
    return node.op_type in _MOVING or node.op_type == "Concat"


def _activations(node: ir.Node, floats: Collection[ir.Value]) -> list[ir.Value]:
    values = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return [value for value in values if value is not None and value in floats]
