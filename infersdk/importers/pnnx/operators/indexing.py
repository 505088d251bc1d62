"""Slices, indices, masks, and tensors that are made of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..expressions import Call, Input, parse_expression
from ..slices import slice_entries
from ..translation import Translation, operator
from .shapes import as_vector

_END = 2**63 - 1
_DTYPES = {
    "float": np.float32, "float32": np.float32, "half": np.float16, "float16": np.float16, "double": np.float64,
    "float64": np.float64, "int": np.int32, "int32": np.int32, "long": np.int64, "int64": np.int64, "short": np.int16,
    "int16": np.int16, "int8": np.int8, "uint8": np.uint8, "bool": np.bool_,
}  # fmt: skip


def _dtype(t: Translation, default: Any) -> Any:
    given = t.param("dtype", None)
    if given is None:
        return default
    name = str(given).removeprefix("torch.")
    if name not in _DTYPES:
        raise t.unsupported(f"element type {given}")
    return _DTYPES[name]


@operator("Tensor.slice")
def slice_tensor(t: Translation) -> Any:
    x, rank = t.given("input", 0), t.rank()
    entries = slice_entries(t.one, rank, t.given)
    ranges = [entry for entry in entries if entry.select is None]
    if ranges:

        def limits(values: list[Any]) -> Any:
            return as_vector(t, [_END if isinstance(v, int) and v >= 2**31 - 1 else v for v in values])

        x = t.build(
            "Slice", x, limits([entry.start for entry in ranges]), limits([entry.end for entry in ranges]),
            np.asarray([entry.axis for entry in ranges], np.int64), limits([entry.step for entry in ranges]),
        )  # fmt: skip
    for entry in sorted((entry for entry in entries if entry.select is not None), key=lambda entry: -entry.axis):
        index = np.asarray(entry.select, np.int64) if isinstance(entry.select, int) else entry.select
        x = t.build("Gather", x, index, axis=entry.axis)
    return x


@operator("Tensor.slice_copy")
def slice_copy(t: Translation) -> Any:
    """The second input in the place of a slice of the first: by the numbers of its elements."""
    shape = t.shape()
    t.limit(*shape)
    numbers = np.arange(np.prod(shape)).reshape(shape)
    removed = []
    for entry in slice_entries(t.one, len(shape), lambda _: None):
        key: list[Any] = [slice(None)] * len(shape)
        if entry.select is not None:
            key[entry.axis] = slice(entry.select % shape[entry.axis], entry.select % shape[entry.axis] + 1)
            removed.append(entry.axis)
        else:
            key[entry.axis] = slice(entry.start, entry.end, entry.step)
        numbers = numbers[tuple(key)]
    numbers = numbers.squeeze(tuple(removed))
    source = t.build("Expand", t.values[1], np.asarray(numbers.shape, np.int64))
    flat = t.build("ScatterElements", t.reshape(t.x, -1), numbers.reshape(-1), t.reshape(source, -1), axis=0)
    return t.reshape(flat, *shape)


@operator("Tensor.select", "torch.select")
def select(t: Translation) -> Any:
    index = t.given("index")
    if index is None:
        index = np.asarray(t.integer("index"), np.int64)
    return t.build("Gather", t.given("input", 0), index, axis=t.axis())


@operator("torch.narrow")
def narrow(t: Translation) -> Any:
    start = t.integer("start")
    return t.slice(t.given("input", 0), t.axis(), start, start + t.integer("length"))


@operator("torch.index_select")
def index_select(t: Translation) -> Any:
    return t.build("Gather", t.given("input", 0), t.given("index", 1), axis=t.axis())


@operator("torch.gather")
def gather(t: Translation) -> Any:
    return t.build("GatherElements", t.given("input", 0), t.given("index", 1), axis=t.axis())


@operator("torch.scatter_add")
def scatter_add(t: Translation) -> Any:
    x, index, source = t.given("input", 0), t.given("index", 1), t.given("src", 2)
    shapes = [operand.shape for operand in t.one.inputs]
    if (
        len(shapes) > 2 and shapes[1] != shapes[2] and shapes[1] is not None
    ):  # only as much of the source as the index has
        sizes = t.shape(1)
        count = len(sizes)
        source = t.build("Slice", source, np.zeros(count, np.int64), np.asarray(sizes, np.int64), np.arange(count))
    return t.build("ScatterElements", x, index, source, axis=t.axis(), reduction="add")


@operator("torch.slice_scatter")
def slice_scatter(t: Translation) -> Any:
    """What is written goes to the indices of a slice."""
    axis = t.axis("dim", 0)
    size = t.shape()[axis]
    t.limit(size)
    index = np.arange(size)[slice(t.param("start", None), t.param("end", None), t.param("step", 1) or 1)]
    shape = list(t.shape(1))
    t.limit(*shape)
    table = np.broadcast_to(index.reshape(-1, *(1,) * (len(shape) - axis - 1)), shape)
    return t.build("ScatterElements", t.given("input", 0), np.ascontiguousarray(table), t.given("src", 1), axis=axis)


# ---- indices as PyTorch writes them: x[a, :, b] ----


def _keys(t: Translation) -> list[Any]:
    """An index for each leading axis: None keeps it; an array, or a value."""
    if isinstance(given := t.given("expr"), list):
        return [_key(t, key) for key in given]
    tree = parse_expression(str(t.param("expr")), len(t.values))

    def value(node: Any) -> Any:
        if isinstance(node, Input):
            return t.values[node.index]
        if isinstance(node, Call):
            if node.function != "[]":
                raise t.unsupported(f"an index {node.function}()")
            items = [value(inner) for inner in node.arguments]
            if any(not isinstance(item, (int, bool, list)) for item in items):
                raise t.unsupported("an index that is put together from values")
            return items
        return node

    if not isinstance(tree, Call) or tree.function != "[]":
        raise t.damaged("its index is not a list")
    return [None if key is None else _key(t, value(key)) for key in tree.arguments]


def _key(t: Translation, key: Any) -> Any:
    if not isinstance(key, (list, int)):
        return key
    try:
        array = np.asarray(key)
    except ValueError:
        raise t.damaged(f"its index {key} has rows of different lengths") from None
    if array.dtype.kind not in "bi":
        raise t.damaged(f"its index {key}")
    return array


@operator("Tensor.index")
def index(t: Translation) -> Any:
    keys = _keys(t)
    rank = t.rank()
    arrays: list[tuple[int, Any]] = []
    axis = 0
    for key in keys:
        if key is None:
            axis += 1
        elif isinstance(key, np.ndarray) and key.dtype.kind == "b":
            for result in np.nonzero(key):
                arrays.append((axis, result.astype(np.int64)))
                axis += 1
        else:
            if not isinstance(key, np.ndarray) and t.dtype(key).kind == "b":
                return _mask(t, key, len(keys))
            arrays.append((axis, key))
            axis += 1
    if axis > rank or not arrays:
        raise t.damaged(f"{axis} indices for {rank} axes")
    if len(arrays) == 1:
        at, array = arrays[0]
        return t.build("Gather", t.x, array, axis=at)
    # The indexed axes to the front, GatherND over them; the result stays in front unless they are neighbours.
    axes = [at for at, _ in arrays]
    rest = [i for i in range(rank) if i not in axes]
    x = t.transpose(t.x, *axes, *rest)
    broadcast = [array for _, array in arrays]
    if all(isinstance(array, np.ndarray) for array in broadcast):
        whole = np.stack(np.broadcast_arrays(*broadcast), -1).astype(np.int64)
        places = whole.ndim - 1
        picked = t.build("GatherND", x, whole)
    else:
        shape = None
        for array in broadcast:
            one = np.zeros([1], np.int64) if shape is None else shape
            shape = t.build("Max", one, t.build("Shape", array)) if shape is not None else t.build("Shape", array)
        parts = [t.unsqueeze(t.build("Expand", t.cast(array, np.int64), shape), -1) for array in broadcast]
        ranks = [array.ndim if isinstance(array, np.ndarray) else _rank_of(t, array) for array in broadcast]
        if len(set(ranks)) != 1:
            raise t.unsupported("indices of different numbers of axes")
        places = ranks[0]
        picked = t.build("GatherND", x, t.build("Concat", *parts, axis=-1))
    if axes == list(range(axes[0], axes[0] + len(axes))) and axes[0] > 0:
        lead = axes[0]
        total = places + len(rest)
        order = [*range(places, places + lead), *range(places), *range(places + lead, total)]
        picked = t.transpose(picked, *order)
    return picked


def _rank_of(t: Translation, value: Any) -> int:
    for operand, known in zip(t.one.inputs, t.values, strict=True):
        if known is value and operand.shape is not None:
            return len(operand.shape)
    raise t.unsupported("an index whose shape is not in the file")


def _mask(t: Translation, mask: Any, keys: int) -> Any:
    """x[mask]: as many elements as the mask has."""
    if keys != 1:
        raise t.unsupported("a mask together with other indices")
    return t.build("GatherND", t.x, t.transpose(t.build("NonZero", mask), 1, 0))


@operator("torch.masked_select")
def masked_select(t: Translation) -> Any:
    mask = t.given("mask", 1)
    x = t.given("input", 0)
    if t.one.inputs[0].shape != t.one.inputs[1].shape:
        x = t.build("Expand", x, t.build("Shape", mask))
    return t.build("GatherND", x, t.transpose(t.build("NonZero", mask), 1, 0))


@operator("Tensor.index_put")
def index_put(t: Translation) -> Any:
    """Values at indices of the leading axes."""
    indices, value = t.given("indices", 1), t.given("values")
    keys = indices if isinstance(indices, list) else [indices]
    x = t.given("input", 0)
    if value is None:
        value = t.scalar(t.number("values"), x)
    if len(keys) == 1 and t.dtype(keys[0]).kind == "b":
        return t.build("Where", keys[0], value, x)
    ready = [t.cast(key, np.int64) for key in keys]
    whole = t.build("Concat", *(t.unsqueeze(key, -1) for key in ready), axis=-1)
    shape = t.build("Shape", ready[0])
    if len(keys) < t.rank():
        shape = t.build("Concat", shape, t.build("Shape", x, start=len(keys)), axis=0)
    filled = t.build("Expand", value, shape)
    return t.build("ScatterND", x, whole, filled, reduction="add" if t.param("accumulate", False) else "none")


@operator("Tensor.masked_fill", "torch.masked_fill")
def masked_fill(t: Translation) -> Any:
    x = t.given("input", 0)
    value = t.given("value", 2)
    value = t.scalar(t.number("value"), x) if value is None else t.cast(value, t.dtype(x))
    return t.typed(t.build("Where", t.given("mask", 1), value, x), t.dtype(x))


# ---- constants ----


@operator("Tensor.fill")
def fill(t: Translation) -> Any:
    x, value = t.given("input", 0), t.given("value", 1)
    value = t.scalar(t.number("value"), x) if value is None else t.cast(value, t.dtype(x))
    return t.build("Expand", value, t.build("Shape", x))


def _full(t: Translation, value: float, default: Any) -> Any:
    dtype = _dtype(t, default)
    for name in ("size", "shape"):
        if name in t.one.params:
            sizes: Any = np.asarray(t.ints(name), np.int64)
            t.limit(*sizes.tolist())
            break
    else:
        sizes = as_vector(t, t.given("size") if t.given("size") is not None else t.values[-1])
    return t.typed(t.build("Expand", np.asarray(value, dtype), sizes), dtype)


@operator("torch.zeros", "torch.ones", "torch.full", "Tensor.new_zeros", "Tensor.new_ones", "Tensor.new_full")
def full(t: Translation) -> Any:
    like = t.dtype(t.x) if t.one.type.startswith("Tensor") else np.float32
    if t.kind.endswith("full"):
        value = t.param("fill_value")
        if not isinstance(value, (int, float)):
            raise t.damaged(f"fill_value={value!r}")
        default = like if t.one.type.startswith("Tensor") or isinstance(value, float) else np.int64
        return _full(t, value, default)
    return _full(t, 1.0 if t.kind.endswith("ones") else 0.0, like)


@operator("torch.zeros_like", "torch.ones_like", "torch.full_like")
def full_like(t: Translation) -> Any:
    dtype = _dtype(t, t.dtype(t.x))
    value = {"zeros_like": 0.0, "ones_like": 1.0}.get(t.kind)
    value = t.number("fill_value") if value is None else value
    return t.typed(t.build("Expand", np.asarray(value, dtype), t.build("Shape", t.x)), dtype)


@operator("torch.arange")
def arange(t: Translation) -> Any:
    limits: list[Any] = []
    for name, default in (("start", 0), ("end", None), ("step", 1)):
        given = t.given(name)
        limits.append(t.param(name, default) if given is None else given)
    if any(value is None for value in limits):
        raise t.damaged("its end is missing")
    floating = any(
        isinstance(value, float) or (not isinstance(value, int) and t.dtype(value).kind == "f") for value in limits
    )
    dtype = _dtype(t, np.float32 if floating else np.int64)
    ready = [np.asarray(value, dtype) if isinstance(value, (int, float)) else t.cast(value, dtype) for value in limits]
    return t.typed(t.build("Range", *ready), dtype)


@operator("Tensor.to", "Tensor.type_as")
def convert(t: Translation) -> Any:
    dtype = t.dtype(t.given("other", 1)) if t.kind == "type_as" else _dtype(t, t.dtype(t.x))
    x = t.given("input", 0)
    if t.dtype(x) == dtype:
        return t.typed(t.build("Identity", x), dtype)
    return t.cast(x, dtype)


@operator("torch.diag")
def diagonal(t: Translation) -> Any:
    """A matrix of a vector, or the diagonal of a matrix."""
    offset = t.integer("diagonal", 0)
    x = t.given("input", 0)
    if t.rank() == 1:
        size = t.shape()[0]
        side = size + abs(offset)
        t.limit(side, side)
        mask = np.eye(side, k=offset, dtype=bool)
        row = np.clip(np.arange(side) - max(offset, 0), 0, max(size - 1, 0))
        spread = t.build("Gather", x, row, axis=0)  # the element of each column
        return t.build("Where", mask, t.unsqueeze(spread, 0), t.scalar(0))
    rows, columns = t.shape()
    count = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    t.limit(count)
    steps = np.arange(count)
    places = np.stack([steps - min(offset, 0), steps + max(offset, 0)], -1)
    return t.build("GatherND", x, places)
