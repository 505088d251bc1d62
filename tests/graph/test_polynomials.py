"""Chains of elementwise nodes as polynomials: their coefficients give the values of the chain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ir = pytest.importorskip("onnx_ir")

from infersdk.graph.polynomials import Polynomial, polynomial_of  # noqa: E402 - behind the check

OPERATORS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}
SHAPE = (2, 3)


def weight(array: Any) -> Any:
    tensor = ir.tensor(np.asarray(array, np.float32))
    return ir.Value(name="w", const_value=tensor, shape=ir.Shape(tensor.shape), type=ir.TensorType(tensor.dtype))


class _Chain:
    """Nodes on a value x, and what they compute for one x."""

    def __init__(self, x: Any) -> None:
        self.start = self.value = ir.node("Sigmoid", [ir.Value(name="x")]).outputs[0]
        self.number = np.asarray(x, np.float64)
        self._graph_weights: list[Any] = []

    def constant(self, operator: str, array: Any, *, swapped: bool) -> None:
        value = weight(array)
        ir.Graph([], [], nodes=[], initializers=[value])  # a weight belongs to a graph
        self._graph_weights.append(value)
        inputs = [value, self.value] if swapped else [self.value, value]
        self.value = ir.node(operator, inputs).outputs[0]
        a, b = self.number, np.asarray(array, np.float32).astype(np.float64)
        with np.errstate(divide="ignore"):
            self.number = OPERATORS[operator](b, a) if swapped else OPERATORS[operator](a, b)

    def square(self, *, power: bool) -> None:
        two = weight(2.0)
        ir.Graph([], [], nodes=[], initializers=[two])
        self._graph_weights.append(two)
        inputs = [self.value, two] if power else [self.value, self.value]
        self.value = ir.node("Pow" if power else "Mul", inputs).outputs[0]
        self.number = self.number**2

    def polynomial(self) -> Polynomial | None:
        return polynomial_of(self.value, lambda node: node.op_type == "Sigmoid")


numbers = st.floats(-8, 8, width=32).filter(lambda number: abs(number) > 0.05)


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_any_chain(data: st.DataObject) -> None:
    x = data.draw(st.lists(st.floats(0, 1, width=32), min_size=6, max_size=6).map(lambda v: np.reshape(v, SHAPE)))
    chain, squared = _Chain(x), False
    for _ in range(data.draw(st.integers(0, 6))):
        step = data.draw(st.sampled_from(["Add", "Sub", "Mul", "Div", "square"]))
        if step == "square":
            if squared:
                continue
            chain.square(power=data.draw(st.booleans()))
            squared = True
            continue
        array: Any = data.draw(numbers)
        if data.draw(st.booleans()):
            array = np.reshape(data.draw(st.lists(numbers, min_size=6, max_size=6)), SHAPE)
        chain.constant(step, array, swapped=step != "Div" and data.draw(st.booleans()))
    found = chain.polynomial()
    assert found is not None
    assert found.value is chain.start
    got = found.constant + found.linear * x + found.square * np.square(x)
    size = max(1.0, float(np.abs(found.constant).max() + np.abs(found.linear).max() + np.abs(found.square).max()))
    np.testing.assert_allclose(np.broadcast_to(got, SHAPE), chain.number, atol=1e-9 * size)


def test_what_is_no_polynomial() -> None:
    chain = _Chain(np.ones(SHAPE))
    chain.constant("Div", 3.0, swapped=True)
    assert chain.polynomial() is None, "a constant divided by x"
    chain = _Chain(np.ones(SHAPE))
    chain.square(power=True)
    chain.square(power=False)
    assert chain.polynomial() is None, "degree 4"
    chain = _Chain(np.ones(SHAPE))
    chain.constant("Div", [[1, 1, 1], [1, 0, 1]], swapped=False)
    assert chain.polynomial() is None, "a division by 0"
    assert _Chain(np.ones(SHAPE)).polynomial().is_plain  # type: ignore[union-attr]
