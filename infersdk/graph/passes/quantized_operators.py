"""Rewrites operators on 8-bit values (QLinearConv and others) to the Q/DQ form.

ONNX Runtime's quantiser writes either form, "QOperator" or the equivalent "QDQ". OpenVINO 2026.4 reads QLinearConv but
computes incorrect results with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import UnsupportedModelError
from ..builder import GraphBuilder
from ..parts import replace_node
from ..weights import drop_unused_weights
from .base import Pass

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...core.model_source import ModelSource

__all__ = ["QuantizedOperators"]


@dataclass(frozen=True)
class QuantizedOperators(Pass):
    """Rewrites QLinear operators and QGemm. `apply` raises UnsupportedModelError for unknown ones."""

    name: ClassVar[str] = "quantized-operators"
    version: ClassVar[int] = 1

    def concerns(self, source: ModelSource) -> bool:
        return source.is_onnx and (source.mentions(b"QLinear") or source.mentions(b"QGemm"))

    def apply(self, model: ir.Model) -> bool:
        graph = model.graph
        result = [node for node in graph if node.op_type.startswith("QLinear") or node.op_type == "QGemm"]
        for node in result:
            if node.op_type not in _REWRITES or _attribute(node, "channels_last"):
                raise UnsupportedModelError(
                    f"node {node.name!r} is a {node.op_type}, which cannot be rewritten to Q/DQ; quantise the model to "
                    "Q/DQ (QuantFormat.QDQ of ONNX Runtime, or `infersdk quantize`)"
                )
        for index, node in enumerate(result):
            _Rewriter(graph, node, f"{node.name or node.op_type}_{index}_qdq")()
        if result:
            graph.sort()
            drop_unused_weights(graph)
        return bool(result)


class _Rewriter:
    """Replaces one node."""

    def __init__(self, graph: ir.Graph, node: ir.Node, name: str) -> None:
        self.graph, self.node, self.build = graph, node, GraphBuilder(graph, f"{name}/", node)
        self.inputs = list(node.inputs) + [None] * 9

    def __call__(self) -> None:
        operator, factors, (scale, zero) = _REWRITES[self.node.op_type](self)
        kept = {key: value for key, value in self.node.attributes.items() if key in _KEPT.get(operator, ())}
        computed = self.build(operator, *factors, name="result", **kept)
        replace_node(self.graph, self.node, self.build("QuantizeLinear", computed, scale, zero))

    def restored(self, at: int, axis: int | None = None) -> ir.Value:
        """Dequantises the input at a position with the scale and zero point after it."""
        value, scale, zero = self.inputs[at : at + 3]
        vector = scale is not None and scale.const_value is not None and scale.const_value.size > 1
        result: ir.Value = self.build("DequantizeLinear", value, scale, zero, axis=axis if vector else None)
        return result

    def bias(self, at: int, *scales: int) -> ir.Value | None:
        """The integer bias at a position as float32. Its scale is the product of the inputs `scales`."""
        if self.inputs[at] is None:
            return None
        values = [_constant(self.inputs[i], self.node) for i in (at, *scales)]
        product = values[0].astype(np.float64)
        for scale in values[1:]:
            product = product * scale
        return self.build.constant(product.astype(np.float32), "bias")


Rewritten = tuple[str, list[Any], tuple[Any, Any]]


def _conv(self: _Rewriter) -> Rewritten:
    factors = [self.restored(0), self.restored(3, axis=0), self.bias(8, 1, 4)]
    return "Conv", factors, (self.inputs[6], self.inputs[7])


def _matmul(self: _Rewriter) -> Rewritten:
    return "MatMul", [self.restored(0), self.restored(3, axis=-1)], (self.inputs[6], self.inputs[7])


def _gemm(self: _Rewriter) -> Rewritten:
    # The scale of the bias excludes alpha, since Gemm applies alpha to the product only.
    axis = 0 if _attribute(self.node, "transB") else 1
    factors = [self.restored(0), self.restored(3, axis=axis), self.bias(6, 1, 4)]
    return "Gemm", factors, (self.inputs[7], self.inputs[8])


def _two(operator: str) -> Callable[[_Rewriter], Rewritten]:
    return lambda self: (operator, [self.restored(0), self.restored(3)], (self.inputs[6], self.inputs[7]))


def _one(operator: str) -> Callable[[_Rewriter], Rewritten]:
    return lambda self: (operator, [self.restored(0)], (self.inputs[3], self.inputs[4]))


def _concat(self: _Rewriter) -> Rewritten:
    count = (len(self.node.inputs) - 2) // 3
    self.inputs = list(self.node.inputs)
    return "Concat", [self.restored(2 + 3 * i) for i in range(count)], (self.inputs[0], self.inputs[1])


_REWRITES: dict[str, Callable[[_Rewriter], Rewritten]] = {
    "QLinearConv": _conv, "QLinearMatMul": _matmul, "QGemm": _gemm, "QLinearAdd": _two("Add"),
    "QLinearMul": _two("Mul"), "QLinearSigmoid": _one("Sigmoid"), "QLinearLeakyRelu": _one("LeakyRelu"),
    "QLinearAveragePool": _one("AveragePool"), "QLinearGlobalAveragePool": _one("GlobalAveragePool"),
    "QLinearConcat": _concat,
}  # fmt: skip
#: The attributes that both forms have.
_KEPT = {
    "Conv": ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"),
    "Gemm": ("alpha", "transA", "transB"),
    "LeakyRelu": ("alpha",),
    "AveragePool": ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"),
    "Concat": ("axis",),
}


def _attribute(node: ir.Node, name: str) -> int:
    return int(node.attributes[name].as_int()) if name in node.attributes else 0


def _constant(value: ir.Value | None, node: ir.Node) -> Any:
    if value is None or value.const_value is None:
        raise UnsupportedModelError(f"node {node.name!r} ({node.op_type}) has a bias or a scale that is not a weight")
    return value.const_value.numpy()
