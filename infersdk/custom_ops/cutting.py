"""Divides a model at its custom nodes, for runtimes without custom operators.

The number of segments is minimal: a segment contains all nodes with the same number of custom nodes on the longest path
to them, including parallel branches. Sizes and constants are computed again in each segment that needs them, so that
only data passes between segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import CustomOpError, UnsupportedModelError
from ..graph.passes import WeightsOffInputs
from ..graph.shapes import infer_shapes
from ..graph.types import RANDOM, element_types, inner_graphs, read_values
from ..graph.weights import graph_values
from .onnx_schema import registered
from .operator_set import OperatorSet, custom_nodes, node_name

if TYPE_CHECKING:
    import onnx_ir as ir

    from .declaration import CustomOp, Signature

__all__ = ["KernelCall", "Plan", "Segment", "cut"]


@dataclass(frozen=True)
class Segment:
    """A part of the model that runs as a separate model. Its inputs and outputs have their names in the whole model."""

    model: ir.Model
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: int  # their number


@dataclass(frozen=True)
class KernelCall:
    """A custom node between the segments. Its inputs and outputs have their names in the whole model.

    Attributes:
        op: the operator with the node's attributes.
        shapes: the output shapes, with sizes, names of free dimensions, and None.
    """

    name: str
    op: CustomOp
    signature: Signature
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: tuple[tuple[int | str | None, ...], ...]


@dataclass(frozen=True)
class Plan:
    """The steps in order, and the weights that kernels read or that are outputs of the model."""

    steps: tuple[Segment | KernelCall, ...]
    weights: dict[str, Any]

    @property
    def segments(self) -> list[Segment]:
        return [step for step in self.steps if isinstance(step, Segment)]

    @property
    def kernels(self) -> list[KernelCall]:
        return [step for step in self.steps if isinstance(step, KernelCall)]


def cut(model: ir.Model, ops: OperatorSet, what: str) -> Plan:
    """Plans the division of a model. The model is changed: functions are inlined, weights are no longer inputs, and
    types and shapes are inferred.

    Raises:
        CustomOpError: a custom node is in a subgraph, or the type of a value at a cut cannot be inferred.
    """
    custom = custom_nodes(model, ops, what)
    for node, op in custom.items():
        if node.graph is not model.graph:
            raise CustomOpError(
                f"operator {op.title()}, node {node_name(node)!r}: it is in a subgraph (a branch of an If, the body of "
                "a Loop), where a model cannot be divided; use a backend with custom operators, such as 'onnxruntime' "
                "(if ONNX has no operator of that name), or move the node out of the subgraph"
            )
    WeightsOffInputs().apply(model)
    with registered(*ops.values()):
        infer_shapes(model)
        types = element_types(model)
    return _Cutter(model, custom, types).plan()


class _Cutter:
    """The division of one model."""

    def __init__(self, model: ir.Model, custom: dict[ir.Node, CustomOp], types: dict[ir.Value, ir.DataType]) -> None:
        self._model, self._graph, self._custom, self._types = model, model.graph, custom, types
        self._cheap = set(_cheap_nodes(model.graph))
        self._levels = _levels(model.graph, custom)
        #: The values that the model, the kernels and the segments planned so far need.
        self._needed = {*model.graph.outputs, *(value for node in custom for value in node.inputs)}

    def plan(self) -> Plan:
        """The plan: the segment and the kernels of each level in order."""
        weights = {
            name: value.const_value.numpy()
            for name, value in self._graph.initializers.items()
            if value in self._needed and value.const_value is not None
        }
        steps: list[Segment | KernelCall] = []
        for level in range(max(self._levels.values(), default=0), -1, -1):  # its inputs are outputs of earlier ones
            kernels = [self._kernel(node) for node in self._custom if self._levels[node] == level]
            segment = self._segment(level)
            steps = [*([] if segment is None else [segment]), *kernels, *steps]
        return Plan(tuple(steps), weights)

    # ---- segments ----

    def _segment(self, level: int) -> Segment | None:
        nodes = [node for node in self._graph if node not in self._custom and self._levels[node] == level]
        outputs = [value for node in nodes for value in node.outputs if value in self._needed]
        if not outputs:
            return None
        inputs = self._reached_from(outputs, level)
        self._needed.update(inputs)
        import onnx_ir as ir
        from onnx_ir.passes.common import RemoveUnusedOpsetsPass

        graph = ir.convenience.extract(self._graph, inputs, outputs)
        graph.name = f"{self._graph.name}, segment {level}"
        part = ir.Model(graph, ir_version=self._model.ir_version, producer_name="infersdk")
        part.metadata_props["infersdk.custom_ops"] = ",".join(
            sorted({f"{op.title()}@{op.version}" for op in self._custom.values()})
        )
        RemoveUnusedOpsetsPass()(part)  # a runtime may reject models with unknown domains
        for value in (*graph.inputs, *graph.outputs):
            self._check_type(value)
        return Segment(part, _names(inputs), _names(outputs), len(graph))

    def _reached_from(self, outputs: Iterable[ir.Value], level: int) -> list[ir.Value]:
        """The inputs of the segment in the order of the graph."""
        begins: dict[ir.Value, None] = {}
        seen: set[ir.Node] = set()
        queue = [value.producer() for value in outputs]
        while queue:
            node = queue.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            for value in read_values(node):
                maker = value.producer()
                if maker is None:
                    if not value.is_initializer():
                        begins[value] = None
                elif maker in self._custom or (self._levels[maker] < level and maker not in self._cheap):
                    begins[value] = None
                else:
                    queue.append(maker)
        position = {value: i for i, (_, value) in enumerate(graph_values(self._graph))}
        return sorted(begins, key=position.__getitem__)

    def _check_type(self, value: ir.Value) -> None:
        if value.type is None and value.name is not None:
            known = {other.name: kind for other, kind in self._types.items()}.get(value.name)
            if known is None:
                raise CustomOpError(
                    f"the type of {value.name!r}, at a division of the model, cannot be inferred; export the model "
                    "with types of its values (value_info)"
                )
            import onnx_ir as ir

            value.type = ir.TensorType(known)

    # ---- kernels ----

    def _kernel(self, node: ir.Node) -> KernelCall:
        op, name = self._custom[node], node_name(node)
        inputs = [value for value in node.inputs if value is not None]
        types = []
        for value in inputs:
            if value not in self._types:
                raise CustomOpError(
                    f"operator {op.title()}, node {name!r}: the type of its input {value.name!r} "
                    "cannot be inferred; export the model with the types of its values (value_info)"
                )
            types.append(self._types[value].numpy().name)
        shapes = tuple(_dims(value) for value in node.outputs)
        return KernelCall(name, op, op.signature_for(types), _names(inputs), _names(node.outputs), shapes)


def _levels(graph: ir.Graph, custom: dict[ir.Node, CustomOp]) -> dict[ir.Node, int]:
    """The number of segments before that of each node."""
    levels: dict[ir.Node, int] = {}
    for node in graph:
        level = 0
        for value in read_values(node):
            maker = value.producer()
            if maker is not None:
                level = max(level, levels[maker] + (maker in custom and node not in custom))
        levels[node] = level
    return levels


def _cheap_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes that depend only on constants and on the shapes of tensors."""
    cheap: set[ir.Value] = set(graph.initializers.values())
    for node in graph:
        if node.op_type in RANDOM or inner_graphs(node) or node.domain:
            continue
        sizes = node.op_type in ("Shape", "Size")
        if sizes or all(value is None or value in cheap for value in node.inputs):
            cheap.update(node.outputs)
            yield node


def _names(values: Sequence[ir.Value]) -> tuple[str, ...]:
    return tuple(value.name or "" for value in values)


def _dims(value: ir.Value) -> tuple[int | str | None, ...]:
    if value.shape is None:
        raise UnsupportedModelError(
            f"the number of dimensions of {value.name!r} cannot be inferred; export the model with the shapes of "
            "its values (value_info)"
        )
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
