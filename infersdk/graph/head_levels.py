"""What the proofs of heads share: reading a graph from its output backwards."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from .tracing import ShapeTrace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

__all__ = ["HeadProof", "UnprovenError", "node_of", "operator_of"]


class UnprovenError(Exception):
    """The end of a graph is not a head of this form; the message has the reason."""


class HeadProof:
    """A graph whose sizes are known, to be followed from its output to the maps of its head.

    Args:
        model: it stays as it is.
        inputs: the shapes of its inputs, in numbers.

    Sizes are found when one is asked for; that raises UnsupportedModelError if the nodes do not fit one another.
    """

    def __init__(self, model: ir.Model, inputs: Mapping[str, Sequence[int]]) -> None:
        self._model, self._inputs = model, inputs

    @functools.cached_property
    def _trace(self) -> ShapeTrace:
        trace = ShapeTrace(self._model, self._inputs)
        for node in self._model.graph:
            trace.step(node)
        return trace

    def dims(self, value: ir.Value | None) -> list[int | None]:
        """The sizes of a value, None where one is not known; empty where their number is not known."""
        return list(self._trace.shapes.get(value, ())) if value is not None else []

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """The element type of a value; None where it is not known."""
        return self._trace.types.get(value)

    def only_output(self) -> tuple[ir.Value, ir.Value]:
        """The output of the graph, and the value that it is before it is cast.

        Raises:
            UnprovenError: there are several.
        """
        outputs = self._model.graph.outputs
        if len(outputs) != 1:
            raise UnprovenError(f"it has {len(outputs)} outputs")
        value = outputs[0]
        while (node := node_of(value, "Cast") or node_of(value, "Identity")) is not None:
            assert node.inputs[0] is not None
            value = node.inputs[0]
        return outputs[0], value


def node_of(value: ir.Value | None, operator: str) -> ir.Node | None:
    """The node that gives a value, if it is of this operator of the standard."""
    node = value.producer() if value is not None else None
    return node if node is not None and operator_of(node) == operator else None


def operator_of(node: ir.Node) -> str:
    """The name of an operator of the standard; "" for others."""
    return "" if node.domain not in ("", "ai.onnx") else str(node.op_type)
