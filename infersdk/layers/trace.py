"""Writes a report as Chrome trace events, for Perfetto (https://ui.perfetto.dev) and Chrome."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.executed_layers import Span
from ..core.files import atomic_write

if TYPE_CHECKING:
    import os

    from .report import LayerReport, LayerSide

__all__ = ["write_trace"]


def write_trace(report: LayerReport, path: str | os.PathLike[str]) -> Path:
    """Writes the trace of a report: a process per side, with the layers of its threads.

    If a runtime reports durations without start times, layers follow each other without gaps.

    Raises:
        OutputError: the file cannot be written.
    """
    events = [event for pid, side in enumerate(report.sides, 1) for event in _events(report, side, pid)]
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"model": report.model}})
    return atomic_write(path, text)


def _events(report: LayerReport, side: LayerSide, pid: int) -> Iterator[dict[str, Any]]:
    title = f"{side.name}: {side.backend} {side.version}, {side.precision} on {side.device}"
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": title}}
    layers = {layer.name: (i, layer) for i, layer in enumerate(side.layers)}
    nodes: dict[int, list[str]] = {}
    for node, own in enumerate(side.layers_of):
        for position in own:
            nodes.setdefault(position, []).append(report.nodes[node].name)
    spans = side.profile.spans or _end_to_end(side)
    threads = {thread: number for number, thread in enumerate(dict.fromkeys(span.thread for span in spans), 1)}
    for number in threads.values():
        name = "layers" if len(threads) == 1 else f"thread {number}"
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": number, "args": {"name": name}}
    for span in spans:
        index, layer = layers[span.layer]
        yield {
            "ph": "X", "name": span.layer, "cat": layer.role, "pid": pid, "tid": threads[span.thread],
            "ts": span.start * 1e6, "dur": span.seconds * 1e6,
            "args": {
                "kind": layer.kind, "kernel": layer.kernel, "precision": layer.precision, "device": layer.device,
                "nodes": nodes.get(index, []),
                "outputs": [f"{t.name} {list(t.shape or ())} {t.dtype} {t.layout}".rstrip() for t in layer.outputs],
            },
        }  # fmt: skip


def _end_to_end(side: LayerSide) -> tuple[Span, ...]:
    result, start = [], 0.0
    for layer in side.layers:
        if layer.seconds is not None:
            result.append(Span(layer.name, start, layer.seconds))
            start += layer.seconds
    return tuple(result)
