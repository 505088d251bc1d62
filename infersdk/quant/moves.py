"""Moves quantisers before nodes that only move values, so that these nodes move 8 bits.

Quantisation preserves order: `Q(max(a, b)) = max(Q(a), Q(b))`. Therefore a quantiser gives the same results before a
MaxPool or a Concat as after it. The preceding layer then writes 8 bits, and the pooling or concatenation moves a
quarter of the bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Moves", "move_quantizers"]

#: Operators that copy or select values of one input.
_MOVING = frozenset(
    {"Flatten", "Identity", "MaxPool", "Reshape", "Resize", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)


@dataclass(frozen=True)
class Moves:
    """The quantisers of a graph after moving.

    Attributes:
        points: the quantised values in order, each with the value whose range it has.
        moved: the same for values whose quantiser was moved.
        nodes: the names of the nodes in between, which move 8 bits.
    """

    points: dict[str, str]
    moved: dict[str, str]
    nodes: frozenset[str]


def move_quantizers(
    graph: ir.Graph, points: Mapping[str, str], chosen: Collection[str], floats: Collection[ir.Value]
) -> Moves:
    """Moves quantisers before nodes that only move values.

    A quantiser is moved if all readers of the old and the new quantised values are quantised. Otherwise a value would
    be stored in both forms.

    Args:
        graph: the graph, sorted.
        points: the quantised values, each with the value whose range it has.
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
        if group is None:
            continue
        nodes, fronts = group
        if any(at.get(value.name or "", source) != source for value in fronts):
            continue
        names = {inner.name or "" for inner in nodes}
        made = {value.name or "" for inner in nodes for value in inner.outputs}
        moving |= names
        quantised |= names
        moved |= dict.fromkeys((at.keys() & made), source)
        at |= {value.name or "": source for value in fronts}
        at = {name: kept for name, kept in at.items() if name not in made}
    order = [value.name or "" for value in (*graph.inputs, *(value for node in graph for value in node.outputs))]
    return Moves({name: at[name] for name in order if name in at}, moved, frozenset(moving))


def _group(first: ir.Node, floats: Collection[ir.Value]) -> tuple[set[ir.Node], set[ir.Value]] | None:
    """The nodes that have to be handled together with a node, and the values that they read; None if impossible.

    For example, poolings of a value and the concatenation of the value with their results (SPP).
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
    return (nodes, fronts) if free else None


def _moves(node: ir.Node) -> bool:
    if sum(bool(list(value.consumers())) for value in node.outputs) != 1:
        return False
    if node.op_type == "Resize":
        return "mode" not in node.attributes or node.attributes["mode"].as_string() == "nearest"
    return node.op_type in _MOVING or node.op_type == "Concat"


def _activations(node: ir.Node, floats: Collection[ir.Value]) -> list[ir.Value]:
    values = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return [value for value in values if value is not None and value in floats]
