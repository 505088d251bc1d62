"""Finds the nodes of an FP32 graph that lose too much accuracy in FP16, by running it on samples.

ONNX Runtime runs each node twice on the inputs that the FP32 graph computes: in FP32, and as an FP16 engine would. For
the latter, inputs, weights and results are rounded to float16; sums remain float32. This isolates the error of a node.
The error of the outputs is measured too, with and without the nodes that stay in FP32. Running an FP16 graph instead
would not show the errors: on processors without FP16 arithmetic, runtimes compute it in FP32.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.tensor import Tensor
from ..errors import BackendUnavailableError, ConfigError, InputError, UnsupportedModelError
from .files import model_bytes, read_model
from .parts import inline_functions
from .passes.name_nodes import NameNodes
from .passes.to_float16 import FP16_MAX, round_to_float16, stays_fp32
from .precision import is_quantized, precision_of
from .types import read_values

if TYPE_CHECKING:
    import os

    import numpy.typing as npt
    import onnx_ir as ir

Arrays = Mapping[str, "npt.NDArray[Any]"]

__all__ = ["FP16Loss", "OutputLoss", "ParityReport", "cpu_session", "find_fp16_loss"]


@dataclass(frozen=True)
class FP16Loss:
    """A node that has to stay in FP32.

    Attributes:
        node, operator: the name and the operator.
        reason: `"overflow"`: the results exceed the range of float16; `"input overflow"`: the inputs do;
            `"precision"`: the error exceeds the tolerance.
        largest: the largest finite magnitude of the results in FP32.
        error: |half - full| / |full| as vector norms over all results on all samples; infinity if finite numbers become
            infinite or NaN.
    """

    node: str
    operator: str
    reason: str
    largest: float
    error: float


@dataclass(frozen=True)
class OutputLoss:
    """The relative error of a model output with all nodes in FP16, and with the reported nodes in FP32.

    It is infinity if the output has another shape than in FP32, as boxes behind NMS may have.
    """

    name: str
    error_before: float
    error_after: float


@dataclass(frozen=True)
class ParityReport:
    """The result of `find_fp16_loss`: losses in topological order, out of `nodes` examined nodes."""

    model: str
    samples: int
    tolerance: float
    nodes: int
    losses: tuple[FP16Loss, ...]
    outputs: tuple[OutputLoss, ...]

    @property
    def keep(self) -> tuple[str, ...]:
        """The names of the nodes to keep in FP32, for `ToFloat16(keep_nodes=...)` or the backend option `fp16_keep`."""
        return tuple(loss.node for loss in self.losses)


def find_fp16_loss(
    model: str | os.PathLike[str], samples: Iterable[Arrays], *, tolerance: float = 0.01
) -> ParityReport:
    """Finds the nodes whose results overflow in float16 or have an error above `tolerance`.

    Args:
        model: an ONNX file in FP32.
        samples: mappings of input names to arrays of real data, one per run. `infersdk.loading.samples.read_samples`
            reads them from a folder. All of them are kept in memory.
        tolerance: the maximum relative error of a node. Rounding alone gives about 0.0003.

    Raises:
        ModelNotFoundError, ModelFormatError: the file does not exist or is not an ONNX model.
        ConfigError: the tolerance is not a positive number.
        InputError: there are no samples, or they do not match the inputs.
        UnsupportedModelError: the model is not FP32, a value is not a tensor, or ONNX Runtime cannot run a node.
        BackendUnavailableError: the `onnx` or `onnxruntime` package is not installed.
    """
    if not 0 < tolerance < float("inf"):
        raise ConfigError(f"tolerance must be a number above 0, such as 0.01, not {tolerance!r}")
    given = list(samples)
    if not given:
        raise InputError("there are no samples; give at least one")
    graph = _Graph(model)
    for sample in given:
        if wrong := sorted(set(graph.inputs) ^ set(sample)):
            raise InputError(f"a sample has {sorted(sample)}, and the inputs of {str(model)!r} are {graph.inputs}: "
                             f"check {wrong[0]!r}")  # fmt: skip
    before = after = graph.errors_of_outputs(given, of_nodes=True)
    tried = [node for node in graph.nodes if node.is_tried]
    losses = tuple(
        FP16Loss(node.name, node.operator, reason, node.meter.largest, node.meter.error)
        for node in tried
        if (reason := node.meter.reason(tolerance))
    )
    if losses:
        after = graph.errors_of_outputs(given, kept=[loss.node for loss in losses])
    outputs = tuple(map(OutputLoss, graph.outputs, before, after))
    return ParityReport(str(model), len(given), tolerance, len(tried), losses, outputs)


# ---- errors ----


@dataclass
class _Meter:
    """Accumulates the error of results over all samples."""

    largest: float = 0.0
    takes: float = 0.0  # the largest finite magnitude among the inputs
    off: float = 0.0
    size: float = 0.0
    broken: bool = False

    def add(self, full: npt.NDArray[Any], half: npt.NDArray[Any]) -> None:
        if full.shape != half.shape:
            self.broken = True
        elif full.dtype == np.float32:
            known = np.isfinite(full)
            both = known & np.isfinite(half)
            self.broken = self.broken or bool((known & ~both).any())
            self.largest = max(self.largest, float(np.abs(full).max(initial=0.0, where=known)))
            a, b = full[both].astype(np.float64), half[both].astype(np.float64)  # squares of float32 may overflow
            self.off += float(np.square(b - a).sum())
            self.size += float(np.square(a).sum())

    def take(self, array: npt.NDArray[Any]) -> None:
        self.takes = max(self.takes, float(np.abs(array).max(initial=0.0, where=np.isfinite(array))))

    @property
    def error(self) -> float:
        if self.broken:
            return float("inf")
        return float(np.sqrt(self.off / self.size)) if self.size else float(self.off > 0)

    def reason(self, tolerance: float) -> str:
        """The reason to keep the node in FP32; empty if there is none."""
        if self.largest > FP16_MAX:
            return "overflow"
        if self.error <= tolerance:
            return ""
        return "input overflow" if self.takes > FP16_MAX else "precision"


def _half(value: Any) -> Any:
    """Rounds a float32 array to float16 precision. Other values are returned unchanged."""
    if not isinstance(value, np.ndarray) or value.dtype != np.float32 or not value.size:
        return value
    # The core converts many times faster than NumPy.
    return Tensor.wrap(np.ascontiguousarray(value)).astype("float16").astype("float32").numpy()


# ---- running a graph node by node ----


class _Node:
    """A node that runs by itself. Its session starts on the first run, when the types of its inputs are known.

    Attributes:
        is_tried: whether the node can run in FP16.
        meter: the errors of its results in FP16 on the inputs that the FP32 graph computes.
        done_with: the values whose last use is here.
    """

    def __init__(self, model: ir.Model, node: ir.Node, is_tried: bool, rounded: Arrays) -> None:
        self.name, self.operator, self.is_tried = node.name or "", node.op_type, is_tried
        self.reads = [value.name or "" for value in read_values(node)]
        self.meter, self.done_with = _Meter(), list[str]()
        self._results = [output.name for output in node.outputs if output.name]
        self._model, self._node, self._rounded = model, node, rounded
        self._session: Any = None

    def run(self, values: Arrays, *, narrow: bool = False) -> dict[str, Any]:
        """The results by name. `narrow` rounds inputs, weights and results to float16."""
        arrays = {name: values[name] for name in self.reads}
        if narrow:
            arrays = {name: self._rounded[name] if name in self._rounded else _half(a) for name, a in arrays.items()}
        try:
            self._session = self._session or cpu_session(_alone(self._model, self._node, arrays))
            results = self._session.run(None, arrays)
        except Exception as error:  # the runtime has no root of its own exceptions
            raise UnsupportedModelError(
                f"node {self.name!r} ({self.operator}) cannot be run by itself: {' '.join(str(error).split())}"
            ) from None
        if odd := [result for result in results if not isinstance(result, np.ndarray)]:
            raise UnsupportedModelError(f"node {self.name!r} ({self.operator}) returns a {type(odd[0]).__name__}, "
                                        "no tensor")  # fmt: skip
        return dict(zip(self._results, map(_half, results) if narrow else results, strict=True))

    def measure(self, values: Arrays, results: Arrays) -> None:
        """Adds the errors on values of the FP32 graph, for which the node has `results` in FP32."""
        for name in self.reads:
            if values[name].dtype == np.float32 and name not in self._rounded:
                self.meter.take(values[name])
        for name, half in self.run(values, narrow=True).items():
            if half.dtype == np.float32:
                self.meter.add(results[name], half)


class _Graph:
    """An FP32 model that runs node by node."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if importlib.util.find_spec("onnxruntime") is None:
            raise BackendUnavailableError('finding FP16 losses needs onnxruntime: pip install "infersdk[onnxruntime]"')
        model = read_model(path)
        precision = "int8" if is_quantized(model) else precision_of(model)
        if precision != "fp32":
            raise UnsupportedModelError(f"{str(path)!r} is {precision} already; give a model in fp32")
        inline_functions(model)  # as ToFloat16, which needs the names of the nodes inside
        NameNodes().apply(model)
        graph, stay = model.graph, stays_fp32(model)
        self._weights = {
            name: value.const_value.numpy() for name, value in graph.initializers.items() if value.const_value
        }
        rounded = {
            name: round_to_float16(w).astype(np.float32) for name, w in self._weights.items() if w.dtype == np.float32
        }
        self.inputs = [value.name or "" for value in graph.inputs if value.name not in self._weights]
        self.outputs = [value.name or "" for value in graph.outputs]
        self.nodes = [_Node(model, one, one not in stay and one.op_type != "Constant", rounded) for one in graph]
        last = {name: node for node in self.nodes for name in node.reads}
        for name in last.keys() - set(self.outputs):
            last[name].done_with.append(name)

    def errors_of_outputs(
        self, samples: Iterable[Arrays], *, kept: Collection[str] = (), of_nodes: bool = False
    ) -> list[float]:
        """The errors of the outputs with the nodes `kept` in FP32. `of_nodes` measures the nodes too."""
        meters = {name: _Meter() for name in self.outputs}
        for sample in samples:
            full = {**self._weights, **{name: np.asarray(sample[name]) for name in self.inputs}}
            half = dict(full)
            for node in self.nodes:
                results = node.run(full)
                if of_nodes and node.is_tried:
                    node.measure(full, results)
                half |= node.run(half, narrow=node.is_tried and node.name not in kept)
                full |= results
                for name in node.done_with:
                    del full[name], half[name]
            for name, meter in meters.items():
                meter.add(full[name], half[name])
        return [meter.error for meter in meters.values()]


def cpu_session(model: ir.Model) -> Any:
    """A session of ONNX Runtime for one of hundreds of small models: without spinning threads and without an arena."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model_bytes(model), options, providers=["CPUExecutionProvider"])


def _alone(model: ir.Model, node: ir.Node, arrays: Mapping[str, npt.NDArray[Any]]) -> ir.Model:
    """A model of one node, with typed inputs for `arrays`."""
    import onnx_ir as ir

    outputs = [output for output in node.outputs if output.name]
    graph = ir.GraphView(read_values(node), outputs, nodes=[node], opset_imports=model.opset_imports).clone()
    for value in graph.inputs:
        array = arrays[value.name or ""]
        value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        value.shape = ir.Shape([None] * array.ndim)
    for value in graph.outputs:
        value.type = value.shape = None
    return ir.Model(graph, ir_version=model.ir_version, functions=list(model.functions.values()))
