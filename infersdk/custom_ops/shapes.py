"""Symbolic sizes for `CustomOp.shape()`.

`shape()` runs once per combination of ranks, with symbols for sizes, and returns an expression for each dimension of
each output. These expressions are evaluated with numbers in a run, with names in ONNX's shape inference, and with
symbolic integers in PyTorch.

Therefore `shape()` may branch on ranks and attributes, but not on sizes, which are unknown until the model runs.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ..errors import CustomOpError, ShapeError

__all__ = [
    "Dim", "Rule", "Shape", "Size", "ceil_div", "compute", "encode", "evaluate", "maximum", "minimum",
    "require_equal", "symbols",
]  # fmt: skip

#: The codes of operations in encoded rules (native/src/custom_ops_rules.c).
_PUSH, _DIM = 0, 1
_OPERATIONS = {"+": 2, "-": 3, "*": 4, "//": 5, "ceil_div": 6, "min": 7, "max": 8}
_COMMUTATIVE = ("+", "*", "min", "max")
#: Values that the core keeps while it computes an expression.
_MOST_KEPT = 32


def _operators(operation: str) -> tuple[Callable[[Dim, Size], Size], Callable[[Dim, int], Size]]:
    """The methods of an operator with the symbolic size on its left, and on its right."""
    return lambda self, other: _make(operation, self, other), lambda self, other: _make(operation, other, self)


class Dim:
    """A symbolic size: a dimension of an input, or an expression of such dimensions.

    It supports `+ - * //`, `ceil_div`, `maximum` and `minimum`, but no comparisons.
    """

    __slots__ = ("axis", "index", "left", "operation", "right")

    def __init__(self, operation: str, left: Size = 0, right: Size = 0, index: int = -1, axis: int = -1) -> None:
        self.operation, self.left, self.right = operation, left, right
        self.index, self.axis = index, axis  # of a dimension of an input

    __add__, __radd__ = _operators("+")
    __sub__, __rsub__ = _operators("-")
    __mul__, __rmul__ = _operators("*")
    __floordiv__, __rfloordiv__ = _operators("//")

    def __neg__(self) -> Size:
        return _make("-", 0, self)

    def _compared(self, *_: object) -> bool:
        raise CustomOpError(
            f"shape() compares {self}, which is unknown until the model runs; branch on ranks and attributes only, "
            "or use maximum(), minimum() or require_equal()"
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = _compared
    __hash__ = object.__hash__

    def __index__(self) -> int:
        raise CustomOpError(
            f"shape() converts {self} to a number, which is unknown until the model runs; compute with + - * // and "
            "ceil_div(), or use an attribute"
        )

    __int__ = __float__ = __index__

    def __repr__(self) -> str:
        if self.operation == "dim":
            return f"input{self.index}[{self.axis}]"
        if len(self.operation) > 2:
            return f"{self.operation}({self.left}, {self.right})"
        return f"({self.left} {self.operation} {self.right})"


#: An int or a symbolic size.
Size = int | Dim

_FOLD: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv,
    "ceil_div": lambda a, b: -(-a // b), "min": min, "max": max,
}  # fmt: skip


def _make(operation: str, left: Size, right: Size) -> Size:
    for side in (left, right):
        if isinstance(side, bool) or not isinstance(side, int | Dim):
            raise CustomOpError(f"shape() computes with {side!r}; a size is an int or a dimension of an input")
    if isinstance(left, int) and isinstance(right, int):
        return _FOLD[operation](left, right)
    if isinstance(right, int) and (operation, right) in (("+", 0), ("-", 0), ("*", 1), ("//", 1), ("ceil_div", 1)):
        return left
    if isinstance(left, int) and (operation, left) in (("+", 0), ("*", 1)):
        return right
    return Dim(operation, left, right)


def ceil_div(size: Size, divisor: Size) -> Size:
    """`size / divisor`, rounded up."""
    return _make("ceil_div", size, divisor)


def maximum(a: Size, b: Size) -> Size:
    """The larger size."""
    return _make("max", a, b)


def minimum(a: Size, b: Size) -> Size:
    """The smaller size."""
    return _make("min", a, b)


class Shape(tuple[Size, ...]):
    """The shape of an input: a tuple of sizes, with `size`, the number of elements."""

    __slots__ = ()

    @property
    def size(self) -> Size:
        count: Size = 1
        for dim in self:
            count = _make("*", count, dim)
        return count

    @property
    def ndim(self) -> int:
        return len(self)


@dataclass(frozen=True)
class Rule:
    """The result of `shape()` for a combination of ranks.

    Attributes:
        ranks: the ranks of the inputs.
        outputs: the shape of each output.
        checks: pairs of sizes that must be equal, with a message.
        launch: the grid (3), block (3), shared bytes and arguments (kind, value) of a CUDA kernel.
    """

    ranks: tuple[int, ...]
    outputs: tuple[Shape, ...]
    checks: tuple[tuple[Size, Size, str], ...] = ()
    launch: tuple[tuple[Size, ...], tuple[tuple[str, Any], ...]] | None = None


#: The checks of `require_equal` while a shape() is traced.
_checks: ContextVar[list[tuple[Size, Size, str]] | None] = ContextVar("checks", default=None)


def require_equal(size: Size, wanted: Size, what: str) -> None:
    """Requires two sizes to be equal; for use in `shape()`. Otherwise loading or running fails with the message `what`.

    Raises:
        ShapeError: at run time, if the sizes differ.
        CustomOpError: both sizes are ints and differ, or no `shape()` is running.
    """
    checks = _checks.get()
    if checks is None:
        raise CustomOpError("require_equal() must be called in shape()")
    if isinstance(size, int) and isinstance(wanted, int):
        if size != wanted:
            raise CustomOpError(f"{what}: it is {size}, not {wanted}")
        return
    checks.append((size, wanted, what))


def symbols(ranks: Sequence[int]) -> tuple[Shape, ...]:
    """A shape of symbols for each input."""
    return tuple(Shape(Dim("dim", index=index, axis=axis) for axis in range(rank)) for index, rank in enumerate(ranks))


def trace(function: Callable[..., Any], ranks: Sequence[int], num_outputs: int) -> Rule:
    """Runs a `shape()` with symbols.

    Raises:
        CustomOpError: it does not return a shape for each output, or uses an unsupported operation on sizes.
    """
    checks: list[tuple[Size, Size, str]] = []
    token = _checks.set(checks)
    try:
        returned = function(*symbols(ranks))
    finally:
        _checks.reset(token)
    shapes = (returned,) if num_outputs == 1 else returned
    if not isinstance(shapes, tuple | list) or len(shapes) != num_outputs:
        raise CustomOpError(f"shape() returns {returned!r}; it must return a tuple of {num_outputs} shapes")
    return Rule(tuple(ranks), tuple(_shape(shape) for shape in shapes), tuple(checks))


def _shape(returned: Any) -> Shape:
    if not isinstance(returned, tuple | list):
        raise CustomOpError(f"shape() returns {returned!r} for a shape; a shape is a tuple of sizes, () for a scalar")
    for size in returned:
        if isinstance(size, bool) or not isinstance(size, int | Dim) or (isinstance(size, int) and size < 0):
            raise CustomOpError(
                f"shape() returns {tuple(returned)!r}; a size is an int from 0 or an expression of input dimensions"
            )
    if len(returned) > 16:
        raise CustomOpError(f"shape() returns {len(returned)} dimensions; the maximum is 16")
    return Shape(returned)


def compute(operation: str, left: Any, right: Any) -> Any:
    """Computes with ints."""
    try:
        result = _FOLD[operation](left, right)
    except ZeroDivisionError:
        raise ShapeError(f"shape() divides {left} by {right}") from None
    if isinstance(result, int) and not -(2**63) <= result < 2**63:  # not a symbol of PyTorch
        raise ShapeError("a size that shape() works out has more than 63 bits")
    return result


def compute_known(operation: str, left: Any, right: Any) -> int | None:
    """Computes with ints and unknown sizes of any other type; results from unknown sizes are None."""
    return compute(operation, left, right) if isinstance(left, int) and isinstance(right, int) else None


def evaluate(size: Size, inputs: Sequence[Sequence[Any]], apply: Callable[[str, Any, Any], Any] = compute_known) -> Any:
    """Evaluates a size for input shapes; `apply` computes with the sizes of a runtime."""
    if isinstance(size, int):
        return size
    if size.operation == "dim":
        return inputs[size.index][size.axis]
    return apply(size.operation, evaluate(size.left, inputs, apply), evaluate(size.right, inputs, apply))


# ---- encoding for the native core ----


def _expression(size: Size, ranks: Sequence[int]) -> tuple[list[int], int]:
    """The words of an expression, and how many values are kept while it is computed."""
    if isinstance(size, int):
        if not -(2**63) <= size < 2**63:
            raise CustomOpError(f"shape() computes with {size}; a size has 64 bits")
        return [_PUSH, size], 1
    if size.operation == "dim":
        if not (0 <= size.index < len(ranks) and 0 <= size.axis < ranks[size.index]):
            raise CustomOpError(
                f"{size} is a size of another call, for inputs of other ranks; use the arguments' sizes"
            )
        return [_DIM, size.index * 16 + size.axis], 1
    (left, most_left), (right, most_right) = _expression(size.left, ranks), _expression(size.right, ranks)
    if size.operation in _COMMUTATIVE and most_left < most_right:  # the first result is kept during the second
        (left, most_left), (right, most_right) = (right, most_right), (left, most_left)
    return [*left, *right, _OPERATIONS[size.operation]], max(most_left, most_right + 1)


def _counted(size: Size, ranks: Sequence[int]) -> list[int]:
    words, most = _expression(size, ranks)
    if most > _MOST_KEPT:
        raise CustomOpError(
            f"shape() returns {size}, which keeps {most} values while it is computed; use at most {_MOST_KEPT}: put "
            "the longer operand of - and // first"
        )
    return [len(words), *words]


def encode(rule: Rule) -> tuple[list[int], int, list[str]]:
    """Encodes a rule for native/src/custom_ops_rules.c, which checks nothing.

    Returns:
        The words, the number of those before its launch (0: it has none), and the messages of the checks.
    """
    if max(rule.ranks, default=0) > 16:
        raise CustomOpError(f"an input has {max(rule.ranks)} dimensions; the maximum is 16")
    words = [len(rule.ranks), *rule.ranks, len(rule.outputs)]
    for shape in rule.outputs:
        words.append(len(shape))
        for size in shape:
            words += _counted(size, rule.ranks)
    words.append(len(rule.checks))
    for index, (size, wanted, _) in enumerate(rule.checks):
        words += [*_counted(size, rule.ranks), *_counted(wanted, rule.ranks), index]
    launch = 0
    if rule.launch is not None:
        launch = len(words)
        sizes, arguments = rule.launch
        for size in sizes:
            words += _counted(size, rule.ranks)
        words.append(len(arguments))
        for kind, value in arguments:
            words += _argument(kind, value, rule)
    return words, launch, [text for _, _, text in rule.checks]


def _argument(kind: str, value: Any, rule: Rule) -> list[int]:
    if kind in ("input", "output"):
        return [("input", "output").index(kind), value]
    if kind == "int":
        return [2, *_counted(value, rule.ranks)]
    return [3, struct.unpack("<I", struct.pack("<f", value))[0]]
