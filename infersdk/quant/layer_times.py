"""The time of each layer of a model, from the profile of a runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..core.executed_layers import ReportsLayers
from ..layers.mapping import OriginalGraph
from ..loading.registry import load

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from .plan import Plan

__all__ = ["layer_times"]

_RUNS = 12


def layer_times(
    planned: Plan, model: Path, feeds: Mapping[str, npt.NDArray[Any]], backend: str, device: str = "cpu"
) -> dict[str, float] | None:
    """The milliseconds of each layer with its activation function.

    Args:
        planned: the quantisation plan, for the layers.
        model: the model file, FP32 or quantised.
        feeds: arrays by input name.
        backend, device: the backend and its device.

    Returns:
        The times by layer name. Fused layers count for one of them. None if the backend does not report its
        layers, and on GPUs.
    """
    if device != "cpu" or backend not in ("onnxruntime", "openvino"):
        return None
    with load(model, backend, device=device, profiling=True) as infer:
        assert isinstance(infer, ReportsLayers)
        infer(feeds)
        layers = infer.profile_layers(_RUNS).layers
    graph = OriginalGraph(planned.model)
    owners = {graph.find(name): layer for layer in planned.functions for name in (layer, *planned.functions[layer])}
    times: dict[str, float] = dict.fromkeys(planned.functions, 0.0)
    for executed in layers:
        nodes = (graph.find_decorated(name) for name in (*executed.sources, executed.name))
        layer = next((owners[node] for node in nodes if node in owners), None)
        if layer is not None:
            times[layer] += (executed.seconds or 0.0) * 1e3
    return times
