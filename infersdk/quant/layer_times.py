"""The time of each layer of a model, from the profile of a runtime."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

    from .plan import Plan

    Feeds = Mapping[str, npt.NDArray[Any]]
    #: The names of the nodes that a kernel computes, and its milliseconds.
    Timed = tuple[Sequence[str], float]

__all__ = ["layer_times"]

_RUNS = 12


def layer_times(planned: Plan, model: Path, feeds: Feeds, backend: str, device: str = "cpu") -> dict[str, float] | None:
    """The median milliseconds of each layer with its activation function.

    Args:
        planned: the quantisation plan, for the layers.
        model: the model file, FP32 or quantised.
        feeds: arrays by input name.
        backend, device: the backend and its device.

    Returns:
        The times by layer name. Fused layers count for one of them. None if the profile of the backend is not
        supported.
    """
    profile = _PROFILES.get(backend)
    if profile is None or device != "cpu":
        return None
    owners = _owners(planned)
    times: dict[str, float] = dict.fromkeys(planned.functions, 0.0)
    for names, spent in profile(model, feeds):
        layer = next((result for name in names if (result := _owner(name, owners)) is not None), None)
        if layer is not None:
            times[layer] += spent
    return times


def _owners(planned: Plan) -> dict[str, str]:
    """The layer of each node name and value name that a runtime may report."""
    owners = {}
    for layer, functions in planned.functions.items():
        for name in (layer, *functions):
            node = planned.nodes_by_name[name]
            owners[name] = layer
            owners.update(dict.fromkeys((value.name for value in node.outputs if value.name), layer))
    return owners


def _owner(name: str, owners: Mapping[str, str]) -> str | None:
    """The layer of the longest known prefix of a name, since runtimes append to names."""
    for end in range(len(name), 0, -1):
        # A prefix must end at a word boundary: Conv_1 is not a prefix of Conv_12.
        if name[:end] in owners and not name[end : end + 1].isalnum():
            return owners[name[:end]]
    return None


def _onnxruntime(model: Path, feeds: Feeds) -> Iterable[Timed]:
    import onnxruntime

    from ..graph.passes import UnsignedActivations, prepared_model

    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder, "profile"))
        source = prepared_model(model, [UnsignedActivations()]) or str(model)
        session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        for _ in range(_RUNS + 1):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    spent = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            spent[event["name"].removesuffix("_kernel_time")].append(event["dur"] / 1e3)
    return [([name], statistics.median(times[1:] or times)) for name, times in spent.items()]


def _openvino(model: Path, feeds: Feeds) -> Iterable[Timed]:
    import openvino

    core = openvino.Core()
    properties = {"PERF_COUNT": True, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    compiled = core.compile_model(core.read_model(str(model)), "CPU", properties)
    originals = {}
    for node in compiled.get_runtime_model().get_ops():
        info = node.get_rt_info()
        names = str(info["originalLayersNames"].value) if "originalLayersNames" in info else ""
        originals[node.get_friendly_name()] = [name for name in names.split(",") if name]
    request = compiled.create_infer_request()
    spent = defaultdict(list)
    for _ in range(_RUNS + 1):
        request.infer(dict(feeds))
        for entry in request.profiling_info:
            spent[entry.node_name].append(entry.real_time.total_seconds() * 1e3)
    return [([*originals.get(name, ()), name], statistics.median(times[1:])) for name, times in spent.items()]


_PROFILES: dict[str, Callable[[Path, Feeds], Iterable[Timed]]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}
