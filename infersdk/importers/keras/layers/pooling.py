"""Pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..translation import LayerCall, layer
from .convolutions import window_padding

if TYPE_CHECKING:
    from ..tensors import Tensor


@layer(*(f"{kind}Pooling{dims}D" for kind in ("Max", "Average") for dims in (1, 2, 3)))
def pooling(call: LayerCall) -> Tensor:
    """Padding does not count, in an average either."""
    dims = int(call.kind[-2])
    window = call.ints("pool_size", dims, 2)
    stride = window if call.config.get("strides") is None else call.ints("strides", dims)
    mode = call.choice("padding", ("valid", "same"), "valid")
    channels, image = call.spatial_shape(call.x)
    padding, sizes = window_padding(call, image, window, stride, [1] * dims, mode)
    operator = "MaxPool" if call.kind.startswith("Max") else "AveragePool"
    value = call.build(operator, call.spatial(call.x), kernel_shape=window, strides=stride, **padding)
    return call.from_spatial(value, call.x.shape[0], channels, sizes)


@layer(*(f"Global{kind}Pooling{dims}D" for kind in ("Max", "Average") for dims in (1, 2, 3)))
def global_pooling(call: LayerCall) -> Tensor:
    x = call.x
    if x.masked and call.kind == "GlobalAveragePooling1D":
        raise call.unsupported("an average that leaves masked steps out")
    operator = "ReduceMax" if "Max" in call.kind else "ReduceMean"
    channels, _ = call.spatial_shape(x)
    axes = np.arange(2, x.rank)
    keep = call.flag("keepdims")
    value = call.build(operator, call.spatial(x), axes, keepdims=int(keep))
    if keep:
        return call.from_spatial(value, x.shape[0], channels, [1] * (x.rank - 2))
    return call.tensor(value, (x.shape[0], channels))
