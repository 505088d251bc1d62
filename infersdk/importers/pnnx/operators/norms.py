"""Normalisation."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..translation import Translation, operator


def _channel(t: Translation, value: Any, rank: int) -> Any:
    """A vector over axis 1, in a shape that broadcasts."""
    shape = (-1, *(1,) * (rank - 2))
    return value.reshape(shape) if isinstance(value, np.ndarray) else t.reshape(value, *shape)


def _affine(t: Translation, value: Any, weight: Any, bias: Any) -> Any:
    rank = t.rank()
    if weight is not None:
        value = t.build("Mul", value, _channel(t, weight, rank))
    return value if bias is None else t.build("Add", value, _channel(t, bias, rank))


@operator("nn.BatchNorm1d", "nn.BatchNorm2d", "nn.BatchNorm3d", "F.batch_norm")
def batch_norm(t: Translation) -> Any:
    mean, variance = t.tensor("running_mean"), t.tensor("running_var")
    if mean is None or variance is None:
        raise t.unsupported("a batch norm without running statistics depends on the other images of a batch")
    weight, bias = t.tensor("weight"), t.tensor("bias")
    channels = t.shape()[1] if t.rank() > 1 else t.shape()[0]
    t.limit(channels)
    weight = np.ones(channels, np.float32) if weight is None else weight
    bias = np.zeros(channels, np.float32) if bias is None else bias
    return t.build(
        "BatchNormalization", t.given("input", 0), weight, bias, mean, variance, epsilon=t.number("eps", 1e-5)
    )


@operator("nn.InstanceNorm1d", "nn.InstanceNorm2d", "nn.InstanceNorm3d", "F.instance_norm")
def instance_norm(t: Translation) -> Any:
    if t.weight("running_mean") is not None:
        return batch_norm(t)
    dims = t.rank() - 2 if t.one.type.startswith("F.") else int(t.kind[-2])
    x = t.given("input", 0)
    batched = t.rank() == dims + 2
    channels = t.shape()[1 if batched else 0]
    t.limit(channels)
    weight, bias = t.tensor("weight"), t.tensor("bias")
    made = t.build(
        "InstanceNormalization", x if batched else t.unsqueeze(x, 0),
        np.ones(channels, np.float32) if weight is None else weight,
        np.zeros(channels, np.float32) if bias is None else bias, epsilon=t.number("eps", 1e-5),
    )  # fmt: skip
    return made if batched else t.squeeze(made, 0)


@operator("nn.GroupNorm", "F.group_norm")
def group_norm(t: Translation) -> Any:
    """Each group is a channel of an InstanceNormalization."""
    _, channels, *image = t.shape()
    groups = t.integer("num_groups")
    if groups < 1 or channels % groups:
        raise t.damaged(f"{channels} channels in {groups} groups")
    t.limit(groups)
    one = np.ones(groups, np.float32)
    grouped = t.reshape(t.given("input", 0), 0, groups, -1)
    normal = t.build("InstanceNormalization", grouped, one, 0 * one, epsilon=t.number("eps", 1e-5))
    return _affine(t, t.reshape(normal, 0, channels, *image), t.tensor("weight"), t.tensor("bias"))


@operator("nn.LayerNorm", "F.layer_norm")
def layer_norm(t: Translation) -> Any:
    shape = t.ints("normalized_shape")
    weight, bias = t.tensor("weight"), t.tensor("bias")
    if weight is None:
        _check_size(t, shape)
        weight = np.ones(shape, np.float32)
    x = t.given("input", 0)
    return t.build("LayerNormalization", x, weight, bias, axis=-len(shape), epsilon=t.number("eps", 1e-5))


def _check_size(t: Translation, shape: list[int]) -> None:
    t.limit(*shape)
    if list(t.shape()[-len(shape) :]) != shape:
        raise t.damaged(f"normalized_shape={tuple(shape)} for a value of shape {t.shape()}")


@operator("nn.RMSNorm", "F.rms_norm")
def rms_norm(t: Translation) -> Any:
    """x / sqrt(mean(x^2) + eps) over the last axes (Zhang and Sennrich, 2019)."""
    shape = t.ints("normalized_shape")
    eps = t.param("eps", None)
    eps = float(np.finfo(np.float32).eps) if eps is None else t.number("eps")
    x = t.given("input", 0)
    mean = t.build("ReduceMean", t.build("Mul", x, x), np.arange(-len(shape), 0), keepdims=1)
    normal = t.build("Div", x, t.build("Sqrt", t.build("Add", mean, t.scalar(eps, x))))
    weight = t.tensor("weight")
    return normal if weight is None else t.build("Mul", normal, weight)


@operator("nn.LocalResponseNorm", "F.local_response_norm")
def local_response_norm(t: Translation) -> Any:
    """x / (k + alpha / size * sum of squares of neighbouring channels)^beta.

    As PyTorch pads: size // 2 channels before, (size - 1) // 2 behind, which for an even size is not what ONNX does.
    """
    size = t.integer("size")
    if size < 1:
        raise t.damaged(f"size={size}")
    rank = t.rank()
    squares = t.build("Mul", t.x, t.x)
    pads = np.zeros(2 * rank, np.int64)
    pads[1], pads[rank + 1] = size // 2, (size - 1) // 2
    padded = t.build("Pad", squares, pads)
    channels = t.shape()[1]
    t.limit(channels, size)
    windows = np.arange(channels)[:, None] + np.arange(size)[None]
    total = t.build("ReduceSum", t.build("Gather", padded, windows, axis=1), np.asarray([2]), keepdims=0)
    scale = t.build("Mul", total, t.scalar(t.number("alpha", 1e-4) / size))
    return t.build(
        "Div",
        t.x,
        t.build("Pow", t.build("Add", scale, t.scalar(t.number("k", 1.0))), t.scalar(t.number("beta", 0.75))),
    )


@operator("F.normalize")
def normalize(t: Translation) -> Any:
    """x / max(norm(x), eps) along axes."""
    p, axes = t.number("p", 2.0), np.asarray(t.axes("dim") or [1])
    norm = vector_norm(t, t.x, p, axes, keepdims=True)
    return t.build("Div", t.x, t.build("Max", norm, t.scalar(t.number("eps", 1e-12))))


@operator("F.pairwise_distance")
def pairwise_distance(t: Translation) -> Any:
    """The norm of x1 - x2 + eps along the last axis."""
    apart = t.build("Add", t.build("Sub", t.values[0], t.values[1]), t.scalar(t.number("eps", 1e-6)))
    return vector_norm(t, apart, t.number("p", 2.0), np.asarray([-1]), keepdims=t.flag("keepdim", False))


def vector_norm(t: Translation, value: Any, p: float, axes: Any, *, keepdims: bool) -> Any:
    """(sum of |x|^p)^(1/p) over axes; None for all."""
    keep = int(keepdims)
    if p == 2:
        return t.build("ReduceL2", value, axes, keepdims=keep)
    size = t.build("Abs", value)
    if p == 1:
        return t.build("ReduceSum", size, axes, keepdims=keep)
    if p == float("inf"):
        return t.build("ReduceMax", size, axes, keepdims=keep)
    if p == float("-inf"):
        return t.build("ReduceMin", size, axes, keepdims=keep)
    if p == 0:
        return t.build("ReduceSum", t.build("Sign", size), axes, keepdims=keep)
    total = t.build("ReduceSum", t.build("Pow", size, t.scalar(p, value)), axes, keepdims=keep)
    return t.build("Pow", total, t.scalar(1 / p, value))


def elements(shape: tuple[int, ...], axes: list[int] | None) -> int:
    """How many elements a reduction takes together."""
    return prod(shape[axis] for axis in (range(len(shape)) if axes is None else axes))
