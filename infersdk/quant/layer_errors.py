"""The error of each layer when it alone is quantised, measured for all layers in one run."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import CalibrationError
from ..graph.builder import GraphBuilder
from ..graph.files import model_bytes
from ..graph.weights import add_weight
from .observe import Inputs, batches_of
from .plan import data_input, weight_array
from .quantize import correct_bias, insert_quantizer, output_axis, value_ranges, weight_codes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    import onnx_ir as ir

    from .plan import Plan
    from .table import CalibrationTable, TensorRange

__all__ = ["layer_errors"]


def layer_errors(planned: Plan, table: CalibrationTable, data: Inputs, *, samples: int = 4) -> dict[str, float]:
    """The relative squared error sum (y - y')^2 / sum y^2 of each quantised layer.

    Each layer, with its activation function, reads the FP32 inputs, so that errors do not accumulate. One graph
    computes both results of all layers.

    Args:
        planned: the quantisation plan.
        table: the calibration table.
        data: as in `calibrate`.
        samples: the number of batches.

    Raises:
        CalibrationError: there is no data.
    """
    import onnxruntime

    model = planned.model.clone()
    graph = model.graph
    inputs = [value.name or "" for value in graph.inputs if value.name not in graph.initializers]
    del graph.outputs[:]
    ranges = value_ranges(planned, table)
    for name in planned.layers:
        graph.outputs.extend(_compared(graph, planned, table, ranges, name))
    graph.sort()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = False
    session = onnxruntime.InferenceSession(model_bytes(model), options, providers=["CPUExecutionProvider"])
    sums: Any = 0
    for feeds in itertools.islice(batches_of(data, inputs), samples):
        sums = sums + np.asarray(session.run(None, feeds), np.float64)
    if np.ndim(sums) == 0:
        raise CalibrationError("there is no data to measure layer errors with; give at least one sample")
    errors, powers = sums[0::2], sums[1::2]
    return {
        name: float(error / max(power, 1e-30))
        for name, error, power in zip(planned.layers, errors, powers, strict=True)
    }


def _compared(
    graph: ir.Graph, planned: Plan, table: CalibrationTable, ranges: Mapping[str, TensorRange], layer: str
) -> list[ir.Value]:
    """Adds nodes that compute the squared error of a layer and the squared norm of its result."""
    import onnx_ir as ir

    nodes = {node.name: node for node in graph}
    replaced: dict[ir.Value, ir.Value] = {}
    result: ir.Value = nodes[layer].outputs[0]

    def quantised(value: ir.Value, name: str) -> ir.Value:
        """The value, quantised and dequantised if it has a range."""
        if name not in ranges:
            return value
        return insert_quantizer(graph, value, ranges[name], planned.scheme, f"{layer}/{name}")

    members = (layer, *planned.functions[layer])
    last = members[-1]  # its readers quantise its result
    for name in members:
        node = nodes[name]
        inputs = [replaced.get(value, value) if value is not None else None for value in node.inputs]
        copy = _copy(graph, node, inputs, f"{name}/quantized_alone")
        if name == layer:
            source = data_input(node)
            copy.replace_input_with(0, quantised(source, source.name or ""))
            known = table.tensors.get(source.name or "")
            means = known.mean if known is not None and table.bias_correction else []
            _round_weights(graph, copy, np.asarray(means))
        result = node.outputs[0]
        inner = planned.scheme.between and name != last
        replaced[result] = quantised(copy.outputs[0], result.name or "") if inner else copy.outputs[0]
    build = GraphBuilder(graph, f"{layer}/")
    found = [build("ReduceSumSquare", value, keepdims=0) for value in (build("Sub", replaced[result], result), result)]
    for total in found:
        total.type, total.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(())
    return found


def _copy(graph: ir.Graph, node: ir.Node, inputs: Sequence[ir.Value | None], name: str) -> ir.Node:
    """Copies a node with other inputs."""
    import onnx_ir as ir

    copy = ir.node(node.op_type, inputs, dict(node.attributes), domain=node.domain, name=name)
    copy.outputs[0].name, copy.outputs[0].type = f"{name}_output", node.outputs[0].type
    graph.append(copy)
    return copy


def _round_weights(graph: ir.Graph, node: ir.Node, means: npt.NDArray[np.float64]) -> None:
    """Rounds the weights of a layer to 8 bits and corrects its bias, unless the means of its input are empty."""
    weights = weight_array(node)
    codes = weight_codes(weights, output_axis(node))
    if means.size:
        correct_bias(graph, node, codes, means)
    rounded = (weights - codes.error(weights)).astype(np.float32)
    node.replace_input_with(1, add_weight(graph, f"{node.name}/rounded", rounded))
