"""Pooling. Windows that PyTorch rounds up to (`ceil_mode`) become explicit padding: runtimes differ in how they
round.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..translation import Translation, operator
from .shapes import pad_value

if TYPE_CHECKING:
    import numpy.typing as npt


def _windows(t: Translation, dims: int) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """Kernel, stride, padding, dilation, and how far the last window of each axis reaches behind the padding."""
    kernel = t.ints("kernel_size", dims)
    stride = kernel if t.param("stride", None) in (None, ()) else t.ints("stride", dims)
    padding, dilation = t.ints("padding", dims, 0), t.ints("dilation", dims, 1)
    if min(kernel + stride + dilation) < 1 or min(padding) < 0:
        raise t.damaged(f"kernel {kernel}, stride {stride}, padding {padding}, dilation {dilation}")
    extra = [0] * dims
    if t.param("ceil_mode", False):
        for axis, size in enumerate(t.shape()[-dims:]):
            room = size + 2 * padding[axis] - dilation[axis] * (kernel[axis] - 1) - 1
            count = -(-room // stride[axis]) + 1
            if (count - 1) * stride[axis] >= size + padding[
                axis
            ]:  # a window starts inside, or in the padding before it
                count -= 1
            extra[axis] = max(0, (count - 1) * stride[axis] - room)
    return kernel, stride, padding, dilation, extra


@operator("nn.MaxPool1d", "nn.MaxPool2d", "nn.MaxPool3d", "F.max_pool1d", "F.max_pool2d", "F.max_pool3d")
def max_pool(t: Translation) -> Any:
    dims = int(t.kind[-2])
    kernel, stride, padding, dilation, extra = _windows(t, dims)
    x = t.given("input", 0)
    batched = t.rank() == dims + 2
    x = x if batched else t.unsqueeze(x, 0)
    pads = [*padding, *(a + b for a, b in zip(padding, extra, strict=True))]
    indices = len(t.one.outputs) > 1 or bool(t.param("return_indices", False))
    results = t.build.node(
        "MaxPool", x, kernel_shape=kernel, strides=stride, dilations=dilation, pads=pads, outputs=2 if indices else 1
    )
    if indices:  # ONNX counts through the batch, PyTorch within a channel
        results[1] = t.typed(t.build("Mod", results[1], np.asarray(prod(t.shape()[-dims:]), np.int64)), np.int64)
    results = results if batched else [t.squeeze(value, 0) for value in results]
    if not indices:
        return results[0]
    return results if len(t.one.outputs) > 1 else [results]


@operator("nn.AvgPool1d", "nn.AvgPool2d", "nn.AvgPool3d", "F.avg_pool1d", "F.avg_pool2d", "F.avg_pool3d")
def average_pool(t: Translation) -> Any:
    """The windows that `ceil_mode` adds count only what is in the image and its padding."""
    dims = int(t.kind[-2])
    kernel, stride, padding, _, extra = _windows(t, dims)
    x = t.given("input", 0)
    batched = t.rank() == dims + 2
    x = x if batched else t.unsqueeze(x, 0)
    divisor = t.param("divisor_override", None)
    counts_padding = bool(t.param("count_include_pad", True))
    ends = [a + b for a, b in zip(padding, extra, strict=True)]
    pads, include = [*padding, *ends], int(counts_padding)
    if divisor is not None:
        x, pads = pad_value(t, x, [0, 0, *padding, 0, 0, *ends], "zeros"), [0] * 2 * dims
    elif counts_padding and any(extra):
        x = pad_value(t, x, [0, 0, *padding, 0, 0, *padding], "zeros")
        pads, include = [*[0] * dims, *extra], 0
    result = t.build("AveragePool", x, kernel_shape=kernel, strides=stride, pads=pads, count_include_pad=include)
    if divisor is not None:
        if not isinstance(divisor, int) or divisor == 0:
            raise t.damaged(f"divisor_override={divisor!r}")
        result = t.build("Mul", result, t.scalar(prod(kernel) / divisor))
    return result if batched else t.squeeze(result, 0)


@operator("nn.LPPool1d", "nn.LPPool2d", "F.lp_pool1d", "F.lp_pool2d")
def lp_pool(t: Translation) -> Any:
    """(sum of x^p in each window)^(1/p), as PyTorch computes it: by the average, times the size of a window."""
    dims = int(t.kind[-2])
    p = t.number("norm_type")
    kernel, stride, _, _, extra = _windows(t, dims)
    x = t.build("Pow", t.given("input", 0), t.scalar(p)) if p != 2 else t.build("Mul", t.x, t.x)
    batched = t.rank() == dims + 2
    x = x if batched else t.unsqueeze(x, 0)
    average = t.build(
        "AveragePool", x, kernel_shape=kernel, strides=stride, pads=[*[0] * dims, *extra], count_include_pad=0
    )
    # PyTorch: sign(average) * relu(|average|)
    total = t.build(
        "Mul",
        t.build("Mul", t.build("Sign", average), t.build("Relu", t.build("Abs", average))),
        t.scalar(prod(kernel)),
    )
    result = t.build("Pow", total, t.scalar(1 / p))
    return result if batched else t.squeeze(result, 0)


_ADAPTIVE = [f"{family}{dims}d" for family in ("nn.Adaptive{}Pool", "F.adaptive_{}_pool") for dims in (1, 2, 3)]


def _adaptive_sizes(t: Translation, dims: int) -> tuple[list[int], list[int]]:
    """The sizes of the image, and of the output: None there keeps an axis."""
    given = t.param("output_size")
    items = list(given) if isinstance(given, (tuple, list)) else [given] * dims
    image = list(t.shape()[-dims:]) if any(item != 1 for item in items) else [0] * dims
    items = (items * dims)[:dims] if len(items) == 1 else items
    items = [None if item == 0 else item for item in items]  # the file has 0 for None
    if len(items) != dims or any(item is not None and (not isinstance(item, int) or item < 1) for item in items):
        raise t.damaged(f"output_size={given!r}")
    return image, [image[axis] if item is None else item for axis, item in enumerate(items)]


def _bounds(size: int, count: int) -> list[tuple[int, int]]:
    """The windows of adaptive pooling: floor(i * size / count) to ceil((i + 1) * size / count)."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _window_indices(t: Translation, size: int, count: int) -> npt.NDArray[np.int64]:
    """[windows, longest window]: the indices of each window; shorter ones repeat their last index."""
    bounds = _bounds(size, count)
    longest = max(end - start for start, end in bounds)
    t.limit(count, longest)
    return np.asarray([[min(start + i, end - 1) for i in range(longest)] for start, end in bounds], np.int64)


@operator(*(name.format("Avg" if name.startswith("nn") else "avg") for name in _ADAPTIVE))
def adaptive_average(t: Translation) -> Any:
    dims = int(t.kind[-2])
    image, sizes = _adaptive_sizes(t, dims)
    x, rank = t.given("input", 0), t.rank()
    if all(size == 1 for size in sizes):
        if rank == dims + 2:
            return t.build("GlobalAveragePool", x)
        return t.build("ReduceMean", x, np.arange(-dims, 0), keepdims=1)
    if rank == dims + 2 and all(size % count == 0 for size, count in zip(image, sizes, strict=True)):
        kernel = [size // count for size, count in zip(image, sizes, strict=True)]
        return x if set(kernel) == {1} else t.build("AveragePool", x, kernel_shape=kernel, strides=kernel)
    for offset, (size, count) in enumerate(zip(image, sizes, strict=True)):
        axis = rank - dims + offset
        t.limit(size, count)
        matrix = np.zeros((size, count), np.float32)  # the mean of a box is the mean of means along its axes
        for column, (start, end) in enumerate(_bounds(size, count)):
            matrix[start:end, column] = 1 / (end - start)
        order = [i for i in range(rank) if i != axis] + [axis]
        back = [order.index(i) for i in range(rank)]
        x = t.transpose(t.build("MatMul", t.transpose(x, *order), matrix), *back)
    return x


@operator(*(name.format("Max" if name.startswith("nn") else "max") for name in _ADAPTIVE))
def adaptive_max(t: Translation) -> Any:
    dims = int(t.kind[-2])
    image, sizes = _adaptive_sizes(t, dims)
    x, rank = t.given("input", 0), t.rank()
    if len(t.one.outputs) > 1 or t.param("return_indices", False):
        pair = _adaptive_max_with_indices(t, x, dims)
        return pair if len(t.one.outputs) > 1 else [pair]
    if rank == dims + 2 and all(size and size % count == 0 for size, count in zip(image, sizes, strict=True)):
        kernel = [size // count for size, count in zip(image, sizes, strict=True)]
        return t.build("MaxPool", x, kernel_shape=kernel, strides=kernel)
    if all(size == 1 for size in sizes):
        return t.build("ReduceMax", x, np.arange(-dims, 0), keepdims=1)
    for offset, (size, count) in enumerate(zip(image, sizes, strict=True)):
        axis = rank - dims + offset
        windows = t.build("Gather", x, _window_indices(t, size, count), axis=axis)
        x = t.build("ReduceMax", windows, np.asarray([axis + 1]), keepdims=0)
    return x


def _adaptive_max_with_indices(t: Translation, x: Any, dims: int) -> Any:
    """All elements of each window in one axis, and the maximum along it."""
    _, sizes = _adaptive_sizes(t, dims)
    image, rank = list(t.shape()[-dims:]), t.rank()
    tables = [_window_indices(t, size, count) for size, count in zip(image, sizes, strict=True)]
    t.limit(*(n for table in tables for n in table.shape))
    flat = np.zeros((1,) * (2 * dims), np.int64)
    for axis, table in enumerate(tables):  # [o0, o1, ..., k0, k1, ...]
        shape = [1] * (2 * dims)
        shape[axis], shape[dims + axis] = table.shape
        flat = flat * image[axis] + table.reshape(shape)
    flat = flat.reshape(prod(sizes), -1)
    lead = list(t.shape()[: rank - dims])
    gathered = t.build("Gather", t.reshape(x, *lead, prod(image)), flat, axis=rank - dims)
    best = t.typed(t.build("ArgMax", gathered, axis=rank - dims + 1, keepdims=1), np.int64)
    value = t.reshape(t.build("ReduceMax", gathered, np.asarray([rank - dims + 1]), keepdims=0), *lead, *sizes)
    table = t.build("Expand", flat, np.asarray([*lead, *flat.shape], np.int64))
    index = t.reshape(t.build("GatherElements", table, best, axis=rank - dims + 1), *lead, *sizes)
    return [value, t.typed(index, np.int64)]
