"""Gives each node a unique name for messages and settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..weights import free_name
from .base import Pass

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["NameNodes", "node_names"]


def node_names(graph: ir.Graph) -> list[str]:
    """A unique name for each node of a graph. Nodes without a name are named by operator and position, as `Exp_12`.

    A number is appended to names that are taken.
    """
    taken = {node.name for node in graph if node.name}
    names: dict[str, None] = {}
    for index, node in enumerate(graph):
        name = node.name
        if not name or name in names:
            name = free_name(name or f"{node.op_type}_{index}", taken)
        names[name] = None
    return list(names)


@dataclass(frozen=True)
class NameNodes(Pass):
    """Gives each node of the graph and its subgraphs a unique name. Unique names are kept."""

    name: ClassVar[str] = "name-nodes"
    version: ClassVar[int] = 1

    def apply(self, model: ir.Model) -> bool:
        changed = False
        for graph in model.graphs():
            for node, name in zip(list(graph), node_names(graph), strict=True):
                changed |= node.name != name
                node.name = name
        return changed
