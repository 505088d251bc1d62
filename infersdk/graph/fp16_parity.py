"""Finds the nodes of an FP32 graph that lose too much accuracy in FP16, by running it on samples.

ONNX Runtime runs each node twice on the inputs that the FP32 graph computes: in FP32, and as an FP16 engine would. For
the latter, inputs, weights and results are rounded to float16; sums remain float32. This isolates the error of a node.
The error of the outputs is measured too, with and without the nodes that stay in FP32. Running an FP16 graph instead
would not show the errors: on processors without FP16 arithmetic, runtimes compute it in FP32.

::

    report = find_fp16_loss("model.onnx", samples)
    ToFloat16(keep_nodes=report.keep).apply(model)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.tensor import Tensor
from ..errors import BackendUnavailableError, ConfigError, InputError, UnsupportedModelError
from .files import model_bytes, read_model
from .passes.name_nodes import NameNodes
from .passes.to_float16 import FP16_MAX, round_to_float16, stays_fp32
from .precision import is_quantized, precision_of
from .types import read_values

if TYPE_CHECKING:
    import os

    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["FP16Loss", "OutputLoss", "ParityReport", "find_fp16_loss"]


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
    model: str | os.PathLike[str], samples: Iterable[Mapping[str, npt.NDArray[Any]]], *, tolerance: float = 0.01
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
    meters = {step.name: _Meter() for step in graph.steps if step.candidate}

    def measured(kept: frozenset[str], locals_: Mapping[str, _Meter] | None) -> dict[str, _Meter]:
        outputs = {name: _Meter() for name in graph.outputs}
        for sample in given:
            graph.run(sample, kept=kept, locals_=locals_, outputs=outputs)
        return outputs

    before = measured(frozenset(), meters)
    losses = []
    for step in graph.steps:
        meter = meters.get(step.name)
        if meter is not None and (reason := meter.reason(tolerance)):
            losses.append(FP16Loss(step.name, step.node.op_type, reason, meter.largest, meter.error))
    after = measured(frozenset(loss.node for loss in losses), None) if losses else before
    outputs = tuple(OutputLoss(name, before[name].error, after[name].error) for name in graph.outputs)
    return ParityReport(str(model), len(given), tolerance, len(meters), tuple(losses), outputs)


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
    if not isinstance(value, np.ndarray) or value.dtype != np.float32:
        return value
    if not value.size:
        return value
    # The core converts many times faster than NumPy.
    return Tensor.wrap(np.ascontiguousarray(value)).astype("float16").astype("float32").numpy()


# ---- running a graph node by node ----


@dataclass
class _Step:
    """A node. Its session is created on the first run, when the types of its inputs are known."""

    name: str
    node: ir.Node
    takes: list[str]
    candidate: bool
    session: Any = None
    done_with: list[str] = field(default_factory=list)  # values whose last use is here


class _Graph:
    """An FP32 model that runs node by node."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise BackendUnavailableError(
                'finding FP16 losses needs onnxruntime: pip install "infersdk[onnxruntime]"'
            ) from None
        self._ort = onnxruntime
        self.path, self._model = str(path), read_model(path)
        precision = "int8" if is_quantized(self._model) else precision_of(self._model)
        if precision != "fp32":
            raise UnsupportedModelError(f"{self.path!r} is {precision} already; give a model in fp32")
        graph = self._model.graph
        self._weights = {
            name: value.const_value.numpy() for name, value in graph.initializers.items() if value.const_value
        }
        self._rounded = {
            name: round_to_float16(w).astype(np.float32) for name, w in self._weights.items() if w.dtype == np.float32
        }
        self._inputs = [value.name or "" for value in graph.inputs if value.name not in self._weights]
        self.outputs = [value.name or "" for value in graph.outputs]
        NameNodes().apply(self._model)
        stay = stays_fp32(self._model)
        self.steps = [
            _Step(
                node.name or "", node, [value.name or "" for value in read_values(node)],
                node not in stay and node.op_type != "Constant",
            )
            for node in graph
        ]  # fmt: skip
        last = {name: step for step in self.steps for name in step.takes}
        for name, step in last.items():
            if name not in self.outputs:
                step.done_with.append(name)

    def run(
        self,
        sample: Mapping[str, npt.NDArray[Any]],
        *,
        kept: frozenset[str],
        locals_: Mapping[str, _Meter] | None,
        outputs: Mapping[str, _Meter],
    ) -> None:
        """Runs one sample in FP32, and in FP16 except for the nodes `kept`.

        Args:
            locals_: accumulates the error of each node on exact inputs.
            outputs: accumulates the errors of the outputs.
        """
        if wrong := sorted(set(self._inputs) ^ set(sample)):
            raise InputError(f"a sample has {sorted(sample)}, and the inputs of {self.path!r} are {self._inputs}: "
                             f"check {wrong[0]!r}")  # fmt: skip
        full = {**self._weights, **{name: np.asarray(sample[name]) for name in self._inputs}}
        half = dict(full)
        for step in self.steps:
            stays = step.name in kept or not step.candidate
            exact = [full[name] for name in step.takes]
            results = self._compute(step, exact)
            floats = any(r.dtype == np.float32 for r in results) and step.candidate
            meter = locals_.get(step.name) if locals_ is not None else None
            if meter is not None and floats:
                for name, array in zip(step.takes, exact, strict=True):
                    if array.dtype == np.float32 and name not in self._weights:
                        meter.take(array)
                rounded = [self._half(name, full[name]) for name in step.takes]
                for a, b in zip(results, self._compute(step, rounded), strict=True):
                    if a.dtype == np.float32:
                        meter.add(a, _half(b))
            chained = [half[name] if stays else self._half(name, half[name]) for name in step.takes]
            result = self._compute(step, chained)
            names = [output.name for output in step.node.outputs if output.name]
            full.update(zip(names, results, strict=True))
            half.update(zip(names, result if stays else map(_half, result), strict=True))
            for name in step.done_with:
                del full[name], half[name]
        for name, meter in outputs.items():
            if full[name].shape != half[name].shape:
                meter.broken = True
            elif full[name].dtype == np.float32:
                meter.add(full[name], half[name])

    def _half(self, name: str, array: Any) -> Any:
        return self._rounded[name] if name in self._rounded else _half(array)

    def _compute(self, step: _Step, arrays: list[Any]) -> list[Any]:
        try:
            if step.session is None:
                step.session = self._session(step, arrays)
            results: list[Any] = step.session.run(None, dict(zip(step.takes, arrays, strict=True)))
        except Exception as error:  # the runtime has no root of its own exceptions
            raise UnsupportedModelError(
                f"{self.path!r}: node {step.name!r} ({step.node.op_type}) cannot be run by itself: "
                f"{' '.join(str(error).split())}"
            ) from None
        if odd := [result for result in results if not isinstance(result, np.ndarray)]:
            raise UnsupportedModelError(
                f"{self.path!r}: node {step.name!r} ({step.node.op_type}) returns a {type(odd[0]).__name__}, no tensor"
            )
        return results

    def _session(self, step: _Step, arrays: list[Any]) -> Any:
        """A session for one node. Weights are inputs, so that they can be rounded."""
        options = self._ort.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # hundreds of sessions would spin
        content = model_bytes(_alone(self._model, step.node, dict(zip(step.takes, arrays, strict=True))))
        return self._ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


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
