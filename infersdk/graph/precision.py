"""The arithmetic of an ONNX graph, layer by layer: of one as it is written, and of one that a runtime has rewritten.

Counted are the layers in which nearly all of the work is: convolutions, matrix products, recurrent layers, attention.
Weights that are stored in less than they are computed in do not make a layer one of that type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..precision import PRECISIONS
from .types import element_types

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["is_quantized", "layer_precisions", "main_precision", "precision_of"]

#: Layers that compute in integers whatever surrounds them.
_INTEGER = frozenset(
    {"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat",
     "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QAttention"}
)  # fmt: skip
_HEAVY = _INTEGER | {
    "Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU", "RNN", "Attention", "MultiHeadAttention", "Einsum",
    "FusedConv", "NhwcFusedConv", "FusedGemm", "FusedMatMul", "FusedMatMulActivation", "TransposeMatMul", "MatMulNBits",
}  # fmt: skip
_QUANTIZING = _INTEGER | {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
#: What a value may pass through between its DequantizeLinear and the layer that takes it.
_MOVES = frozenset({"Identity", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
#: Operators that move or convert values, and compute nothing.
_NO_ARITHMETIC = _MOVES | {
    "Cast", "CastLike", "QuantizeLinear", "DequantizeLinear", "Constant", "Shape", "Gather", "Concat",
}  # fmt: skip


def layer_precisions(model: ir.Model, *, executed: bool) -> Counter[str]:
    """How many layers compute in each precision.

    Args:
        model: weights in other files need not be there.
        executed: it is what a runtime has made of a graph, where a layer between DequantizeLinear and QuantizeLinear is
            one that stayed in floating point. In a graph as it is written, that is how INT8 is asked for.

    Returns:
        The layers that carry the work. Where there are none of these: all that compute in floating point.
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
    """What most layers compute in; of two that share the lead, the wider. FP32 where nothing computes."""
    return max(PRECISIONS, key=lambda name: (counts.get(name, 0), -PRECISIONS.index(name)))


def precision_of(model: ir.Model) -> str:
    """The arithmetic that a graph asks for in most of its layers; in one without any, the type of its inputs."""
    if counts := layer_precisions(model, executed=False):
        return main_precision(counts)
    names = (_name(value.dtype) for value in model.graph.inputs)
    return next((name if name in ("fp16", "bf16") else "fp32" for name in names), "fp32")


def is_quantized(model: ir.Model) -> bool:
    """Whether anything in the graph is quantised, be it only weights."""
    return any(node.op_type in _QUANTIZING for node in model.graph)


def _precision_of_layer(node: ir.Node, types: Mapping[ir.Value, ir.DataType], executed: bool) -> str:
    if node.op_type in _INTEGER or (not executed and _is_dequantized(node)):
        return "int8"
    inputs = [_name(types.get(value)) for value in node.inputs if value is not None]
    return next((name for name in inputs if name not in ("", "int8")), "fp32")


def _name(kind: ir.DataType | None) -> str:
    """The precision of a type; empty for one that is not a precision."""
    return "" if kind is None else _NAMES.get(kind.name, "")


_NAMES = {
    "FLOAT": "fp32", "DOUBLE": "fp32", "FLOAT16": "fp16", "BFLOAT16": "bf16", "INT8": "int8", "UINT8": "int8",
}  # fmt: skip


def _is_dequantized(node: ir.Node) -> bool:
    """Whether both factors of a layer come out of a DequantizeLinear."""
    factors = list(_sources(node))[:2]
    return len(factors) == 2 and all(maker is not None and maker.op_type == "DequantizeLinear" for maker in factors)


def _sources(node: ir.Node) -> Iterator[ir.Node | None]:
    """The node that makes each input, past those that only move values."""
    for value in node.inputs:
        maker = value.producer() if value is not None else None
        while maker is not None and maker.op_type in _MOVES and maker.inputs[0] is not None:
            maker = maker.inputs[0].producer()
        yield maker
