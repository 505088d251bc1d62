"""Functions of each element: those of torch.*, and PNNX's expressions, which put several of them together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..expressions import Call, Input, parse_expression
from ..translation import Translation, operator

if TYPE_CHECKING:
    from collections.abc import Callable

#: Functions of one value that ONNX has.
_UNARY = {
    "abs": "Abs",
    "acos": "Acos",
    "acosh": "Acosh",
    "asin": "Asin",
    "asinh": "Asinh",
    "atan": "Atan",
    "atanh": "Atanh",
    "ceil": "Ceil",
    "cos": "Cos",
    "cosh": "Cosh",
    "erf": "Erf",
    "exp": "Exp",
    "floor": "Floor",
    "log": "Log",
    "neg": "Neg",
    "reciprocal": "Reciprocal",
    "round": "Round",
    "sigmoid": "Sigmoid",
    "sign": "Sign",
    "sin": "Sin",
    "sinh": "Sinh",
    "sqrt": "Sqrt",
    "tan": "Tan",
    "tanh": "Tanh",
    "relu": "Relu",
}
_BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "maximum": "Max", "minimum": "Min", "max": "Max", "min": "Min"}
_COMPARE = {"eq": "Equal", "gt": "Greater", "lt": "Less", "ge": "GreaterOrEqual", "le": "LessOrEqual"}
_LOGICAL = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}
_BITS = {"and": "BitwiseAnd", "or": "BitwiseOr", "xor": "BitwiseXor"}
#: The names of torch.* for the operations of the tables.
_ALIASES = {
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
    "bitwise_not": "not",
    "bitwise_left_shift": "lshift",
    "bitwise_right_shift": "rshift",
    "__and__": "and",
    "__or__": "or",
    "__xor__": "xor",
}
_FLOATING = {
    "div",
    "atan2",
    "logaddexp",
    "log10",
    "log2",
    "log1p",
    "expm1",
    "rsqrt",
    "sqrt",
    "exp",
    "log",
    "sigmoid",
    "tanh",
}
_OTHERS = {
    "div",
    "floor_divide",
    "remainder",
    "fmod",
    "pow",
    "atan2",
    "logaddexp",
    "rsqrt",
    "square",
    "trunc",
    "log10",
    "log2",
    "log1p",
    "expm1",
    "ne",
    "not",
    "logical_not",
    "lshift",
    "rshift",
    "rsub",
}
_ALL = {*_UNARY, *_BINARY, *_COMPARE, *_LOGICAL, *_BITS, *_OTHERS}


@operator(
    *(f"torch.{name}" for name in _ALL - {"max", "min", "and", "or", "xor", "not"}),
    *(f"torch.{name}" for name in _ALIASES),
)
def function(t: Translation) -> Any:
    """Operands in the order of PyTorch's arguments; a number may be a parameter."""
    name = _ALIASES.get(t.kind, t.kind)
    values = list(t.values)
    if len(values) == 1 and name not in _UNARY:
        for key in ("other", "exponent", "value"):
            if t.param(key, None) is not None:
                values.append(t.param(key))
                break
    if name == "rsub":
        values, name = [values[1], values[0]], "sub"
    if t.param("rounding_mode", None) is not None and name == "div":
        quotient = apply(t, "div", values)
        return apply(t, "floor" if t.param("rounding_mode") == "floor" else "trunc", [quotient])
    alpha = t.param("alpha", 1)
    if alpha != 1 and name in ("add", "sub"):
        values[1] = apply(t, "mul", [values[1], alpha])
    return apply(t, name, values)


@operator("pnnx.Expression")
def expression(t: Translation) -> Any:
    result = _value(t, parse_expression(str(t.param("expr")), len(t.values)))
    if isinstance(result, list):
        return [result]
    if isinstance(result, (int, float)) and not isinstance(result, bool):
        return t.build("Identity", np.asarray(result, np.int64 if isinstance(result, int) else np.float32))
    return t.build("Identity", result) if any(result is value for value in t.values) else result


def _value(t: Translation, node: Any) -> Any:
    if isinstance(node, Input):
        return t.values[node.index]
    if not isinstance(node, Call):
        return node
    if node.function == "size":
        return _size(t, node)
    values = [_value(t, inner) for inner in node.arguments]
    if node.function == "[]":
        return values
    if node.function in ("int", "float"):
        (value,) = values
        kind = int if node.function == "int" else float
        return (
            kind(value) if isinstance(value, (int, float)) else t.cast(value, np.int64 if kind is int else np.float32)
        )
    return apply(t, node.function, values)


def _size(t: Translation, node: Call) -> Any:
    """`size(@0,1)`: a number where the file says, else it is taken when the model runs."""
    source, *axis = node.arguments
    if not isinstance(source, Input) or len(axis) > 1 or (axis and not isinstance(axis[0], int)):
        raise t.damaged(f"size of {node.arguments}")
    shape = t.one.inputs[source.index].shape
    if not axis:
        return t.typed(t.build("Shape", t.values[source.index]), np.int64)
    if shape is None or not -len(shape) <= axis[0] < len(shape):
        raise t.unsupported("the size of an operand whose shape is not in the file")
    if (size := shape[axis[0]]) is not None:
        return size
    index = axis[0] % len(shape)
    result = t.build("Shape", t.values[source.index], start=index, end=index + 1)
    return t.typed(t.squeeze(result, 0), np.int64)


def apply(t: Translation, name: str, values: list[Any]) -> Any:
    """A function of ONNX values and Python numbers, with PyTorch's rules of types."""
    if name not in _ALL:
        raise t.unsupported(f"function {name!r}")
    if all(isinstance(value, (int, float, bool)) for value in values):
        return _folded(t, name, values)
    ready, dtype = _promoted(t, values, floating=name in _FLOATING)
    result, kind = _made(t, name, ready, dtype)
    return t.typed(result, kind)


def _promoted(t: Translation, values: list[Any], *, floating: bool) -> tuple[list[Any], np.dtype[Any]]:
    """The values in one type: that of the tensors, unless a number is of a higher kind."""
    if any(isinstance(value, (str, list, complex)) or value is None for value in values):
        raise t.unsupported(
            f"an operand {next(v for v in values if isinstance(v, (str, list, complex)) or v is None)!r}"
        )
    tensors = [t.dtype(value) for value in values if not isinstance(value, (int, float, bool))]
    dtype: np.dtype[Any] = np.result_type(*tensors) if len(set(tensors)) > 1 else tensors[0]
    has_float = any(isinstance(value, float) for value in values)
    if dtype.kind in "biu" and (has_float or floating):
        dtype = np.dtype(np.float32)
    elif dtype.kind == "b" and any(isinstance(value, int) and not isinstance(value, bool) for value in values):
        dtype = np.dtype(np.int64)
    if dtype == np.float64 and all(kind != np.float64 for kind in tensors):  # NumPy's rule for int32 with float32
        dtype = np.dtype(np.float32)
    ready = [
        np.asarray(value, dtype) if isinstance(value, (int, float, bool)) else t.cast(value, dtype) for value in values
    ]
    return ready, dtype


def _made(t: Translation, name: str, v: list[Any], dtype: np.dtype[Any]) -> tuple[Any, Any]:
    build, one = t.build, np.asarray(1, dtype)
    if name in _UNARY and len(v) == 1:
        return build(_UNARY[name], v[0]), dtype
    if name in _BINARY and len(v) == 2:
        return build(_BINARY[name], *v), dtype
    if name in _COMPARE:
        return build(_COMPARE[name], *v), np.bool_
    if name == "ne":
        return build("Not", build("Equal", *v)), np.bool_
    if name in _LOGICAL:
        return build(_LOGICAL[name], *(t.cast(value, np.bool_) for value in v)), np.bool_
    if name == "logical_not" or (name == "not" and dtype.kind == "b"):
        return build("Not", t.cast(v[0], np.bool_)), np.bool_
    if name in _BITS:
        if dtype.kind == "b":
            return build({"and": "And", "or": "Or", "xor": "Xor"}[name], *v), np.bool_
        return build(_BITS[name], *v), dtype
    if name == "not":
        return build("BitwiseNot", v[0]), dtype
    simple: dict[str, Callable[[], Any]] = {
        "div": lambda: build("Div", *v),
        "pow": lambda: build("Pow", *v),
        "square": lambda: build("Mul", v[0], v[0]),
        "rsqrt": lambda: build("Reciprocal", build("Sqrt", v[0])),
        "log10": lambda: build("Div", build("Log", v[0]), np.asarray(np.log(10), dtype)),
        "log2": lambda: build("Div", build("Log", v[0]), np.asarray(np.log(2), dtype)),
        "log1p": lambda: build("Log", build("Add", v[0], one)),
        "expm1": lambda: build("Sub", build("Exp", v[0]), one),
        "trunc": lambda: (
            v[0] if dtype.kind != "f" else build("Mul", build("Sign", v[0]), build("Floor", build("Abs", v[0])))
        ),
        "fmod": lambda: build("Mod", *v, fmod=1),
        "remainder": lambda: _remainder(t, v, dtype),
        "floor_divide": lambda: _floor_divide(t, v, dtype),
        "atan2": lambda: _atan2(t, *v),
        "logaddexp": lambda: _logaddexp(t, *v),
        "lshift": lambda: _shift(t, v, dtype, "LEFT"),
        "rshift": lambda: _shift(t, v, dtype, "RIGHT"),
    }
    if name not in simple:
        raise t.damaged(f"{name} of {len(v)} values")
    return simple[name](), dtype


def _remainder(t: Translation, v: list[Any], dtype: np.dtype[Any]) -> Any:
    """a - b floor(a / b): of the sign of b."""
    if dtype.kind != "f":
        return t.build("Mod", *v)
    return t.build("Sub", v[0], t.build("Mul", v[1], t.build("Floor", t.build("Div", *v))))


def _floor_divide(t: Translation, v: list[Any], dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "f":
        return t.build("Floor", t.build("Div", *v))
    # ONNX divides integers towards zero: what is left over is taken off first.
    return t.build("Div", t.build("Sub", v[0], t.build("Mod", *v)), v[1])


def _shift(t: Translation, v: list[Any], dtype: np.dtype[Any], direction: str) -> Any:
    """ONNX shifts unsigned integers alone: signed ones are multiplied by a power of two, or divided, rounding down."""
    if dtype.kind == "u":
        return t.build("BitShift", *v, direction=direction)
    power = t.cast(t.build("Pow", np.asarray(2, np.float64), t.cast(v[1], np.float64)), dtype)
    return t.build("Mul", v[0], power) if direction == "LEFT" else _floor_divide(t, [v[0], power], dtype)


def _atan2(t: Translation, y: Any, x: Any) -> Any:
    """atan(y / x), moved into its quadrant where x is negative; where x is 0 the quotient is infinite, as it should
    be.
    """
    zero = t.scalar(0, y)
    angle = t.build("Atan", t.build("Div", y, x))
    half = t.build("Where", t.build("Less", y, zero), t.scalar(-np.pi, y), t.scalar(np.pi, y))
    turned = t.build("Where", t.build("Less", x, zero), t.build("Add", angle, half), angle)
    both = t.build("And", t.build("Equal", x, zero), t.build("Equal", y, zero))
    return t.build("Where", both, zero, turned)


def _logaddexp(t: Translation, a: Any, b: Any) -> Any:
    """max + log(1 + exp(-|a - b|)), which does not overflow."""
    apart = t.build("Neg", t.build("Abs", t.build("Sub", a, b)))
    return t.build("Add", t.build("Max", a, b), t.build("Log", t.build("Add", t.build("Exp", apart), t.scalar(1, a))))


def _folded(t: Translation, name: str, values: list[Any]) -> Any:
    """Of numbers alone."""
    table: dict[str, Callable[..., Any]] = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
        "floor_divide": lambda a, b: a // b, "remainder": lambda a, b: a % b, "neg": lambda a: -a, "floor": np.floor,
        "ceil": np.ceil, "trunc": np.trunc, "sqrt": np.sqrt, "max": max, "min": min, "maximum": max, "minimum": min,
    }  # fmt: skip
    if name not in table:
        raise t.unsupported(f"function {name!r} of numbers alone")
    try:
        result = table[name](*values)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise t.damaged(f"{name}{tuple(values)}: {error}") from None
    return (
        int(result)
        if name in ("floor", "ceil", "trunc")
        else float(result)
        if isinstance(result, np.floating)
        else result
    )


@operator("torch.clamp", "torch.clip")
def clamp(t: Translation) -> Any:
    limits = []
    for name in ("min", "max"):
        given = t.given(name)
        number = t.param(name, None)
        limits.append(given if given is not None else None if number is None else t.scalar(t.number(name)))
    return t.build("Clip", t.given("input", 0), *limits)


@operator("torch.where")
def where(t: Translation) -> Any:
    condition, *rest = t.values
    if len(rest) < 2:
        raise t.unsupported("where() of a condition alone gives as many elements as the data has")
    dtype = np.result_type(*(t.dtype(value) for value in rest))
    return t.typed(t.build("Where", condition, *(t.cast(value, dtype) for value in rest)), dtype)


@operator("torch.lerp")
def lerp(t: Translation) -> Any:
    start, end = t.values[:2]
    weight = t.values[2] if len(t.values) > 2 else t.scalar(t.number("weight"))
    return t.build("Add", start, t.build("Mul", weight, t.build("Sub", end, start)))
