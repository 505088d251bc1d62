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

__all__ = ["has_same_scale", "move_quantizers"]

#: Operators that copy, select or interpolate values.
_COPYING = frozenset(
    {"Flatten", "Identity", "MaxPool", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)


def has_same_scale(node: ir.Node) -> bool:
    """Whether the results of a node are within the range of its input, and so have its scale.

    The results of a cubic Resize exceed this range. A Resize of a region has a value of its own outside of the image.
    """
    get = node.attributes.get_string
    cropped = get("coordinate_transformation_mode") == "tf_crop_and_resize"
    return node.op_type in _COPYING and get("mode") != "cubic" and not cropped


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
    copied = has_same_scale(node) and node.attributes.get_string("mode") != "linear"
    if not (copied or node.op_type == "Concat") or len(node.outputs) > 1:
        return []
    values = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    sources = [value for value in values if value is not None and value in floats]
    shared = any(value.is_graph_output() or set(value.consumers()) != {node} for value in sources)
    return [] if shared else sources
