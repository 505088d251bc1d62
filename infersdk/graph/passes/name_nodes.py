"""Each node gets a name, by which a message or a setting can point at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...model_source import ModelSource

__all__ = ["NameNodes", "node_names"]


def node_names(graph: ir.Graph) -> list[str]:
    """The name of each node of a graph; one without a name is called by its operator and position, `Exp_12`.

    A name that two nodes share, or that would be made twice, gets a number at its end.
    """
    given = {node.name for node in graph if node.name}
    seen: set[str] = set()
    names = []
    for index, node in enumerate(graph):
        name = node.name or f"{node.op_type}_{index}"
        if name in seen or (not node.name and name in given):
            base, number = name, 2
            while (name := f"{base}_{number}") in given or name in seen:
                number += 1
        seen.add(name)
        names.append(name)
    return names


@dataclass(frozen=True)
class NameNodes:
    """Gives each node of the graph, and of the graphs within it, a name of its own. Names that are unique stay."""

    name: ClassVar[str] = "name-nodes"
    version: ClassVar[int] = 1

    def concerns(self, source: ModelSource) -> bool:
        return True

    def apply(self, model: ir.Model) -> bool:
        changed = False
        for graph in model.graphs():
            for node, name in zip(list(graph), node_names(graph), strict=True):
                changed |= node.name != name
                node.name = name
        return changed
