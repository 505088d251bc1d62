"""Functions of PyTorch for which pnnx has no operator of its own: it leaves them as `aten::NAME` (`pnnx.raw`)."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..expressions import Call, Input, parse_expression
from ..translation import Translation, operator
from .elementwise import apply
from .norms import vector_norm
from .reductions import variance
from .shapes import flip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..graph import Operand

# ---- functions of each element ----


@operator("torch.clamp_min", "torch.clamp_max", "torch.hypot", "torch.exp2", "torch.erfc", "torch.frac", "torch.sgn")
def function(t: Translation) -> Any:
    x, other = t.x, t.given("other", 1)
    if other is None and "other" in t.one.params:
        other = t.number("other")
    if t.kind.startswith("clamp"):
        return apply(t, "maximum" if t.kind == "clamp_min" else "minimum", [x, other])
    if t.kind == "hypot":
        squares = [apply(t, "square", [value]) for value in (x, other)]
        return apply(t, "sqrt", [apply(t, "add", squares)])
    if t.kind == "exp2":
        return apply(t, "pow", [t.typed(t.build("Identity", t.scalar(2)), t.dtype(x)), x])
    if t.kind == "erfc":
        return apply(t, "sub", [1.0, apply(t, "erf", [x])])
    if t.kind == "frac":
        return apply(t, "sub", [x, apply(t, "trunc", [x])])
    return apply(t, "sign", [x])


@operator("torch.deg2rad", "torch.rad2deg")
def angle(t: Translation) -> Any:
    return apply(t, "mul", [t.x, np.pi / 180 if t.kind == "deg2rad" else 180 / np.pi])


@operator("torch.addcmul", "torch.addcdiv")
def add_scaled(t: Translation) -> Any:
    """input + value * (tensor1 * tensor2), or a quotient in place of the product."""
    x, first, second = t.values
    product = apply(t, "mul" if t.kind == "addcmul" else "div", [first, second])
    return apply(t, "add", [x, apply(t, "mul", [product, t.param("value", 1)])])


@operator("torch.isnan", "torch.isinf", "torch.isfinite")
def is_special(t: Translation) -> Any:
    x = t.x if t.dtype(t.x).kind == "f" else t.cast(t.x, np.float32)
    tests = {"isnan": ("IsNaN",), "isinf": ("IsInf",), "isfinite": ("IsNaN", "IsInf")}[t.kind]
    found = [t.build(test, x) for test in tests]
    result = t.build("Not", t.build("Or", *found)) if len(found) > 1 else found[0]
    return t.typed(result, np.bool_)


@operator("torch.logit")
def logit(t: Translation) -> Any:
    """log(x / (1 - x)), with x in [eps, 1 - eps] if eps is given."""
    x = t.x
    if t.param("eps", None) is not None:
        eps = t.number("eps")
        x = t.build("Clip", x, t.scalar(eps), t.scalar(1 - eps))
    return t.build("Log", t.build("Div", x, t.build("Sub", t.scalar(1), x)))


@operator("torch.nan_to_num")
def nan_to_num(t: Translation) -> Any:
    limits = np.finfo(t.dtype(t.x))
    x = t.build("Where", t.build("IsNaN", t.x), t.scalar(t.number("nan", 0.0)), t.x)
    for name, sign, default in (("posinf", 1, limits.max), ("neginf", -1, limits.min)):
        infinite = t.build("IsInf", x, detect_positive=int(sign > 0), detect_negative=int(sign < 0))
        x = t.build("Where", infinite, t.scalar(t.number(name, float(default))), x)
    return x


# ---- reductions and sorting ----


def _keep(t: Translation) -> bool:
    return bool(t.param("keepdim", False))


def _is_not_zero(t: Translation) -> Any:
    """1 where an element is not 0, as int32."""
    x = t.x if t.dtype(t.x).kind == "b" else apply(t, "ne", [t.x, 0])
    return t.cast(x, np.int32)


def _axes(t: Translation) -> Any:
    axes = t.axes()
    return None if axes is None else np.asarray(axes, np.int64)


@operator("torch.any", "torch.all")
def truth(t: Translation) -> Any:
    kind = "ReduceMax" if t.kind == "any" else "ReduceMin"
    result = t.build(kind, _is_not_zero(t), _axes(t), keepdims=int(_keep(t)))
    return t.cast(t.typed(result, np.int32), np.bool_)


@operator("torch.count_nonzero")
def count_nonzero(t: Translation) -> Any:
    counted = t.cast(_is_not_zero(t), np.int64)
    return t.typed(t.build("ReduceSum", counted, _axes(t), keepdims=0), np.int64)


@operator("torch.aminmax")
def extremes(t: Translation) -> Any:
    return [t.build(kind, t.x, _axes(t), keepdims=int(_keep(t))) for kind in ("ReduceMin", "ReduceMax")]


@operator("torch.std_mean", "torch.var_mean")
def variance_and_mean(t: Translation) -> Any:
    spread = variance(t)
    return [spread, t.build("ReduceMean", t.x, _axes(t), keepdims=int(_keep(t)))]


def _smallest(t: Translation, x: Any, count: int, axis: int, *, largest: bool = False) -> list[Any]:
    """The first elements in order, and their indices; equal ones stay in their order."""
    values, index = t.build.node(
        "TopK", x, np.asarray([count], np.int64), outputs=2, axis=axis, largest=int(largest), sorted=1
    )
    return [t.typed(values, t.dtype(t.x)), t.typed(index, np.int64)]


@operator("torch.sort", "torch.argsort", "torch.msort")
def sort(t: Translation) -> Any:
    axis = 0 if t.kind == "msort" else t.axis("dim", -1)
    values, index = _smallest(t, t.x, t.shape()[axis], axis, largest=bool(t.param("descending", False)))
    return {"sort": [values, index], "argsort": [index], "msort": [values]}[t.kind]


@operator("torch.kthvalue", "torch.median")
def kth_value(t: Translation) -> Any:
    """The k-th smallest; of an even number of elements PyTorch's median is the lower one of the two in the middle."""
    whole = t.kind == "median" and "dim" not in t.one.params
    x = t.reshape(t.x, -1) if whole else t.x
    axis = 0 if whole else t.axis("dim", -1)
    size = prod(t.shape()) if whole else t.shape()[axis]
    k = (size + 1) // 2 if t.kind == "median" else t.integer("k")
    if not 1 <= k <= size:
        raise t.damaged(f"element {k} of {size} in order")
    at = np.asarray([k - 1] if _keep(t) else k - 1, np.int64)
    results = [t.build("Gather", one, at, axis=axis) for one in _smallest(t, x, k, axis)]
    return results[:1] if whole else [results[0], t.typed(results[1], np.int64)]


@operator("torch._unique2")
def unique(t: Translation) -> Any:
    """The values in order; where they are wanted, the index of each element's value, and how often each occurs."""
    values, _, index, counts = t.build.node("Unique", t.x, outputs=4, sorted=1)
    nothing = np.zeros(0, np.int64)
    inverse = t.build("Reshape", index, t.build("Shape", t.x)) if t.flag("return_inverse") else nothing
    found = counts if t.flag("return_counts") else nothing
    return [t.typed(values, t.dtype(t.x)), *(_as_value(t, one) for one in (inverse, found))]


def _as_value(t: Translation, value: Any) -> Any:
    return t.typed(t.build("Identity", value) if isinstance(value, np.ndarray) else value, np.int64)


# ---- products and distances ----


def _sum_of_products(t: Translation, a: Any, b: Any, axis: int) -> Any:
    return t.build("ReduceSum", t.build("Mul", a, b), np.asarray([axis]), keepdims=0)


@operator("torch.dot", "torch.linalg_vecdot")
def dot(t: Translation) -> Any:
    axis = 0 if t.kind == "dot" else t.axis("dim", -1)
    first, second = t.values
    return _sum_of_products(t, first, second, axis)


@operator("F.cosine_similarity")
def cosine_similarity(t: Translation) -> Any:
    """x1 x2 / (max(|x1|, eps) max(|x2|, eps)) along an axis."""
    axis = t.axis("dim", 1)
    eps = t.scalar(t.number("eps", 1e-8))
    first, second = (
        t.build("Div", x, t.build("Max", t.build("ReduceL2", x, np.asarray([axis]), keepdims=1), eps)) for x in t.values
    )
    return _sum_of_products(t, first, second, axis)


@operator("torch.cdist")
def distances(t: Translation) -> Any:
    """The p-norm of x1[..., i, :] - x2[..., j, :] for each i and j."""
    first, second = t.values
    apart = t.build("Sub", t.unsqueeze(first, t.rank() - 1), t.unsqueeze(second, t.rank(1) - 2))
    return vector_norm(t, apart, t.number("p", 2.0), np.asarray([-1]), keepdims=False)


@operator("torch.chain_matmul", "torch.linalg_multi_dot")
def matrix_chain(t: Translation) -> Any:
    result, *others = _members(t)[0]
    for other in others:
        result = t.build("MatMul", result, other)
    return result


@operator("F.bilinear")
def bilinear(t: Translation) -> Any:
    """sum of input1_i weight_oij input2_j, with a bias for each o."""
    first, second, weight, *bias = t.values
    result = t.build("Einsum", first, weight, second, equation="...i,oij,...j->...o")
    return t.build("Add", result, bias[0]) if bias else result


@operator("torch.trace")
def trace(t: Translation) -> Any:
    rows, columns = t.shape()
    t.limit(rows, columns)
    return t.build("ReduceSum", t.build("Mul", t.x, np.eye(rows, columns, dtype=t.dtype(t.x))), None, keepdims=0)


# ---- shapes ----


def _members(t: Translation) -> tuple[list[Any], list[int]]:
    """The values of a list of tensors, and how many axes each has."""
    maker = t.one.inputs[0].producer if t.one.inputs else None
    operands = [] if maker is None else maker.inputs
    items: Sequence[Any] = [Input(index) for index in range(len(operands))]
    if maker is not None and maker.type == "pnnx.Expression":
        tree = parse_expression(str(maker.params.get("expr")), len(operands))
        items = tree.arguments if isinstance(tree, Call) and tree.function == "[]" else ()
    if not isinstance(t.x, list) or not items or len(items) != len(t.x):
        raise t.damaged("its tensors are not a list")
    return t.x, [_axes_of(t, item, operands) for item in items]


def _axes_of(t: Translation, item: Any, operands: Sequence[Operand]) -> int:
    """How many axes an expression of elements has: as many as its largest operand."""
    if isinstance(item, Call):
        return max((_axes_of(t, inner, operands) for inner in item.arguments), default=0)
    if not isinstance(item, Input):
        return 0
    shape = operands[item.index].shape
    if shape is None:
        raise t.unsupported(f"the number of axes of operand {operands[item.index].name!r} is not in the file")
    return len(shape)


@operator("torch.hstack", "torch.vstack", "torch.dstack", "torch.column_stack")
def stacked(t: Translation) -> Any:
    """A concatenation of tensors, which get the axes that they lack."""
    kind, parts = t.kind[0], []
    values, ranks = _members(t)
    for value, rank in zip(values, ranks, strict=True):
        if rank == 0:
            raise t.unsupported("a tensor without axes")
        added = {"h": [], "c": [1], "v": [0], "d": [0, 2]}[kind] if rank == 1 else []
        added = [2] if kind == "d" and rank == 2 else added
        parts.append(t.unsqueeze(value, *added) if added else value)
    axis = {"h": 0 if ranks[0] == 1 else 1, "c": 1, "v": 0, "d": 2}[kind]
    return t.build("Concat", *parts, axis=axis)


@operator("torch.meshgrid")
def meshgrid(t: Translation) -> Any:
    """Each vector along an axis of its own, expanded along those of the others."""
    values, ranks = _members(t)
    if set(ranks) != {1}:
        raise t.unsupported(f"tensors of {ranks} axes, where vectors are expected")
    axes = list(range(len(values)))
    if t.param("indexing", "ij") == "xy" and len(axes) > 1:
        axes[:2] = 1, 0
    sizes = [t.build("Shape", values[axes.index(axis)]) for axis in range(len(values))]
    shape = t.build("Concat", *sizes, axis=0)
    others = [[other for other in range(len(values)) if other != axis] for axis in axes]
    return [[t.build("Expand", t.unsqueeze(v, *o) if o else v, shape) for v, o in zip(values, others, strict=True)]]


@operator("torch.ravel")
def ravel(t: Translation) -> Any:
    return t.reshape(t.x, -1)


@operator("Tensor.T", "Tensor.mT")
def transposed(t: Translation) -> Any:
    order = list(range(t.rank()))
    if t.kind == "T":
        return t.transpose(t.x, *reversed(order))
    if len(order) < 2:
        raise t.damaged(f"a matrix of {len(order)} axes")
    return t.transpose(t.x, *order[:-2], order[-1], order[-2])


@operator("torch.fliplr", "torch.flipud")
def flip_side(t: Translation) -> Any:
    t.one.params["dims"] = (1 if t.kind == "fliplr" else 0,)
    return flip(t)


@operator("torch.rot90")
def rotate(t: Translation) -> Any:
    """Quarter turns in a plane of two axes, from the first towards the second."""
    first, second = t.ints("dims", 2)
    rank, turns = t.rank(), t.integer("k") % 4
    if turns == 0:
        return t.build("Identity", t.x)
    t.one.params["dims"] = {1: (second,), 2: (first, second), 3: (first,)}[turns]
    flipped = flip(t)
    order = list(range(rank))
    order[first], order[second] = order[second], order[first]
    return flipped if turns == 2 else t.transpose(flipped, *order)


@operator("Tensor.unfold")
def windows(t: Translation) -> Any:
    """Windows along an axis, whose elements become the last axis."""
    axis, size, step = t.axis("dimension"), t.integer("size"), t.integer("step")
    total = t.shape()[axis]
    if not 0 <= size <= total or step < 1:
        raise t.damaged(f"windows of {size} of {total} elements, {step} apart")
    count = (total - size) // step + 1
    t.limit(count, size)
    index = np.arange(count)[:, None] * step + np.arange(size)[None]
    found = t.build("Gather", t.x, index, axis=axis)
    order = [i for i in range(t.rank() + 1) if i != axis + 1]
    return t.transpose(found, *order, axis + 1)


@operator("torch.diagonal")
def diagonal(t: Translation) -> Any:
    """The diagonal of two axes, which becomes the last axis."""
    first, second, offset = t.axis("dim1", 0), t.axis("dim2", 1), t.integer("offset", 0)
    rows, columns = t.shape()[first], t.shape()[second]
    t.limit(rows, columns)
    rest = [i for i in range(t.rank()) if i not in (first, second)]
    flat = t.reshape(t.transpose(t.x, first, second, *rest), -1, *(t.shape()[i] for i in rest))
    index = np.diagonal(np.arange(rows * columns).reshape(rows, columns), offset)
    found = t.build("Gather", flat, np.ascontiguousarray(index), axis=0)
    return t.transpose(found, *range(1, len(rest) + 1), 0)


@operator("torch.diff")
def difference(t: Translation) -> Any:
    """Each element less the one in front of it."""
    if t.integer("n", 1) != 1 or len(t.values) > 1:
        raise t.unsupported(f"n={t.param('n', 1)} with {len(t.values) - 1} tensors at the ends")
    axis = t.axis("dim", -1)
    size = t.shape()[axis]
    return apply(t, "sub", [t.typed(t.slice(t.x, axis, a, b), t.dtype(t.x)) for a, b in ((1, size), (0, size - 1))])


@operator("torch.tril", "torch.triu")
def triangle(t: Translation) -> Any:
    return t.build("Trilu", t.x, np.asarray(t.integer("diagonal", 0), np.int64), upper=int(t.kind == "triu"))


# ---- indices ----


@operator("torch.numel")
def numel(t: Translation) -> Any:
    return t.typed(t.build("Size", t.x), np.int64)


@operator("torch.nonzero")
def nonzero(t: Translation) -> Any:
    return t.typed(t.transpose(t.build("NonZero", t.x), 1, 0), np.int64)


@operator("F.one_hot")
def one_hot(t: Translation) -> Any:
    count = t.integer("num_classes", -1)
    if count < 0:
        raise t.unsupported(f"num_classes={count}: as many as the data has")
    return t.typed(t.build("OneHot", t.x, np.asarray(count), np.asarray([0, 1]), axis=-1), np.int64)


@operator("torch.scatter")
def scatter(t: Translation) -> Any:
    """Elements, or a number, at indices along an axis."""
    index, source = t.given("index"), t.given("src")
    if source is None:
        number = t.cast(t.scalar(t.number("src")), t.dtype(t.x))
        source = t.build("Expand", number, t.build("Shape", index))
    elif t.one.inputs[1].shape != t.one.inputs[2].shape:  # only as much of the source as the index has
        sizes = np.asarray(t.shape(1), np.int64)
        source = t.build("Slice", source, np.zeros_like(sizes), sizes, np.arange(len(sizes)))
    return t.build("ScatterElements", t.x, index, source, axis=t.axis())


@operator("torch.index_add", "torch.index_copy")
def write_rows(t: Translation) -> Any:
    """Slices of the source along an axis at indices."""
    axis, (x, index, source) = t.axis(), t.values
    others = [i for i in range(t.rank()) if i != axis]
    wide = t.build("Expand", t.unsqueeze(index, *others) if others else index, t.build("Shape", source))
    alpha = t.param("alpha", 1)
    source = source if alpha == 1 else apply(t, "mul", [source, alpha])
    adding = t.kind == "index_add"
    return t.build("ScatterElements", x, wide, source, axis=axis, reduction="add" if adding else None)


@operator("torch.take_along_dim")
def take_along(t: Translation) -> Any:
    x, index = t.values
    if "dim" not in t.one.params:
        raise t.unsupported("without an axis")
    axis = t.axis()
    sizes, wanted = (list(t.shape(i)) for i in range(2))
    if sizes[:axis] + sizes[axis + 1 :] != wanted[:axis] + wanted[axis + 1 :]:
        raise t.unsupported(f"data of shape {sizes} with indices of shape {wanted}, which differ in other axes")
    return t.build("GatherElements", x, index, axis=axis)
