"""Nodes written one after another, as an expression is written down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from .weights import add_weight, taken_names

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["GraphBuilder"]


class GraphBuilder:
    """Appends nodes to a graph, or inserts them before one of its nodes::

        build = GraphBuilder(graph, "scale/")
        result = build("Add", build("Mul", value, np.float32(2)), np.float32(1))

    Args:
        graph: where the nodes go.
        prefix: in front of the names of nodes, values and weights that are made.
        before: the node that they stand before; None appends.
    """

    def __init__(self, graph: ir.Graph, prefix: str = "", before: ir.Node | None = None) -> None:
        self._graph, self._prefix, self._before = graph, prefix, before
        self._taken = taken_names(graph)
        self._constants: dict[tuple[Any, ...], ir.Value] = {}
        self.nodes: list[ir.Node] = []

    def __call__(
        self, operator: str, *inputs: ir.Value | npt.ArrayLike | None, name: str = "", **attributes: Any
    ) -> Any:
        """A node of one result, which is returned. Arrays and numbers become weights; None leaves an input out.

        Args:
            name: of the node and its result; the operator's by default. A number is put behind it if it is taken.
        """
        return self.node(operator, *inputs, name=name, **attributes)[0]

    def node(
        self, operator: str, *inputs: ir.Value | npt.ArrayLike | None, outputs: int = 1, name: str = "",
        domain: str = "", **attributes: Any,
    ) -> list[ir.Value]:  # fmt: skip
        """A node of several results, which are returned."""
        import onnx_ir as ir

        values = [value if value is None or isinstance(value, ir.Value) else self.constant(value) for value in inputs]
        while values and values[-1] is None:
            values.pop()
        called = self.free_name(name or operator)
        given = {key: value for key, value in attributes.items() if value is not None}
        made = ir.node(operator, values, given, domain=domain, name=called, num_outputs=outputs)
        for index, output in enumerate(made.outputs):
            output.name = self.free_name(f"{called}_output" + (f"_{index}" if outputs > 1 else ""), prefixed=True)
        if self._before is None:
            self._graph.append(made)
        else:
            self._graph.insert_before(self._before, made)
        self.nodes.append(made)
        return list(made.outputs)

    def constant(self, array: npt.ArrayLike, name: str = "") -> ir.Value:
        """A weight. Small ones of equal contents are one, unless they are named."""
        values = np.asarray(array)
        key = (values.dtype.str, values.shape, values.tobytes()) if values.size <= 64 and not name else None
        if key in self._constants:
            return self._constants[key]
        made = add_weight(self._graph, self.free_name(name or "constant"), values)
        if key is not None:
            self._constants[key] = made
        return made

    def prefix(self, prefix: str) -> None:
        """Puts another text in front of the names that are made from here on."""
        self._prefix = prefix

    def free_name(self, name: str, *, prefixed: bool = False) -> str:
        """The name with the prefix, and with a number if it is taken; it is taken from here on."""
        wanted = result = name if prefixed else self._prefix + name
        number = 1
        while result in self._taken:
            result, number = f"{wanted}_{number}", number + 1
        self._taken.add(result)
        return result

    def ints(self, *numbers: int | Iterable[int]) -> npt.NDArray[np.int64]:
        """Sizes, axes, limits: an array of int64."""
        flat = [n for number in numbers for n in ([number] if isinstance(number, int) else number)]
        return np.asarray(flat, np.int64)
