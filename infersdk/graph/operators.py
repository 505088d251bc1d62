"""The ONNX operators at the ends of detectors, on NumPy arrays.

ONNX's reference implementation has all operators, but importing it takes longer than reading a model. The tests compare
the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["OPERATORS", "sigmoid"]

Array = Any


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def _cast(x: Array, *, to: int) -> Array:
    from onnx import helper

    return x.astype(helper.tensor_dtype_to_np_dtype(to))


def _conv(x: Array, weights: Array, bias: Array = 0.0, **_: Any) -> Array:
    """A 1 x 1 convolution with one output channel."""
    return (x * weights).sum(1, keepdims=True) + bias


def _div(x: Array, y: Array) -> Array:
    return x / y if x.dtype.kind == "f" else np.trunc(x / y).astype(x.dtype)


def _reshape(x: Array, dims: Array, *, allowzero: int = 0) -> Array:
    return x.reshape([x.shape[i] if dim == 0 and not allowzero else dim for i, dim in enumerate(dims.tolist())])


def _slice(x: Array, starts: Array, ends: Array, axes: Array = None, steps: Array = None) -> Array:
    parts = [slice(None)] * x.ndim
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    for axis, *part in zip(axes, starts, ends, steps, strict=True):
        parts[axis] = slice(*map(int, part))
    return x[tuple(parts)]


def _softmax(x: Array, *, axis: int = -1) -> Array:
    shares = np.exp(x - x.max(axis, keepdims=True))
    return shares / shares.sum(axis, keepdims=True)


def _split(x: Array, split: Array = None, *, count: int, axis: int = 0, num_outputs: int = 0) -> Sequence[Array]:
    size = x.shape[axis]
    if split is None:
        most = -(-size // (num_outputs or count))
        split = [min(most, max(0, size - i * most)) for i in range(count)]
    if len(split) != count or sum(split) != size:
        raise ValueError(f"{count} parts of {list(split)} are not the {size} elements of axis {axis}")
    return np.split(x, np.cumsum(split)[:-1], axis)


#: By operator: a function of the inputs, and of the attributes by name. Axes, parts and the ends of slices are
#: attributes in older versions of an operator, and inputs in newer ones; both have one name here. Conv is for weighted
#: sums of the channels alone. Split gets the count of its outputs too.
OPERATORS: Mapping[str, Callable[..., Any]] = {
    "Add": np.add,
    "Cast": _cast,
    "Concat": lambda *x, axis: np.concatenate(x, axis),
    "Conv": _conv,
    "Div": _div,
    "Gather": lambda x, indices, *, axis=0: np.take(x, indices, axis),
    "Identity": lambda x: x,
    "Mul": np.multiply,
    "Pow": lambda x, y: np.power(x, y).astype(x.dtype),
    "Reshape": _reshape,
    "Shape": lambda x, *, start=0, end=None: np.array(x.shape[start:end], np.int64),
    "Sigmoid": sigmoid,
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": lambda x, axes=None: np.squeeze(x, None if axes is None else tuple(axes)),
    "Sub": np.subtract,
    "Transpose": lambda x, *, perm=None: np.transpose(x, perm),
    "Unsqueeze": lambda x, axes: np.expand_dims(x, tuple(axes)),
}
