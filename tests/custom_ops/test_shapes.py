"""The algebra of shapes: traced once, then evaluated by ints, by unknowns and by the native core alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersdk.core.device import Device
from infersdk.custom_ops import CustomOp, Dim, ceil_div, maximum, minimum, require_equal
from infersdk.custom_ops.native import Node, native_op
from infersdk.custom_ops.shapes import Rule, Shape, compute, encode, evaluate, symbols, trace
from infersdk.errors import CustomOpError, ShapeError

OPERATIONS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "//": lambda a, b: a // b,
    "ceil_div": ceil_div, "max": maximum, "min": minimum,
}  # fmt: skip


def expressions(leaves: list[Any]) -> Any:
    """Random expressions over the leaves: functions of the two inputs' first sizes."""
    leaf = st.sampled_from(leaves) | st.integers(1, 9).map(lambda n: lambda a, b: n)
    return st.recursive(
        leaf,
        lambda inner: st.tuples(st.sampled_from(sorted(OPERATIONS)), inner, inner).map(
            lambda t: lambda a, b: OPERATIONS[t[0]](t[1](a, b), t[2](a, b))
        ),
        max_leaves=12,
    )


def native_shape(function: Any, a: int, b: int) -> int:
    """A size as the core works it out, of inputs of `a` and `b` elements."""

    class Op(CustomOp):
        domain = "tests.shapes"
        inputs = {"a": "uint8", "b": "uint8"}
        outputs = {"y": "uint8"}

        def shape(self, a: Any, b: Any) -> Any:
            return (function(a[0], b[0]),)

        def cpu(self, a: Any, b: Any, y: Any) -> None: ...

    node = Node(Op(), native_op(Op, Op.signatures()[0], Device.parse("cpu")), "node")
    return int(node.shapes([(a,), (b,)])[0][0])


@pytest.mark.parametrize("count", [1, 31, 40])
def test_long_expressions(count: int) -> None:
    def sums(a: Any, b: Any) -> Any:
        for _ in range(count):
            a = maximum(0, 1 + 1 * a) - b + b
        return a

    assert native_shape(sums, 3, 5) == 3 + count


def test_an_expression_that_keeps_too_many_values() -> None:
    def nested(a: Any, b: Any) -> Any:
        for _ in range(40):
            a = b - a
        return a

    with pytest.raises(CustomOpError, match="keeps 41 values while it is computed; use at most 32"):
        native_shape(nested, 1, 1)


def test_a_constant_that_is_too_large() -> None:
    with pytest.raises(CustomOpError, match="computes with 1180591620717411303424; a size has 64 bits"):
        native_shape(lambda a, b: a + 2**70, 1, 1)


@given(expressions([lambda a, b: a, lambda a, b: b]), st.integers(0, 40), st.integers(0, 40))
def test_all_evaluate_alike(function: Any, a: int, b: int) -> None:
    try:
        wanted = function(a, b)
    except ZeroDivisionError:
        wanted = None
    try:
        traced = function(symbols([1])[0][0], symbols([0, 1])[1][0])
    except ZeroDivisionError:  # of two numbers
        assert wanted is None
        return
    if wanted is None:
        with pytest.raises(ShapeError, match="divides"):
            native_shape(function, a, b)
        return
    assert evaluate(traced, [(a,), (b,)], compute) == wanted
    assert evaluate(traced, [(a,), (b,)]) == wanted
    if wanted < 0:
        known = isinstance(traced, int)  # a constant is refused before anything runs
        message = "a size is an int from 0" if known else f"output 0 the size {wanted} in dimension 0"
        with pytest.raises(CustomOpError if known else ShapeError, match=message):
            native_shape(function, a, b)
    else:
        assert native_shape(function, a, b) == wanted


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: (x[0],) if x[0] > 3 else x, "compares input0.0., which is unknown until the model runs"),
        (lambda x: (x[0],) if x[0] == x[1] else x, "compares input0"),
        (lambda x: tuple(range(x[0])), "converts input0.0. to a number"),
        (lambda x: (x[0] / 2,), "unsupported operand"),
        (lambda x: (x[0] * 1.5,), "computes with 1.5"),
        (lambda x: (-1, 2), "a size is an int from 0"),
        (lambda x: 3, "returns 3 for a shape"),
        (lambda x: None, "returns None for a shape"),
        (lambda x: (1,) * 17, "returns 17 dimensions"),
    ],
)  # fmt: skip
def test_what_shape_cannot_do(function: Any, message: str) -> None:
    with pytest.raises((CustomOpError, TypeError), match=message):
        trace(function, [2], 1)


@pytest.mark.parametrize(
    ("ranks", "size", "message"),
    [
        ((1,), symbols([1, 2])[1][1], "input1.1. is a size of another call, for inputs of other ranks"),
        ((1,), 2 * symbols([2])[0][1], "input0.1. is a size of another call, for inputs of other ranks"),
        ((1,), Dim("dim"), "is a size of another call"),
        ((17,), 1, "an input has 17 dimensions; the maximum is 16"),
    ],
)
def test_what_the_core_cannot_read(ranks: tuple[int, ...], size: Any, message: str) -> None:
    with pytest.raises(CustomOpError, match=message):
        encode(Rule(ranks, (Shape((size,)),)))


def test_a_shape_for_each_output() -> None:
    with pytest.raises(CustomOpError, match="a tuple of 2 shapes"):
        trace(lambda x: x, [3], 2)
    assert len(trace(lambda x: (x, x[:1]), [3], 2).outputs[1]) == 1


def test_requirements_are_checked_when_sizes_are_known() -> None:
    class Joined(CustomOp):
        domain = "tests.shapes"
        inputs = {"a": "uint8", "b": "uint8"}
        outputs = {"y": "uint8"}

        def shape(self, a: Any, b: Any) -> Any:
            require_equal(a[1], b[1], "the rows of a and b are as long")
            return a[0] + b[0], a[1]

        def cpu(self, a: Any, b: Any, y: Any) -> None: ...

    node = Node(Joined(), native_op(Joined, Joined.signatures()[0], Device.parse("cpu")), "join")
    assert node.shapes([(2, 5), (3, 5)]) == [(5, 5)]
    with pytest.raises(ShapeError, match="tests.shapes::Joined, node join: the rows of a and b are as long: it is 5"):
        node.shapes([(2, 5), (3, 4)])
    with pytest.raises(CustomOpError, match="must be called in shape"):
        require_equal(1, 1, "outside")
