"""The precision of the layers of an ONNX graph, as exported or as rewritten by a runtime.

Only layers with most of the work count: convolutions, matrix products, recurrent layers and attention. The type in
which a layer computes decides, not the type in which its weights are stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..core.target import PRECISIONS
from .types import element_types

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["is_quantized", "layer_precisions", "main_precision", "precision_of"]

#: Layers that always compute in integers.
_INTEGER = frozenset(
    {"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat",
     "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QAttention"}
)  # fmt: skip
_HEAVY = _INTEGER | {
    "Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU", "RNN", "Attention", "MultiHeadAttention", "Einsum",
    "FusedConv", "NhwcFusedConv", "FusedGemm", "FusedMatMul", "FusedMatMulActivation", "TransposeMatMul", "MatMulNBits",
}  # fmt: skip
_QUANTIZING = _INTEGER | {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
#: Operators that may be between a DequantizeLinear and the layer that reads it.
_MOVES = frozenset({"Identity", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
#: Operators that move or convert values without arithmetic.
_NO_ARITHMETIC = _MOVES | {
    "Cast", "CastLike", "QuantizeLinear", "DequantizeLinear", "Constant", "Shape", "Gather", "Concat",
}  # fmt: skip


def layer_precisions(model: ir.Model, *, executed: bool) -> Counter[str]:
    """The number of layers in each precision.

    Args:
        model: the model; its external data is not read.
        executed: whether a runtime has rewritten the graph. There, a layer between DequantizeLinear and QuantizeLinear
            computes in floating point; in an exported graph this form requests INT8.

    Returns:
        The counts of the layers with most of the work; if there are none, of all layers in floating point.
    """
    heavy: Counter[str] = Counter()
    light: Counter[str] = Counter()
    types = element_types(model)
    for node in model.graph.all_nodes():
        if node.op_type in _HEAVY:
            heavy[_precision_of_layer(node, types, executed)] += 1
        elif node.op_type not in _NO_ARITHMETIC:
            name = _name(types.get(node.outputs[0])) if node.outputs else ""
            if name not in ("", "int8") or node.op_type.startswith("QLinear"):
                light[name or "int8"] += 1
    return heavy or light


def main_precision(counts: Mapping[str, int]) -> str:
    """The precision of most layers; the wider one in a tie; FP32 if there are none."""
    return max(PRECISIONS, key=lambda name: (counts.get(name, 0), -PRECISIONS.index(name)))


def precision_of(model: ir.Model) -> str:
    """The precision that a graph requests for most of its layers; without layers, that of its inputs."""
    if counts := layer_precisions(model, executed=False):
        return main_precision(counts)
    names = (_name(value.dtype) for value in model.graph.inputs)
    return next((name if name in ("fp16", "bf16") else "fp32" for name in names), "fp32")


def is_quantized(model: ir.Model) -> bool:
    """Whether the graph has any quantised values, weights included."""
    return any(node.op_type in _QUANTIZING for node in model.graph)


def _precision_of_layer(node: ir.Node, types: Mapping[ir.Value, ir.DataType], executed: bool) -> str:
    factors = node.inputs[:2]
    if node.op_type in _INTEGER or (not executed and len(factors) == 2 and all(map(_is_dequantized, factors))):
        return "int8"
    inputs = [_name(types.get(value)) for value in node.inputs if value is not None]
    return next((name for name in inputs if name not in ("", "int8")), "fp32")


def _name(kind: ir.DataType | None) -> str:
    """The precision of an element type; empty if it is not a precision."""
    return "" if kind is None else _NAMES.get(kind.name, "")


_NAMES = {
    "FLOAT": "fp32", "DOUBLE": "fp32", "FLOAT16": "fp16", "BFLOAT16": "bf16", "INT8": "int8", "UINT8": "int8",
}  # fmt: skip


def _is_dequantized(value: ir.Value | None) -> bool:
    """Whether a value comes from a DequantizeLinear, directly or through nodes that only move values."""
    maker = value.producer() if value is not None else None
    while maker is not None and maker.op_type in _MOVES and maker.inputs[0] is not None:
        maker = maker.inputs[0].producer()
    return maker is not None and maker.op_type == "DequantizeLinear"
