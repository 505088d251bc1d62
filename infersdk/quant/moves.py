"""Moves quantisers before nodes that only move values, so that these nodes move 8 bits.

Quantisation preserves order: `Q(max(a, b)) = max(Q(a), Q(b))`. Therefore a quantiser gives the same results before a
MaxPool or a Concat as after it. The preceding layer then writes 8 bits, and the pooling or concatenation moves a
quarter of the bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ..graph.weights import graph_values

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["SAME_SCALE", "move_quantizers"]

#: Operators that copy or select values: their output has the scale of their input.
SAME_SCALE = frozenset(
    {"Flatten", "Identity", "MaxPool", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)


def move_quantizers(
    graph: ir.Graph, points: Mapping[str, str], chosen: Collection[str], floats: Collection[ir.Value]
) -> tuple[dict[str, str], dict[str, str], set[str]]:
    """Moves quantisers before nodes that only move values.

    A quantiser is moved if all readers of the old and the new quantised values are quantised. Otherwise a value would
    be stored in both forms.

    Args:
        graph: the graph, sorted.
        points: the quantised values, each with the value whose range it has.
        chosen: the nodes that read them.
        floats: the activations of the graph.

    Returns:
        The quantised values in order and those whose quantiser was moved, each with the value whose range it has; and
        the names of the nodes that move 8 bits.
    """
    at, moved, moving = dict(points), dict[str, str](), set[str]()
    for node in reversed(list(graph)):
        result = node.outputs[0]
        name, readers = result.name or "", {use.name or "" for use in result.consumers()}
        if name not in at or result.is_graph_output() or not readers.issubset((*chosen, *moving)):
            continue
        sources = _sources(node, floats)
        if sources:
            moving.add(node.name or "")
            moved[name] = at.pop(name)
            at |= dict.fromkeys((value.name or "" for value in sources), moved[name])
    return {name: at[name] for name, _ in graph_values(graph) if name in at}, moved, moving


def _sources(node: ir.Node, floats: Collection[ir.Value]) -> list[ir.Value]:
    """The values that a node moves if it alone reads them; [] if a quantiser cannot be moved before it."""
    nearest = node.op_type != "Resize" or node.attributes.get_string("mode", "nearest") == "nearest"
    if node.op_type not in SAME_SCALE | {"Concat"} or not nearest or len(node.outputs) > 1:
        return []
    values = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    sources = [value for value in values if value is not None and value in floats]
    shared = any(value.is_graph_output() or set(value.consumers()) != {node} for value in sources)
    return [] if shared else sources
