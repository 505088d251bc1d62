"""Maps executed layers to the nodes of the original model.

OpenVINO and TensorRT report the nodes of each layer; ONNX Runtime keeps the names of most nodes or values. Layers first
claim nodes by these names. The remaining nodes follow from the graph:

- A node between two nodes of a layer belongs to that layer.
- A layer without nodes computes the unclaimed nodes between its neighbours.
- A node whose results only one layer uses was fused into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..graph.passes.name_nodes import node_names
from ..graph.types import RANDOM, read_values
from ..graph.weights import data_inputs

if TYPE_CHECKING:
    import onnx_ir as ir

    from ..core.executed_layers import ExecutedLayer

__all__ = ["Fate", "OriginalGraph", "OriginalNode", "map_layers"]

#: `"executed"`: layers compute the node. `"constant"`: it depends neither on inputs nor on random numbers, and is
#: computed at load time.
#: `"eliminated"`: no layer computes it, since it only moves data or the runtime removes it.
Fate = Literal["executed", "constant", "eliminated"]

#: Operators that runtimes can replace by memory addressing.
_MOVES = frozenset({
    "Cast", "Concat", "Dropout", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Shape", "Size", "Slice",
    "Split", "Squeeze", "Transpose", "Unsqueeze",
})  # fmt: skip


@dataclass(frozen=True)
class OriginalNode:
    """A node of the original model: name (generated if missing), operator, inputs and outputs."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class OriginalGraph:
    """The nodes of a model in order, with the maker and the users of each value.

    Args:
        model: the model; None for formats whose nodes cannot be read.
    """

    def __init__(self, model: ir.Model | None) -> None:
        self.nodes: list[OriginalNode] = [] if model is None else list(_nodes(model.graph))
        self.index = {node.name: i for i, node in enumerate(self.nodes)}
        self.maker = {value: i for i, node in enumerate(self.nodes) for value in node.outputs}
        self.takers: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for value in node.inputs:
                self.takers.setdefault(value, []).append(i)
        self.inputs = [] if model is None else [value.name or "" for value in data_inputs(model)]
        self.constant = self._constant_nodes()

    def _constant_nodes(self) -> set[int]:
        """The nodes that depend neither on inputs of the model nor on random numbers."""
        varying = set(self.inputs)
        result = set()
        for i, node in enumerate(self.nodes):
            if node.operator in RANDOM or any(value in varying for value in node.inputs):
                varying.update(node.outputs)
            else:
                result.add(i)
        return result

    def before(self, i: int) -> list[int]:
        """The nodes that compute the inputs of a node."""
        return [self.maker[value] for value in self.nodes[i].inputs if value in self.maker]

    def after(self, i: int) -> list[int]:
        """The nodes that read the outputs of a node."""
        return [taker for value in self.nodes[i].outputs for taker in self.takers.get(value, ())]

    def find(self, name: str) -> int | None:
        """The node with a name, or the node that computes the value with that name."""
        return self.index.get(name, self.maker.get(name))

    def find_decorated(self, name: str) -> int | None:
        """The node with the longest name that is `name` or its prefix: `/act/Mul` for `/act/Mul/QuickGeluFusion/`."""
        for end in range(len(name), 0, -1):
            if not name[end : end + 1].isalnum() and (result := self.find(name[:end])) is not None:
                return result
        return None


def _nodes(graph: ir.Graph) -> Iterator[OriginalNode]:
    for node, name in zip(graph, node_names(graph), strict=True):
        inputs = dict.fromkeys(value.name or "" for value in read_values(node))
        yield OriginalNode(name, node.op_type, tuple(inputs), tuple(v.name or "" for v in node.outputs if v.name))


def map_layers(graph: OriginalGraph, layers: Sequence[ExecutedLayer]) -> tuple[tuple[int, ...], ...]:
    """The positions of the layers that compute each node."""
    claims = _Claims(graph, layers)
    claims.by_name()
    claims.between_own()
    claims.between_neighbours()
    claims.of_takers()
    claims.between_own()
    return tuple(tuple(sorted(result)) for result in claims.layers_of)


class _Claims:
    """The present assignment of nodes to layers."""

    def __init__(self, graph: OriginalGraph, layers: Sequence[ExecutedLayer]) -> None:
        self.graph, self.layers = graph, layers
        self.layers_of: list[set[int]] = [set() for _ in graph.nodes]
        self.nodes_of: list[set[int]] = [set() for _ in layers]

    def _claim(self, layer: int, nodes: Iterable[int]) -> None:
        for node in nodes:
            if node not in self.graph.constant:
                self.layers_of[node].add(layer)
                self.nodes_of[layer].add(node)

    def by_name(self) -> None:
        """Assigns nodes by the reported names, or by the names of output values."""
        for i, layer in enumerate(self.layers):
            if layer.role != "compute":
                continue
            names = {*layer.sources, *(name.removeprefix("node_of_") for name in layer.sources)}
            exact = {node for name in names if (node := self.graph.find(name)) is not None}
            self._claim(i, exact)
            if not exact:
                self._claim(i, [n for t in layer.outputs if (n := self.graph.maker.get(t.name)) is not None])
            if not self.nodes_of[i]:
                near = [node for name in layer.sources if (node := self.graph.find_decorated(name)) is not None]
                self._claim(i, near[:1])

    def between_own(self) -> None:
        """Assigns unclaimed nodes between two nodes of a layer to that layer."""
        for i, nodes in enumerate(self.nodes_of):
            if len(nodes) > 1:
                ahead = self._reach(nodes, self.graph.after)
                self._claim(i, ahead & self._reach(nodes, self.graph.before))

    def between_neighbours(self) -> None:
        """Assigns unclaimed nodes between the neighbours of a layer without nodes to that layer."""
        above, below = self._joined()
        at_inputs = {taker for value in self.graph.inputs for taker in self.graph.takers.get(value, ())}
        for i, layer in enumerate(self.layers):
            if layer.role != "compute" or self.nodes_of[i] or not layer.outputs:
                continue
            starts, ends = self._nearest_nodes(i, above), self._nearest_nodes(i, below)
            ahead = self._reach(starts or at_inputs, self.graph.after)
            if not starts:
                ahead |= {node for node in at_inputs if not self.layers_of[node]}
            self._claim(i, ahead & self._reach(ends, self.graph.before) if ends else ahead)

    def _joined(self) -> tuple[list[list[int]], list[list[int]]]:
        """The layers before and after each layer, by tensor names."""
        writer = {tensor.name: i for i, layer in enumerate(self.layers) for tensor in layer.outputs}
        above = [[writer[t.name] for t in layer.inputs if t.name in writer] for layer in self.layers]
        below: list[list[int]] = [[] for _ in self.layers]
        for reader, writers in enumerate(above):
            for i in writers:
                below[i].append(reader)
        return above, below

    def _nearest_nodes(self, layer: int, joined: list[list[int]]) -> set[int]:
        """The nodes of the nearest layers with nodes in one direction."""
        found = _reached([layer], joined.__getitem__, lambda one: not self.nodes_of[one])
        return {node for one in found for node in self.nodes_of[one]}

    def _reach(self, starts: Iterable[int], step: Callable[[int], list[int]]) -> set[int]:
        """The unclaimed nodes that are reachable from `starts` through unclaimed nodes."""
        return set(filter(self._is_free, _reached(starts, step, self._is_free)))

    def _is_free(self, node: int) -> bool:
        return not self.layers_of[node] and node not in self.graph.constant

    def of_takers(self) -> None:
        """Assigns remaining nodes to the layers that use their results, and QuantizeLinear to those before."""
        for i in range(len(self.graph.nodes) - 1, -1, -1):
            operator = self.graph.nodes[i].operator
            if self.layers_of[i] or i in self.graph.constant or operator in _MOVES:
                continue
            makers = {layer for node in self.graph.before(i) for layer in self.layers_of[node]}
            takers = self._takers(i)
            for layer in (makers or takers) if operator == "QuantizeLinear" else (takers or makers):
                self._claim(layer, [i])

    def _takers(self, i: int) -> set[int]:
        """The layers that use the results of a node, directly or through unclaimed nodes."""
        found = _reached([i], self.graph.after, lambda node: not self.layers_of[node])
        return {layer for node in found for layer in self.layers_of[node]}


def _reached(starts: Iterable[int], step: Callable[[int], list[int]], passes: Callable[[int], bool]) -> set[int]:
    """What steps from `starts` reach, where they continue only from what passes."""
    result: set[int] = set()
    todo = list(starts)
    while todo:
        for one in step(todo.pop()):
            if one not in result:
                result.add(one)
                if passes(one):
                    todo.append(one)
    return result
