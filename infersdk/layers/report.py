"""The report: one table over the nodes of the original model, for one backend or for several side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..executed_layers import ExecutedLayer, LayerProfile
    from .mapping import Fate, OriginalGraph, OriginalNode

__all__ = ["LayerReport", "LayerRow", "LayerSide", "make_rows"]

#: How far the layers' sum may be from a run without the profiler.
_AGREES = 0.1
#: How far it may be before the report says why: less, since another measurement of that run differs by some percent.
_EXPLAINED = 0.05


@dataclass(frozen=True)
class LayerSide:
    """What one backend made of the model.

    Attributes:
        name: the target, `"openvino"` or `"onnxruntime@cuda:0"`; no two sides have the same.
        backend, device, precision, version: what ran it; the version is that of the runtime.
        profile: the layers, and how they were timed.
        layers_of: for each node of the original model, the positions of the layers that compute it.
        run_seconds: the median run without the profiler, which is what `infersdk bench` reports for the network alone;
            None where nothing ran.
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
        """The sum over all layers."""
        return sum(layer.seconds or 0.0 for layer in self.layers)

    @property
    def profiled_seconds(self) -> float | None:
        """The mean run with the profiler."""
        walls = self.profile.run_seconds
        return sum(walls) / len(walls) if walls else None

    @property
    def reformat_seconds(self) -> float:
        return sum(layer.seconds or 0.0 for layer in self.layers if layer.role == "reformat")

    @property
    def reformat_share(self) -> float | None:
        """The part of the layers' time that goes into bringing tensors into other layouts, types and memories."""
        return self.reformat_seconds / self.layer_seconds if self.layer_seconds else None

    @property
    def devices(self) -> dict[str, tuple[int, float]]:
        """By device: the number of layers, and their seconds."""
        result: dict[str, tuple[int, float]] = {}
        for layer in self.layers:
            count, seconds = result.get(layer.device, (0, 0.0))
            result[layer.device] = (count + 1, seconds + (layer.seconds or 0.0))
        return result

    @property
    def precisions(self) -> Counter[str]:
        """How many layers compute in each precision."""
        return Counter(layer.precision for layer in self.layers if layer.role == "compute" and layer.precision)

    @property
    def total_ratio(self) -> float | None:
        """The layers' sum over a run without the profiler."""
        return self.layer_seconds / self.run_seconds if self.run_seconds else None

    @property
    def agrees(self) -> bool | None:
        """Whether the layers' sum is within 10 % of a run without the profiler; None where nothing ran."""
        return self._is_within(_AGREES)

    @property
    def is_explained(self) -> bool:
        """Whether `explanation()` says what the difference consists of: it does so beyond 5 %."""
        return self._is_within(_EXPLAINED) is False

    def _is_within(self, margin: float) -> bool | None:
        return None if self.total_ratio is None else abs(self.total_ratio - 1) <= margin

    def explanation(self) -> str:
        """How the layers' sum compares with a run, and beyond 5 % what the difference consists of."""
        run, profiled, total = self.run_seconds, self.profiled_seconds, self.layer_seconds
        if run is None or profiled is None:
            return self.profile.timing
        text = f"The layers take {_ms(total)}, {total / run:.0%} of a run without the profiler ({_ms(run)})."
        if not self.is_explained:
            return text
        parts = []
        if abs(profiled - run) > run * _EXPLAINED / 2:
            parts.append(
                f"with the profiler a run is {_ms(profiled - run)} longer"
                if profiled > run
                else f"the runs with the profiler were {_ms(run - profiled)} shorter than those without, so the "
                "machine changed its pace; repeat it with more --runs, or on a quiet machine"
            )
        if profiled - total > run * _EXPLAINED / 2:
            what = "copies, launches and waiting for the GPU" if "cuda" in self.device else "the runtime's own work"
            parts.append(f"{_ms(profiled - total)} of a profiled run is between the layers: {what}")
        timed = sum(bool(layer.seconds) for layer in self.layers)
        if self.backend.startswith("tensorrt") and timed and total - run > run * _EXPLAINED:
            parts.append(
                f"each of the {timed} layers seems {(total - run) / timed * 1e6:.1f} µs longer than it is: the events "
                "around it keep it from overlapping with the next one"
            )
        if total - profiled > run * _EXPLAINED / 2:
            parts.append(f"layers overlap: their sum is {_ms(total - profiled)} longer than the run that has them")
        result = "; ".join(parts) or "the difference is spread over the profiler and the time between layers"
        return f"{text} They differ by more than {_EXPLAINED:.0%}: {result}."

    def fate(self, graph: OriginalGraph, node: int) -> Fate:
        if self.layers_of[node]:
            return "executed"
        return "constant" if node in graph.constant else "eliminated"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


@dataclass(frozen=True)
class LayerRow:
    """Nodes of the original model that belong together because a layer of one of the sides computes several of them.

    Attributes:
        nodes: their positions in the original model, in order. Empty for what a runtime added.
        layers: for each side, the positions of the layers that compute them.
        seconds: for each side, the sum of these; None where none was timed.
        added: what the layers are where there are no nodes: `"reformat"`, `"synchronise"` or `"compute"`.
    """

    nodes: tuple[int, ...]
    layers: tuple[tuple[int, ...], ...]
    seconds: tuple[float | None, ...]
    added: str = ""


@dataclass(frozen=True)
class LayerReport:
    """What one or several backends made of a model.

    Attributes:
        model: the file's name.
        graph: the original model.
        inputs: the shapes that it ran on, by input.
        sides: one for each backend, in the order in which they were asked for.
        rows: the original nodes in groups, in their order; then what the runtimes added, by its role.
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
        """As JSON takes it."""
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
        "layers": [
            {
                "name": layer.name,
                "kind": layer.kind,
                "role": layer.role,
                "kernel": layer.kernel,
                "precision": layer.precision,
                "device": layer.device,
                "seconds": layer.seconds,
                "weight_bytes": layer.weight_bytes,
                "output_bytes": layer.output_bytes,
                "inputs": [_plain_tensor(tensor) for tensor in layer.inputs],
                "outputs": [_plain_tensor(tensor) for tensor in layer.outputs],
                "sources": list(layer.sources),
            }
            for layer in side.layers
        ],
    }


def _plain_tensor(tensor: Any) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "shape": None if tensor.shape is None else list(tensor.shape),
        "dtype": tensor.dtype,
        "layout": tensor.layout,
    }


def make_rows(graph: OriginalGraph, sides: Sequence[LayerSide]) -> tuple[LayerRow, ...]:
    """The table: nodes that share a layer on any side are one row; what no node asked for comes last, by its role."""
    rows = [_row(nodes, sides) for nodes in _groups(graph, sides)]
    claimed = [{layer for layers in side.layers_of for layer in layers} for side in sides]
    for role in ("compute", "reformat", "synchronise"):
        layers = tuple(
            tuple(i for i, layer in enumerate(side.layers) if i not in own and layer.role == role)
            for side, own in zip(sides, claimed, strict=True)
        )
        if any(layers):
            rows.append(LayerRow((), layers, _seconds(sides, layers), role))
    return tuple(rows)


def _row(nodes: tuple[int, ...], sides: Sequence[LayerSide]) -> LayerRow:
    layers = tuple(tuple(sorted({i for node in nodes for i in side.layers_of[node]})) for side in sides)
    return LayerRow(nodes, layers, _seconds(sides, layers))


def _seconds(sides: Sequence[LayerSide], layers: Sequence[Sequence[int]]) -> tuple[float | None, ...]:
    result = []
    for side, own in zip(sides, layers, strict=True):
        times = [spent for i in own if (spent := side.layers[i].seconds) is not None]
        result.append(sum(times) if times else None)
    return tuple(result)


def _groups(graph: OriginalGraph, sides: Sequence[LayerSide]) -> list[tuple[int, ...]]:
    """The nodes in groups, by the layers that they share; nodes that depend on no input are left out."""
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
