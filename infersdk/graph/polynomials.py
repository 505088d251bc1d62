"""What chains of elementwise nodes compute, as polynomials: `(2 * s - 0.5 + cell) * 8` is a + b * s.

The decoding of a head is written in many ways, one exporter folds what another one keeps apart. Two chains compute the
same if they have the same coefficients, whatever their nodes are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .factors import constant_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["Polynomial", "operands", "polynomial_of"]

Array = Any


@dataclass(frozen=True)
class Polynomial:
    """`constant + linear * x + square * x * x` of a value x; the coefficients broadcast to its shape.

    Attributes:
        value: x.
        constant, linear, square: float64.
    """

    value: ir.Value
    constant: npt.NDArray[np.float64]
    linear: npt.NDArray[np.float64]
    square: npt.NDArray[np.float64]

    @classmethod
    def of(cls, value: ir.Value) -> Polynomial:
        """The value itself."""
        return cls(value, np.zeros(()), np.ones(()), np.zeros(()))

    @property
    def is_plain(self) -> bool:
        """Whether it is the value itself."""
        return not np.any(self.constant) and not np.any(self.square) and bool(np.all(self.linear == 1))

    def plus(self, array: Array) -> Polynomial:
        return Polynomial(self.value, self.constant + array, self.linear, self.square)

    def times(self, array: Array) -> Polynomial:
        return Polynomial(self.value, self.constant * array, self.linear * array, self.square * array)

    def squared(self) -> Polynomial | None:
        """None where it has a higher degree than 2."""
        if np.any(self.square):
            return None
        return Polynomial(self.value, self.constant**2, 2 * self.constant * self.linear, self.linear**2)


def polynomial_of(value: ir.Value, stop: Callable[[ir.Node], bool]) -> Polynomial | None:
    """What elementwise nodes with constants compute of another value; None where they compute something else.

    Args:
        stop: whether the result of a node is the x of the polynomial.
    """
    node = value.producer()
    if node is None or stop(node):
        return Polynomial.of(value)
    if node.domain:
        return None
    if node.op_type == "Identity" and node.inputs[0] is not None:
        return polynomial_of(node.inputs[0], stop)
    if node.op_type not in ("Add", "Sub", "Mul", "Div", "Pow"):
        return None
    first, second = node.inputs
    if node.op_type == "Mul" and first is second and first is not None:
        inner = polynomial_of(first, stop)
        return inner.squared() if inner is not None else None
    return _with_constant(node, stop)


def _with_constant(node: ir.Node, stop: Callable[[ir.Node], bool]) -> Polynomial | None:
    """Of a node of a computed operand and a constant."""
    found = operands(node)
    if found is None:
        return None
    data, array, swapped = found
    inner = polynomial_of(data, stop)
    if inner is None:
        return None
    if node.op_type == "Add":
        return inner.plus(array)
    if node.op_type == "Mul":
        return inner.times(array)
    if node.op_type == "Sub":
        return inner.times(np.float64(-1)).plus(array) if swapped else inner.plus(-array)
    if swapped:
        return None
    if node.op_type == "Div":
        return inner.times(1 / array) if np.all(array) else None
    return inner.squared() if array.size == 1 and array.item() == 2 else None


def operands(node: ir.Node) -> tuple[ir.Value, npt.NDArray[np.float64], bool] | None:
    """The computed operand of a node of two, the constant one, and whether that comes first; None for others."""
    if len(node.inputs) != 2 or None in node.inputs:
        return None
    first, second = node.inputs
    for data, other, swapped in ((first, second, False), (second, first, True)):
        array = constant_of(other)
        if array is not None and data is not None and constant_of(data) is None:
            return data, array.astype(np.float64), swapped
    return None
