"""Evaluates the end of an ONNX graph from intermediate values, with NumPy in float64.

Only the operators in `_OPERATORS` are evaluated. All of them are analytic functions of floating-point data: two graph
ends with equal results for random data have equal results for all data, except for rounding.
"""

from __future__ import annotations

import operator
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

__all__ = ["GraphEnd", "UnprovenError", "is_pointwise", "sigmoid"]

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
                    array = _reshape({}, [np.broadcast_to(0.0, before), target], False, 0, 1)[0]
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
            UnprovenError: the walk meets an operator that is not in `_OPERATORS`, or an input.
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
                if node is None or _operator(node) not in _OPERATORS:
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
                attributes = {one.name: _value(one) for one in node.attribute}
                results = _OPERATORS[kind](attributes, inputs, of_data, self.opset, len(node.output))
            except Exception as error:  # NumPy raises several types for shapes that do not match
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


# ---- operators: (attributes, inputs, depends on floating-point data, opset, number of outputs) -> outputs ----


def _sizes(attributes: dict[str, Any], inputs: list[Array], name: str, index: int) -> list[int] | None:
    """Sizes or axes, which are an attribute or, in later opsets, an input."""
    given = inputs[index] if len(inputs) > index else attributes.get(name)
    return None if given is None else [operator.index(one) for one in np.ravel(given).tolist()]


def _cast(a: dict[str, Any], x: list[Array], of_data: bool, opset: int, n: int) -> list[Array]:
    from onnx import helper

    if a["to"] in _FLOATS:
        return [np.asarray(x[0], np.float64)]
    if of_data:
        raise ValueError("it casts data to a type other than float32 and float16")
    return [np.asarray(x[0]).astype(helper.tensor_dtype_to_np_dtype(a["to"]))]


def _reshape(a: dict[str, Any], x: list[Array], of_data: bool, opset: int, n: int) -> list[Array]:
    target = _sizes(a, x, "shape", 1) or []
    if not a.get("allowzero", 0):
        target = [size or x[0].shape[axis] for axis, size in enumerate(target)]
    return [x[0].reshape(target)]


def _slice(a: dict[str, Any], x: list[Array], of_data: bool, opset: int, n: int) -> list[Array]:
    starts, ends, axes, steps = (
        _sizes(a, x, name, index) for index, name in enumerate(("starts", "ends", "axes", "steps"), start=1)
    )
    assert starts is not None
    assert ends is not None
    where = [slice(None)] * x[0].ndim
    for start, end, axis, step in zip(
        starts, ends, axes or range(len(starts)), steps or [1] * len(starts), strict=True
    ):
        if step < 1:
            raise ValueError(f"its step is {step}")
        where[axis] = slice(start, end, step)
    return [x[0][tuple(where)]]


def _split(a: dict[str, Any], x: list[Array], of_data: bool, opset: int, n: int) -> list[Array]:
    axis = a.get("axis", 0)
    sizes = _sizes(a, x, "split", 1)
    if sizes is None:
        return np.split(x[0], n, axis)
    if len(sizes) != n or sum(sizes) != x[0].shape[axis] or min(sizes) < 0:
        raise ValueError(f"it splits {x[0].shape[axis]} into {sizes}")
    return np.split(x[0], np.cumsum(sizes[:-1]), axis)


def _softmax(a: dict[str, Any], x: list[Array], of_data: bool, opset: int, n: int) -> list[Array]:
    axis = a.get("axis", 1 if opset < 13 else -1)
    if opset < 13 and axis not in (-1, x[0].ndim - 1):
        raise ValueError(f"before opset 13 it normalises over all axes from {axis} on")
    shares = np.exp(x[0] - x[0].max(axis=axis, keepdims=True))
    return [shares / shares.sum(axis=axis, keepdims=True)]


def _conv(a: dict[str, Any], x: list[Array], of_data: bool, opset: int, n: int) -> list[Array]:
    from onnx import helper

    given = [helper.make_attribute(name, one) for name, one in a.items()]
    if len(x) != 2 or x[1].ndim != 4 or x[1].shape[0] != 1 or x[0].shape[1] != x[1].shape[1]:
        raise ValueError("it is not a weighted sum of bins")
    if not is_pointwise(given, x[1]):
        raise ValueError("it is not a weighted sum of bins")
    return [np.tensordot(x[1][:, :, 0, 0], x[0], (1, 1)).swapaxes(0, 1)]


def _squeeze(a: dict[str, Any], x: list[Array], of_data: bool, opset: int, n: int) -> list[Array]:
    axes = _sizes(a, x, "axes", 1)
    return [np.squeeze(x[0], None if axes is None else tuple(axes))]


def _arithmetic(function: Callable[[Array, Array], Array]) -> Callable[..., list[Array]]:
    def result(a: dict[str, Any], x: list[Array], of_data: bool, opset: int, n: int) -> list[Array]:
        if function is np.divide and np.asarray(x[0]).dtype.kind == "i":
            return [np.asarray(x[0]) // x[1]]
        if function is np.power and of_data and np.any(x[1] != 2):
            raise ValueError(f"its exponent is {x[1]}")
        return [function(x[0], x[1])]

    return result


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), with one temporary array."""
    result = np.negative(x)
    np.exp(result, out=result)
    result += 1
    return np.reciprocal(result, out=result)


_OPERATORS: dict[str, Callable[..., list[Array]]] = {
    "Add": _arithmetic(np.add),
    "Cast": _cast,
    "Concat": lambda a, x, *_: [np.concatenate(x, axis=a["axis"])],
    "Conv": _conv,
    "Div": _arithmetic(np.divide),
    "Gather": lambda a, x, *_: [np.take(x[0], x[1], axis=a.get("axis", 0))],
    "Identity": lambda a, x, *_: [x[0]],
    "Mul": _arithmetic(np.multiply),
    "Pow": _arithmetic(np.power),
    "Reshape": _reshape,
    "Shape": lambda a, x, *_: [np.array(x[0].shape[a.get("start", 0) : a.get("end")], np.int64)],
    "Sigmoid": lambda a, x, *_: [sigmoid(x[0])],
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _squeeze,
    "Sub": _arithmetic(np.subtract),
    "Transpose": lambda a, x, *_: [np.transpose(x[0], a.get("perm"))],
    "Unsqueeze": lambda a, x, *_: [np.expand_dims(x[0], tuple(_sizes(a, x, "axes", 1) or ()))],
}
