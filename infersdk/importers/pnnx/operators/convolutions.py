"""Convolutions, transposed ones, linear layers, and unfolding into columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..translation import Translation, operator
from .shapes import pad_value


def _dims(t: Translation) -> int:
    return int(t.kind[-2])


def _batched(t: Translation, dims: int) -> tuple[Any, bool]:
    """The input with a batch, and whether it had one."""
    x = t.given("input", 0)
    batched = t.rank() != dims + 1
    return (x if batched else t.unsqueeze(x, 0)), batched


def _weight(t: Translation) -> tuple[Any, list[int]]:
    weight = t.tensor("weight", 1)
    if weight is None:
        raise t.damaged("its weight is missing")
    if isinstance(weight, np.ndarray):
        return weight, list(weight.shape)
    index = next(i for i, value in enumerate(t.values) if value is weight)
    return weight, list(t.shape(index))


@operator("nn.Conv1d", "nn.Conv2d", "nn.Conv3d", "F.conv1d", "F.conv2d", "F.conv3d")
def convolution(t: Translation) -> Any:
    dims = _dims(t)
    x, batched = _batched(t, dims)
    weight, sizes = _weight(t)
    stride, dilation = t.ints("stride", dims, 1), t.ints("dilation", dims, 1)
    padding, mode = t.param("padding", 0), t.param("padding_mode", "zeros")
    kernel = sizes[2:]
    if padding == "valid":
        pads = [0] * 2 * dims
    elif padding == "same":  # the odd one goes to the end
        total = [step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
        pads = [n // 2 for n in total] + [n - n // 2 for n in total]
    else:
        pads = t.ints("padding", dims, 0) * 2
    if mode != "zeros" and any(pads):
        x = pad_value(t, x, [0, 0, *pads[:dims], 0, 0, *pads[dims:]], mode)
        pads = [0] * 2 * dims
    bias = t.tensor("bias", 2)
    result = t.build(
        "Conv", x, weight, bias, kernel_shape=kernel, strides=stride, dilations=dilation, pads=pads,
        group=t.integer("groups", 1),
    )  # fmt: skip
    return result if batched else t.squeeze(result, 0)


@operator(*(f"{family}{dims}d" for family in ("nn.ConvTranspose", "F.conv_transpose") for dims in (1, 2, 3)))
def transposed_convolution(t: Translation) -> Any:
    dims = _dims(t)
    x, batched = _batched(t, dims)
    weight, sizes = _weight(t)
    result = t.build(
        "ConvTranspose", x, weight, t.tensor("bias", 2), kernel_shape=sizes[2:], strides=t.ints("stride", dims, 1),
        dilations=t.ints("dilation", dims, 1), pads=t.ints("padding", dims, 0) * 2,
        output_padding=t.ints("output_padding", dims, 0), group=t.integer("groups", 1),
    )  # fmt: skip
    return result if batched else t.squeeze(result, 0)


@operator("nn.Linear", "F.linear")
def linear(t: Translation) -> Any:
    x, weight, bias = t.given("input", 0), t.tensor("weight", 1), t.tensor("bias", 2)
    if weight is None:
        raise t.damaged("its weight is missing")
    if t.one.inputs[0].shape is not None and t.rank() == 2:
        return t.build("Gemm", x, weight, bias, transB=1)
    product = t.build("MatMul", x, weight.T if isinstance(weight, np.ndarray) else t.transpose(weight, 1, 0))
    return product if bias is None else t.build("Add", product, bias)


@operator("nn.Embedding", "F.embedding")
def embedding(t: Translation) -> Any:
    weight = t.tensor("weight", 1)
    indices = t.given("input", 0)
    if weight is None:
        raise t.damaged("its weight is missing")
    return t.build("Gather", weight, indices, axis=0)


@operator("nn.Unfold", "F.unfold")
def unfold(t: Translation) -> Any:
    """Columns of patches, [n, c * kh * kw, positions]: two Gathers, one for each axis of the image."""
    kernel, stride = t.ints("kernel_size", 2), t.ints("stride", 2, 1)
    dilation, padding = t.ints("dilation", 2, 1), t.ints("padding", 2, 0)
    _, channels, *image = t.shape()
    x = pad_value(t, t.x, [0, 0, *padding, 0, 0, *padding], "zeros") if any(padding) else t.x
    positions = []
    for axis, at in ((0, 2), (1, 4)):
        count = (image[axis] + 2 * padding[axis] - dilation[axis] * (kernel[axis] - 1) - 1) // stride[axis] + 1
        t.limit(kernel[axis], count)
        index = np.arange(kernel[axis])[:, None] * dilation[axis] + np.arange(count)[None] * stride[axis]
        x = t.build("Gather", x, index, axis=at)  # [n, c, kh, oh, w], then [n, c, kh, oh, kw, ow]
        positions.append(count)
    columns = t.transpose(x, 0, 1, 2, 4, 3, 5)
    return t.reshape(columns, 0, channels * kernel[0] * kernel[1], positions[0] * positions[1])


@operator("nn.Fold", "F.fold")
def fold(t: Translation) -> Any:
    return t.build(
        "Col2Im", t.x, np.asarray(t.ints("output_size", 2), np.int64), np.asarray(t.ints("kernel_size", 2), np.int64),
        dilations=t.ints("dilation", 2, 1), pads=t.ints("padding", 2, 0) * 2, strides=t.ints("stride", 2, 1),
    )  # fmt: skip
