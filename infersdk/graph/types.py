"""Inference of element types, without shapes.

Types follow from the operator schemas of the ONNX standard. Operators of runtimes have no schema; their output type is
assumed to be that of their first floating-point input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .weights import constant_tensor

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["RANDOM", "element_types", "inner_graphs", "parameter_at", "read_values", "schema_of"]

#: Operators with random results.
RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)

#: Output types of runtime operators that differ from the type of the first floating-point input.
_OTHER_RESULTS = {
    "ConvInteger": "INT32", "MatMulInteger": "INT32", "DynamicQuantizeLinear": "UINT8", "QAttention": "FLOAT",
    "MatMulIntegerToFloat": "FLOAT", "DynamicQuantizeMatMul": "FLOAT", "DynamicQuantizeLSTM": "FLOAT",
}  # fmt: skip


def schema_of(node: ir.Node, opsets: Mapping[str, int]) -> Any:
    """The schema (`onnx.defs.OpSchema`) of the operator of a node; None if it has none."""
    import onnx

    try:
        return onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
    except onnx.defs.SchemaError:
        return None


def parameter_at(parameters: Sequence[Any], index: int) -> Any:
    """The parameter of an input or output of a schema; None if there is none. A variadic last one repeats."""
    if index < len(parameters):
        return parameters[index]
    return parameters[-1] if parameters and parameters[-1].option.name == "Variadic" else None


def element_types(model: ir.Model) -> dict[ir.Value, ir.DataType]:
    """The element types of all values, including subgraphs. Values of unknown type are omitted.

    Types that the graph declares take precedence over inferred ones.
    """
    types: dict[ir.Value, ir.DataType] = {}
    _walk(model.graph, types, model.graph.opset_imports)
    return types


def _walk(graph: ir.Graph, types: dict[ir.Value, ir.DataType], opsets: Mapping[str, int]) -> None:
    import onnx_ir as ir

    def declared(value: ir.Value) -> None:
        if value.const_value is not None:
            types[value] = value.const_value.dtype
        elif isinstance(value.type, ir.TensorType) and value.dtype not in (None, ir.DataType.UNDEFINED):
            types[value] = value.type.dtype

    for value in (*graph.inputs, *graph.initializers.values()):
        declared(value)
    for node in graph:
        inner = inner_graphs(node)
        for other in inner:
            _pass_inputs(node, other, types)
            _walk(other, types, opsets)
        for index, output in enumerate(node.outputs):
            declared(output)
            if output not in types:
                kind = _branch_result(node, inner, index, types) if inner else _result(node, index, types, opsets)
                if kind is not None:
                    types[output] = kind


def inner_graphs(node: ir.Node) -> list[ir.Graph]:
    """The subgraphs of a node: the branches of an If, the body of a Loop or a Scan."""
    import onnx_ir as ir

    result: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            result.append(attribute.value)
        elif attribute.type == ir.AttributeType.GRAPHS:
            result.extend(attribute.value)
    return result


def read_values(node: ir.Node) -> list[ir.Value]:
    """The values that a node and its subgraphs read, without those that are computed in the subgraphs."""
    result = {value: None for value in node.inputs if value is not None}
    for graph in inner_graphs(node):
        within = {graph, *graph.subgraphs()}
        inner = (value for one in graph.all_nodes() for value in one.inputs)
        outer = (value for value in (*inner, *graph.outputs) if value is not None and value.graph not in within)
        result.update(dict.fromkeys(outer))
    return list(result)


def _pass_inputs(node: ir.Node, inner: ir.Graph, types: dict[ir.Value, ir.DataType]) -> None:
    """Sets the types of subgraph inputs: a Loop passes its third and later inputs, a Scan all inputs."""
    outer = list(node.inputs)
    if node.op_type == "Loop":
        outer = [None, None, *outer[2:]]
    for value, source in zip(inner.inputs, outer, strict=False):
        if source is not None and source in types and value.dtype is None:
            types[value] = types[source]


def _branch_result(
    node: ir.Node, inner: list[ir.Graph], index: int, types: Mapping[ir.Value, ir.DataType]
) -> ir.DataType | None:
    skipped = 1 if node.op_type == "Loop" else 0  # the condition
    for graph in inner:
        outputs = list(graph.outputs)[skipped:]
        if index < len(outputs) and outputs[index] in types:
            return types[outputs[index]]
    return None


def _result(
    node: ir.Node, index: int, types: Mapping[ir.Value, ir.DataType], opsets: Mapping[str, int]
) -> ir.DataType | None:
    import onnx_ir as ir

    if (kind := _from_attributes(node, index)) is not None:
        return kind
    inputs = [types.get(value) if value is not None else None for value in node.inputs]
    if (schema := schema_of(node, opsets)) is not None:
        parameter = parameter_at(schema.outputs, index)
        kinds = parameter.types if parameter is not None else ()
        if len(kinds) == 1 and (only := next(iter(kinds))).startswith("tensor("):
            return ir.DataType[only[7:-1].upper()]
        for position, kind in enumerate(inputs):
            source = parameter_at(schema.inputs, position)
            if kind is not None and None not in (source, parameter) and source.type_str == parameter.type_str:
                return kind
        return None
    if (name := _OTHER_RESULTS.get(node.op_type)) is not None:
        return ir.DataType[name]
    if node.op_type.startswith("QLinear"):
        return ir.DataType.UINT8
    return next((kind for kind in inputs if kind is not None and kind.is_floating_point()), next(iter(inputs), None))


def _from_attributes(node: ir.Node, index: int) -> ir.DataType | None:
    """The output type if an attribute or its default decides it; else None."""
    import onnx_ir as ir

    attributes, kind = node.attributes, node.op_type
    if kind == "Cast":
        return ir.DataType(attributes.get_int("to", 0)) if "to" in attributes else None
    if kind == "Constant":
        tensor = constant_tensor(node.outputs[0])
        return None if tensor is None else ir.DataType(tensor.dtype)
    if kind == "ConstantOfShape":
        return attributes["value"].as_tensor().dtype if "value" in attributes else ir.DataType.FLOAT
    if kind in ("RandomNormal", "RandomUniform") or (kind in ("EyeLike", "Multinomial") and "dtype" in attributes):
        return ir.DataType(attributes.get_int("dtype", int(ir.DataType.FLOAT)))
    if kind == "QuantizeLinear":
        if attributes.get_int("output_dtype", 0):
            return ir.DataType(attributes.get_int("output_dtype", 0))
        return ir.DataType.UINT8 if len(node.inputs) < 3 or node.inputs[2] is None else None
    return None
