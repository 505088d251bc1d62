"""What the proofs of heads share: reading a graph from its output backwards."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from .factors import constant_of
from .tracing import ShapeTrace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["HeadProof", "UnprovenError", "is_close", "is_pointwise", "node_of", "operator_of"]


#: float32 and float16, as ONNX numbers them.
_FLOATS = (1, 10)
#: The attributes of a convolution of images that looks at each position alone.
_PLAIN = {"kernel_shape": (1, 1), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}


def is_close(array: Any, wanted: Any, unit: float, kind: ir.DataType | None) -> bool:
    """Whether constants are what a formula has, but for the rounding of an exporter that computes in their type.

    Args:
        unit: what is 1 in the formula.
        kind: the type of the graph's numbers.
    """
    rounding = 2e-3 if kind is not None and kind.name == "FLOAT16" else 1e-5
    return bool(np.all(np.abs(array - wanted) <= rounding * unit + 5e-7 * np.abs(wanted)))


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

    def side(self, value: ir.Value | None, axis: int) -> int | None:
        """The size of one axis; None where it is not known."""
        dims = self.dims(value)
        return dims[axis] if -len(dims) <= axis < len(dims) else None

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """The element type of a value; None where it is not known."""
        return self._trace.types.get(value)

    @property
    def opset(self) -> int:
        """The version of the standard that the graph is written in."""
        return int(self._model.graph.opset_imports.get("", 1))

    def range_of(self, node: ir.Node, result: ir.Value, *, axis: int) -> tuple[int, int]:
        """The first index and the number of those that a Split or Slice takes of an axis.

        Raises:
            UnprovenError: it takes others, or they are not known.
        """
        dims = self.dims(node.inputs[0])
        if len(dims) <= axis or len(self.dims(result)) != len(dims):
            raise UnprovenError(f"the sizes of {node.name!r} are not known")
        whole, count = dims[axis], self.dims(result)[axis]
        if whole is None or count is None:
            raise UnprovenError(f"the sizes of {node.name!r} are not known")
        axes = (axis, axis - len(dims))
        if node.op_type == "Split":
            before = [self.dims(one)[axis] for one in node.outputs[: node.outputs.index(result)]]
            known = [size for size in before if size is not None]
            if len(known) < len(before) or node.attributes.get_int("axis", 0) not in axes:
                raise UnprovenError(f"{node.name!r} does not split axis {axis} into known sizes")
            return sum(known), count
        given = [*node.inputs[1:], None, None, None, None]
        start, end, along = (self._number(one) for one in given[:3])
        if start is None or end is None or along not in axes or (given[3] is not None and self._number(given[3]) != 1):
            raise UnprovenError(f"{node.name!r} is not a slice of neighbours along axis {axis}")
        first = max(start + whole, 0) if start < 0 else start
        last = end + whole if end < 0 else min(end, whole)
        if last - first != count:
            raise UnprovenError(f"{node.name!r} gives {count} values, and not those from {first} to {last}")
        return first, count

    def _number(self, value: ir.Value | None) -> int | None:
        """The only number of a constant, or of what is computed from sizes: exporters halve channels so."""
        array = constant_of(value)
        if array is None and value is not None:
            array = self._trace.data.get(value)
        return int(array.item()) if array is not None and array.size == 1 else None

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
            if node.op_type == "Cast" and node.attributes.get_int("to", 0) not in _FLOATS:
                raise UnprovenError(f"{node.name!r} casts its output to another type than float32 and float16")
            assert node.inputs[0] is not None
            value = node.inputs[0]
        return outputs[0], value


def node_of(value: ir.Value | None, operator: str) -> ir.Node | None:
    """The node that gives a value, if it is of this operator of the standard."""
    node = value.producer() if value is not None else None
    return node if node is not None and operator_of(node) == operator else None


def is_pointwise(conv: ir.Node, weights: npt.NDArray[Any]) -> bool:
    """Whether a convolution of images with these weights adds up, for each position, its channels at that position
    alone, each times a finite weight.
    """
    return (
        weights.ndim == 4
        and weights.shape[2:] == (1, 1)
        and conv.attributes.get_int("group", 1) == 1
        and conv.attributes.get_string("auto_pad", "NOTSET") == "NOTSET"
        and all(tuple(conv.attributes.get_ints(name, usual)) == usual for name, usual in _PLAIN.items())
        and bool(np.all(np.isfinite(weights)))
    )


def operator_of(node: ir.Node) -> str:
    """The name of an operator of the standard; "" for others."""
    return "" if node.domain not in ("", "ai.onnx") else str(node.op_type)
