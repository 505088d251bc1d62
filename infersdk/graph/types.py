"""Inference of element types, without shapes.

Types follow from the operator schemas of the ONNX standard. Operators of runtimes have no schema; their output type is
assumed to be that of their first floating-point input.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from .weights import constant_tensor

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Signature", "element_types", "inner_graphs", "signature"]

#: Output types of runtime operators that differ from the type of the first floating-point input.
_OTHER_RESULTS = {
    "ConvInteger": "INT32", "MatMulInteger": "INT32", "DynamicQuantizeLinear": "UINT8", "QAttention": "FLOAT",
    "MatMulIntegerToFloat": "FLOAT", "DynamicQuantizeMatMul": "FLOAT", "DynamicQuantizeLSTM": "FLOAT",
}  # fmt: skip


class Signature(NamedTuple):
    """The type variable, or the type, of each input and output of an operator.

    A variadic last input or output repeats. `allowed` maps each variable to its allowed types, such as
    `"tensor(float)"`. `free` is set if the members of a variadic parameter may differ in type.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    allowed: Mapping[str, frozenset[str]]
    variadic_input: bool
    variadic_output: bool
    free: bool

    def input(self, index: int) -> str:
        return _at(self.inputs, index, self.variadic_input)

    def output(self, index: int) -> str:
        return _at(self.outputs, index, self.variadic_output)

    def allows(self, variable: str, kind: str) -> bool:
        """Whether the variable allows the type. A parameter with a fixed type is its own variable."""
        return kind in self.allowed.get(variable, (variable,))

    def only_type(self, variable: str) -> str | None:
        """The only element type of a variable, such as `"INT64"`; None if there are several or it is not a tensor."""
        kinds = self.allowed.get(variable, frozenset({variable}))
        (kind,) = kinds if len(kinds) == 1 else ("",)
        return kind[7:-1].upper() if kind.startswith("tensor(") else None


def _at(parameters: tuple[str, ...], index: int, variadic: bool) -> str:
    if index < len(parameters):
        return parameters[index]
    return parameters[-1] if variadic and parameters else ""


def signature(node: ir.Node, opsets: Mapping[str, int]) -> Signature | None:
    """The signature of the operator of a node; None if it has no schema."""
    import onnx

    # Schemas of other domains may be registered and deregistered at run time, and are not cached.
    find = _signature if node.domain in ("", "ai.onnx.ml") else _signature.__wrapped__
    try:
        return find(node.domain, node.op_type, opsets.get(node.domain, 1))
    except onnx.defs.SchemaError:
        return None


@functools.cache
def _signature(domain: str, operator: str, opset: int) -> Signature:
    import onnx

    schema = onnx.defs.get_schema(operator, opset, domain)
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    last = [side[-1] for side in (schema.inputs, schema.outputs) if side and side[-1].option == variadic]
    return Signature(
        tuple(parameter.type_str for parameter in schema.inputs),
        tuple(parameter.type_str for parameter in schema.outputs),
        {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints},
        bool(schema.inputs) and schema.inputs[-1].option == variadic,
        bool(schema.outputs) and schema.outputs[-1].option == variadic,
        any(not parameter.is_homogeneous for parameter in last),
    )


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
    known = signature(node, opsets)
    if known is not None:
        variable = known.output(index)
        if (only := known.only_type(variable)) is not None:
            return ir.DataType[only]
        for position, kind in enumerate(inputs):
            if kind is not None and known.input(position) == variable:
                return kind
        return None
    if (name := _OTHER_RESULTS.get(node.op_type)) is not None:
        return ir.DataType[name]
    if node.op_type.startswith("QLinear"):
        return ir.DataType.UINT8
    return next((kind for kind in inputs if kind in _floating()), next(iter(inputs), None))


@functools.cache
def _floating() -> frozenset[ir.DataType]:
    import onnx_ir as ir

    return frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})


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
