"""Rewrites operators on 8-bit values (QLinearConv and others) to the Q/DQ form.

ONNX Runtime's quantiser writes either form, "QOperator" or the equivalent "QDQ". OpenVINO 2026.4 reads QLinearConv but
computes incorrect results with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from ...errors import UnsupportedModelError
from ..builder import GraphBuilder
from ..weights import constant_tensor, drop_unused_weights
from .base import Pass, mentions_any
from .set_opset import at_least_opset

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["QuantizedOperators"]


@dataclass(frozen=True)
class QuantizedOperators(Pass):
    """Rewrites QLinear operators and QGemm. `apply` raises UnsupportedModelError for unknown ones."""

    name: ClassVar[str] = "quantized-operators"
    version: ClassVar[int] = 3
    concerns = mentions_any(b"QLinear", b"QGemm")

    def apply(self, model: ir.Model) -> bool:
        found = _quantized(model)
        if not found:
            return False
        for node in found:
            if node.op_type not in _FORMS or node.attributes.get_int("channels_last", 0) != 0:
                raise UnsupportedModelError(
                    f"node {node.name!r} is a {node.op_type}, which cannot be rewritten to Q/DQ; quantise the model to "
                    "Q/DQ (QuantFormat.QDQ of ONNX Runtime, or `infersdk quantize`)"
                )
        # The first ones with scales per channel, and with DequantizeLinear and a Gemm without a bias.
        at_least_opset(model, 13 if any(map(_scale_vector, found)) else 11)
        graph = model.graph
        for index, node in enumerate(_quantized(model)):  # the conversion may make other nodes
            _rewrite(graph, node, f"{node.name or node.op_type}_{index}_qdq")
        graph.sort()
        drop_unused_weights(graph)
        return True


def _quantized(model: ir.Model) -> list[ir.Node]:
    """The nodes to rewrite."""
    return [node for node in model.graph if node.op_type.startswith("QLinear") or node.op_type == "QGemm"]


def _scale_vector(node: ir.Node) -> bool:
    """Whether the second factor has a scale for each channel."""
    at = max(_FORMS[node.op_type].factors, default=0)
    scale = node.inputs[at + 1] if 0 < at < len(node.inputs) - 1 else None
    known = None if scale is None else constant_tensor(scale)
    return known is not None and known.size > 1


class _Form(NamedTuple):
    """The inputs of an operator on 8-bit values, by position.

    Attributes:
        operator: the operator in floating point.
        factors: the quantised inputs. The scale and the zero point follow each of them.
        result: the scale of the result, which the zero point follows.
        axis: the axis of a vector of scales of the second factor.
        bias: the integer bias, whose scale is the product of the scales of two factors and of `alpha`.
    """

    operator: str
    factors: Sequence[int]
    result: int
    axis: int | None = None
    bias: int | None = None


_FORMS = {
    "QLinearConv": _Form("Conv", (0, 3), 6, axis=0, bias=8), "QLinearMatMul": _Form("MatMul", (0, 3), 6, axis=-1),
    "QGemm": _Form("Gemm", (0, 3), 7, axis=1, bias=6),
    "QLinearAdd": _Form("Add", (0, 3), 6), "QLinearMul": _Form("Mul", (0, 3), 6),
    "QLinearSigmoid": _Form("Sigmoid", (0,), 3), "QLinearLeakyRelu": _Form("LeakyRelu", (0,), 3),
    "QLinearAveragePool": _Form("AveragePool", (0,), 3),
    "QLinearGlobalAveragePool": _Form("GlobalAveragePool", (0,), 3),
    "QLinearConcat": _Form("Concat", (), 0),  # has any number of factors after the result
}  # fmt: skip
#: The attributes that both forms have.
_KEPT = {
    "Conv": ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"),
    "Gemm": ("alpha", "transA", "transB"),
    "LeakyRelu": ("alpha",),
    "AveragePool": ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"),
    "Concat": ("axis",),
}


def _rewrite(graph: ir.Graph, node: ir.Node, name: str) -> None:
    """Replaces a node by DequantizeLinear, the operator in floating point, and QuantizeLinear."""
    from onnx_ir.convenience import replace_nodes_and_values

    form, build = _FORMS[node.op_type], GraphBuilder(graph, f"{name}/", node)
    inputs = [*node.inputs, *[None] * 9]
    axis = 0 if node.attributes.get_int("transB", 0) else form.axis
    factors: list[Any] = []
    per_channel = _scale_vector(node)
    for at in form.factors or range(2, len(node.inputs), 3):
        value, scale, zero = inputs[at : at + 3]
        vector = bool(factors) and per_channel
        factors.append(build("DequantizeLinear", value, scale, zero, axis=axis if vector else None))
    if form.bias is not None and inputs[form.bias] is not None:
        bias, *scales = (_constant(inputs[at], node) for at in (form.bias, *(at + 1 for at in form.factors)))
        product = bias.astype(np.float64) * scales[0] * scales[1] * node.attributes.get_float("alpha", 1.0)
        factors.append(build.constant(product.astype(np.float32), "bias"))
    kept = {key: value for key, value in node.attributes.items() if key in _KEPT.get(form.operator, ())}
    computed = build(form.operator, *factors, name="result", **kept)
    scale, zero = inputs[form.result : form.result + 2]  # a QGemm without them has a floating-point result
    by = computed if scale is None else build("QuantizeLinear", computed, scale, zero)
    replace_nodes_and_values(graph, node, [node], [], node.outputs, [by])


def _constant(value: ir.Value | None, node: ir.Node) -> Any:
    tensor = None if value is None else constant_tensor(value)
    if tensor is None:
        raise UnsupportedModelError(f"node {node.name!r} ({node.op_type}) has a bias or a scale that is not a weight")
    return tensor.numpy()
