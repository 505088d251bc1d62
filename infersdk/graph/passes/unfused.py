"""Keeps OpenVINO from fusing nodes of quantised graphs that it then computes wrongly.

OpenVINO 2026.4 fuses no node with the Max of a value and itself. Without it, the results of these nodes are wrong:

- An AveragePool that counts its padding. OpenVINO pads the codes with 0, which must be the zero point then.
- A Mul or Div with a constant that has numbers of both signs, before a QuantizeLinear. An Add after it prevents this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ..builder import GraphBuilder
from ..weights import constant_of
from .base import Pass, needs_quantizers

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Unfused"]


@dataclass(frozen=True)
class Unfused(Pass):
    """Puts a Max of the value and itself before each such pooling and behind each such product and quotient."""

    name: ClassVar[str] = "unfused"
    version: ClassVar[int] = 1
    concerns = needs_quantizers

    def apply(self, model: ir.Model) -> bool:
        changed = False
        for graph in list(model.graphs()):
            build = GraphBuilder(graph, "unfused/")
            for uses in [found for node in graph if (found := _uses(node))]:
                value = uses[0].node.inputs[uses[0].idx]
                same = build("Max", value, value)
                for use in uses:
                    use.node.replace_input_with(use.idx, same)
                changed = True
            graph.sort()
        return changed


def _uses(node: ir.Node) -> list[Any]:
    """The uses of a value that read its Max."""
    get = node.attributes
    if node.op_type == "AveragePool" and get.get_int("count_include_pad", 0) != 0 and node.inputs[0] is not None:
        padded = any(get.get_ints("pads", ())) or get.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
        return [use for use in node.inputs[0].uses() if padded and use.node is node]
    if node.op_type in ("Mul", "Div"):
        constants = [array for value in node.inputs if (array := constant_of(value)) is not None]
        if any(array.dtype.kind == "f" and (array < 0).any() and (array >= 0).any() for array in constants):
            return [use for use in node.outputs[0].uses() if use.node.op_type != "Add"]
    return []
