"""A builder that writes nodes as nested calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .weights import add_weight, free_name, taken_names

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["GraphBuilder"]


class GraphBuilder:
    """Appends nodes to a graph, or inserts them before one of its nodes::

        build = GraphBuilder(graph, "scale/")
        result = build("Add", build("Mul", value, np.float32(2)), np.float32(1))

    Args:
        graph: the graph to extend.
        prefix: prefix for the names of new nodes, values and weights.
        before: insert the new nodes before this node; None appends them.

    `prefix` and `before` can be changed between nodes.
    """

    def __init__(self, graph: ir.Graph, prefix: str = "", before: ir.Node | None = None) -> None:
        self._graph, self.prefix, self.before = graph, prefix, before
        self._taken = taken_names(graph)
        self._constants: dict[tuple[Any, ...], ir.Value] = {}
        self.nodes: list[ir.Node] = []

    def __call__(
        self, operator: str, *inputs: ir.Value | npt.ArrayLike | None, name: str = "", **attributes: Any
    ) -> ir.Value:
        """Adds a node with one output and returns the output. Arrays and numbers become weights; None omits an input.

        Args:
            name: name of the node and its output, the operator's by default. A number is appended if it is taken.
        """
        import onnx_ir as ir

        values = [value if value is None or isinstance(value, ir.Value) else self.constant(value) for value in inputs]
        while values and values[-1] is None:
            values.pop()
        called = free_name(self.prefix + (name or operator), self._taken)
        given = {key: value for key, value in attributes.items() if value is not None}
        made = ir.node(operator, values, given, name=called)
        made.outputs[0].name = free_name(f"{called}_output", self._taken)
        if self.before is None:
            self._graph.append(made)
        else:
            self._graph.insert_before(self.before, made)
        self.nodes.append(made)
        return made.outputs[0]

    def constant(self, array: npt.ArrayLike, name: str = "") -> ir.Value:
        """Adds a weight. Small unnamed weights with equal contents are shared."""
        values = np.asarray(array)
        key = (values.dtype.str, values.shape, values.tobytes()) if values.size <= 64 and not name else None
        if key in self._constants:
            return self._constants[key]
        made = add_weight(self._graph, free_name(self.prefix + (name or "constant"), self._taken), values)
        if key is not None:
            self._constants[key] = made
        return made

    def ints(self, *numbers: int) -> npt.NDArray[np.int64]:
        """An int64 array of sizes, axes or limits."""
        return np.asarray(numbers, np.int64)
