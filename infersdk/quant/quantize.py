"""Writes quantised graphs with QuantizeLinear and DequantizeLinear (Q/DQ) nodes.

Weights are int8 with a scale per output channel and a maximum magnitude of 127. Biases stay float32, as TensorRT
requires; the other runtimes quantise them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.files import atomic_write, check_output
from ..core.model_source import ModelSource
from ..errors import CalibrationError, ConfigError
from ..graph.builder import GraphBuilder
from ..graph.files import files_of, model_bytes
from ..graph.quantization import QuantizationRecord
from ..graph.weights import drop_unused_weights, graph_values
from .plan import Plan, data_input, output_axis, plan, weight_array
from .ranges import scale_and_zero_point
from .schemes import WEIGHTED, Scheme
from .table import TensorRange, check_table

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

    from .table import CalibrationTable

__all__ = [
    "QuantizedGraph", "WeightCodes", "input_ranges", "quantize", "quantized_model", "value_ranges", "weight_codes",
]  # fmt: skip


#: Runtimes add biases as int32 codes, whose scale is the product of those of the input and of the weights. Half of the
#: codes are for the products.
_LARGEST_BIAS_CODE = 2**30


@dataclass(frozen=True)
class QuantizedGraph:
    """The result of `quantize`: the file, its layers in INT8 and in floating point, and its record."""

    path: Path
    layers: tuple[str, ...]
    floating: tuple[str, ...]
    record: QuantizationRecord


def quantize(
    model: str | os.PathLike[str] | Plan,
    output: str | os.PathLike[str],
    table: CalibrationTable,
    *,
    target: str | Scheme = "portable",
    exclude: Sequence[str] = (),
    bias_correction: bool | None = None,
) -> QuantizedGraph:
    """Writes the quantised model.

    Args:
        model: an ONNX file in FP32, or a plan for it. Of a plan, the names of activations alone are compared with the
            table, and nothing protects its file from being `output`.
        output: the file to write.
        table: the calibration table.
        target: the target; ignored for a plan, which has a target.
        exclude: the names of nodes that stay in floating point.
        bias_correction: whether biases compensate for the effect of rounding the weights on the mean of each channel.
            This needs a table with means. By default, the table decides.

    Raises:
        CalibrationError: `table` is not a calibration table, or is for another model.
        OutputError: the file cannot be written.
        ModelError, ConfigError, BackendUnavailableError: as `plan`.
    """
    check_table(table)
    if isinstance(model, Plan):
        planned = model.without(exclude) if exclude else model
    else:
        check_output(model, output, *files_of(ModelSource.of(model)))
        table.check(model)
        planned = plan(model, target, exclude=exclude)
    result, record = quantized_model(planned, table, bias_correction=bias_correction)
    path = atomic_write(output, model_bytes(result))
    floating = [name for name in planned.functions if name not in planned.layers]
    return QuantizedGraph(path, planned.layers, tuple(floating), record)


def quantized_model(
    planned: Plan, table: CalibrationTable, *, bias_correction: bool | None = None
) -> tuple[ir.Model, QuantizationRecord]:
    """The quantised graph, and the record in its metadata. The model of the plan is not changed."""
    scheme = planned.scheme
    corrects = table.bias_correction if bias_correction is None else bias_correction
    if not isinstance(corrects, bool):
        raise ConfigError(f"bias_correction is True or False, or None for that of the table, not {corrects!r}")
    table.require(planned.activations)
    model = planned.model.clone()
    graph = model.graph
    build, values = GraphBuilder(graph), dict(graph_values(graph))
    nodes = {node.name or "": node for node in graph}
    chosen = set(planned.nodes)
    ranges = value_ranges(planned, table)
    for name in planned.points:
        readers = _readers(values[name], scheme, chosen)
        if readers:
            restored = _insert_quantizer(build, values[name], ranges[name], scheme, name)
            for use in readers:
                use.node.replace_input_with(use.idx, restored)
    corrected = 0
    for name, covered in input_ranges(planned, table).items():
        step, _ = scale_and_zero_point(*covered, signed=scheme.signed)
        weights, axis = weight_array(nodes[name]), output_axis(nodes[name])
        least = _largest_bias(nodes[name], weights.shape[axis]) / (float(step) * _LARGEST_BIAS_CODE)
        codes = weight_codes(weights, axis, least)
        known = table.tensors.get(data_input(planned.nodes_by_name[name]).name or "")
        if corrects and known is not None and known.mean:
            corrected += _correct_bias(build, nodes[name], codes, np.asarray(known.mean))
        _store_weights(build, nodes[name], codes)
    graph.sort()
    drop_unused_weights(graph)
    record = QuantizationRecord(
        target=scheme.name,
        method=table.method,
        percentile=table.percentile,
        samples=table.samples,
        bias_correction=corrected > 0,
        layers=len(planned.layers),
        floating=len(planned.functions) - len(planned.layers),
    )
    record.write(model.metadata_props)
    model.producer_name, model.producer_version = "infersdk", ""
    return model, record


# ---- activations ----


def value_ranges(planned: Plan, table: CalibrationTable) -> dict[str, TensorRange]:
    """The range of each value in 8 bits."""
    sources = {**planned.moved, **planned.points}
    known = {name: _BOUNDS if planned.is_bounded(name) else table.tensors[name] for name in sources.values()}
    return {name: known[source] for name, source in sources.items()}


def input_ranges(planned: Plan, table: CalibrationTable) -> dict[str, tuple[float, float]]:
    """The range of the input codes of each quantised layer."""
    ranges = value_ranges(planned, table)
    inputs = {layer: data_input(planned.nodes_by_name[layer]).name or "" for layer in planned.layers}
    return {layer: _covered(ranges[name], planned.scheme) for layer, name in inputs.items()}


_BOUNDS = TensorRange(min=0.0, max=1.0, low=0.0, high=1.0, threshold=1.0)


def _covered(found: TensorRange, scheme: Scheme) -> tuple[float, float]:
    """The range that the codes of a scheme cover."""
    return (-found.threshold, found.threshold) if scheme.signed else (found.low, found.high)


def _insert_quantizer(build: GraphBuilder, value: ir.Value, found: TensorRange, scheme: Scheme, name: str) -> ir.Value:
    """Quantises and dequantises a value; returns the output of the new DequantizeLinear."""
    scale, zero = scale_and_zero_point(*_covered(found, scheme), signed=scheme.signed)
    parameters = [
        build.constant(scale, f"{name}_scale"),
        build.constant(np.asarray(zero, scheme.dtype), f"{name}_zero_point"),
    ]
    codes = _append(build, "QuantizeLinear", [value, *parameters], f"{name}_quantized", scheme.dtype)
    return _append(build, "DequantizeLinear", [codes, *parameters], f"{name}_dequantized", np.float32)


def _append(
    build: GraphBuilder, operator: str, inputs: Sequence[ir.Value], name: str, dtype: Any, **attributes: Any
) -> ir.Value:
    """Appends a QuantizeLinear or DequantizeLinear of the first input; returns its output."""
    import onnx_ir as ir

    result = build(operator, *inputs, name=name, **attributes)
    result.type = ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype)))
    result.shape = inputs[0].shape
    return result


def _readers(value: ir.Value, scheme: Scheme, chosen: Collection[str]) -> list[Any]:
    """The uses of a value that read it in 8 bits."""
    maker = value.producer()
    if scheme.between and maker is not None and (maker.name in chosen or _behind_layer(maker, chosen)):
        # The result of a quantised node exists only in 8 bits; floating-point users dequantise it.
        return list(value.uses())
    uses = [use for use in value.uses() if use.node.name in chosen]
    return [use for use in uses if use.idx == 0 or use.node.op_type not in WEIGHTED]


def _behind_layer(node: ir.Node, chosen: Collection[str]) -> bool:
    """Whether a node is a ReLU that is fused with a quantised layer."""
    maker = node.inputs[0].producer() if node.op_type == "Relu" and node.inputs[0] is not None else None
    return maker is not None and maker.name in chosen


# ---- weights ----


@dataclass(frozen=True)
class WeightCodes:
    """Weights in 8 bits: int8 `codes`, and float32 `scales` per channel along `axis`."""

    codes: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]
    axis: int

    def error(self, weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The rounding error of the weights, w - scale * code."""
        shape = [1] * weights.ndim
        shape[self.axis] = -1
        result: npt.NDArray[np.float32] = weights - self.codes * self.scales.reshape(shape)
        return result


def weight_codes(weights: npt.NDArray[np.float32], axis: int, least: npt.ArrayLike = 0.0) -> WeightCodes:
    """Rounds weights to 8 bits with a scale per channel along an axis.

    Args:
        weights, axis: the weights, and the axis of their channels.
        least: the minimum scale, or one per channel.
    """
    others = tuple(i for i in range(weights.ndim) if i != axis % weights.ndim)
    least = np.maximum(least, np.finfo(np.float32).tiny)
    scales = np.maximum(np.abs(weights).max(axis=others) / 127, least).astype(np.float32)
    codes = np.rint(weights / np.expand_dims(scales, others)).astype(np.int8)
    return WeightCodes(codes, scales, axis % weights.ndim)


def _largest_bias(node: ir.Node, scales: int) -> npt.NDArray[np.float64]:
    """The largest magnitude of a bias for each scale of the weights, or of all; 0 without a constant bias."""
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is None or bias.const_value is None:
        return np.zeros(1)
    array = np.abs(np.atleast_1d(bias.const_value.numpy()).astype(np.float64))
    largest: npt.NDArray[np.float64] = array.reshape(-1, min(scales, array.shape[-1])).max(axis=0)
    return largest


def _store_weights(build: GraphBuilder, node: ir.Node, codes: WeightCodes) -> None:
    name = f"{node.name}_weight"
    source = [
        build.constant(codes.codes, name),
        build.constant(codes.scales, f"{name}_scale"),
        build.constant(np.zeros(len(codes.scales), np.int8), f"{name}_zero_point"),
    ]
    restored = _append(build, "DequantizeLinear", source, f"{name}_dequantized", np.float32, axis=codes.axis)
    node.replace_input_with(1, restored)


def _correct_bias(build: GraphBuilder, node: ir.Node, codes: WeightCodes, means: npt.NDArray[np.float64]) -> bool:
    """Corrects the bias for the effect of rounding the weights; returns whether this was possible.

    Except for borders, rounding changes the mean of output o by sum_k (w - w')[o, k] * mean(x_k). Source: M. Nagel et
    al., `Data-Free Quantization Through Weight Equalization and Bias Correction`, ICCV 2019.
    """
    if node.op_type not in ("Conv", "Gemm"):
        return False
    if node.op_type == "Gemm" and any(
        name in node.attributes and node.attributes[name].value not in (0, 1, 1.0) for name in ("alpha", "beta")
    ):
        return False
    error = codes.error(weight_array(node)).astype(np.float64)
    channels = error.shape[1 - codes.axis] * node.attributes.get_int("group", 1)
    if len(means) != channels:
        raise CalibrationError(
            f"the table has means of {len(means)} channels for the input of node {node.name!r}, which has {channels}; "
            "calibrate again, or quantise with bias_correction=False"
        )
    if node.op_type == "Conv":
        error = error.reshape(*error.shape[:2], -1).sum(2)  # [outputs, inputs of the group]
        groups = len(means) // error.shape[1]
        inputs = means.reshape(groups, -1).repeat(len(error) // groups, axis=0)
        change = (error * inputs).sum(1)
    else:
        change = (error if codes.axis == 0 else error.T) @ means
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    before: Any = 0.0
    if bias is not None:
        if bias.const_value is None or bias.is_graph_input():
            return False
        if bias.const_value.numpy().shape not in ((len(change),), (1, len(change))):  # a Gemm has others, too
            return False
        before = np.asarray(bias.const_value.numpy(), np.float64).reshape(-1)
    corrected = build.constant((before + change).astype(np.float32), f"{node.name}_bias_corrected")
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    node.replace_input_with(2, corrected)
    return True
