"""Checks that a graph computes each image of a batch separately.

An operator passes if a rule of this module shows that it keeps the images apart. All other operators are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UnsupportedModelError
from .types import inner_graphs, read_values

if TYPE_CHECKING:
    import onnx_ir as ir

    from .shapes import ShapeTrace

__all__ = ["OPERATORS", "UNKNOWN", "BatchRows", "UnknownBatchError"]

_MIXES = "it computes over all images of a batch, or selects one by its position"
_PLACE = "the batch is not in the axis that keeps images apart"
_INDICES = "its indices are those of a fixed number of images"
_FIXED = "an input has a fixed number of images, or images in another axis"
_SIZE = "it computes with the number of images"
_UNKNOWN = "this use of the operator is not known to keep the images of a batch apart"
_NO_SHAPE = "the shape of its output is not known, so images may affect each other"
#: Reasons that do not show that images are mixed.
UNKNOWN = frozenset({_UNKNOWN, _NO_SHAPE})
_NO_BATCH = "its output has no single axis that is the batch"

#: Inputs that may be sizes which depend on the batch.
_SIZES = {
    "AffineGrid": (1,), "ConstantOfShape": (0,), "Expand": (1,), "Reshape": (1,), "Resize": (2, 3), "Slice": (1, 2),
    "Tile": (1,), "Upsample": (1,),
}  # fmt: skip
#: Operators that repeat a constant for each image.
_REPEATS = ("ConstantOfShape", "Expand", "Tile")


class UnknownBatchError(UnsupportedModelError):
    """No rule shows whether a node keeps the images of a batch apart."""


class BatchRows:
    """Follows the batch through a graph.

    A value is batched if one axis has the size `batch * n`, and its entries `i * n` to `i * n + n - 1` belong to image
    `i`. Other values are constants, or sizes that depend on the batch.

    Args:
        old, new: the traces for two batch sizes, with the shapes of the inputs.
        batch: these batch sizes.
    """

    def __init__(self, old: ShapeTrace, new: ShapeTrace, batch: tuple[int, int]) -> None:
        self._old, self._new, self._batch = old, new, batch
        self._axes = {value: axis for value in new.shapes if (axis := self._axis_of(value)) is not None}
        self._sizes: set[ir.Value] = set()

    def step(self, node: ir.Node) -> str | None:
        """Follows a node after the traces; returns the reason if it may mix images, else None."""
        known = [(self._old.data.get(output), self._new.data.get(output)) for output in node.outputs]
        if all(old is not None and new is not None for old, new in known):
            pairs = zip(node.outputs, known, strict=True)
            self._sizes |= {output for output, (old, new) in pairs if not np.array_equal(old, new)}  # type: ignore[arg-type]
            return None
        sizes = {index for index, value in enumerate(node.inputs) if value in self._sizes}
        batched = {index for index, value in enumerate(node.inputs) if value in self._axes}
        if not any(value in self._axes or value in self._sizes for value in read_values(node)):
            return None
        rule = _RULES.get(node.op_type) if node.domain in ("", "ai.onnx") and not inner_graphs(node) else None
        if rule is None:
            return _UNKNOWN
        inputs, check = rule
        if sizes - set(_SIZES.get(node.op_type, ())) or (not batched and node.op_type not in _REPEATS):
            return _SIZE
        if inputs and batched - set(inputs):
            return _UNKNOWN
        found = {output: self._axis_of(output) for output in _used(node)}
        if (reason := check(_Call(node, self._axes, found[node.outputs[0]], self._new))) is not None:
            return reason
        for output, axis in found.items():
            if axis is None:
                return _NO_BATCH if output in self._new.shapes else _NO_SHAPE
            self._axes[output] = axis
        return None

    def is_batch(self, output: ir.Value) -> bool:
        """Whether the first axis of an output is the batch, or the output is a constant."""
        return output not in self._sizes and self._axes.get(output, 0) == 0

    def _axis_of(self, value: ir.Value) -> int | None:
        """The axis whose size is a multiple of the batch, if it is the only one that changes."""
        old, new = self._old.shapes.get(value), self._new.shapes.get(value)
        if old is None or new is None or len(old) != len(new) or None in old or None in new:
            return None
        changed = [axis for axis, (before, after) in enumerate(zip(old, new, strict=True)) if before != after]
        if len(changed) != 1:
            return None
        count, rest = divmod(new[changed[0]] or 0, self._batch[1])
        return changed[0] if not rest and old[changed[0]] == count * self._batch[0] else None


def _used(node: ir.Node) -> list[ir.Value]:
    """The first output, and the others that are used."""
    return [node.outputs[0], *(value for value in node.outputs[1:] if value.uses() or value.is_graph_output())]


class _Call:
    """A node with the batch axes and the shapes of its values.

    Attributes:
        batched: the batch axes of the inputs that have one, by index.
        result: the batch axis of the first output; None if it has none.
        shape: the shape of the first output.
    """

    def __init__(self, node: ir.Node, axes: Mapping[ir.Value, int], result: int | None, trace: ShapeTrace) -> None:
        self.node, self.attributes, self.result, self._trace = node, node.attributes, result, trace
        self.batched = {index: axes[value] for index, value in enumerate(node.inputs) if value in axes}  # type: ignore[index]
        self.shape: tuple[Any, ...] = trace.shapes.get(node.outputs[0], ())
        self.opset = trace.opset

    def has(self, index: int) -> bool:
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def input(self, index: int = 0) -> tuple[Any, ...]:
        """The shape of an input; empty if it is unknown."""
        return self._trace.shapes.get(self.node.inputs[index], ())  # type: ignore[arg-type]

    def numbers(self, index: int) -> list[Any] | None:
        """The elements of an input; None if it is absent or depends on the data."""
        array = self._trace.data.get(self.node.inputs[index]) if self.has(index) else None  # type: ignore[arg-type]
        return None if array is None else array.reshape(-1).tolist()


Check = Callable[[_Call], "str | None"]

# ---- rules: each returns a reason, or None if the operator keeps the images apart ----


def _aligned(call: _Call) -> str | None:
    """The batch keeps its size and its place, counted from the last axis."""
    if call.result is None:
        return _NO_BATCH
    wanted = call.result - len(call.shape), call.shape[call.result]
    places = {(axis - len(call.input(index)), call.input(index)[axis]) for index, axis in call.batched.items()}
    return None if places <= {wanted} else _PLACE


def _first(call: _Call) -> str | None:
    """The batch is the first axis."""
    if call.attributes.get_int("training_mode", 0) or len(_used(call.node)) > 1:
        return _MIXES  # statistics of a batch, or positions in it
    return None if set(call.batched.values()) == {0} else _PLACE


def _regrouped(call: _Call) -> str | None:
    """The number of elements before the batch stays the same."""
    if call.result is None:
        return _NO_BATCH
    return None if prod(call.input()[: call.batched[0]]) == prod(call.shape[: call.result]) else _PLACE


def _along(axes_of: Callable[[_Call], Iterable[Any] | None]) -> Check:
    """The batch is not among the axes along which the operator computes or selects. None stands for all axes."""

    def check(call: _Call) -> str | None:
        axes, rank = axes_of(call), len(call.input())
        return _MIXES if axes is None or call.batched[0] in {axis % rank for axis in axes} else None

    return check


def _axis(default: int) -> Check:
    return _along(lambda call: [call.attributes.get_int("axis", default)])


def _reduced(call: _Call) -> Iterable[Any] | None:
    if "axes" in call.attributes:
        return call.attributes.get_ints("axes")
    if (axes := call.numbers(1)) or call.has(1):
        return axes or None
    return () if call.attributes.get_int("noop_with_empty_axes", 0) else None


def _softmax(call: _Call) -> Iterable[Any]:
    if call.opset >= 13:
        return [call.attributes.get_int("axis", -1)]
    return _from_axis(call, 1)


def _from_axis(call: _Call, default: int) -> Iterable[Any]:
    rank = len(call.input())
    return range(call.attributes.get_int("axis", default) % rank, rank)


def _padded(call: _Call) -> Iterable[Any] | None:
    pads = call.attributes.get_ints("pads") if "pads" in call.attributes else call.numbers(1)
    axes = call.numbers(3) if call.has(3) else list(range(len(call.input())))
    if pads is None or axes is None:
        return None
    return [axis for index, axis in enumerate(axes) if pads[index] or pads[len(axes) + index]]


def _sliced(call: _Call) -> str | None:
    if call.has(4):
        steps, axes = call.numbers(4), call.numbers(3) if call.has(3) else list(range(len(call.input())))
        if steps is None or axes is None:
            return _MIXES
        if any(axis % len(call.input()) == call.batched[0] and step != 1 for axis, step in zip(axes, steps)):  # noqa: B905
            return _MIXES
    return _aligned(call)


def _resized(call: _Call) -> str | None:
    mode = call.attributes.get_string("coordinate_transformation_mode", "")
    return _UNKNOWN if mode in ("tf_crop_and_resize", "tf_half_pixel_for_nn") else _aligned(call)


def _joined(call: _Call) -> str | None:
    """All inputs have the same batch axis, and the operator does not work along it."""
    if len(call.batched) != len(call.node.inputs) or len(set(call.batched.values())) > 1:
        return _FIXED if call.node.op_type == "Concat" else _INDICES
    return _axis(0)(call)


def _gathered(call: _Call) -> str | None:
    if len(call.batched) > 1:
        return _MIXES
    return _axis(0)(call) if 0 in call.batched else None


def _indexed(call: _Call) -> str | None:
    """Constant indices of other axes; for GatherND also indices of each image."""
    dims, axis = call.attributes.get_int("batch_dims", 0), call.batched.get(0)
    if axis is None:
        return _INDICES
    if 1 in call.batched:
        return None if axis == call.batched[1] < dims else _INDICES
    if not call.input(1) or axis < dims + call.input(1)[-1]:
        return _INDICES
    if call.node.op_type == "ScatterND":  # its updates have the axes of the indices and of the data behind them
        return None if call.batched.get(2) == len(call.input(1)) - 1 + axis - call.input(1)[-1] else _INDICES
    return None


def _product(right: int) -> Check:
    """A product of two matrices, inputs 0 and `right`, which does not sum over the batch."""

    def check(call: _Call) -> str | None:
        sums = {0: len(call.input()) - 1, right: max(len(call.input(right)) - 2, 0)}
        return _MIXES if call.batched.items() & sums.items() else None

    return check


def _gemm(call: _Call) -> str | None:
    sums = {0: 1 - call.attributes.get_int("transA", 0), 1: call.attributes.get_int("transB", 0)}
    if call.batched.items() & sums.items():
        return _MIXES
    return None if 2 not in call.batched or call.batched[2] - len(call.input(2)) + 2 == call.result else _PLACE


def _einsum(call: _Call) -> str | None:
    inputs, arrow, result = call.attributes.get_string("equation", "").replace(" ", "").partition("->")
    if "." in inputs or not arrow:
        return _UNKNOWN
    terms = inputs.split(",")
    labels = {terms[index][axis] for index, axis in call.batched.items()}
    return None if len(labels) == 1 and labels <= set(result) else _MIXES


def _recurrent(call: _Call) -> str | None:
    batch = 0 if call.attributes.get_int("layout", 0) else 1
    return None if not call.has(4) and set(call.batched.values()) == {batch} else _PLACE


def _quantized(call: _Call) -> str | None:
    scale = call.input(1)
    return None if prod(scale) == 1 or (len(scale) == 1 and _axis(1)(call) is None) else _UNKNOWN


def _dropped(call: _Call) -> str | None:
    return None if not call.has(2) or call.numbers(2) == [False] else _UNKNOWN


def _attention(call: _Call) -> str | None:
    return None if call.batched == {0: 0, 1: 0, 2: 0} and not any(map(call.has, range(4, 7))) else _UNKNOWN


#: For each operator the inputs that may be batched (empty: all), and its rule.
_RULES: dict[str, tuple[tuple[int, ...], Check]] = {
    **dict.fromkeys(
        ("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd",
         "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu", "Clip", "ConstantOfShape", "Cos",
         "Cosh", "Div", "Elu", "Equal", "Erf", "Exp", "Expand", "Floor", "Gelu", "Greater", "GreaterOrEqual",
         "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max",
         "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round",
         "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish",
         "Tan", "Tanh", "ThresholdedRelu", "Tile", "Where", "Xor"), ((), _aligned)
    ),
    **dict.fromkeys(
        ("AffineGrid", "AveragePool", "BatchNormalization", "Col2Im", "Conv", "ConvInteger", "ConvTranspose",
         "DepthToSpace", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "GroupNormalization",
         "InstanceNormalization", "LRN", "LpPool", "MaxPool", "QLinearConv", "SpaceToDepth"), ((0,), _first)
    ),
    "GridSample": ((0, 1), _first), "DeformConv": ((0, 2, 4), _first),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), ((0,), _regrouped)),
    **dict.fromkeys(("OneHot", "Transpose"), ((0,), lambda call: None)),
    **dict.fromkeys(
        ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
         "ReduceProd", "ReduceSum", "ReduceSumSquare"), ((0,), _along(_reduced))
    ),
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), ((0,), _along(_softmax))),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), ((0,), _along(lambda call: _from_axis(call, -1)))),
    **dict.fromkeys(("ArgMax", "ArgMin", "Split"), ((0,), _axis(0))),
    **dict.fromkeys(("LpNormalization", "TopK"), ((0,), _axis(-1))),
    "MeanVarianceNormalization": ((0,), _along(lambda call: call.attributes.get_ints("axes", (0, 2, 3)))),
    "CumSum": ((0,), _along(lambda call: call.numbers(1))),
    "Trilu": ((0,), _along(lambda call: (-2, -1))),
    "Pad": ((0,), _along(_padded)),
    "Slice": ((0,), _sliced), "Resize": ((0,), _resized), "Upsample": ((0,), _aligned),
    **dict.fromkeys(("Concat", "GatherElements", "ScatterElements"), ((), _joined)),
    "Gather": ((0, 1), _gathered), "GatherND": ((0, 1), _indexed), "ScatterND": ((0, 2), _indexed),
    "MatMul": ((0, 1), _product(1)), "MatMulInteger": ((0, 1), _product(1)),
    "QLinearMatMul": ((0, 3), _product(3)), "Gemm": ((0, 1, 2), _gemm), "Einsum": ((), _einsum),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), ((0, 5, 6), _recurrent)),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), ((0,), _quantized)),
    "Dropout": ((0,), _dropped), "Attention": ((0, 1, 2), _attention),
}  # fmt: skip
#: Operators with a rule.
OPERATORS = frozenset(_RULES)
