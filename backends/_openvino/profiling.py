"""The layers of a compiled model, from its runtime model and its performance counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ...core.executed_layers import ExecutedLayer, LayerProfile, LayerTensor
from ...errors import ConfigError
from .runtime import execution_devices, precision_of

if TYPE_CHECKING:
    from ...infer import Infer

__all__ = ["profile_model"]

#: Entries of a runtime model without execution.
_CONSTANT = ("Const", "Constant")
_PASSIVE = (*_CONSTANT, "Input", "Output", "Parameter", "Result")
#: Layers that the plugin adds to change the layout or type of a tensor.
_REFORMATS = ("Reorder", "reorder")
_SIZES = {"f32": 4, "i32": 4, "u32": 4, "f16": 2, "bf16": 2, "i64": 8, "f64": 8, "i16": 2, "u16": 2}


def profile_model(infer: Infer, runs: int, compiled: Any, request: Any, runs_before: int) -> LayerProfile:
    """Runs `infer` with its present inputs, and reads the layers of the compiled model.

    Args:
        runs_before: the number of earlier runs of the compiled model.

    Raises:
        ConfigError: the model was loaded without counters; or the plugin has no runtime model.
    """
    if not infer.options.profiling:
        raise ConfigError("the model was loaded without profiling=True; load it with that option")
    devices = execution_devices(compiled)
    before = _seconds(request)
    walls, each_run = [], []
    for _ in range(runs):
        start = perf_counter()
        infer.forward()
        walls.append(perf_counter() - start)
        each_run.append(_seconds(request))
    if devices == ["cpu"]:
        # The plugin reports the mean over all runs of the compiled model; those of other devices report the last run.
        count = runs_before + runs
        spent = {
            name: max(0.0, (mean * count - before.get(name, 0.0) * runs_before) / runs)
            for name, mean in each_run[-1].items()
        }
    else:
        spent = {name: sum(one.get(name, 0.0) for one in each_run) / runs for name in each_run[-1]}
    try:
        entries = compiled.get_runtime_model().get_ordered_ops()
    except RuntimeError as error:
        raise ConfigError(f"{infer.device} does not report the layers that it executes: {error}") from None
    entries.sort(key=lambda entry: int(_text(entry, "execOrder") or 0))
    constants = _constants(entries)
    layers = tuple(
        _layer(entry, spent.get(entry.get_friendly_name()), ",".join(devices), constants)
        for entry in entries
        if _text(entry, "layerType") not in _PASSIVE and entry.get_friendly_name() not in constants
    )
    weights = sum(_nbytes(entry) for entry in entries if _text(entry, "layerType") in _CONSTANT)
    timing = "OpenVINO's performance counters take the time of each layer on the device that runs it."
    return LayerProfile(layers, tuple(walls), timing, memory={"weights": weights})


def _seconds(request: Any) -> dict[str, float]:
    return {entry.node_name: entry.real_time.total_seconds() for entry in request.profiling_info}


def _constants(entries: Sequence[Any]) -> Mapping[str, int]:
    """The constants and the entries computed from them alone, by name, with their sizes."""
    result: dict[str, int] = {}
    for entry in entries:
        sources = _sources(entry)
        computed = sources and all(source.get_friendly_name() in result for source in sources)
        if computed or _text(entry, "layerType") in _CONSTANT:
            result[entry.get_friendly_name()] = _nbytes(entry)
    return result


def _layer(entry: Any, seconds: float | None, device: str, constants: Mapping[str, int]) -> ExecutedLayer:
    kind, kernel = _text(entry, "layerType"), _text(entry, "primitiveType")
    outputs = _outputs(entry)
    sources = tuple(name for name in _text(entry, "originalLayersNames").split(",") if name)
    return ExecutedLayer(
        name=entry.get_friendly_name(), kind=kind, role="reformat" if kind in _REFORMATS else "compute",
        inputs=tuple(_read_tensors(entry, constants)), outputs=outputs, sources=sources, kernel=kernel,
        precision=precision_of(entry.get_rt_info()) or _text(entry, "runtimePrecision"), device=device, seconds=seconds,
        weight_bytes=sum(constants.get(source.get_friendly_name(), 0) for source in _sources(entry)),
        output_bytes=_nbytes(entry),
    )  # fmt: skip


def _read_tensors(entry: Any, constants: Mapping[str, int]) -> list[LayerTensor]:
    """The inputs of an entry that are not constant."""
    result = []
    for port in entry.inputs():
        output = port.get_source_output()
        if output.get_node().get_friendly_name() not in constants:
            result.append(_outputs(output.get_node())[output.get_index()])
    return result


def _outputs(entry: Any) -> tuple[LayerTensor, ...]:
    """The results of an entry. Those after the first get a number, since they have no names."""
    name = entry.get_friendly_name()
    layouts, types = _text(entry, "outputLayouts").split(","), _text(entry, "outputPrecisions").split(",")
    many = len(types) == entry.get_output_size()
    return tuple(
        LayerTensor(
            f"{name}:{index}" if index else name, _shape(output), types[index if many else 0],
            layouts[index if len(layouts) == entry.get_output_size() else 0],
        )
        for index, output in enumerate(entry.outputs())
    )  # fmt: skip


def _sources(entry: Any) -> list[Any]:
    return [port.get_source_output().get_node() for port in entry.inputs()]


def _nbytes(entry: Any) -> int:
    return sum(
        prod(tensor.shape) * _SIZES.get(tensor.dtype.lower(), 1)
        for tensor in _outputs(entry)
        if tensor.shape is not None
    )


def _shape(output: Any) -> tuple[int, ...] | None:
    shape = output.get_partial_shape()
    return tuple(shape.to_shape()) if shape.is_static else None


def _text(entry: Any, key: str) -> str:
    info = entry.get_rt_info()
    return str(info[key].value) if key in info else ""
