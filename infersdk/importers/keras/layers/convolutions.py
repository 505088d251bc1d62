"""Convolutions in all of Keras's forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..translation import LayerCall, layer
from .activations import activate

if TYPE_CHECKING:
    from ..tensors import Tensor


def same_pads(size: int | None, kernel: int, stride: int, dilation: int = 1) -> tuple[int, int] | None:
    """TensorFlow's SAME: ceil(size / stride) windows, the odd pixel of padding at the end. None for a free size."""
    reach = (kernel - 1) * dilation + 1
    if size is None:
        if stride != 1:
            return None
        return (reach - 1) // 2, reach - 1 - (reach - 1) // 2
    count = -(-size // stride)
    total = max((count - 1) * stride + reach - size, 0)
    return total // 2, total - total // 2


def window_padding(
    call: LayerCall, image: list[int | None], kernel: list[int], stride: list[int], dilation: list[int], mode: str
) -> tuple[dict[str, Any], list[int | None]]:
    """The attributes that say the padding, and the sizes of the result."""
    if min(kernel + stride + dilation) < 1:
        raise call.damaged(f"kernel {kernel}, strides {stride}, dilation {dilation}")
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    if mode == "same":
        pads = [same_pads(*column) for column in zip(image, kernel, stride, dilation, strict=True)]
        sizes = [None if size is None else -(-size // s) for size, s in zip(image, stride, strict=True)]
        if any(pad is None for pad in pads):
            return {"auto_pad": "SAME_UPPER"}, sizes
        both = [pad for pad in pads if pad is not None]
        return {"pads": [pad[0] for pad in both] + [pad[1] for pad in both]}, sizes
    begin = [r - 1 if mode == "causal" else 0 for r in reach]
    sizes = [
        None if size is None else (size + b - r) // s + 1
        for size, b, r, s in zip(image, begin, reach, stride, strict=True)
    ]
    if any(size is not None and size < 1 for size in sizes):
        raise call.damaged(f"an image of {image} is smaller than its window of {reach}")
    return {"pads": [*begin, *[0] * len(kernel)]}, sizes


def _convolve(
    call: LayerCall, x: Tensor, kernel: Any, bias: Any, dims: int, group: int, stride: list[int], dilation: list[int]
) -> Tensor:
    """A kernel in ONNX's form: [out, in / group, ...]."""
    mode = call.choice("padding", ("valid", "same", "causal"), "valid")
    channels, image = call.spatial_shape(x)
    if channels is not None and channels != kernel.shape[1] * group:
        raise call.damaged(f"{channels} channels, and a kernel for {kernel.shape[1]} in {group} groups")
    padding, sizes = window_padding(call, image, list(kernel.shape[2:]), stride, dilation, mode)
    value = call.build(
        "Conv",
        call.spatial(x),
        np.ascontiguousarray(kernel),
        bias,
        kernel_shape=list(kernel.shape[2:]),
        strides=stride,
        dilations=dilation,
        group=group,
        **padding,
    )
    return call.from_spatial(value, x.shape[0], kernel.shape[0], sizes)


@layer("Conv1D", "Conv2D", "Conv3D", "Convolution1D", "Convolution2D", "Convolution3D")
def convolution(call: LayerCall) -> Tensor:
    dims = int(call.kind[-2])
    kernel = np.moveaxis(call.required("kernel"), [-1, -2], [0, 1])
    group = call.ints("groups", 1, 1)[0]
    stride, dilation = call.ints("strides", dims, 1), call.ints("dilation_rate", dims, 1)
    return activate(call, _convolve(call, call.x, kernel, call.weight("bias"), dims, group, stride, dilation))


def _depthwise_kernel(kernel: Any) -> Any:
    """[..., in, multiplier] to [in * multiplier, 1, ...]."""
    moved = np.moveaxis(kernel, [-2, -1], [0, 1])
    return moved.reshape(-1, 1, *moved.shape[2:])


@layer("DepthwiseConv1D", "DepthwiseConv2D")
def depthwise(call: LayerCall) -> Tensor:
    dims = int(call.kind[-2])
    weight = call.weight("depthwise_kernel")
    weight = call.required("kernel") if weight is None else weight
    stride, dilation = call.ints("strides", dims, 1), call.ints("dilation_rate", dims, 1)
    made = _convolve(
        call, call.x, _depthwise_kernel(weight), call.weight("bias"), dims, weight.shape[-2], stride, dilation
    )
    return activate(call, made)


@layer("SeparableConv1D", "SeparableConv2D", "SeparableConvolution1D", "SeparableConvolution2D")
def separable(call: LayerCall) -> Tensor:
    """A depthwise convolution, and one of single pixels behind it."""
    dims = int(call.kind[-2])
    depth, point = call.required("depthwise_kernel"), call.required("pointwise_kernel")
    stride, dilation = call.ints("strides", dims, 1), call.ints("dilation_rate", dims, 1)
    inner = _convolve(call, call.x, _depthwise_kernel(depth), None, dims, depth.shape[-2], stride, dilation)
    kernel = np.ascontiguousarray(np.moveaxis(point, [-1, -2], [0, 1]))
    value = call.build("Conv", call.spatial(inner), kernel, call.weight("bias"), kernel_shape=[1] * dims)
    _, image = call.spatial_shape(inner)
    return activate(call, call.from_spatial(value, inner.shape[0], kernel.shape[0], image))


@layer(
    "Conv1DTranspose",
    "Conv2DTranspose",
    "Conv3DTranspose",
    "Deconvolution2D",
    "Deconvolution3D",
    "Convolution2DTranspose",
)
def transposed(call: LayerCall) -> Tensor:
    """The gradient of a convolution, with TensorFlow's rules of padding.

    The whole result has (size - 1) * stride + reach pixels; SAME cuts as much off its front as the convolution had
    padded there, and what is beyond the wanted size off its end. Where the wanted size is larger, zeros follow.
    """
    weight = call.required("kernel")
    dims = weight.ndim - 2
    kernel = np.ascontiguousarray(np.moveaxis(weight, [-1, -2], [0, 1]))  # [in, out, ...]
    stride, dilation = call.ints("strides", dims, 1), call.ints("dilation_rate", dims, 1)
    mode = call.choice("padding", ("valid", "same"), "valid")
    extra = None if call.config.get("output_padding") is None else call.ints("output_padding", dims)
    if min(stride + dilation) < 1:
        raise call.damaged(f"strides {stride}, dilation {dilation}")
    _, image = call.spatial_shape(call.x)
    begin, end, more, sizes = [], [], [], []
    for axis, size in enumerate(image):
        s = stride[axis]
        reach = (kernel.shape[2 + axis] - 1) * dilation[axis] + 1
        beyond = reach - s  # of the whole result, behind size * stride
        if extra is not None:
            wanted = reach - s - 2 * (reach // 2 if mode == "same" else 0) + extra[axis]
        else:
            wanted = max(beyond, 0) if mode == "valid" else 0
        front = 0
        if mode == "same":
            total = None if size is None else size * s + wanted
            pads = same_pads(total, reach, s) if total is not None else (max(reach - s - wanted, 0) // 2, 0)
            front = pads[0] if pads else 0
        back = beyond - wanted - front
        begin.append(front)
        end.append(max(back, 0))
        more.append(max(-back, 0))
        sizes.append(None if size is None else size * s + wanted)
    if any(m >= max(s, d) for m, s, d in zip(more, stride, dilation, strict=True)):
        raise call.unsupported(f"output_padding {extra} is larger than the strides {stride} allow")
    value = call.build(
        "ConvTranspose",
        call.spatial(call.x),
        kernel,
        call.weight("bias"),
        kernel_shape=list(kernel.shape[2:]),
        strides=stride,
        dilations=dilation,
        pads=[*begin, *end],
        output_padding=more,
    )
    return activate(call, call.from_spatial(value, call.x.shape[0], kernel.shape[1], sizes))


@layer("LocallyConnected1D", "LocallyConnected2D")
def locally_connected(call: LayerCall) -> Tensor:
    """A kernel for each position: patches by Gathers, and a product for each of them."""
    dims = int(call.kind[-2])
    if call.config.get("implementation", 1) != 1 or call.channels_first:
        raise call.unsupported("implementation 2 and 3, and channels first")
    size, stride = call.ints("kernel_size", dims), call.ints("strides", dims, 1)
    _, image = call.spatial_shape(call.x)
    kernel = call.required("kernel")  # [positions, patch, filters]
    value, counts = call.x.last(), []
    for axis in range(dims):
        total = call.known(image[axis], "the size of the image")
        count = (total - size[axis]) // stride[axis] + 1
        call.limit(count, size[axis])
        index = np.arange(count)[:, None] * stride[axis] + np.arange(size[axis])[None]
        value = call.build("Gather", value, index, axis=1 + 2 * axis)
        counts.append(count)
    if dims == 2:  # [n, oh, kh, ow, kw, c]
        value = call.build("Transpose", value, perm=[0, 1, 3, 2, 4, 5])
    positions = int(np.prod(counts))
    patches = call.build(
        "Reshape", value, call.i64(0, positions, 1, -1) if dims == 1 else call.i64(-1, positions, 1, kernel.shape[1])
    )
    product = call.build("Reshape", call.build("MatMul", patches, kernel), call.i64(-1, *counts, kernel.shape[2]))
    bias = call.weight("bias")
    product = product if bias is None else call.build("Add", product, bias)
    return activate(call, call.tensor(product, (call.x.shape[0], *counts, kernel.shape[2])))
