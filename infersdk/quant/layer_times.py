"""How long each layer of a model takes on a runtime, by the runtime's own profile."""

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
    #: The names of what a runtime has fused into one kernel, and its milliseconds.
    Timed = tuple[Sequence[str], float]

__all__ = ["layer_times"]

_RUNS = 12


def layer_times(planned: Plan, model: Path, feeds: Feeds, backend: str, device: str = "cpu") -> dict[str, float] | None:
    """Milliseconds that each layer takes, with its activation function: medians over some runs.

    Args:
        planned: whose layers are meant.
        model: the file that runs, FP32 or quantised.
        feeds: arrays by input name.
        backend, device: what runs it.

    Returns:
        By name of the layer; a layer that the runtime has fused with another counts there. None for a runtime whose
        profile is not read here.
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
    """The layer of each name that a runtime may call one of its nodes by."""
    owners = {}
    for layer, functions in planned.functions.items():
        for name in (layer, *functions):
            node = planned.nodes_by_name[name]
            owners[name] = layer
            owners.update(dict.fromkeys((value.name for value in node.outputs if value.name), layer))
    return owners


def _owner(name: str, owners: Mapping[str, str]) -> str | None:
    """The layer that the longest known beginning of a name belongs to; runtimes add to the names of the file."""
    for end in range(len(name), 0, -1):
        # A name that goes on with a letter or a digit is another one: Conv_1 and Conv_12.
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
