"""The report: a table of the nodes of the original model, with the layers of one or several backends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.executed_layers import ExecutedLayer, LayerProfile
    from .mapping import Fate, OriginalGraph, OriginalNode

__all__ = ["LayerReport", "LayerRow", "LayerSide", "make_rows"]

#: Maximum relative difference between the sum of the layers and a run without the profiler.
_AGREES = 0.1
#: The relative difference above which the report explains it.
_EXPLAINED = 0.05


@dataclass(frozen=True)
class LayerSide:
    """The layers of one backend.

    Attributes:
        name: the unique target, such as `"openvino"` or `"onnxruntime@cuda:0"`.
        backend, device, precision, version: the backend, its settings, and the version of the runtime.
        profile: the layers and their times.
        layers_of: for each node of the original model, the positions of the layers that compute it.
        run_seconds: the median time of a run without the profiler, as in `infersdk bench`; None if nothing ran.
    """

    name: str
    backend: str
    device: str
    precision: str
    version: str
    profile: LayerProfile
    layers_of: tuple[tuple[int, ...], ...]
    run_seconds: float | None = None

    @property
    def layers(self) -> tuple[ExecutedLayer, ...]:
        return self.profile.layers

    @property
    def is_timed(self) -> bool:
        return bool(self.profile.run_seconds)

    @cached_property
    def layer_seconds(self) -> float:
        """The sum of the times of all layers."""
        return sum(layer.seconds or 0.0 for layer in self.layers)

    @property
    def profiled_seconds(self) -> float | None:
        """The mean time of a run with the profiler."""
        walls = self.profile.run_seconds
        return sum(walls) / len(walls) if walls else None

    @property
    def reformat_seconds(self) -> float:
        return sum(layer.seconds or 0.0 for layer in self.layers if layer.role == "reformat")

    @property
    def reformat_share(self) -> float | None:
        """The share of time for conversions of tensors to other layouts, types and memories."""
        return self.reformat_seconds / self.layer_seconds if self.layer_seconds else None

    @property
    def devices(self) -> dict[str, tuple[int, float]]:
        """The number of layers and their total seconds by device."""
        result: dict[str, tuple[int, float]] = {}
        for layer in self.layers:
            count, seconds = result.get(layer.device, (0, 0.0))
            result[layer.device] = (count + 1, seconds + (layer.seconds or 0.0))
        return result

    @property
    def precisions(self) -> Counter[str]:
        """The number of layers by precision."""
        return Counter(layer.precision for layer in self.layers if layer.role == "compute" and layer.precision)

    @property
    def agrees(self) -> bool | None:
        """Whether the sum of the layers is within 10 % of a run without the profiler; None if nothing ran."""
        run = self.run_seconds
        return None if not run else abs(self.layer_seconds - run) <= run * _AGREES

    def explanation(self) -> str:
        """Compares the sum of the layers with a run, and explains differences above 5 %."""
        run, profiled, total = self.run_seconds, self.profiled_seconds, self.layer_seconds
        if run is None or profiled is None:
            return self.profile.timing
        text = f"The layers take {_ms(total)}, {total / run:.0%} of a run without the profiler ({_ms(run)})."
        if abs(total - run) <= run * _EXPLAINED:
            return text
        parts = []
        if abs(profiled - run) > run * _EXPLAINED / 2:
            parts.append(
                f"with the profiler a run is {_ms(profiled - run)} longer"
                if profiled > run
                else f"runs with the profiler were {_ms(run - profiled)} shorter than without it, so the speed of the "
                "machine varies; repeat with more --runs or on an idle machine"
            )
        if profiled - total > run * _EXPLAINED / 2:
            what = "copies, launches and waiting for the GPU" if "cuda" in self.device else "the runtime's own work"
            parts.append(f"{_ms(profiled - total)} of a profiled run is between the layers: {what}")
        timed = sum(bool(layer.seconds) for layer in self.layers)
        if self.backend.startswith("tensorrt") and timed and total - run > run * _EXPLAINED:
            parts.append(
                f"the events around each of the {timed} layers prevent overlap, which adds about "
                f"{(total - run) / timed * 1e6:.1f} µs each"
            )
        if total - profiled > run * _EXPLAINED / 2:
            parts.append(f"layers overlap: their sum is {_ms(total - profiled)} longer than the profiled run")
        result = "; ".join(parts) or "the profiler and the time between layers cause the difference"
        return f"{text} They differ by more than {_EXPLAINED:.0%}: {result}."

    def fate(self, graph: OriginalGraph, node: int) -> Fate:
        if self.layers_of[node]:
            return "executed"
        return "constant" if node in graph.constant else "eliminated"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


@dataclass(frozen=True)
class LayerRow:
    """Nodes of the original model that share layers on any side.

    Attributes:
        nodes: the positions of the nodes in the original model; empty for layers that a runtime added.
        layers: for each side, the positions of the layers that compute the nodes.
        seconds: for each side, the sum of their times; None if none is timed.
        added: the role of added layers: `"reformat"`, `"synchronise"` or `"compute"`.
    """

    nodes: tuple[int, ...]
    layers: tuple[tuple[int, ...], ...]
    seconds: tuple[float | None, ...]
    added: str = ""


@dataclass(frozen=True)
class LayerReport:
    """The layers of a model on one or several backends.

    Attributes:
        model: the name of the file.
        graph: the original model.
        inputs: the input shapes by name.
        sides: the backends in the requested order.
        rows: groups of original nodes in order, then layers that the runtimes added, by role.
    """

    model: str
    graph: OriginalGraph
    inputs: dict[str, tuple[int, ...]]
    sides: tuple[LayerSide, ...]
    rows: tuple[LayerRow, ...]

    @property
    def nodes(self) -> list[OriginalNode]:
        return self.graph.nodes

    def plain(self) -> dict[str, Any]:
        """The report as JSON-compatible objects."""
        return {
            "model": self.model,
            "inputs": {name: list(shape) for name, shape in self.inputs.items()},
            "nodes": [
                {
                    "name": node.name,
                    "operator": node.operator,
                    "sides": {
                        side.name: {
                            "fate": side.fate(self.graph, i),
                            "layers": [side.layers[layer].name for layer in side.layers_of[i]],
                        }
                        for side in self.sides
                    },
                }
                for i, node in enumerate(self.nodes)
            ],
            "rows": [
                {
                    "nodes": [self.nodes[i].name for i in row.nodes],
                    "added": row.added,
                    "layers": {
                        side.name: [side.layers[i].name for i in result]
                        for side, result in zip(self.sides, row.layers, strict=True)
                    },
                    "seconds": dict(zip((side.name for side in self.sides), row.seconds, strict=True)),
                }
                for row in self.rows
            ],
            "sides": [_plain_side(side) for side in self.sides],
        }


def _plain_side(side: LayerSide) -> dict[str, Any]:
    return {
        "name": side.name,
        "backend": side.backend,
        "version": side.version,
        "device": side.device,
        "precision": side.precision,
        "run_seconds": side.run_seconds,
        "profiled_seconds": side.profiled_seconds,
        "layer_seconds": side.layer_seconds if side.is_timed else None,
        "agrees": side.agrees,
        "explanation": side.explanation(),
        "timing": side.profile.timing,
        "reformat_share": side.reformat_share,
        "memory": dict(side.profile.memory),
        "devices": {name: {"layers": n, "seconds": s} for name, (n, s) in side.devices.items()},
        "layers": [asdict(layer) for layer in side.layers],
    }


def make_rows(graph: OriginalGraph, sides: Sequence[LayerSide]) -> tuple[LayerRow, ...]:
    """The rows: nodes that share a layer on any side, then added layers by role."""
    rows = []
    for nodes in _groups(graph, sides):
        layers = tuple(tuple(sorted({i for node in nodes for i in side.layers_of[node]})) for side in sides)
        rows.append(LayerRow(nodes, layers, _seconds(sides, layers)))
    claimed = [{layer for layers in side.layers_of for layer in layers} for side in sides]
    for role in ("compute", "reformat", "synchronise"):
        layers = tuple(
            tuple(i for i, layer in enumerate(side.layers) if i not in own and layer.role == role)
            for side, own in zip(sides, claimed, strict=True)
        )
        if any(layers):
            rows.append(LayerRow((), layers, _seconds(sides, layers), role))
    return tuple(rows)


def _seconds(sides: Sequence[LayerSide], layers: Sequence[Sequence[int]]) -> tuple[float | None, ...]:
    result = []
    for side, own in zip(sides, layers, strict=True):
        times = [spent for i in own if (spent := side.layers[i].seconds) is not None]
        result.append(sum(times) if times else None)
    return tuple(result)


def _groups(graph: OriginalGraph, sides: Sequence[LayerSide]) -> list[tuple[int, ...]]:
    """Groups of nodes that share layers, without constant nodes."""
    parent = list(range(len(graph.nodes)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        return i

    for side in sides:
        first: dict[int, int] = {}
        for node, layers in enumerate(side.layers_of):
            for layer in layers:
                parent[root(node)] = root(first.setdefault(layer, node))
    groups: dict[int, list[int]] = {}
    for node in range(len(graph.nodes)):
        if node not in graph.constant:
            groups.setdefault(root(node), []).append(node)
    return sorted((tuple(nodes) for nodes in groups.values()), key=lambda nodes: nodes[0])
