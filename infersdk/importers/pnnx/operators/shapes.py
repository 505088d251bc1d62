"""Operators that move elements: reshape, permute, split, join, pad, repeat."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from ..graph import gives_tensor
from ..translation import Translation, operator


def pad_value(t: Translation, x: Any, pads: list[int], mode: str, value: float | None = None) -> Any:
    """A Pad by ONNX's order: all beginnings, then all ends."""
    onnx_mode = {
        "zeros": "constant",
        "constant": "constant",
        "reflect": "reflect",
        "replicate": "edge",
        "circular": "wrap",
    }
    if mode not in onnx_mode:
        raise t.unsupported(f"padding mode {mode!r}")
    if mode == "circular":
        t.opset = max(t.opset, 19)
    number = None if value is None or mode not in ("zeros", "constant") else t.scalar(value)
    return t.build("Pad", x, np.asarray(pads, np.int64), number, mode=onnx_mode[mode])


def _pad_last(t: Translation, x: Any, given: list[int], mode: str, value: float | None = None) -> Any:
    """PyTorch's order: (begin, end) of the last axis, of the one before it, ..."""
    rank = t.rank()
    if len(given) % 2 or len(given) > 2 * rank:
        raise t.damaged(f"{len(given)} numbers to pad {rank} axes with")
    pads = [0] * (2 * rank)
    for i in range(len(given) // 2):
        pads[rank - 1 - i], pads[2 * rank - 1 - i] = given[2 * i], given[2 * i + 1]
    return pad_value(t, x, pads, mode, value)


@operator("F.pad")
def pad(t: Translation) -> Any:
    value = t.param("value", None)
    return _pad_last(
        t, t.given("input", 0), t.ints("pad"), t.param("mode", "constant"), None if value is None else t.number("value")
    )


@operator(
    *(
        f"nn.{kind}Pad{dims}d"
        for kind in ("Constant", "Reflection", "Replication", "Zero", "Circular")
        for dims in (1, 2, 3)
    )
)
def pad_layer(t: Translation) -> Any:
    mode = {"Const": "constant", "Refle": "reflect", "Repli": "replicate", "ZeroP": "constant", "Circu": "circular"}[
        t.kind[:5]
    ]
    value = t.number("value") if t.kind.startswith("Const") else None
    return _pad_last(t, t.x, t.ints("padding", 2 * int(t.kind[-2])), mode, value)


# ---- shapes ----


def _sizes(t: Translation, *names: str) -> Any:
    """Sizes out of parameters, or an input that holds them: an array, or a value."""
    for name in names:
        if t.param(name, None) is not None:
            return np.asarray(t.ints(name), np.int64)
    for name in names:
        if (given := t.given(name)) is not None:
            return as_vector(t, given)
    if len(t.values) > 1:
        return as_vector(t, t.values[1])
    raise t.damaged(f"its {names[0]} is missing")


def as_vector(t: Translation, value: Any) -> Any:
    """A list of numbers and values as one array of int64, or one value."""
    if not isinstance(value, list):
        return np.atleast_1d(np.asarray(value, np.int64)) if isinstance(value, (int, np.ndarray)) else value
    if all(isinstance(item, int) for item in value):
        return np.asarray(value, np.int64)
    parts = [
        np.asarray([item], np.int64) if isinstance(item, int) else t.reshape(t.cast(item, np.int64), 1)
        for item in value
    ]
    return t.build("Concat", *parts, axis=0)


@operator("Tensor.reshape", "Tensor.view", "torch.reshape")
def reshape(t: Translation) -> Any:
    sizes = _sizes(t, "shape", "size")
    x = t.given("input", 0)
    if isinstance(sizes, np.ndarray) and (sizes == 0).any():  # an empty tensor; to ONNX 0 would be a copy
        return t.build("Reshape", x, sizes, allowzero=1)
    return t.build("Reshape", x, sizes)


@operator("Tensor.reshape_as", "Tensor.view_as")
def reshape_as(t: Translation) -> Any:
    return t.build("Reshape", t.given("input", 0), t.build("Shape", t.given("other", 1)))


@operator("torch.flatten", "nn.Flatten")
def flatten(t: Translation) -> Any:
    rank = t.rank()
    if rank == 0:
        return t.reshape(t.x, 1)
    start, end = t.axis("start_dim", 1 if t.kind == "Flatten" else 0), t.axis("end_dim", -1)
    shape = t.one.inputs[0].shape or ()
    if start == 1 and end == rank - 1:
        return t.build("Flatten", t.x, axis=1)
    if any(size is None for i, size in enumerate(shape) if not start <= i <= end and i >= start):
        raise t.unsupported("free axes behind the ones that are flattened")
    lead: list[int] = [0] * start
    return t.reshape(t.x, *lead, -1, *(size for size in shape[end + 1 :] if size is not None))


@operator("Tensor.unflatten", "nn.Unflatten", "torch.unflatten")
def unflatten(t: Translation) -> Any:
    axis = t.axis("dim")
    sizes = t.ints("sizes" if "sizes" in t.one.params else "unflattened_size")
    shape = t.one.inputs[0].shape or ()
    lead: list[int] = [0] * axis
    behind = [size for size in shape[axis + 1 :] if size is not None]
    if len(behind) != len(shape) - axis - 1:
        raise t.unsupported("free axes behind the one that is split")
    return t.reshape(t.x, *lead, *sizes, *behind)


@operator("torch.squeeze")
def squeeze(t: Translation) -> Any:
    axes = t.axes()
    shape = t.shape() if axes is None else t.one.inputs[0].shape or ()
    kept = [i for i in (range(len(shape)) if axes is None else axes) if shape[i] == 1]
    return t.squeeze(t.x, *kept) if kept else t.build("Identity", t.x)


@operator("torch.unsqueeze")
def unsqueeze(t: Translation) -> Any:
    return t.unsqueeze(t.x, t.axis("dim", rank=t.rank() + 1))


@operator("Tensor.permute", "torch.permute")
def permute(t: Translation) -> Any:
    order = t.ints("dims")
    rank = len(order)
    if sorted(axis % rank for axis in order) != list(range(rank)):
        raise t.damaged(f"dims={tuple(order)} is not an order of axes")
    return t.transpose(t.x, *(axis % rank for axis in order))


@operator("torch.transpose", "torch.swapaxes", "torch.swapdims", "torch.t")
def transpose(t: Translation) -> Any:
    rank = t.rank()
    if rank < 2:
        return t.build("Identity", t.x)
    names = ("axis0", "axis1") if "axis0" in t.one.params else ("dim0", "dim1")
    first, second = (0, 1) if t.kind == "t" else (t.axis(names[0]), t.axis(names[1]))
    order = list(range(rank))
    order[first], order[second] = second, first
    return t.transpose(t.x, *order)


@operator("torch.movedim")
def movedim(t: Translation) -> Any:
    rank = t.rank()
    source, target = ([axis % rank for axis in t.ints(name)] for name in ("source", "destination"))
    rest = iter(axis for axis in range(rank) if axis not in source)
    to = dict(zip(target, source, strict=True))
    return t.transpose(t.x, *(to[i] if i in to else next(rest) for i in range(rank)))


# ---- splitting and joining ----


@operator("torch.cat", "torch.concat")
def concat(t: Translation) -> Any:
    values = _flat(t.values)
    shapes = [operand.shape for operand in t.one.inputs]
    axis = t.integer("dim", 0)
    if shapes and shapes[0] is not None:
        axis = t.axis("dim", 0)
    return t.build("Concat", *_of_one_type(t, values), axis=axis)


@operator("torch.stack")
def stack(t: Translation) -> Any:
    axis = t.axis("dim", 0, rank=t.rank() + 1)
    return t.build("Concat", *(t.unsqueeze(value, axis) for value in _of_one_type(t, _flat(t.values))), axis=axis)


def _flat(values: list[Any]) -> list[Any]:
    return [inner for value in values for inner in (value if isinstance(value, list) else [value])]


def _of_one_type(t: Translation, values: list[Any]) -> list[Any]:
    wanted = np.result_type(*(t.dtype(value) for value in values)) if values else np.dtype(np.float32)
    return [t.cast(value, wanted) for value in values]


def _split(t: Translation, sizes: list[int], axis: int) -> Any:
    if not sizes or min(sizes) < 0:
        raise t.damaged(f"parts of sizes {sizes}")
    if len(sizes) == 1:
        return [t.build("Identity", t.x)]
    return t.build.node("Split", t.x, np.asarray(sizes, np.int64), outputs=len(sizes), axis=axis)


def _results(t: Translation, parts: list[Any]) -> Any:
    """Parts as the outputs of the operator, or as a list where it has one output that is not a tensor."""
    return [parts] if len(t.one.outputs) == 1 and not gives_tensor(t.one, len(parts)) else parts


@operator("torch.split")
def split(t: Translation) -> Any:
    axis = t.axis("dim", 0)
    name = "split_size_or_sections" if "split_size_or_sections" in t.one.params else "split_size"
    given = t.param(name)
    if isinstance(given, tuple):
        return _results(t, _split(t, t.ints(name), axis))
    size, total = t.integer(name), t.shape()[axis]
    if size < 1:
        raise t.damaged(f"parts of size {size}")
    t.limit(-(-total // size))
    return _results(t, _split(t, [min(size, total - start) for start in range(0, total, size)], axis))


@operator("torch.chunk")
def chunk(t: Translation) -> Any:
    axis, count = t.axis("dim", 0), t.integer("chunks")
    total = t.shape()[axis]
    if count < 1:
        raise t.damaged(f"chunks={count}")
    size = -(-total // count)
    return _results(t, _split(t, [min(size, total - start) for start in range(0, total, size)], axis))


@operator("torch.tensor_split")
def tensor_split(t: Translation) -> Any:
    axis = t.axis("dim", 0)
    total = t.shape()[axis]
    if t.param("sections", None) is not None:
        count = t.integer("sections")
        if not 0 < count <= len(t.one.outputs) + 1:
            raise t.damaged(f"sections={count}")
        return _results(t, _split(t, [total // count + (i < total % count) for i in range(count)], axis))
    limits = [0, *(min(i if i >= 0 else i + total, total) for i in t.ints("indices")), total]
    return _results(t, _split(t, [max(b - a, 0) for a, b in pairwise(limits)], axis))


@operator("torch.unbind")
def unbind(t: Translation) -> Any:
    axis = t.axis("dim", 0)
    count = t.shape()[axis]
    t.limit(count)
    if count != len(t.one.outputs) and len(t.one.outputs) != 1:
        raise t.damaged(f"{count} parts for {len(t.one.outputs)} outputs")
    return _results(t, [t.squeeze(part, axis) for part in _split(t, [1] * count, axis)])


# ---- repeating ----


@operator("Tensor.expand", "torch.expand")
def expand(t: Translation) -> Any:
    sizes = _sizes(t, "sizes", "shape", "size")
    if isinstance(sizes, np.ndarray):
        sizes = np.where(sizes < 0, 1, sizes)  # to ONNX 1 keeps an axis
    return t.build("Expand", t.given("input", 0), sizes)


@operator("Tensor.expand_as")
def expand_as(t: Translation) -> Any:
    return t.build("Expand", t.given("input", 0), t.build("Shape", t.given("other", 1)))


@operator("Tensor.repeat", "torch.tile")
def repeat(t: Translation) -> Any:
    counts = _sizes(t, "sizes", "dims", "repeats")
    x, rank = t.given("input", 0), t.rank()
    if isinstance(counts, np.ndarray):
        if len(counts) > rank:
            x = t.unsqueeze(x, *range(len(counts) - rank))
        counts = np.concatenate([np.ones(max(rank - len(counts), 0), np.int64), counts])
    return t.build("Tile", x, counts)


@operator("torch.repeat_interleave")
def repeat_interleave(t: Translation) -> Any:
    """Each element so many times in a row: by the index that it comes from."""
    given = t.param("repeats", None)
    if given is None:
        raise t.unsupported("numbers of repeats that depend on data")
    x = t.given("input", 0)
    if t.param("dim", None) is None:
        x, axis, total = t.reshape(x, -1), 0, t.limit(*t.shape())
    else:
        axis = t.axis()
        total = t.shape()[axis]
    counts = t.ints("repeats")
    t.limit(total, max(counts, default=0))
    counts = counts * total if len(counts) == 1 else counts
    if len(counts) != total:
        raise t.damaged(f"{len(counts)} repeats for {total} elements")
    return t.build("Gather", x, np.repeat(np.arange(total), counts), axis=axis)


@operator("torch.roll")
def roll(t: Translation) -> Any:
    """Two slices of each axis, the other way round."""
    x = t.given("input", 0)
    shifts = t.ints("shifts")
    if t.param("dims", None) in (None, ()):
        count = t.limit(*t.shape())
        flat = t.reshape(x, -1)
        shift = shifts[0] % max(count, 1)
        parts = [t.slice(flat, 0, count - shift, count), t.slice(flat, 0, 0, count - shift)]
        return t.reshape(t.build("Concat", *parts, axis=0), *t.shape())
    for shift, axis in zip(shifts, t.axes("dims") or [], strict=True):
        size = t.shape()[axis]
        if size and shift % size:
            cut = size - shift % size
            x = t.build("Concat", t.slice(x, axis, cut, size), t.slice(x, axis, 0, cut), axis=axis)
    return x


@operator("torch.flip")
def flip(t: Translation) -> Any:
    axes = t.axes("dims") or []
    count = len(axes)
    columns = ([-1] * count, [-(2**63) + 1] * count, axes, [-1] * count)
    return t.build("Slice", t.x, *(np.asarray(column, np.int64) for column in columns))
