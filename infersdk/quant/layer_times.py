"""The time of each layer of a model, from the profile of a runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..core.executed_layers import ReportsLayers
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
    owners = _owners(planned)
    times: dict[str, float] = dict.fromkeys(planned.functions, 0.0)
    with load(model, backend, device=device, profiling=True) as infer:
        assert isinstance(infer, ReportsLayers)
        infer(feeds)
        layers = infer.profile_layers(_RUNS).layers
    for executed in layers:
        names = (*executed.sources, executed.name)
        layer = next((result for name in names if (result := _owner(name, owners)) is not None), None)
        if layer is not None:
            times[layer] += (executed.seconds or 0.0) * 1e3
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
