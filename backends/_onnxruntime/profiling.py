"""The layers of a session, from its graph and the file of its profiler."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ...core.executed_layers import ExecutedLayer, LayerProfile, LayerTensor, Role, Span, seconds_of
from ...errors import ConfigError
from ...graph.files import read_model
from .providers import provider_device

if TYPE_CHECKING:
    from ...infer import Infer

__all__ = ["profile_session", "read_layers"]

_ENDING = "_kernel_time"
_PRECISIONS = {
    "float": "fp32", "float16": "fp16", "bfloat16": "bf16", "double": "fp64", "int8": "int8", "uint8": "int8",
}  # fmt: skip
#: Operators that the runtime adds to change the layout, type or memory of a tensor.
_REFORMATS = {"ReorderInput", "ReorderOutput", "MemcpyToHost", "MemcpyFromHost"}
_CONTROL_FLOW = {"If", "Loop", "Scan"}
#: The runtime's decorations of names when it replaces a node.
_DECORATIONS = (
    r"_nchwc$", r"_nhwc$", r"_quant$", r"^fused ", r"_token_\d+$", r"^InsertedPrecisionFreeCast_", r"_cast_fp\d+$",
)  # fmt: skip
#: The profiler drops further events.
MAX_EVENTS = 1_000_000
_NHWC = "com.ms.internal.nhwc"
#: The runtime's names of values in its blocked layout.
_BLOCKED = re.compile(r"reorder(_token_\d+)?")


def profile_session(
    infer: Infer, runs: int, session: Any, executed: bytes | None, folder: TemporaryDirectory[str] | None
) -> LayerProfile:
    """Runs `infer` with its present inputs, ends the profile of its session, and reads it.

    Raises:
        ConfigError: the session does not profile, has been profiled, or its profile is full.
    """
    if folder is None:
        raise ConfigError("the model was loaded without profiling=True; load it with that option")
    walls = seconds_of(infer.forward, runs)
    written = Path(session.end_profiling() or "-")
    if not written.is_file():
        raise ConfigError(f"the session of {infer.model.name} has been profiled; load the model again")
    events = json.loads(written.read_text(encoding="utf-8", errors="replace"))
    written.unlink()
    if len(events) >= MAX_EVENTS:
        raise ConfigError(
            f"the profile of {infer.model.name} is full: ONNX Runtime keeps the first {MAX_EVENTS:,} events since "
            "loading; load the model again, and profile at once or with fewer runs"
        )
    layers, spans = read_layers(events, executed, runs, infer.device)
    timing = _TIMING["cpu"]
    if infer.device.startswith("cuda"):
        timing = _TIMING["blocking" if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1" else "launches"]
    weights = sum(layer.weight_bytes or 0 for layer in layers)
    return LayerProfile(tuple(layers), walls, timing, tuple(spans), {"weights": weights})


_TIMING = {
    "cpu": "ONNX Runtime's profiler takes the time of each node on the thread that runs it.",
    "blocking": "CUDA_LAUNCH_BLOCKING=1 is set: the host waits for each kernel, so a node's time is launch and kernel.",
    "launches": "The host does not wait for the GPU: a node's time is that of launching it, not of computing it. "
    "Use --synchronize (CUDA_LAUNCH_BLOCKING=1) for the time that each node takes on the GPU.",
}


def read_layers(
    events: Sequence[dict[str, Any]], executed: bytes | None, runs: int, device: str
) -> tuple[list[ExecutedLayer], list[Span]]:
    """The layers, and the spans of the last run.

    Args:
        events: the content of the profiler's file.
        executed: the graph that the session executes, as an ONNX file; None if it could not be written.
        runs: the number of runs to read, the last ones.
        device: of the session: `"cuda:0"`.
    """
    whole = sorted((e for e in events if e.get("name") == "model_run"), key=lambda e: e["ts"])[-runs:]
    begin = whole[0]["ts"]
    nodes = _own_events([e for e in events if e.get("cat") == "Node" and e["name"].endswith(_ENDING)
                         and e["ts"] >= begin])  # fmt: skip
    first: dict[str, Any] = {}
    spent: dict[str, float] = {}
    for event in nodes:
        name = event["name"].removesuffix(_ENDING)
        first.setdefault(name, event)
        spent[name] = spent.get(name, 0.0) + event["dur"]
    graph = _Graph(executed)
    layers = [graph.layer(name, first[name]["args"], spent[name] / runs / 1e6, device) for name in first]
    last = whole[-1]["ts"]
    spans = [
        Span(e["name"].removesuffix(_ENDING), (e["ts"] - last) / 1e6, e["dur"] / 1e6, int(e["tid"]))
        for e in nodes
        if e["ts"] >= last
    ]
    return layers, spans


def _own_events(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events without those inside If, Loop and Scan, which are part of the times of these nodes."""
    outer = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["args"].get("op_name") in _CONTROL_FLOW]
    return [
        e
        for e in events
        if not any(start <= e["ts"] and e["ts"] + e["dur"] <= end and e["dur"] < end - start for start, end in outer)
    ]


class _Graph:
    """The executed graph, by the names of its nodes."""

    def __init__(self, executed: bytes | None) -> None:
        graph = read_model(executed).graph if executed else None
        self._nodes = {node.name: node for node in graph or () if node.name}
        initializers = graph.initializers.values() if graph is not None else ()
        #: Bytes by name.
        self._weights = {v.name or "": v.const_value.nbytes if v.const_value is not None else 0 for v in initializers}

    def layer(self, name: str, args: Mapping[str, Any], seconds: float, device: str) -> ExecutedLayer:
        node, kind = self._nodes.get(name), str(args.get("op_name", ""))
        domain = node.domain if node is not None else ""
        types = {side: _types(args.get(f"{side}_type_shape")) for side in ("input", "output")}
        values: dict[str, list[str]] = {"input": [], "output": []}
        weights = int(args.get("parameter_size", 0))  # the profiler's number has no quantised weights
        if node is not None:
            values["input"] = [value.name or "" for value in node.inputs if value is not None]
            values["output"] = [value.name or "" for value in node.outputs]
            weights = sum(self._weights.get(value, 0) for value in set(values["input"]))
        where = provider_device(str(args.get("provider", "")))
        inputs, outputs = (
            tuple(
                LayerTensor(value, shape, dtype, _layout(domain, value, shape))
                for value, (dtype, shape) in zip(values[side] or [""] * len(types[side]), types[side], strict=False)
                if value not in self._weights
            )
            for side in ("input", "output")
        )
        role: Role = "reformat" if kind in _REFORMATS or name.startswith("InsertedPrecisionFreeCast_") else "compute"
        return ExecutedLayer(
            name=name, kind=kind, role=role, inputs=inputs, outputs=outputs, sources=_sources(name),
            kernel=_kernel(domain, kind, node), precision=_precision(kind, types["input"]),
            device=device if where == device.partition(":")[0] else where, seconds=seconds,
            weight_bytes=weights, output_bytes=int(args.get("output_size", 0)),
        )  # fmt: skip


def _layout(domain: str, value: str, shape: tuple[int, ...]) -> str:
    if len(shape) != 4:
        return ""
    return "NCHWc" if _BLOCKED.fullmatch(value) else "NHWC" if domain == _NHWC else "NCHW"


def _types(listed: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Element types and shapes of `[{"float": [1, 3, 640, 640]}, ...]`."""
    return [(kind, tuple(shape)) for entry in listed or () for kind, shape in entry.items()]


def _precision(kind: str, inputs: Sequence[tuple[str, tuple[int, ...]]]) -> str:
    """The precision of an operator: that of its first input, or int8 for quantised operators."""
    if not inputs:
        return ""
    if "Integer" in kind or kind.startswith(("QLinear", "QGemm", "DynamicQuantize")):
        return "int8"
    return _PRECISIONS.get(inputs[0][0], inputs[0][0])


def _kernel(domain: str, kind: str, node: Any) -> str:
    """The operator with its domain, and the operators fused into it."""
    if node is None:
        return kind
    activation = node.attributes.get_string("activation", "") if "activation" in node.attributes else ""
    added = " + Sum" if kind in ("Conv", "FusedConv") and len(node.inputs) > 3 and node.inputs[3] is not None else ""
    return (f"{domain}.{kind}" if domain else kind) + added + (f" + {activation}" if activation else "")


def _sources(name: str) -> tuple[str, ...]:
    plain = name
    for pattern in _DECORATIONS:
        plain = re.sub(pattern, "", plain)
    return tuple(dict.fromkeys((name, plain)))
