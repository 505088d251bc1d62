"""Evaluates the end of an ONNX graph from intermediate values in float64.

Only the operators in `OPERATORS` are evaluated. All of them are analytic functions of floating-point data: two graph
ends with equal results for random data have equal results for all data, except for rounding.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from .operators import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

__all__ = ["GraphEnd", "UnprovenError", "is_pointwise"]

Array = Any
#: Weights with more elements are not sizes; shape inference does not need their contents.
_MOST_SIZES = 256
#: The attributes of a 1 x 1 convolution.
_PLAIN = {"kernel_shape": [1, 1], "strides": [1, 1], "dilations": [1, 1], "pads": [0] * 4, "group": 1}
#: The ONNX codes of float32 and float16.
_FLOATS = (1, 10)


class UnprovenError(Exception):
    """The end of a graph does not follow a rule; the message has the reason."""


class GraphEnd:
    """A graph that is traversed from its output backwards.

    Args:
        proto: an `onnx.ModelProto`, which is not changed.
        shapes: the fixed shapes of its inputs.
    """

    def __init__(self, proto: Any, shapes: Mapping[str, Sequence[int]]) -> None:
        graph = proto.graph
        self.opset = next((one.version for one in proto.opset_import if one.domain in ("", "ai.onnx")), 1)
        given = {one.name for one in graph.input}
        self._weights = {one.name: one for one in graph.initializer if one.name not in given}
        self._makers = {name: node for node in graph.node for name in node.output if name}
        sizes: dict[str, tuple[int, list[int]]] = {}
        self._types = _inferred(proto, shapes, sizes)
        while more := self._reshaped():  # shape inference does not evaluate all shape arithmetic of exporters
            sizes |= more
            self._types = _inferred(proto, shapes, sizes)

    def maker(self, name: str, kind: str) -> Any:
        """The node that computes a value, if it has this standard operator; else None."""
        node = self._makers.get(name)
        return node if node is not None and _operator(node) == kind else None

    def is_made(self, name: str) -> bool:
        """Whether a node computes a value."""
        return name in self._makers

    def dims(self, name: str) -> list[int]:
        """The dimensions of a value; empty if one is unknown."""
        kind = self._types.get(name)
        sizes = [dim.dim_value for dim in kind.shape.dim] if kind is not None else []
        return sizes if all(sizes) else []

    def _reshaped(self) -> dict[str, tuple[int, list[int]]]:
        """The types and dimensions of Reshape outputs whose target is computed from shapes and not yet known."""
        result = {}
        for name, node in self._makers.items():
            before = self.dims(node.input[0]) if _operator(node) == "Reshape" and not self.dims(name) else []
            if before:
                try:
                    target = self.compute(self.walk(node.input[1], lambda _: False)[0], {}, node.input[1])
                    (array,) = _evaluated(node, [np.broadcast_to(0.0, before), target], False, self.opset)
                    result[name] = self.dtype(node.input[0]), list(array.shape)
                except (UnprovenError, TypeError, ValueError, IndexError):
                    continue
        return result

    def dtype(self, name: str) -> int:
        """The ONNX code of the element type of a value; 0 if unknown."""
        kind = self._types.get(name)
        return int(kind.elem_type) if kind is not None else 0

    def constant(self, name: str) -> npt.NDArray[Any] | None:
        """The array of a weight that is not an input, or of a Constant node; None for other values."""
        from onnx import numpy_helper

        if (node := self.maker(name, "Constant")) is not None:
            return np.asarray(_value(node.attribute[0])) if len(node.attribute) == 1 else None
        weight = self._weights.get(name)
        return None if weight is None else numpy_helper.to_array(weight)

    def walk(self, output: str, stops: Callable[[str], bool]) -> tuple[list[Any], list[str]]:
        """Walks back from an output to the values where `stops` returns True.

        Returns:
            The nodes on the way in topological order, and the values where the walk stopped, in the order of their use.

        Raises:
            UnprovenError: the walk meets an operator that is not in `OPERATORS`, or an input.
        """
        nodes: list[Any] = []
        found: dict[str, None] = {}
        seen, stack = set(), [(output, False)]
        while stack:
            name, done = stack.pop()
            node = self._makers.get(name)
            if done:
                nodes.append(node)
            elif name not in seen and name and name not in self._weights and not self.maker(name, "Constant"):
                seen.add(name)
                if stops(name):
                    found[name] = None
                    continue
                if node is None or _operator(node) not in OPERATORS:
                    what = f"an input, {name!r}" if node is None else f"node {node.name!r} ({node.op_type})"
                    raise UnprovenError(f"{what} is not part of a known decoding")
                if not any(other in seen for other in node.output if other != name):
                    stack.append((name, True))
                if _operator(node) != "Shape" or not self.dims(node.input[0]):
                    stack += [(one, False) for one in reversed(node.input)]
        return nodes, list(found)

    def compute(self, nodes: Sequence[Any], known: Mapping[str, Array], output: str) -> Array:
        """Evaluates nodes of a walk from the values at which it stopped; returns the output.

        Raises:
            UnprovenError: a node cannot be evaluated.
        """
        values, data = dict(known), set(known)
        for node in nodes:
            kind = _operator(node)
            if kind == "Shape" and node.input[0] not in values:
                values[node.input[0]] = np.broadcast_to(np.nan, self.dims(node.input[0]))
            try:
                inputs = [self._input(name, values) for name in node.input]
                of_data = kind != "Shape" and not data.isdisjoint(node.input)
                with np.errstate(all="ignore"):  # a value that is not finite follows no rule
                    results = _evaluated(node, inputs, of_data, self.opset)
            except Exception as error:  # NumPy raises several types
                raise UnprovenError(f"node {node.name!r} ({kind}) cannot be evaluated: {error}") from None
            values.update(zip(node.output, results, strict=True))
            data.update(node.output if of_data else ())
        return self._input(output, values)

    def _input(self, name: str, values: Mapping[str, Array]) -> Array:
        if name in values or not name:
            return values.get(name)
        array = self.constant(name)
        if array is None:
            raise UnprovenError(f"{name!r} is unknown")
        return array.astype(np.float64) if array.dtype.kind == "f" else array


def is_pointwise(attributes: Sequence[Any], weights: npt.NDArray[Any]) -> bool:
    """Whether a convolution is 1 x 1 with finite weights: a weighted sum of the channels of each position."""
    given = {one.name: _value(one) for one in attributes}
    return (
        weights.ndim == 4
        and weights.shape[2:] == (1, 1)
        and given.pop("auto_pad", b"NOTSET") == b"NOTSET"
        and all(_PLAIN.get(name) == (list(one) if name != "group" else one) for name, one in given.items())
        and bool(np.isfinite(weights).all())
    )


def _operator(node: Any) -> str:
    return str(node.op_type) if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def _value(attribute: Any) -> Any:
    from onnx import helper, numpy_helper

    value = helper.get_attribute_value(attribute)
    return numpy_helper.to_array(value) if attribute.type == attribute.TENSOR else value


def _inferred(
    proto: Any, shapes: Mapping[str, Sequence[int]], known: Mapping[str, tuple[int, list[int]]]
) -> dict[str, Any]:
    """The `TypeProto.Tensor` of each value, by name.

    Args:
        shapes: the shapes of inputs.
        known: known types and dimensions of other values.
    """
    import onnx

    graph = onnx.GraphProto(node=proto.graph.node, name="graph", input=proto.graph.input)
    inputs = {one.name for one in graph.input}
    for value in graph.input:
        if value.name in shapes:
            kind = value.type.tensor_type.elem_type
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, shapes[value.name]))
    for weight in proto.graph.initializer:
        if prod(weight.dims) <= _MOST_SIZES:
            graph.initializer.append(weight)
        elif weight.name not in inputs:
            graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))
    graph.output.extend(onnx.ValueInfoProto(name=one.name) for one in proto.graph.output)
    graph.value_info.extend(
        onnx.helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in known.items()
    )
    model = onnx.ModelProto(graph=graph, ir_version=proto.ir_version, opset_import=proto.opset_import)
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception:  # it raises several types; without shapes no rule matches
        return {}
    return {one.name: one.type.tensor_type for one in (*graph.input, *graph.value_info, *graph.output)}


def _evaluated(node: Any, inputs: list[Array], of_data: bool, opset: int) -> tuple[Array, ...]:
    """Evaluates a node.

    Args:
        of_data: whether an input depends on floating-point data.

    Raises:
        ValueError: the node is not an analytic function of the data.
    """
    given = {one.name: _value(one) for one in node.attribute}
    if node.op_type == "Cast" and given["to"] in _FLOATS:
        return (np.asarray(inputs[0], np.float64),)
    if node.op_type == "Cast" and of_data:
        raise ValueError("it casts data to a type other than float32 and float16")
    if node.op_type == "Pow" and of_data and np.any(inputs[1] != 2):
        raise ValueError(f"its exponent is {inputs[1]}")
    if node.op_type == "Conv" and not (inputs[1].shape[0] == 1 and is_pointwise(node.attribute, inputs[1])):
        raise ValueError("it is not a weighted sum of bins")
    if node.op_type == "Softmax" and opset < 13 and given.get("axis", 1) not in (-1, inputs[0].ndim - 1):
        raise ValueError("before opset 13 it normalises over several axes")
    if node.op_type == "Split":
        return tuple(OPERATORS["Split"](*inputs, count=len(node.output), **given))
    return (OPERATORS[node.op_type](*inputs, **given),)
