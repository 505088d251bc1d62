"""Reductions over axes, cumulative ones, and products of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..translation import Translation, operator
from .norms import elements, vector_norm

_ONNX = {
    "mean": "ReduceMean", "sum": "ReduceSum", "prod": "ReduceProd", "amax": "ReduceMax", "amin": "ReduceMin",
    "logsumexp": "ReduceLogSumExp",
}  # fmt: skip


def _axes(t: Translation) -> Any:
    axes = t.axes()
    return None if axes in (None, []) else np.asarray(axes, np.int64)


def _keep(t: Translation) -> int:
    return int(bool(t.param("keepdim", False)))


@operator(*(f"torch.{name}" for name in _ONNX))
def reduction(t: Translation) -> Any:
    x = t.given("input", 0)
    if t.kind in ("sum", "prod") and t.dtype(x).kind in "bi":
        x = t.cast(x, np.int64)
    result = t.build(_ONNX[t.kind], x, _axes(t), keepdims=_keep(t))
    return t.typed(result, t.dtype(x))


@operator("torch.max", "torch.min")
def extreme(t: Translation) -> Any:
    """Of all elements; along an axis, with the index; or of two tensors."""
    kind = t.kind.capitalize()
    if len(t.values) > 1:
        return t.build(kind, *t.values)
    x = t.given("input", 0)
    if t.param("dim", None) is None:
        return t.build(f"Reduce{kind}", x, keepdims=0)
    axis = t.axis()
    value = t.build(f"Reduce{kind}", x, np.asarray([axis]), keepdims=_keep(t))
    index = t.typed(t.build(f"Arg{kind}", x, axis=axis, keepdims=_keep(t)), np.int64)
    return [value, index] if len(t.one.outputs) > 1 else [[value, index]]


@operator("torch.argmax", "torch.argmin")
def arg_extreme(t: Translation) -> Any:
    kind = "ArgMax" if t.kind == "argmax" else "ArgMin"
    x = t.given("input", 0)
    if t.param("dim", None) is None:
        return t.typed(t.build(kind, t.reshape(x, -1), axis=0, keepdims=0), np.int64)
    return t.typed(t.build(kind, x, axis=t.axis(), keepdims=_keep(t)), np.int64)


@operator("torch.var", "torch.std")
def variance(t: Translation) -> Any:
    """The sum of squares of what is off the mean, divided by the number of elements less the correction."""
    axes = t.axes()
    count = elements(t.shape(), axes)
    correction = t.param("correction", None)
    less = int(bool(t.param("unbiased", True))) if correction is None else correction
    reduced = None if axes is None else np.asarray(axes)
    x = t.given("input", 0)
    apart = t.build("Sub", x, t.build("ReduceMean", x, reduced, keepdims=1))
    total = t.build("ReduceSumSquare", apart, reduced, keepdims=_keep(t))
    with np.errstate(divide="ignore"):
        result = t.build("Div", total, t.scalar(max(count - less, 0)))
    return t.build("Sqrt", result) if t.kind.startswith("std") else result


@operator("torch.norm")
def norm(t: Translation) -> Any:
    p = t.param("p", 2)
    p = 2.0 if p in ("fro", None) else t.number("p", 2.0)
    return vector_norm(t, t.given("input", 0), p, _axes(t), keepdims=bool(_keep(t)))


@operator("torch.cumsum")
def cumulative_sum(t: Translation) -> Any:
    return t.build("CumSum", t.given("input", 0), np.asarray(t.axis(), np.int64))


@operator("torch.cumprod")
def cumulative_product(t: Translation) -> Any:
    """All prefixes side by side, filled up with ones, and the product over each."""
    axis = t.axis()
    size, rank = t.shape()[axis], t.rank()
    t.limit(size, size)
    x = t.unsqueeze(t.given("input", 0), axis)  # [..., 1, size, ...]
    mask = np.tril(np.ones((size, size), bool)).reshape(1, size, size, *(1,) * (rank - axis - 1))
    shown = t.build("Where", mask[0] if axis == 0 else mask, x, t.scalar(1))
    return t.build("ReduceProd", shown, np.asarray([axis + 1]), keepdims=0)


@operator("torch.topk")
def topk(t: Translation) -> Any:
    count = np.asarray([t.integer("k")], np.int64)
    values, index = t.build.node(
        "TopK",
        t.given("input", 0),
        count,
        outputs=2,
        axis=t.axis("dim", -1),
        largest=int(bool(t.param("largest", True))),
        sorted=1,
    )
    t.typed(index, np.int64)
    return [values, index] if len(t.one.outputs) > 1 else [[values, index]]


# ---- products ----


@operator("torch.matmul", "torch.mm", "torch.bmm", "torch.mv")
def matmul(t: Translation) -> Any:
    return t.build("MatMul", *t.values)


@operator("torch.addmm", "torch.baddbmm")
def addmm(t: Translation) -> Any:
    """beta * input + alpha * (a @ b)"""
    added, first, second = t.values
    product = t.build("MatMul", first, second)
    alpha, beta = t.number("alpha", 1.0), t.number("beta", 1.0)
    product = product if alpha == 1 else t.build("Mul", product, t.scalar(alpha))
    added = added if beta == 1 else t.build("Mul", added, t.scalar(beta))
    return t.build("Add", added, product)


@operator("torch.outer")
def outer(t: Translation) -> Any:
    return t.build("Mul", t.unsqueeze(t.values[0], 1), t.unsqueeze(t.values[1], 0))


@operator("torch.einsum")
def einsum(t: Translation) -> Any:
    values = [inner for value in t.values for inner in (value if isinstance(value, list) else [value])]
    return t.build("Einsum", *values, equation=str(t.param("equation")))


@operator("torch.cross")
def cross(t: Translation) -> Any:
    """a1 b2 - a2 b1, and the same in a circle."""
    first, second = t.values
    shape = t.shape()
    axis = t.axis() if t.param("dim", None) is not None else shape.index(3) if 3 in shape else 0
    turn = [np.asarray(order, np.int64) for order in ([1, 2, 0], [2, 0, 1])]
    parts = [[t.build("Gather", value, order, axis=axis) for order in turn] for value in (first, second)]
    (a1, a2), (b1, b2) = parts
    return t.build("Sub", t.build("Mul", a1, b2), t.build("Mul", a2, b1))
