"""From an FP32 graph and a calibration table to one graph with QuantizeLinear and DequantizeLinear (Q/DQ).

The rewriting is ONNX Runtime's (`onnxruntime.quantization`). What is decided here is which nodes and which activations:
activations are signed 8 bits with zero point 0, weights signed 8 bits a channel with their largest magnitude as 127.
That is what TensorRT asks for, and ONNX Runtime and OpenVINO take it too.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._files import atomic_write
from ..errors import BackendUnavailableError, ConfigError, UnsupportedModelError
from ..graph.files import read_model
from ..graph.precision import precision_of

if TYPE_CHECKING:
    import os

    from .table import CalibrationTable

__all__ = ["Placement", "Plan", "QuantizedGraph", "plan", "quantize"]

#: Operators with weights: what INT8 is for.
WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
#: What runs in 8 bits between them, so that nothing goes back to floating point on the way.
BETWEEN = frozenset(
    {"Add", "AveragePool", "Clip", "Concat", "Flatten", "GlobalAveragePool", "LeakyRelu", "MaxPool", "Mul", "Relu"}
    | {"Reshape", "Resize", "Sigmoid", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
#: Functions of one value: one that follows a layer goes with it.
FUNCTIONS = frozenset({"Clip", "LeakyRelu", "Relu", "Sigmoid"})
_OPSET = 13  # the first with a scale for each channel

#: `"all"`: also what lies between layers is quantised, ONNX Runtime's way to stay in 8 bits. `"inputs"`: what enters a
#: layer, and nothing else, as OpenVINO and TensorRT fuse best; ONNX Runtime then computes in floating point.
Placement = Literal["all", "inputs"]


@dataclass(frozen=True)
class Plan:
    """A graph ready to be quantised, and which parts of it will be.

    Attributes:
        model: the `onnx.ModelProto`, with shapes inferred, constants folded and batch normalisation merged.
        layers: names of the nodes with weights that are quantised, in order.
        nodes: of all nodes that are.
        activations: names of the tensors whose range has to be known.
        left: weighted nodes that stay in floating point by default, with the reason.
        groups: the nodes of each weighted one: itself, and the activation function behind it.
    """

    model: Any
    layers: tuple[str, ...]
    nodes: tuple[str, ...]
    activations: tuple[str, ...]
    left: Mapping[str, str]
    groups: Mapping[str, tuple[str, ...]]

    def with_functions(self, names: Collection[str]) -> set[str]:
        """These nodes, each layer among them with its activation function."""
        return {member for name in names for member in self.groups.get(name, (name,))}


@dataclass(frozen=True)
class QuantizedGraph:
    """What `quantize` has written: the file, its quantised layers, and those in floating point."""

    path: Path
    layers: tuple[str, ...]
    floating: tuple[str, ...]


def plan(model: str | os.PathLike[str], *, exclude: Sequence[str] = (), placement: Placement = "all") -> Plan:
    """Decides what of a model is quantised.

    The tail of the graph, from where no layer with weights follows, stays in floating point: a detector decodes its
    boxes there, and one scale for coordinates of hundreds of pixels and scores up to 1 would leave nothing of the
    scores. The convolution that YOLOv8 takes the mean of a distribution with is part of its tail.

    Args:
        model: an ONNX file in FP32.
        exclude: names of nodes that stay in floating point; with a layer its activation function does.
        placement: see `Placement`.

    Raises:
        ModelNotFoundError, ModelFormatError: there is no such file, or it is no ONNX model.
        UnsupportedModelError: it is quantised already, is not FP32, has no layer to quantise, or cannot be prepared.
        ConfigError: `exclude` names no node of it.
        BackendUnavailableError: the `onnx` or `onnxruntime` package is not installed.
    """
    source = read_model(model)
    precision = precision_of(source)
    if precision == "int8":
        raise UnsupportedModelError(f"{str(model)!r} is quantised already; start from the model that it was made of")
    if precision != "fp32":
        raise UnsupportedModelError(f"{str(model)!r} is {precision}; quantisation starts from an fp32 model")
    if placement not in ("all", "inputs"):
        raise ConfigError(f"unknown placement {placement!r}; use 'all' or 'inputs'")
    whole = _proto(source)
    prepared = _prepare(whole, model)
    graph = prepared.graph
    given = {node.name for node in (*whole.graph.node, *graph.node)}
    if unknown := [name for name in exclude if name not in given]:
        raise ConfigError(
            f"exclude: {str(model)!r} has no node {unknown[0]!r}; `infersdk quantize --layers` lists them"
        )
    weights = {tensor.name: tensor for tensor in graph.initializer}
    weighted = [n for n in graph.node if n.op_type in WEIGHTED and len(n.input) > 1 and n.input[1] in weights]
    left = {n.name: "the mean of a distribution" for n in weighted if _is_mean(n, graph, weights)}
    groups = {n.name: (n.name, *_function_of(n, graph)) for n in weighted}
    excluded = {member for name in exclude for member in groups.get(name, (name,))}
    layers = [n for n in weighted if n.name not in left and n.name not in excluded]
    if not layers:
        raise UnsupportedModelError(f"{str(model)!r} has no convolution or matrix product with weights to quantise")
    body = _ancestors(graph, {n.name for n in weighted if n.name not in left})
    floats = _float_tensors(prepared)
    chosen = list(layers)
    if placement == "all":
        chosen += [
            n
            for n in graph.node
            if n.op_type in BETWEEN and n.name in body and n.name not in excluded and n.output[0] in floats
        ]
    used = {name for n in chosen for name in n.input}
    if placement == "all":
        # What only the tail reads stays as it is: raw boxes and scores, or a classifier's features.
        used |= {name for n in chosen for name in n.output if _feeds(graph, name, body)}
    activations = [name for name in _in_order(graph) if name in used and name in floats and name not in weights]
    return Plan(
        prepared, tuple(n.name for n in layers), tuple(n.name for n in chosen), tuple(activations), left, groups
    )


def quantize(
    model: str | os.PathLike[str] | Plan,
    output: str | os.PathLike[str],
    table: CalibrationTable,
    *,
    exclude: Sequence[str] = (),
    placement: Placement = "all",
    only: Collection[str] | None = None,
) -> QuantizedGraph:
    """Writes the quantised model.

    Args:
        model: an ONNX file in FP32, or the plan that was made of it.
        output: the file to write.
        table: the ranges of its activations.
        exclude: names of nodes that stay in floating point.
        placement: see `Placement`; of a plan it is its own.
        only: quantise nothing but these of the plan's nodes.

    Raises:
        CalibrationError: the table is of another model.
        OutputError: the file cannot be written.
        ModelError, ConfigError, BackendUnavailableError: as `plan`.
    """
    if not isinstance(model, Plan):
        table.check(model)
        model = plan(model, exclude=exclude, placement=placement)
        exclude = ()
    excluded = model.with_functions(exclude)
    wanted = set(model.nodes) if only is None else model.with_functions(only)
    nodes = [name for name in model.nodes if name in wanted and name not in excluded]
    table.require(_touched(model, set(nodes)))
    result = _rewrite(model, table, nodes)
    target = Path(output)
    atomic_write(target, result.SerializeToString())
    layers = tuple(name for name in model.layers if name in set(nodes))
    return QuantizedGraph(target, layers, tuple(name for name in model.layers if name not in set(nodes)))


# ---- what there is in a graph ----


def _proto(model: Any) -> Any:
    """The `onnx.ModelProto` of a graph, with all its weights."""
    import onnx_ir as ir

    return ir.to_proto(ir.external_data.load_to_model(model))


def _prepare(model: Any, path: str | os.PathLike[str]) -> Any:
    """Shapes inferred, constants folded, batch normalisation merged; each node has a name; opset 13 at least."""
    import onnx

    _quantization(path)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    try:
        with tempfile.TemporaryDirectory() as folder:
            if next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0) < _OPSET:
                model = onnx.version_converter.convert_version(model, _OPSET)
            source, target = Path(folder) / "source.onnx", Path(folder) / "prepared.onnx"
            onnx.save(model, str(source))
            options.optimized_model_filepath = str(target)
            onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
            prepared = onnx.shape_inference.infer_shapes(onnx.load(str(target)), data_prop=True)
    except Exception as error:  # neither package has exceptions of its own for it
        raise UnsupportedModelError(f"{str(path)!r} cannot be prepared for quantisation: {error}") from error
    used = {node.domain for node in prepared.graph.node} | {""}
    imports = [entry for entry in prepared.opset_import if entry.domain.replace("ai.onnx", "", 1) in used]
    del prepared.opset_import[:]
    prepared.opset_import.extend(imports)
    for index, node in enumerate(prepared.graph.node):
        node.name = node.name or f"{node.op_type}_{index}"
    return prepared


def _quantization(path: object) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import onnxruntime.quantization as module
    except ImportError as error:
        raise BackendUnavailableError(
            f'quantising {str(path)!r} needs {error.name}: pip install "infersdk[onnxruntime]"'
        ) from None
    return module


def _is_mean(node: Any, graph: Any, weights: Mapping[str, Any]) -> bool:
    """A convolution of one output over 0, 1, 2, ..., after a softmax: an expectation (YOLOv8's DFL)."""
    import onnx

    kernel = weights[node.input[1]]
    if node.op_type != "Conv" or kernel.dims[0] != 1:
        return False
    values = onnx.numpy_helper.to_array(kernel).reshape(-1)
    return bool(np.array_equal(values, np.arange(values.size)))


def _function_of(node: Any, graph: Any) -> list[str]:
    """The activation function behind a layer: ReLU and its like, or x * sigmoid(x)."""
    made, found = {node.output[0]}, []
    for other in graph.node:
        follows = other.op_type in FUNCTIONS and other.input[0] == node.output[0]
        if follows or (other.op_type == "Mul" and made.issuperset(other.input)):
            found.append(other.name)
            made.add(other.output[0])
    return found


def _ancestors(graph: Any, names: Collection[str]) -> set[str]:
    """The nodes from which one of these can be reached, and these themselves."""
    wanted: set[str] = set()
    found = set()
    for node in reversed(graph.node):
        if node.name in names or wanted.intersection(node.output):
            found.add(node.name)
            wanted.update(node.input)
    return found


def _feeds(graph: Any, tensor: str, nodes: Collection[str]) -> bool:
    return any(tensor in node.input for node in graph.node if node.name in nodes)


def _float_tensors(model: Any) -> set[str]:
    """The activations of float32, as far as shape inference has seen."""
    import onnx

    graph = model.graph
    values = (*graph.value_info, *graph.input, *graph.output)
    return {value.name for value in values if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}


def _in_order(graph: Any) -> Iterator[str]:
    for value in graph.input:
        yield value.name
    for node in graph.node:
        yield from node.output


def _touched(model: Plan, nodes: Collection[str]) -> list[str]:
    """The activations that these nodes read or write."""
    names = {name for node in model.model.graph.node if node.name in nodes for name in (*node.input, *node.output)}
    return [name for name in model.activations if name in names]


# ---- rewriting ----


def _rewrite(model: Plan, table: CalibrationTable, nodes: Sequence[str]) -> Any:
    import onnx

    module = _quantization("a model")
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    known = frozenset(model.activations)
    constants = frozenset(tensor.name for tensor in model.model.graph.initializer)

    class Quantizer(QDQQuantizer):  # type: ignore[misc]
        """Marks the plan's activations and no others."""

        def quantize_activation_tensor(self, tensor_name: str) -> None:
            if tensor_name in known or tensor_name in constants:
                super().quantize_activation_tensor(tensor_name)

        def quantize_output_same_as_input(self, output_name: str, input_name: str, node_name: str) -> None:
            if output_name in known:
                super().quantize_output_same_as_input(output_name, input_name, node_name)

    ranges = {
        name: TensorData(lowest=np.float32(-found.threshold), highest=np.float32(found.threshold))
        for name, found in table.tensors.items()
    }
    copy = onnx.ModelProto()
    copy.CopyFrom(model.model)
    operators = sorted({node.op_type for node in copy.graph.node if node.name in set(nodes)})
    with _quiet():
        quantizer = Quantizer(
            copy,
            per_channel=True,
            reduce_range=False,
            weight_qType=module.QuantType.QInt8,
            activation_qType=module.QuantType.QInt8,
            tensors_range=TensorsData(CalibrationMethod.MinMax, ranges),
            nodes_to_quantize=list(nodes),
            nodes_to_exclude=[],
            op_types_to_quantize=operators,
            extra_options={
                "ActivationSymmetric": True,
                "WeightSymmetric": True,
                "QuantizeBias": False,  # TensorRT takes no 32-bit integers there; the others quantise it themselves
            },
        )
        quantizer.quantize_model()
    _undo(quantizer.model.model, frozenset(nodes))
    quantizer.model.topological_sort()
    result = quantizer.model.model
    result.producer_name, result.producer_version = "infersdk", ""
    kept = {entry.domain: entry for entry in model.model.opset_import}
    used = {node.domain for node in result.graph.node}
    imports = [entry for entry in result.opset_import if entry.domain in kept or entry.domain in used]
    del result.opset_import[:]
    result.opset_import.extend(imports)
    return result


def _undo(model: Any, nodes: Collection[str]) -> None:
    """Nodes in floating point read activations as they were, not quantised and back."""
    made_by = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if node.name in nodes or node.op_type == "QuantizeLinear":
            continue
        for index, name in enumerate(node.input):
            back = made_by.get(name)
            if back is None or back.op_type != "DequantizeLinear":
                continue
            there = made_by.get(back.input[0])
            if there is not None and there.op_type == "QuantizeLinear":
                node.input[index] = there.input[0]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the words that the quantiser writes to the root of all loggers."""
    logger = logging.getLogger()
    before = logger.disabled
    logger.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = before
