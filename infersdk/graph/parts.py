"""Extracting parts of a model, joining models, inlining functions, and replacing values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ConfigError, UnsupportedModelError
from .weights import constant_tensor, free_name, graph_values, taken_names, value_names

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["extract_part", "inline_functions", "join_models", "rewire", "tail_inputs", "with_makers"]


def extract_part(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> ir.Model:
    """Extracts the nodes between existing values as a model.

    Raises:
        ConfigError: the outputs cannot be computed from the inputs.
    """
    import onnx_ir as ir

    try:
        part = ir.convenience.extract(model.graph, list(inputs), list(outputs))
    except ValueError as error:
        raise ConfigError(f"{', '.join(outputs)} cannot be computed from {', '.join(inputs)}: {error}") from None
    return ir.Model(
        part, ir_version=model.ir_version, functions=list(model.functions.values()), producer_name=model.producer_name,
        producer_version=model.producer_version, metadata_props=dict(model.metadata_props),
    )  # fmt: skip


def inline_functions(model: ir.Model, wanted: Callable[[ir.Function], bool] | None = None) -> None:
    """Replaces the calls of functions of the model by the nodes of the functions.

    Args:
        wanted: returns whether a function is inlined; None inlines all.

    Raises:
        UnsupportedModelError: a function calls itself, or has another opset than the model.
    """
    from onnx_ir.passes import InvariantError
    from onnx_ir.passes.common import InlinePass

    try:
        InlinePass(wanted)(model)
    except (InvariantError, ValueError) as error:
        raise UnsupportedModelError(f"the functions of the model cannot be inlined: {error}") from None


def join_models(model: ir.Model, other: ir.Model, connect: Mapping[str, ir.Value], prefix: str) -> None:
    """Appends another model of the same opset to a model.

    Args:
        other: the other model, which is not changed.
        connect: values of the model by the names of the inputs of `other` that they feed.
        prefix: prefix for names of `other` that the model also has.
    """
    added = other.clone()
    inline_functions(added)  # the model may have functions of the same names
    names = [value.name or "" for value in other.graph.inputs]
    targets = {value: connect[name] for value, name in zip(added.graph.inputs, names, strict=True) if name in connect}
    _free_names(model.graph, added.graph, prefix)
    _move(model.graph, added.graph, targets)
    model.graph.sort()


def _free_names(graph: ir.Graph, added: ir.Graph, prefix: str) -> None:
    """Renames values and nodes of `added` that have a name of `graph`, subgraphs included."""
    values = value_names(graph)
    taken = values | value_names(added)
    for one in (added, *added.subgraphs()):
        for name, value in list(graph_values(one)):
            if name in values:
                value.name = free_name(prefix + name, taken)
    nodes = {node.name for node in graph.all_nodes()}
    taken = taken_names(graph) | taken_names(added)
    for node in added.all_nodes():
        if node.name and node.name in nodes:
            node.name = free_name(prefix + node.name, taken)


def _move(graph: ir.Graph, added: ir.Graph, targets: Mapping[ir.Value, ir.Value]) -> None:
    """Moves the contents of `added` into `graph`."""
    nodes, weights = list(added), list(added.initializers.values())
    inputs = [value for value in added.inputs if value not in targets]
    outputs = [targets.get(value, value) for value in added.outputs]
    added.outputs.clear()
    added.inputs.clear()
    added.initializers.clear()
    added.remove(nodes)
    for target, source in targets.items():
        target.replace_all_uses_with(source)
        if source.is_graph_output():
            graph.outputs.remove(source)
    for value in weights:
        graph.register_initializer(value)
    graph.extend(nodes)
    graph.inputs.extend(inputs)
    graph.outputs.extend(output for output in outputs if not output.is_graph_output())
    graph.opset_imports.update({d: v for d, v in added.opset_imports.items() if d not in graph.opset_imports})


def rewire(graph: ir.Graph, before: Sequence[ir.Value], after: Sequence[ir.Value]) -> None:
    """Replaces the values `before` by `after` everywhere. Outputs of the graph keep their names."""
    for old, new in zip(before, after, strict=True):
        is_output, name = old in graph.outputs, old.name
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        if is_output:
            old.name = free_name(f"{name}_replaced", value_names(graph))
            new.name = name


def with_makers(graph: ir.Graph, nodes: Iterable[ir.Node]) -> set[ir.Node]:
    """Nodes of a sorted graph and all nodes whose outputs reach their inputs; subgraphs are not searched."""
    result = set(nodes)
    for node in reversed(graph):
        if not result.isdisjoint(node.successors()):
            result.add(node)
    return result


def tail_inputs(model: ir.Model) -> list[str]:
    """The values at which the postprocessing of a model begins.

    The postprocessing is the part of the graph after all layers with weights. YOLOv8's convolution with the weights
    0, 1, 2, ..., which computes the mean of a distribution, belongs to it.
    """
    body = with_makers(model.graph, filter(_has_weights, model.graph))
    return [
        output.name or ""
        for node in model.graph
        if node in body and node.op_type not in ("Shape", "Size", "Constant")
        for output in node.outputs
        if output.is_graph_output() or any(reader not in body for reader in output.consumers())
    ]


def _has_weights(node: ir.Node) -> bool:
    has_two = node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul") and len(node.inputs) > 1
    weights = node.inputs[1] if has_two else None
    tensor = None if weights is None else constant_tensor(weights)
    if tensor is None:
        return False
    if node.op_type != "Conv" or tensor.shape[0] != 1:
        return True
    values = tensor.numpy().reshape(-1)
    return values.size < 4 or not np.allclose(values, np.arange(values.size), atol=0.1)  # quantised weights are rounded
