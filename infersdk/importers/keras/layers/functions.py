"""Functions of TensorFlow that a model calls between its layers: TensorFlowOpLayer, TFOpLambda, and slicing.

They are names and arguments, not code: only the functions of the table here are known.
"""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..tensors import Tensor, broadcast
from ..translation import LayerCall, layer
from .activations import FUNCTIONS, softmax_of

if TYPE_CHECKING:
    from collections.abc import Callable

_TYPES = {
    "float32": np.float32,
    "float16": np.float16,
    "float64": np.float64,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "bool": np.bool_,
    "DT_FLOAT": np.float32,
    "DT_INT32": np.int32,
    "DT_INT64": np.int64,
    "DT_BOOL": np.bool_,
    "DT_UINT8": np.uint8,
}
_UNARY = {
    "abs": "Abs",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "negative": "Neg",
    "neg": "Neg",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
    "sign": "Sign",
    "sin": "Sin",
    "cos": "Cos",
    "reciprocal": "Reciprocal",
    "erf": "Erf",
    "identity": "Identity",
    "stop_gradient": "Identity",
    "logical_not": "Not",
}
_BINARY = {
    "add": "Add",
    "addv2": "Add",
    "biasadd": "Add",
    "bias_add": "Add",
    "subtract": "Sub",
    "sub": "Sub",
    "multiply": "Mul",
    "mul": "Mul",
    "truediv": "Div",
    "divide": "Div",
    "div": "Div",
    "realdiv": "Div",
    "maximum": "Max",
    "minimum": "Min",
    "pow": "Pow",
    "greater": "Greater",
    "less": "Less",
    "greater_equal": "GreaterOrEqual",
    "less_equal": "LessOrEqual",
    "equal": "Equal",
    "logical_and": "And",
    "logical_or": "Or",
}
_REDUCE = {"mean": "ReduceMean", "sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd"}
_COMPARISONS = {"Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal", "And", "Or", "Not"}


@layer("TensorFlowOpLayer")
def tensorflow_operation(call: LayerCall) -> Any:
    """An operation of a graph: its name, the tensors, and the constants at their positions."""
    node = call.config.get("node_def")
    if isinstance(node, str):
        try:
            node = json.loads(node)
        except (ValueError, RecursionError):
            raise call.unsupported("an operation that is saved as binary text") from None
    if not isinstance(node, dict):
        raise call.damaged("it has no operation")
    constants = {int(key): value for key, value in dict(call.config.get("constants") or {}).items()}
    inputs = iter(call.inputs)
    arguments: list[Any] = [
        constants[i] if i in constants else next(inputs, None) for i in range(len(call.inputs) + len(constants))
    ]
    attributes = {key: _attribute(value) for key, value in dict(node.get("attr", {})).items()}
    return _apply(call, str(node.get("op")), arguments, attributes)


def _attribute(value: Any) -> Any:
    """`{"b": true}`, `{"i": "3"}`, `{"type": "DT_FLOAT"}`, `{"list": {"i": [...]}}`."""
    if isinstance(value, dict) and len(value) == 1:
        ((kind, inner),) = value.items()
        return int(inner) if kind == "i" else _attribute(inner) if kind == "list" else inner
    return value


@layer("TFOpLambda")
def function_layer(call: LayerCall) -> Any:
    named = {key: value for key, value in call.named.items() if key not in ("name", "_arguments")}
    return _apply(call, str(call.config.get("function")), list(call.named["_arguments"]), named)


@layer("SlicingOpLambda")
def slicing(call: LayerCall) -> Tensor:
    """x[...]: a list of indices, ranges and new axes."""
    spec = call.named.get("slice_spec")
    if not isinstance(spec, list):
        raise call.unsupported(f"an index {spec!r}")
    x, axis, starts, ends, axes, steps, drop, new = call.x, 0, [], [], [], [], [], []
    for position, item in enumerate(spec):
        if isinstance(item, dict):
            start, stop, step = (item.get(key) for key in ("start", "stop", "step"))
            if any(part is not None and not isinstance(part, int) for part in (start, stop, step)):
                raise call.unsupported("an index that is computed")
            step = 1 if step is None else step
            starts.append((0 if step > 0 else 2**62) if start is None else start)
            ends.append((2**62 if step > 0 else -(2**62)) if stop is None else stop)
            axes.append(axis)
            steps.append(step)
            axis += 1
        elif isinstance(item, int) and not isinstance(item, bool):
            starts.append(item)
            ends.append(item + 1 if item != -1 else 2**62)
            axes.append(axis)
            steps.append(1)
            drop.append(axis)
            axis += 1
        elif item is None or item == "tf.newaxis":
            new.append(position)
        elif item in ("...", "Ellipsis"):
            axis = x.rank - sum(1 for rest in spec[position + 1 :] if isinstance(rest, (dict, int)))
        else:
            raise call.unsupported(f"an index {item!r}")
    if any(a >= x.rank for a in axes):
        raise call.damaged(f"{len(spec)} indices for {x.rank} axes")
    shape: list[int | None] = list(x.shape)
    for a, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = shape[a]
        shape[a] = None if size is None else len(range(*slice(start, end, step).indices(size)))
    value = call.build("Slice", x.last(), *(call.i64(*column) for column in (starts, ends, axes, steps)))
    if drop:
        value = call.build("Squeeze", value, call.i64(*drop))
        shape = [size for a, size in enumerate(shape) if a not in drop]
    if new:
        value = call.build("Unsqueeze", value, call.i64(*new))
        for position in new:
            shape.insert(position, 1)
    return call.tensor(value, tuple(shape))


def _apply(call: LayerCall, function: str, arguments: list[Any], named: dict[str, Any]) -> Any:
    name = function.rpartition(".")[2].removeprefix("reduce_").lower()
    x = arguments[0] if arguments else None
    if name in _BINARY:
        other = arguments[1] if len(arguments) > 1 else named.get("y", named.get("x"))
        return _binary(call, _BINARY[name], x if x is not None else named.get("x"), other)
    if isinstance(x, list) and name not in ("concat", "stack", "pack", "concatv2", "add_n", "addn"):
        raise call.unsupported(f"{function} of a list")
    if name in _UNARY and isinstance(x, Tensor):
        made = x.map(lambda v: call.build(_UNARY[name], v))
        made.dtype = np.dtype(np.bool_) if _UNARY[name] in _COMPARISONS else x.dtype
        return made
    if name in FUNCTIONS and isinstance(x, Tensor):
        return x.map(lambda v: FUNCTIONS[name](call.build, v))
    if name in _REDUCE and isinstance(x, Tensor):
        axis = arguments[1] if len(arguments) > 1 else named.get("axis", named.get("reduction_indices"))
        return _reduce(call, _REDUCE[name], x, axis, bool(named.get("keepdims", named.get("keep_dims", False))))
    if name not in _TABLE:
        raise call.unsupported(f"function {function!r}")
    return _TABLE[name](call, arguments, named)


def _binary(call: LayerCall, operator: str, left: Any, right: Any) -> Tensor:
    """Of a tensor with a tensor, or with numbers."""
    tensors = [value for value in (left, right) if isinstance(value, Tensor)]
    if not tensors:
        raise call.unsupported(f"{operator} of numbers alone")
    dtype = tensors[0].dtype
    if len(tensors) == 1:
        constant = np.asarray(right if isinstance(left, Tensor) else left, dtype)
        shape = broadcast([tensors[0].shape, constant.shape])
        if constant.size == 1 and len(shape) == tensors[0].rank:
            number = constant.reshape(())
            made = tensors[0].map(
                lambda v: (
                    call.build(operator, v, number) if isinstance(left, Tensor) else call.build(operator, number, v)
                )
            )
        else:
            pair = (tensors[0].last(), constant) if isinstance(left, Tensor) else (constant, tensors[0].last())
            made = call.tensor(call.build(operator, *pair), shape, dtype)
    else:
        made = call.tensor(
            call.build(operator, *(value.last() for value in tensors)), broadcast([t.shape for t in tensors]), dtype
        )
    made.dtype = np.dtype(np.bool_) if operator in _COMPARISONS else dtype
    return made


def _reduce(call: LayerCall, operator: str, x: Tensor, axis: Any, keep: bool) -> Tensor:
    axes = list(range(x.rank)) if axis is None else [int(a) % x.rank for a in np.atleast_1d(axis)]
    value = call.build(operator, x.last(), call.i64(*axes), keepdims=int(keep))
    shape = tuple(1 if i in axes else size for i, size in enumerate(x.shape) if keep or i not in axes)
    return call.tensor(value, shape, x.dtype)


def _tensor(call: LayerCall, arguments: list[Any]) -> Tensor:
    if not arguments or not isinstance(arguments[0], Tensor):
        raise call.unsupported("a function of what is not a tensor")
    return arguments[0]


def _given(arguments: list[Any], named: dict[str, Any], position: int, *names: str) -> Any:
    if len(arguments) > position:
        return arguments[position]
    return next((named[name] for name in names if name in named), None)


def _reshape(call: LayerCall, arguments: list[Any], named: dict[str, Any]) -> Tensor:
    x = _tensor(call, arguments)
    target = [int(size) for size in np.atleast_1d(_given(arguments, named, 1, "shape"))]
    sizes: list[int | None] = list(target)
    if -1 in target:
        whole = None if None in x.shape else prod(size for size in x.shape if size is not None)
        rest = prod(size for size in target if size != -1)
        sizes[target.index(-1)] = None if whole is None or not rest else whole // rest
    return call.tensor(call.build("Reshape", x.last(), call.i64(*target)), tuple(sizes))


def _transpose(call: LayerCall, arguments: list[Any], named: dict[str, Any]) -> Tensor:
    x = _tensor(call, arguments)
    given = _given(arguments, named, 1, "perm")
    order = list(range(x.rank))[::-1] if given is None else [int(axis) for axis in given]
    return call.tensor(call.build("Transpose", x.last(), perm=order), tuple(x.shape[axis] for axis in order))


def _concat(call: LayerCall, arguments: list[Any], named: dict[str, Any]) -> Tensor:
    values = arguments[0] if isinstance(arguments[0], list) else [v for v in arguments if isinstance(v, Tensor)]
    axis = named.get("axis")
    if axis is None:
        axis = next((v for v in arguments[::-1] if not isinstance(v, (Tensor, list))), -1)
    rank = values[0].rank
    axis = int(axis) % rank
    sizes = [value.shape[axis] for value in values]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    shape = (*values[0].shape[:axis], total, *values[0].shape[axis + 1 :])
    return call.tensor(call.build("Concat", *(value.last() for value in values), axis=axis), shape, values[0].dtype)


def _stack(call: LayerCall, arguments: list[Any], named: dict[str, Any]) -> Tensor:
    values = arguments[0] if isinstance(arguments[0], list) else [v for v in arguments if isinstance(v, Tensor)]
    axis = int(named.get("axis", 0)) % (values[0].rank + 1)
    made = call.build("Concat", *(call.build("Unsqueeze", v.last(), call.i64(axis)) for v in values), axis=axis)
    return call.tensor(made, (*values[0].shape[:axis], len(values), *values[0].shape[axis:]), values[0].dtype)


def _split(call: LayerCall, arguments: list[Any], named: dict[str, Any]) -> list[Tensor]:
    value = next((v for v in arguments if isinstance(v, Tensor)), None)
    if value is None:
        raise call.unsupported("split of what is not a tensor")
    others = [v for v in arguments if not isinstance(v, Tensor)]
    count = named.get("num_or_size_splits", named.get("num_split", others[-1] if others else None))
    axis = int(named.get("axis", named.get("split_dim", others[0] if len(others) > 1 else 0))) % value.rank
    size = call.known(value.shape[axis], "the axis that is split")
    if isinstance(count, list):
        sizes = [int(n) for n in count]
    else:
        if not isinstance(count, int) or count < 1 or size % count or count > 1 << 16:
            raise call.damaged(f"{size} in {count} parts")
        sizes = [size // count] * count
    parts = call.build.node("Split", value.last(), call.i64(*sizes), outputs=len(sizes), axis=axis)
    return [
        call.tensor(part, (*value.shape[:axis], n, *value.shape[axis + 1 :]), value.dtype)
        for part, n in zip(parts, sizes, strict=True)
    ]


def _expand(call: LayerCall, arguments: list[Any], named: dict[str, Any]) -> Tensor:
    x = _tensor(call, arguments)
    axis = int(_given(arguments, named, 1, "axis", "dim")) % (x.rank + 1)
    return call.tensor(call.build("Unsqueeze", x.last(), call.i64(axis)), (*x.shape[:axis], 1, *x.shape[axis:]))


def _squeeze(call: LayerCall, arguments: list[Any], named: dict[str, Any]) -> Tensor:
    x = _tensor(call, arguments)
    given = _given(arguments, named, 1, "axis", "squeeze_dims")
    axes = (
        [i for i, size in enumerate(x.shape) if size == 1]
        if given in (None, [])
        else [int(a) % x.rank for a in np.atleast_1d(given)]
    )
    shape = tuple(size for i, size in enumerate(x.shape) if i not in axes)
    return call.tensor(call.build("Squeeze", x.last(), call.i64(*axes)), shape)


def _clip(call: LayerCall, arguments: list[Any], named: dict[str, Any]) -> Tensor:
    x = _tensor(call, arguments)
    low, high = (
        np.asarray(_given(arguments, named, i, *names), x.dtype)
        for i, names in ((1, ("clip_value_min", "min")), (2, ("clip_value_max", "max")))
    )
    return x.map(lambda v: call.build("Clip", v, low, high))


def _cast(call: LayerCall, arguments: list[Any], named: dict[str, Any]) -> Tensor:
    x = _tensor(call, arguments)
    name = str(_given(arguments, named, 1, "dtype", "dstt"))
    kind = _TYPES.get(name, _TYPES.get(str(named.get("DstT", ""))))
    if kind is None:
        raise call.unsupported(f"cast to {name}")
    import onnx_ir as ir

    made = x.map(lambda v: call.build("Cast", v, to=int(ir.DataType.from_numpy(np.dtype(kind)))))
    made.dtype = np.dtype(kind)
    return made


def _softmax(call: LayerCall, arguments: list[Any], named: dict[str, Any]) -> Tensor:
    return softmax_of(call, _tensor(call, arguments), named.get("axis") or -1)


def _matmul(call: LayerCall, arguments: list[Any], named: dict[str, Any]) -> Tensor:
    left: Any = arguments[0]
    right: Any = _given(arguments, named, 1, "b")
    if not isinstance(left, Tensor):
        raise call.unsupported("a product of what is not a tensor")
    shapes = [list(left.shape), list(right.shape if isinstance(right, Tensor) else np.shape(right))]
    values = [left.last(), right.last() if isinstance(right, Tensor) else np.asarray(right, np.float32)]
    for i, names in enumerate((("transpose_a", "adj_x"), ("transpose_b", "adj_y"))):
        if any(named.get(name) for name in names):
            order = list(range(len(shapes[i])))
            order[-2:] = order[-1], order[-2]
            values[i] = call.build("Transpose", values[i], perm=order)
            shapes[i] = [shapes[i][axis] for axis in order]
    lead = broadcast([tuple(shapes[0][:-2]), tuple(shapes[1][:-2])]) if len(shapes[0]) > 2 or len(shapes[1]) > 2 else ()
    return call.tensor(call.build("MatMul", *values), (*lead, shapes[0][-2], shapes[1][-1]))


def _power(exponent: float) -> Callable[[LayerCall, list[Any], dict[str, Any]], Tensor]:
    def apply(call: LayerCall, arguments: list[Any], named: dict[str, Any]) -> Tensor:
        return _tensor(call, arguments).map(lambda v: call.build("Pow", v, np.float32(exponent)))

    return apply


def _square(call: LayerCall, arguments: list[Any], named: dict[str, Any]) -> Tensor:
    return _tensor(call, arguments).map(lambda v: call.build("Mul", v, v))


def _tile(call: LayerCall, arguments: list[Any], named: dict[str, Any]) -> Tensor:
    x = _tensor(call, arguments)
    counts = [int(n) for n in _given(arguments, named, 1, "multiples")]
    shape = tuple(None if size is None else size * n for size, n in zip(x.shape, counts, strict=True))
    return call.tensor(call.build("Tile", x.last(), call.i64(*counts)), shape)


def _pad(call: LayerCall, arguments: list[Any], named: dict[str, Any]) -> Tensor:
    x = _tensor(call, arguments)
    pairs = [[int(n) for n in pair] for pair in _given(arguments, named, 1, "paddings")]
    mode = {"CONSTANT": "constant", "REFLECT": "reflect", "SYMMETRIC": ""}.get(
        str(named.get("mode", "CONSTANT")).upper(), ""
    )
    if not mode or len(pairs) != x.rank:
        raise call.unsupported(f"pad {pairs} {named.get('mode')}")
    pads = call.i64(*(pair[0] for pair in pairs), *(pair[1] for pair in pairs))
    value = np.float32(named.get("constant_values") or 0)
    shape = tuple(None if size is None else size + sum(pair) for size, pair in zip(x.shape, pairs, strict=True))
    return call.tensor(call.build("Pad", x.last(), pads, value if mode == "constant" else None, mode=mode), shape)


_TABLE: dict[str, Callable[[LayerCall, list[Any], dict[str, Any]], Any]] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "concat": _concat,
    "concatv2": _concat,
    "stack": _stack,
    "pack": _stack,
    "split": _split,
    "splitv": _split,
    "expand_dims": _expand,
    "expanddims": _expand,
    "squeeze": _squeeze,
    "clip_by_value": _clip,
    "clipbyvalue": _clip,
    "cast": _cast,
    "softmax": _softmax,
    "matmul": _matmul,
    "batchmatmulv2": _matmul,
    "rsqrt": _power(-0.5),
    "square": _square,
    "tile": _tile,
    "pad": _pad,
}
