"""The layers of an engine, from the inspector's listing and the profiler of a context.

The listing has a line for each layer: `Name: conv1, LayerType: correlation, Inputs: [ { Name: x, Dimensions: [1,3,4,4],
Datatype: Float, Format: (NHWC) Channel major format }], ..., Metadata: [ONNX Layer: conv1][ONNX Layer: relu1]`. A build
prints the same listing, which needs no GPU.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ...core.executed_layers import ExecutedLayer, LayerProfile, LayerTensor, Role, seconds_of
from ...errors import UnsupportedModelError
from ...graph.info import onnx_info
from .build import build_engine
from .options import Range

if TYPE_CHECKING:
    from ...core.model_source import ModelSource
    from ...core.tensor_spec import TensorSpec
    from .flavour import Flavour

__all__ = ["ProfiledRuns", "listed_layers"]

_PRECISIONS = {
    "Float": "fp32", "Half": "fp16", "BFloat16": "bf16", "Int8": "int8", "UInt8": "int8", "Int32": "int32",
    "Int64": "int64", "Bool": "bool", "FP8": "fp8", "FP4": "fp4",
    "FP32": "fp32", "FP16": "fp16", "BF16": "bf16", "INT8": "int8", "INT32": "int32", "INT64": "int64",
}  # fmt: skip
_SIZES = {"fp32": 4, "fp16": 2, "bf16": 2, "int32": 4, "int64": 8}
_SYNCHRONISE = ("signal", "wait")
#: Kinds of layers and names of kernels that only move data, without a node of the model.
_MOVE = re.compile(r"__myl_(Move|Tran|Cast|Resh|Copy)+_|Reformat", re.IGNORECASE)
_NODE = re.compile(r"\[ONNX Layer: (.*?)\](?=\s*(?:[\[\x1e]|$))")
#: Suffixes of layers after the name of a node.
_NUMBER = re.compile(r"(_U\d+)?_myl\d+_\d+$| \[profile \d+\]$")


# ---- the listing ----


def listed_layers(listing: str, device: str = "") -> list[ExecutedLayer]:
    """The layers of a listing.

    An engine that was built without `ProfilingVerbosity.DETAILED` lists names alone.

    Args:
        device: of the engine; empty for an engine that was only built.
    """
    result = []
    for line in listing.split("\n"):
        text = line.strip()
        if text.startswith(("Bindings", "I/O Tensors")):
            break
        if text and not re.fullmatch(r"Layers(?: \(.*\))?:", text):
            result.append(_layer(text, device))
    return result


def _layer(line: str, device: str) -> ExecutedLayer:
    entry = _pairs(line) if line.startswith("Name: ") else {"Name": line}
    name, kind, kernel = (entry.get(key, "") for key in ("Name", "LayerType", "TacticName"))
    sources = tuple(dict.fromkeys(_NODE.findall(entry.get("Metadata", ""))))
    detailed = "LayerType" in entry
    inputs, constants, outputs = (_tensors(entry.get(key, "")) for key in ("Inputs", "Constants", "Outputs"))
    role: Role = "compute"
    if kind in _SYNCHRONISE:
        role = "synchronise"
    elif detailed and not sources and (_MOVE.search(name) or "reformat" in kind.lower()):
        role = "reformat"
    return ExecutedLayer(
        name=name, kind=kind, role=role, inputs=inputs, outputs=outputs,
        sources=sources or (_NUMBER.sub("", name),), kernel=kernel,
        precision=_precision(inputs or outputs), device=device,
        weight_bytes=sum(map(_nbytes, constants)) + _counted_weights(entry) if detailed else None,
        output_bytes=sum(map(_nbytes, outputs)) if detailed else None,
    )  # fmt: skip


def _precision(tensors: Sequence[LayerTensor]) -> str:
    return tensors[0].dtype if tensors else ""


def _pairs(text: str) -> dict[str, str]:
    """`Key: value` pairs separated by commas. Pairs within brackets are part of a value."""
    result, depth, start = {}, 0, 0
    for index, letter in enumerate(text):
        depth += (letter in "[{") - (letter in "]}")
        if depth == 0 and letter == "," and re.match(r", [A-Z][A-Za-z/]*:", text[index : index + 40]):
            key, _, value = text[start:index].partition(":")
            result[key.strip()] = value.strip()
            start = index + 1
    key, _, value = text[start:].partition(":")
    result[key.strip()] = value.strip()
    return result


def _tensors(text: str) -> tuple[LayerTensor, ...]:
    """The tensors of `[ { Name: x, ... }, { ... }]`."""
    return tuple(_tensor(_pairs(entry.strip())) for entry in re.findall(r"\{([^{}]*)\}", text))


def _tensor(entry: Mapping[str, str]) -> LayerTensor:
    sizes = re.findall(r"-?\d+", entry.get("Dimensions", ""))
    layout = entry.get("Format", "") or entry.get("Format/Datatype", "")
    word = entry.get("Datatype", "") or next(iter(re.findall(r"\b(?:B?FP?\d+|INT\d+|Half|Float|Int8)\b", layout)), "")
    short = re.match(r"\((\w+)\)", layout)
    return LayerTensor(
        entry.get("Name", ""), tuple(map(int, sizes)) if "Dimensions" in entry else None, _PRECISIONS.get(word, word),
        short[1] if short else layout,
    )  # fmt: skip


def _nbytes(tensor: LayerTensor) -> int:
    return 0 if tensor.shape is None else max(0, prod(tensor.shape)) * _SIZES.get(tensor.dtype, 1)


def _counted_weights(entry: Mapping[str, str]) -> int:
    """The bytes of `Weights: {"Type": "Half", "Count": 9408}`, as the full TensorRT lists kernels and biases."""
    total = 0
    for key in ("Weights", "Bias"):
        match = re.search(r"Type\W+(\w+)\W+Count\W+(\d+)", entry.get(key, ""))
        if match:
            total += int(match[2]) * _SIZES.get(_PRECISIONS.get(match[1], ""), 1)
    return total


# ---- the methods of an Infer ----


class ProfiledRuns:
    """The methods of the Infer on TensorRT for `infersdk.layers`."""

    flavour: ClassVar[Flavour]
    device: Any
    forward: Callable[[], Any]
    _captures: bool
    _context: Any
    _engine: Any

    def profile_layers(self, runs: int) -> LayerProfile:
        """See `infersdk.core.executed_layers.ReportsLayers`. It runs without CUDA graphs, which hide the layers."""
        captures, self._captures = self._captures, False
        try:
            self.forward()  # sets the shapes of the context, and compiles kernels
            return _profile(self, runs)
        finally:
            self._captures = captures

    @classmethod
    def built_layers(
        cls, model: ModelSource, *, compute_capability: str, precision: str | None, max_batch: int | None, options: Any
    ) -> LayerProfile:
        """See `infersdk.core.executed_layers.ListsBuiltLayers`.

        Raises:
            ConfigError: this runtime builds only for the present GPU.
            ModelError, PrecisionUnavailableError: as `build_engine`.
        """
        # One profile of one shape: otherwise there are several listings with open sizes.
        profiles = _of_one_batch(onnx_info(model).inputs, max_batch or 1) | options.profiles
        options = msgspec.structs.replace(options, profiling=True, exact_batches=[], profiles=profiles)
        with cls.flavour.messages() as messages:
            build_engine(
                cls.flavour, model, precision=precision, max_batch=max_batch, options=options,
                capabilities=(compute_capability,),
            )  # fmt: skip
        if not messages.listings:
            raise UnsupportedModelError(f"{cls.flavour.title} {cls.flavour.version} did not list the layers it built")
        layers = listed_layers(messages.listings[0])
        weights = sum(layer.weight_bytes or 0 for layer in layers)
        return LayerProfile(
            tuple(layers), memory={"weights": weights},
            timing=f"Nothing ran: the engine was built for compute capability {compute_capability}.",
        )  # fmt: skip


def _of_one_batch(inputs: Sequence[TensorSpec], batch: int) -> dict[str, Range]:
    """A profile of this batch size for each input with a free batch alone."""
    result = {}
    for spec in inputs:
        sizes = [batch, *(d for d in spec.shape[1:] if isinstance(d, int))]
        if spec.has_free_batch and len(sizes) == len(spec.shape):
            result[spec.name] = Range(sizes, sizes, sizes)
    return result


# ---- times ----


def _profile(infer: ProfiledRuns, runs: int) -> LayerProfile:
    """Runs `infer` with a profiler on its execution context, after the shapes were set."""
    trt, raw = infer.flavour.trt, infer._context.raw
    inspector = raw.engine.create_engine_inspector()
    inspector.execution_context = raw
    layers = listed_layers(inspector.get_engine_information(trt.LayerInformationFormat.ONELINE), infer.device)
    profiler = _profiler(trt)
    raw.profiler = profiler
    try:
        walls = seconds_of(infer.forward, runs)
    finally:
        raw.profiler = None
    weights = sum(layer.weight_bytes or 0 for layer in layers)
    return LayerProfile(
        tuple(_timed(layers, profiler.milliseconds, runs, infer.device)), walls, _TIMING,
        memory={"weights": weights, "scratch": infer._engine.scratch_nbytes},
    )  # fmt: skip


_TIMING = (
    "TensorRT's profiler measures each layer on the GPU between events in its stream, without launches. Layers do not "
    "overlap, as they may without the profiler."
)


def _timed(
    layers: Sequence[ExecutedLayer], milliseconds: Mapping[str, float], runs: int, device: str
) -> list[ExecutedLayer]:
    """The layers with their times. Layers of the profiler that are not in the listing come last."""
    known = {layer.name for layer in layers}
    result = [
        dataclasses.replace(
            layer, seconds=milliseconds[layer.name] / runs / 1e3 if layer.name in milliseconds else None
        )
        for layer in layers
    ]
    for name, spent in milliseconds.items():
        if name not in known:
            role: Role = "reformat" if _MOVE.search(name) else "compute"
            sources = (_NUMBER.sub("", name),)
            result.append(ExecutedLayer(name, "", role, sources=sources, device=device, seconds=spent / runs / 1e3))
    return result


def _profiler(trt: Any) -> Any:
    class Profiler(trt.IProfiler):  # type: ignore[misc]
        """Adds up the times of each layer."""

        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.milliseconds: dict[str, float] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.milliseconds[layer_name] = self.milliseconds.get(layer_name, 0.0) + ms

    return Profiler()
