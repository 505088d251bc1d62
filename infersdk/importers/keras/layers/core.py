"""Dense layers, embeddings, layers that move elements, and those that do nothing outside of training."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..translation import LayerCall, layer
from .activations import activate

if TYPE_CHECKING:
    from ..tensors import Tensor


@layer(
    "Dropout",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "SpatialDropout3D",
    "GaussianNoise",
    "GaussianDropout",
    "AlphaDropout",
    "ActivityRegularization",
    "Identity",
    "RandomFlip",
    "RandomRotation",
    "RandomZoom",
    "RandomTranslation",
    "RandomContrast",
    "RandomBrightness",
)
def training_only(call: LayerCall) -> Tensor:
    return call.x


@layer("Masking")
def masking(call: LayerCall) -> Tensor:
    """Steps that are the mask's value become zeros; layers behind it that look at the mask are refused."""
    value = np.float32(call.number("mask_value", 0.0))
    x = call.x.last()
    differs = call.build("Cast", call.build("Not", call.build("Equal", x, value)), to=1)
    some = call.build("ReduceMax", differs, call.i64(call.x.rank - 1), keepdims=1)
    made = call.tensor(call.build("Mul", x, some), call.x.shape)
    made.masked = True
    return made


@layer("Dense")
def dense(call: LayerCall) -> Tensor:
    kernel = call.required("kernel")
    bias = call.weight("bias")
    x = call.x
    shape = (*x.shape[:-1], kernel.shape[1])
    if x.rank == 2:
        value = call.build("Gemm", x.last(), kernel, bias)
    else:
        value = call.build("MatMul", x.last(), kernel)
        value = value if bias is None else call.build("Add", value, bias)
    return activate(call, call.tensor(value, shape))


@layer("EinsumDense")
def einsum_dense(call: LayerCall) -> Tensor:
    equation = str(call.config.get("equation"))
    kernel, bias = call.required("kernel"), call.weight("bias")
    value, shape = einsum(call, equation, call.x, kernel)
    if bias is not None:
        value = call.build("Add", value, bias)
    return activate(call, call.tensor(value, shape))


def einsum(call: LayerCall, equation: str, x: Tensor, kernel: Any) -> tuple[Any, tuple[int | None, ...]]:
    """An Einsum of a value with a weight, and the shape of its result. `...` stands for the axes in front."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    first, _, second = left.partition(",")
    if not arrow or not second:
        raise call.unsupported(f"equation {equation!r}")
    if "..." in first:
        free = "ABCDEFGH"[: x.rank - len(first.replace("...", ""))]
        first, right = first.replace("...", free), right.replace("...", free)
    sizes = dict(zip(second, kernel.shape, strict=True)) | dict(zip(first, x.shape, strict=True))
    value = call.build("Einsum", x.last(), kernel, equation=f"{first},{second}->{right}")
    return value, tuple(sizes[letter] for letter in right)


@layer("Embedding")
def embedding(call: LayerCall) -> Tensor:
    table = call.required("embeddings")
    index = call.x.last()
    if call.x.dtype.kind == "f":
        index = call.build("Cast", index, to=6)
    made = call.tensor(call.build("Gather", table, index, axis=0), (*call.x.shape, table.shape[1]), np.float32)
    made.masked = call.flag("mask_zero")
    return made


@layer("Flatten")
def flatten(call: LayerCall) -> Tensor:
    """Of channels first, Keras moves the channels to the end before it flattens."""
    x = call.x
    sizes = x.shape[1:]
    total = None if None in sizes else prod(size for size in sizes if size is not None)
    value = x.last()
    if call.channels_first and x.rank > 2:
        value = call.build("Transpose", value, perm=[0, *range(2, x.rank), 1])
    if x.rank == 1:
        return call.tensor(call.build("Unsqueeze", value, call.i64(1)), (x.shape[0], 1))
    return call.tensor(call.build("Flatten", value, axis=1), (x.shape[0], total))


@layer("Reshape")
def reshape(call: LayerCall) -> Tensor:
    target = call.config.get("target_shape")
    if not isinstance(target, (list, tuple)) or not all(isinstance(size, int) for size in target):
        raise call.damaged(f"target_shape={target!r}")
    sizes: list[int | None] = list(target)
    if -1 in target:
        known = call.x.shape[1:]
        rest = prod(size for size in target if size != -1)
        whole = None if None in known else prod(size for size in known if size is not None)
        sizes[target.index(-1)] = None if whole is None or not rest else whole // rest
    shape = [0, *(-1 if size is None else size for size in sizes)]
    return call.tensor(call.build("Reshape", call.x.last(), call.i64(*shape)), (call.x.shape[0], *sizes))


@layer("Permute")
def permute(call: LayerCall) -> Tensor:
    order = call.ints("dims", call.x.rank - 1)
    if sorted(order) != list(range(1, call.x.rank)):
        raise call.damaged(f"dims={order}")
    shape = (call.x.shape[0], *(call.x.shape[axis] for axis in order))
    return call.tensor(call.build("Transpose", call.x.last(), perm=[0, *order]), shape)


@layer("RepeatVector")
def repeat_vector(call: LayerCall) -> Tensor:
    (count,) = call.ints("n", 1)
    value = call.build("Tile", call.build("Unsqueeze", call.x.last(), call.i64(1)), call.i64(1, count, 1))
    return call.tensor(value, (call.x.shape[0], count, call.x.shape[1]))


@layer("Rescaling")
def rescaling(call: LayerCall) -> Tensor:
    scale, offset = (
        np.asarray(call.config.get(name, default), np.float32) for name, default in (("scale", 1), ("offset", 0))
    )
    x = call.x.last()
    if call.x.dtype.kind != "f":
        x = call.build("Cast", x, to=1)
    return call.tensor(call.build("Add", call.build("Mul", x, scale), offset), call.x.shape, np.float32)


@layer("CategoryEncoding")
def category_encoding(call: LayerCall) -> Tensor:
    (count,) = call.ints("num_tokens", 1)
    mode = call.choice("output_mode", ("one_hot", "multi_hot"), "multi_hot")
    call.limit(count)
    indices = call.build("Cast", call.x.last(), to=7)
    hot = call.build("OneHot", indices, call.i64(count)[0], np.asarray([0, 1], np.float32), axis=-1)
    lead = call.x.shape
    if mode == "multi_hot":
        return call.tensor(
            call.build("ReduceMax", hot, call.i64(len(lead) - 1), keepdims=0), (*lead[:-1], count), np.float32
        )
    if lead and lead[-1] == 1:
        return call.tensor(call.build("Squeeze", hot, call.i64(len(lead) - 1)), (*lead[:-1], count), np.float32)
    return call.tensor(hot, (*lead, count), np.float32)
