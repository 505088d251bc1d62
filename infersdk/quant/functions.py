"""Activation functions that the quantiser recognises."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["BOUNDED", "Function", "function_behind"]

Function = Callable[["npt.NDArray[Any]"], "npt.NDArray[Any]"]

#: Operators whose results are always between 0 and 1.
BOUNDED = frozenset({"HardSigmoid", "Sigmoid", "Softmax"})


def function_behind(value: ir.Value) -> Function | None:
    """The activation function that is the only user of a value; None if there is no such function."""
    if value.is_graph_output():
        return None
    uses = sorted(value.consumers(), key=lambda node: node.op_type)
    kinds = [node.op_type for node in uses]
    if kinds == ["Mul", "Sigmoid"]:
        product, gate = uses
        return _silu if set(product.inputs) == {value, gate.outputs[0]} else None
    if len(uses) != 1:
        return None
    if kinds == ["LeakyRelu"]:
        slope = float(uses[0].attributes["alpha"].as_float()) if "alpha" in uses[0].attributes else 0.01
        return lambda x: np.asarray(np.where(x < 0, slope * x, x))
    return {"Relu": _relu, "Sigmoid": _sigmoid, "HardSwish": _hard_swish}.get(kinds[0])


def _relu(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.asarray(np.maximum(x, 0))


def _sigmoid(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    result: npt.NDArray[Any] = 1 / (1 + np.exp(-np.clip(x, -80, 80)))
    return result


def _silu(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.asarray(x * _sigmoid(x))


def _hard_swish(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.asarray(x * np.clip(x / 6 + 0.5, 0, 1))
