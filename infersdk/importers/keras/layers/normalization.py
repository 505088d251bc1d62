"""Normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..translation import LayerCall, layer

if TYPE_CHECKING:
    from ..tensors import Tensor


def _axes(call: LayerCall, default: int = -1) -> list[int]:
    given = call.config.get("axis", default)
    items = given if isinstance(given, (list, tuple)) else [given]
    if not items or any(not isinstance(axis, int) or not -call.x.rank <= axis < call.x.rank for axis in items):
        raise call.damaged(f"axis={given!r} of {call.x.rank} axes")
    return [axis % call.x.rank for axis in items]


@layer("BatchNormalization", "BatchNormalizationV1", "SyncBatchNormalization")
def batch_normalization(call: LayerCall) -> Tensor:
    (axis,) = _axes(call)
    x = call.x
    mean, variance = call.required("moving_mean"), call.required("moving_variance")
    gamma, beta = call.weight("gamma"), call.weight("beta")
    gamma = np.ones_like(mean) if gamma is None else gamma
    beta = np.zeros_like(mean) if beta is None else beta
    epsilon = call.number("epsilon", 1e-3)
    whole = [gamma, beta, mean, variance]
    if axis == x.rank - 1 and (x.is_channels_first or x.rank == 2):
        return (
            x.like(first=call.build("BatchNormalization", x.first(), *whole, epsilon=epsilon))
            if x.rank > 2
            else x.like(last=call.build("BatchNormalization", x.last(), *whole, epsilon=epsilon))
        )
    if axis == 1:
        return x.like(last=call.build("BatchNormalization", x.last(), *whole, epsilon=epsilon))
    scale = gamma / np.sqrt(variance + np.float32(epsilon))
    shape = [-1 if i == axis else 1 for i in range(x.rank)]
    offset = beta - mean * scale
    value = call.build("Mul", x.last(), scale.reshape(shape).astype(np.float32))
    return x.like(last=call.build("Add", value, offset.reshape(shape).astype(np.float32)))


@layer("LayerNormalization")
def layer_normalization(call: LayerCall) -> Tensor:
    axes = sorted(_axes(call))
    x = call.x
    gamma, beta = call.weight("gamma"), call.weight("beta")
    epsilon = call.number("epsilon", 1e-3)
    if call.flag("rms_scaling"):
        raise call.unsupported("rms_scaling")
    if axes == list(range(axes[0], x.rank)):
        sizes = [call.known(x.shape[axis], "an axis that is normalised") for axis in axes]
        call.limit(*sizes)
        gamma = np.ones(sizes, np.float32) if gamma is None else gamma
        return x.like(
            last=call.build("LayerNormalization", x.last(), gamma, beta, axis=axes[0] - x.rank, epsilon=epsilon)
        )
    return x.like(
        last=_normalized(
            call, x.last(), axes, epsilon, gamma, beta, [x.shape[axis] if axis in axes else 1 for axis in range(x.rank)]
        )
    )


def _normalized(
    call: LayerCall, x: Any, axes: list[int], epsilon: float, gamma: Any, beta: Any, shape: list[Any]
) -> Any:
    build, over = call.build, call.i64(*axes)
    apart = build("Sub", x, build("ReduceMean", x, over, keepdims=1))
    variance = build("ReduceMean", build("Mul", apart, apart), over, keepdims=1)
    value = build("Div", apart, build("Sqrt", build("Add", variance, np.float32(epsilon))))
    sizes = [-1 if size is None else size for size in shape]
    value = value if gamma is None else build("Mul", value, gamma.reshape(sizes))
    return value if beta is None else build("Add", value, beta.reshape(sizes))


@layer("GroupNormalization")
def group_normalization(call: LayerCall) -> Tensor:
    (axis,) = _axes(call)
    x = call.x
    if axis != x.rank - 1 or x.rank < 3:
        raise call.unsupported(f"axis {axis} of {x.rank}")
    channels = call.known(x.shape[-1], "the number of channels")
    groups = call.ints("groups", 1, 32)[0]
    groups = channels if groups == -1 else groups
    if groups < 1 or channels % groups:
        raise call.damaged(f"{channels} channels in {groups} groups")
    one = np.ones(groups, np.float32)
    grouped = call.build("Reshape", x.first(), call.i64(0, groups, -1))
    normal = call.build("InstanceNormalization", grouped, one, 0 * one, epsilon=call.number("epsilon", 1e-3))
    value = call.build("Reshape", normal, call.build("Shape", x.first()))
    gamma, beta = call.weight("gamma"), call.weight("beta")
    shape = (-1, *(1,) * (x.rank - 2))
    value = value if gamma is None else call.build("Mul", value, gamma.reshape(shape))
    value = value if beta is None else call.build("Add", value, beta.reshape(shape))
    return x.like(first=value)


@layer("UnitNormalization")
def unit_normalization(call: LayerCall) -> Tensor:
    axes = _axes(call)
    x = call.x.last()
    total = call.build("ReduceSumSquare", x, call.i64(*axes), keepdims=1)
    return call.x.like(last=call.build("Div", x, call.build("Sqrt", call.build("Max", total, np.float32(1e-12)))))


@layer("Normalization")
def normalization(call: LayerCall) -> Tensor:
    """(x - mean) / max(sqrt(variance), 1e-7), with statistics of the data."""
    mean, variance = call.weight("mean"), call.weight("variance")
    if mean is None or variance is None:
        mean, variance = (np.asarray(call.config.get(name), np.float32) for name in ("mean", "variance"))
    axes = _axes(call) if call.config.get("axis") is not None else []
    shape = [-1 if i in axes else 1 for i in range(call.x.rank)]
    if len(axes) > 1:
        raise call.unsupported("several axes")
    mean, variance = mean.reshape(shape).astype(np.float32), variance.reshape(shape).astype(np.float32)
    spread = np.maximum(np.sqrt(variance), np.float32(1e-7))
    if call.flag("invert"):
        return call.x.like(last=call.build("Add", call.build("Mul", call.x.last(), spread), mean))
    return call.x.like(last=call.build("Div", call.build("Sub", call.x.last(), mean), spread))
