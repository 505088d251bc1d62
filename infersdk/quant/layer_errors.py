"""What quantising each layer alone does to its result, all layers at once."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import CalibrationError
from ..graph.files import model_bytes
from ..graph.weights import add_weight
from .inputs import Inputs, batches_of
from .plan import data_input, weight_array
from .quantize import correct_bias, insert_quantizer, output_axis, range_of_point, weight_codes

if TYPE_CHECKING:
    import onnx_ir as ir

    from .plan import Plan
    from .table import CalibrationTable

__all__ = ["layer_errors"]


def layer_errors(planned: Plan, table: CalibrationTable, data: Inputs, *, samples: int = 4) -> dict[str, float]:
    """The error of each quantised layer's result over its power, sum (y - y')^2 / sum y^2.

    Each layer gets what it gets in FP32, so that the error is its own; its activation function belongs to it. One graph
    computes both results of all layers side by side.

    Args:
        planned: what of the model is quantised.
        table: the ranges of its activations.
        data: as `observe` takes it.
        samples: batches that are looked at.

    Raises:
        CalibrationError: there is no data.
    """
    import onnxruntime

    model = planned.model.clone()
    graph = model.graph
    inputs = [value.name or "" for value in graph.inputs if value.name not in graph.initializers]
    del graph.outputs[:]
    for name in planned.layers:
        graph.outputs.extend(_compared(graph, planned, table, name))
    graph.sort()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = False
    session = onnxruntime.InferenceSession(model_bytes(model), options, providers=["CPUExecutionProvider"])
    sums: Any = 0
    for feeds in itertools.islice(batches_of(data, inputs), samples):
        sums = sums + np.asarray(session.run(None, feeds), np.float64)
    if np.ndim(sums) == 0:
        raise CalibrationError("there is no data to compare layers with")
    errors, powers = sums[0::2], sums[1::2]
    return {
        name: float(error / max(power, 1e-30))
        for name, error, power in zip(planned.layers, errors, powers, strict=True)
    }


def _compared(graph: ir.Graph, planned: Plan, table: CalibrationTable, layer: str) -> list[ir.Value]:
    """The squared error of a layer's result, and the squares of the result itself."""
    import onnx_ir as ir

    nodes = {node.name: node for node in graph}
    replaced: dict[ir.Value, ir.Value] = {}
    result: ir.Value = nodes[layer].outputs[0]

    def quantised(value: ir.Value, name: str) -> ir.Value:
        """The value, or what 8 bits make of it."""
        if planned.source(name) is None:
            return value
        return insert_quantizer(graph, value, range_of_point(planned, table, name), planned.scheme, f"{layer}/{name}")

    members = (layer, *planned.functions[layer])
    last = members[-1]  # who reads its result quantises it
    for name in members:
        node = nodes[name]
        copy = ir.node(
            node.op_type, [replaced.get(value, value) if value is not None else None for value in node.inputs],
            dict(node.attributes), domain=node.domain, name=f"{name}/quantized_alone",
        )  # fmt: skip
        if name == layer:
            source = data_input(node)
            copy.replace_input_with(0, quantised(source, source.name or ""))
            codes = weight_codes(weight_array(node), output_axis(node))
            weights = weight_array(node) - codes.error(weight_array(node))
            copy.replace_input_with(1, add_weight(graph, f"{name}/rounded", weights.astype(np.float32)))
            known = table.tensors.get(source.name or "")
            graph.append(copy)
            if table.bias_correction and known is not None and known.mean:
                correct_bias(graph, copy, codes, np.asarray(known.mean))
        else:
            graph.append(copy)
        copy.outputs[0].name = f"{copy.name}_output"
        copy.outputs[0].type = node.outputs[0].type
        result = node.outputs[0]
        inner = planned.scheme.between and name != last
        replaced[result] = quantised(copy.outputs[0], result.name or "") if inner else copy.outputs[0]
    difference = ir.node("Sub", [replaced[result], result], name=f"{layer}/difference")
    found = []
    for index, value in enumerate((difference.outputs[0], result)):
        total = ir.node("ReduceSumSquare", [value], {"keepdims": 0}, name=f"{layer}/power_{index}")
        total.outputs[0].name = f"{layer}/power_{index}"
        total.outputs[0].type, total.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(())
        graph.append(total)
        found.append(total.outputs[0])
    difference.outputs[0].name = f"{layer}/difference"
    graph.append(difference)
    return found
