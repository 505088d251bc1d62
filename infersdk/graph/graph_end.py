"""Evaluates the end of an ONNX graph from intermediate values in float64, with ONNX's reference implementation.

Only the operators in `_OPERATORS` are evaluated. All of them are analytic functions of floating-point data: two graph
ends with equal results for random data have equal results for all data, except for rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UnsupportedModelError
from .shapes import ShapeTrace, evaluate, node_label
from .weights import constant_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["GraphEnd", "UnprovenError", "is_pointwise", "sigmoid"]

Array = Any
#: The attributes of a 1 x 1 convolution.
_PLAIN: dict[str, Any] = {
    "auto_pad": "NOTSET", "kernel_shape": [1, 1], "strides": [1, 1], "dilations": [1, 1], "pads": [0] * 4, "group": 1,
}  # fmt: skip


class UnprovenError(Exception):
    """The end of a graph does not follow a rule; the message has the reason."""


class GraphEnd:
    """A graph that is traversed from its output backwards.

    Args:
        model: the model, which is not changed.
        shapes: the fixed shapes of its inputs.

    Attributes:
        types: the known element types of values.

    Raises:
        UnprovenError: a node does not accept inputs of these shapes.
    """

    def __init__(self, model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> None:
        self._opset = model.graph.opset_imports.get("", 1)
        self._trace = ShapeTrace(model, shapes)
        self.types = self._trace.types
        try:
            for node in model.graph:
                self._trace.step(node)
        except UnsupportedModelError as error:
            raise UnprovenError(str(error)) from None

    def dims(self, value: ir.Value) -> list[int]:
        """The dimensions of a value; empty if one is unknown."""
        sizes = [size or 0 for size in self._trace.shapes.get(value, ())]
        return sizes if all(sizes) else []

    def walk(self, output: ir.Value, stops: Callable[[ir.Value], bool]) -> tuple[list[ir.Node], list[ir.Value]]:
        """Walks back from an output to constants and to the values where `stops` returns True.

        Returns:
            The nodes on the way in topological order, and the values where the walk stopped, in the order of their use.

        Raises:
            UnprovenError: the walk meets an operator that is not in `_OPERATORS`, or an input.
        """
        nodes: list[Any] = []
        found: dict[ir.Value, None] = {}
        seen, stack = set(), [(output, False)]
        while stack:
            value, done = stack.pop()
            node = value.producer()
            if done:
                nodes.append(node)
            elif value not in seen and self._constant(value) is None:
                seen.add(value)
                if stops(value):
                    found[value] = None
                    continue
                if node is None or node.domain or node.op_type not in _OPERATORS:
                    what = f"an input, {value.name!r}" if node is None else node_label(node)
                    raise UnprovenError(f"{what} is not part of a known decoding")
                if not any(other in seen for other in node.outputs if other is not value):
                    stack.append((value, True))
                stack += [(one, False) for one in reversed(node.inputs) if one is not None]
        return nodes, list(found)

    def compute(self, nodes: Sequence[ir.Node], known: Mapping[ir.Value, Array], output: ir.Value) -> Array:
        """Evaluates nodes of a walk from the values at which it stopped; returns the output.

        Raises:
            UnprovenError: a node cannot be evaluated.
        """
        values = dict(known)
        for node in nodes:
            inputs = [
                None if value is None else values[value] if value in values else self._constant(value)
                for value in node.inputs
            ]
            try:
                results = _evaluated(node, inputs, self._opset)
            except Exception as error:  # the reference implementation raises several types
                raise UnprovenError(f"{node_label(node)} cannot be evaluated: {error}") from None
            values.update(zip(node.outputs, results, strict=True))
        return values[output]

    def _constant(self, value: ir.Value) -> npt.NDArray[Any] | None:
        """The array of a value that depends on nothing but the shapes of the inputs; None for other values."""
        array = self._trace.data.get(value)
        if array is None:
            array = constant_of(value)  # too large for a trace
        return array.astype(np.float64) if array is not None and array.dtype.kind == "f" else array


def is_pointwise(node: ir.Node, weights: npt.NDArray[Any]) -> bool:
    """Whether a convolution is 1 x 1 with finite weights: a weighted sum of the channels of each position."""
    plain = all(np.array_equal(one.value, _PLAIN.get(name, ())) for name, one in node.attributes.items())
    return plain and weights.ndim == 4 and weights.shape[2:] == (1, 1) and bool(np.isfinite(weights).all())


def _evaluated(node: ir.Node, inputs: list[Array], opset: int) -> tuple[Array, ...]:
    """Evaluates a node of data with ONNX's reference implementation.

    Raises:
        ValueError: the node is not an analytic function of the data.
    """
    import onnx_ir as ir

    if node.op_type == "Cast":
        if node.attributes.get_int("to", 0) not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
            raise ValueError("it casts data to a type other than float32 and float16")
        return (np.asarray(inputs[0], np.float64),)
    if node.op_type == "Pow" and np.any(inputs[1] != 2):
        raise ValueError(f"its exponent is {inputs[1]}")
    if node.op_type == "Conv" and not (inputs[1].shape[0] == 1 and is_pointwise(node, inputs[1])):
        raise ValueError("it is not a weighted sum of bins")
    if node.op_type == "Softmax" and opset < 13 and node.attributes.get_int("axis", 1) not in (-1, inputs[0].ndim - 1):
        raise ValueError("before opset 13 it normalises over several axes")
    return evaluate(ir.to_proto(node), inputs, opset)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


#: The operators that are evaluated.
_OPERATORS = frozenset({
    "Add", "Cast", "Concat", "Conv", "Div", "Gather", "Identity", "Mul", "Pow", "Reshape", "Sigmoid", "Slice",
    "Softmax", "Split", "Squeeze", "Sub", "Transpose", "Unsqueeze",
})  # fmt: skip
