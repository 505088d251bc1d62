"""The arithmetic of an ONNX graph, layer by layer: of one as it is written, and of one that a runtime has rewritten.

What counts is the layers in which nearly all of the work is: convolutions, matrix products, recurrent layers,
attention. Weights that are stored in less than they are computed in do not make a layer one of that type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import BackendUnavailableError
from ..precision import PRECISIONS

__all__ = [
    "in_order", "is_quantised", "layer_precisions", "main_precision", "node_names", "parse_graph", "taken"
]  # fmt: skip

#: Layers that compute in integers whatever surrounds them.
_INTEGER = frozenset(
    {"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat",
     "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QAttention"}
)  # fmt: skip
_HEAVY = _INTEGER | {
    "Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU", "RNN", "Attention", "MultiHeadAttention", "Einsum",
    "FusedConv", "NhwcFusedConv", "FusedGemm", "FusedMatMul", "FusedMatMulActivation", "TransposeMatMul", "MatMulNBits",
}  # fmt: skip
_QUANTISING = _INTEGER | {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
#: What a value may pass through between its DequantizeLinear and the layer that takes it.
_MOVES = frozenset({"Identity", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_LIGHTLESS = _MOVES | {
    "Cast",
    "CastLike",
    "QuantizeLinear",
    "DequantizeLinear",
    "Constant",
    "Shape",
    "Gather",
    "Concat",
}


def parse_graph(content: bytes) -> Any:
    """The `onnx.ModelProto` that a runtime wrote; its weights may be elsewhere.

    Raises:
        BackendUnavailableError: the `onnx` package is not installed.
    """
    try:
        import onnx
    except ImportError:
        raise BackendUnavailableError(
            'reading a precision back needs the onnx package: pip install "onnx>=1.17"'
        ) from None
    return onnx.load_model_from_string(content)


def layer_precisions(model: Any, *, executed: bool) -> Counter[str]:
    """How many layers compute in each precision.

    Args:
        model: an `onnx.ModelProto`; external weights need not be there.
        executed: it is what a runtime has made of a graph, where a layer between DequantizeLinear and QuantizeLinear is
            one that stayed in floating point. In a graph as it is written, that is how INT8 is asked for.

    Returns:
        The layers that carry the work. Where there are none of these: all that compute in floating point.
    """
    heavy: Counter[str] = Counter()
    light: Counter[str] = Counter()
    _count(model.graph, {}, executed, heavy, light)
    return heavy or light


def main_precision(counts: Mapping[str, int]) -> str:
    """What most layers compute in; of two that share the lead, the wider. FP32 where nothing computes."""
    return max(PRECISIONS, key=lambda name: (counts.get(name, 0), -PRECISIONS.index(name)))


def is_quantised(model: Any) -> bool:
    """Whether anything in the graph is quantised, be it only weights."""
    return any(node.op_type in _QUANTISING for node in model.graph.node)


def node_names(graph: Any) -> list[str]:
    """The name of each node; one that has none is called by its operator and place."""
    return [node.name or f"{node.op_type}_{index}" for index, node in enumerate(graph.node)]


def in_order(nodes: Iterable[Any], known: Iterable[str]) -> list[Any]:
    """The nodes so that each comes after those whose results it takes, and else as they were.

    Args:
        known: what is there without a node: inputs and weights, and for a subgraph what is around it.
    """
    rest, ready, found = list(nodes), {"", *known}, []
    made = {name for node in rest for name in node.output}
    while rest:
        later = []
        for node in rest:
            if all(name in ready or name not in made for name in taken(node)):
                found.append(node)
                ready.update(node.output)
            else:
                later.append(node)
        if len(later) == len(rest):  # a cycle: no valid graph
            return found + later
        rest = later
    return found


def taken(node: Any) -> Iterator[str]:
    """The values that a node takes, those that its subgraphs take from around them included."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {value.name for value in (*graph.input, *graph.initializer)}
            for inner in graph.node:
                yield from (name for name in taken(inner) if name not in own)
                own.update(inner.output)


def _count(graph: Any, around: Mapping[str, int], executed: bool, heavy: Counter[str], light: Counter[str]) -> None:
    import onnx

    kinds = onnx.TensorProto
    names = {
        kinds.FLOAT: "fp32", kinds.DOUBLE: "fp32", kinds.FLOAT16: "fp16", kinds.BFLOAT16: "bf16",
        kinds.INT8: "int8", kinds.UINT8: "int8",
    }  # fmt: skip
    types = dict(around)
    types.update((value.name, value.type.tensor_type.elem_type) for value in (*graph.value_info, *graph.input))
    types.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
    makers: dict[str, Any] = {}
    for node in in_order(graph.node, types):
        for name, kind in zip(node.output, _results(node, types), strict=False):
            if kind and not types.get(name):
                types[name] = kind
            makers[name] = node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    _count(inner, types, executed, heavy, light)
        inputs = [types.get(name, 0) for name in node.input]
        if node.op_type in _HEAVY:
            if node.op_type in _INTEGER or (not executed and _dequantised(node, makers)):
                heavy["int8"] += 1
            else:
                floats = [names[kind] for kind in inputs if names.get(kind, "int8") != "int8"]
                heavy[floats[0] if floats else "fp32"] += 1
        elif node.op_type not in _LIGHTLESS:
            name = names.get(types.get(node.output[0], 0) if node.output else 0, "")
            if name not in ("", "int8") or node.op_type.startswith("QLinear"):
                light[name or "int8"] += 1


def _dequantised(node: Any, makers: Mapping[str, Any]) -> bool:
    """Whether both factors of a layer come out of a DequantizeLinear."""

    def is_one(name: str) -> bool:
        while (maker := makers.get(name)) is not None and maker.op_type in _MOVES:
            name = maker.input[0]
        return maker is not None and maker.op_type == "DequantizeLinear"

    return len(node.input) > 1 and is_one(node.input[0]) and is_one(node.input[1])


def _results(node: Any, types: Mapping[str, int]) -> list[int]:
    """The element types of what a node gives, as far as they can be told without its definition; 0 is unknown."""
    import onnx

    kinds, many = onnx.TensorProto, len(node.output)
    inputs = [types.get(name, 0) for name in node.input]
    attributes = {attribute.name: attribute for attribute in node.attribute}
    kind = node.op_type
    if kind == "Cast":
        return [attributes["to"].i] if "to" in attributes else [0]
    if kind in ("Constant", "ConstantOfShape"):
        return [attributes["value"].t.data_type] if "value" in attributes else [kinds.FLOAT]
    if kind in ("Shape", "Size", "NonZero", "ArgMax", "ArgMin"):
        return [kinds.INT64]
    if kind in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not", "And", "Or", "Xor", "IsNaN"):
        return [kinds.BOOL]
    if kind == "QuantizeLinear":
        return [inputs[2] if len(inputs) > 2 else kinds.UINT8]
    if kind == "DequantizeLinear":
        return inputs[1:2]
    if kind in ("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"):
        return [kinds.FLOAT] * many
    if kind in ("MatMulInteger", "ConvInteger"):
        return [kinds.INT32]
    if kind.startswith("QLinear") or kind == "DynamicQuantizeLinear":
        return [kinds.UINT8]
    if kind == "TopK":
        return [*inputs[:1], kinds.INT64]
    if kind in ("Where", "CastLike") and len(inputs) > 1:
        return inputs[1:2]
    floating = (kinds.FLOAT, kinds.FLOAT16, kinds.BFLOAT16, kinds.DOUBLE)
    first = next((found for found in inputs if found in floating), inputs[0] if inputs else 0)
    return [first] * many
