"""Decides which layers, nodes and values of a model are quantised."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, UnsupportedModelError
from ..graph.parts import with_makers
from ..graph.weights import graph_values
from .moves import has_same_scale, move_quantizers
from .prepare import prepare
from .ranges import BOUNDED
from .schemes import WEIGHTED, Scheme, find_scheme

if TYPE_CHECKING:
    import os

    import onnx_ir as ir

__all__ = ["Plan", "is_depthwise", "plan"]

#: Operators between layers that run in 8 bits.
BETWEEN = frozenset(
    {"Add", "AveragePool", "Clip", "Concat", "Flatten", "GlobalAveragePool", "LeakyRelu", "MaxPool", "Mul", "Relu"}
    | {"Reshape", "Resize", "Sigmoid", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
#: Activation functions, which stay in floating point with the layer before them.
FUNCTIONS = frozenset({"Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "PRelu", "Relu", "Sigmoid", "Tanh"})
#: Operators with several activations as inputs. Others have one; their other inputs are weights and settings.
_SEVERAL_INPUTS = frozenset({"Add", "Concat", "Mul"})


@dataclass(frozen=True)
class Plan:
    """A prepared graph and its parts to quantise.

    Attributes:
        model: the prepared `onnx_ir.Model`: inferred shapes, folded constants, merged batch normalisation.
        scheme: the quantisation scheme of the target.
        layers: the names of the quantised layers (nodes with weights) in order.
        nodes: the names of all quantised nodes in order.
        points: the quantised values in order, each with the value whose range it has. For example, the output of a
            MaxPool has the range of its input.
        moved: the same for values whose quantiser was moved before nodes that only move values.
        left: layers that stay in floating point by default, with the reason.
        excluded: layers that the caller excluded.
    """

    model: ir.Model
    scheme: Scheme
    layers: tuple[str, ...]
    nodes: tuple[str, ...]
    points: Mapping[str, str]
    moved: Mapping[str, str]
    left: Mapping[str, str]
    excluded: tuple[str, ...] = ()
    _graph: _Graph = field(repr=False, kw_only=True)

    @functools.cached_property
    def activations(self) -> tuple[str, ...]:
        """The values to observe: those that need a range for the target or for unsigned codes, and layer inputs."""
        unsigned = self._graph.plan(replace(self.scheme, signed=False), self.excluded)
        sources = (*self.points.values(), *unsigned.points.values())
        needed = {name for name in sources if not self.is_bounded(name)}
        readers = [*(self.nodes_by_name[name] for name in self.layers), *self._graph.averages]
        needed |= {data_input(node).name or "" for node in readers}
        return tuple(name for name in self._graph.order if name in needed)

    @property
    def functions(self) -> Mapping[str, tuple[str, ...]]:
        """All layers of the model, each with the nodes of its activation function."""
        return self._graph.functions

    @property
    def nodes_by_name(self) -> Mapping[str, ir.Node]:
        """The nodes of the graph by name."""
        return self._graph.nodes

    def is_bounded(self, name: str) -> bool:
        """Whether a value is always between 0 and 1."""
        return name in self._graph.bounded

    def without_moves(self) -> Plan:
        """The plan with each quantiser directly before the nodes that read its value."""
        return self._graph.plan(replace(self.scheme, moves=False), self.excluded)

    def without(self, exclude: Collection[str]) -> Plan:
        """The plan with more nodes, and their activation functions, in floating point.

        Raises:
            ConfigError: a node does not exist.
            UnsupportedModelError: no layer remains to quantise.
        """
        for name in exclude:
            if name not in self.nodes_by_name:
                raise ConfigError(f"exclude: the model has no node {name!r}; `infersdk quantize --layers` lists them")
        return self._graph.plan(self.scheme, tuple(dict.fromkeys((*self.excluded, *exclude))))


def plan(model: str | os.PathLike[str], target: str | Scheme = "portable", *, exclude: Sequence[str] = ()) -> Plan:
    """Plans the quantisation of a model.

    The tail of the graph, after the last layers with weights, stays in floating point. There a detector decodes its
    boxes, and a common scale for coordinates up to hundreds and scores up to 1 would destroy the scores. Layers that
    compute the mean of a probability distribution, as in YOLOv8's head, belong to the tail.

    Args:
        model: an ONNX file in FP32.
        target: the name of a scheme, or a `Scheme`.
        exclude: the names of nodes that stay in floating point, with their activation functions.

    Raises:
        ModelNotFoundError, ModelFormatError: the file does not exist or is not an ONNX model.
        UnsupportedModelError: the model is quantised, is not FP32, has no layer to quantise, or cannot be prepared.
        ConfigError: a node in `exclude` does not exist, or the target is unknown.
        BackendUnavailableError: a package that reads or runs ONNX models is not installed.
    """
    scheme = find_scheme(target)
    whole = _Graph(prepare(model)).plan(scheme, ())
    return whole.without(exclude) if exclude else whole


def is_depthwise(node: ir.Node) -> bool:
    """Whether a node is a depthwise convolution."""
    return node.op_type == "Conv" and node.attributes.get_int("group", 1) > 1 and weight_array(node).shape[1] == 1


class _Graph:
    """A prepared model and its structure, from which plans are made."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        import onnx_ir as ir

        graph = model.graph
        self.nodes = {node.name or "": node for node in graph}
        self.layers = [node for node in graph if _has_weights(node)]
        self.functions = {node.name or "": tuple(n.name or "" for n in _functions_of(node)) for node in self.layers}
        self.tail = {node.name or "" for node in self.layers if _is_mean(node)}
        values = dict(graph_values(graph))
        self.floats = {v for v in values.values() if v.dtype == ir.DataType.FLOAT and not v.is_initializer()}
        self.bounded = {value.name for node in graph if node.op_type in BOUNDED for value in node.outputs}
        self.order = list(values)
        # Rounding errors of single values average out, so the input of a GlobalAveragePool can be quantised.
        self.averages = [node for node in graph if node.op_type == "GlobalAveragePool"]
        # The layers before the tail, the averages, and all nodes that they depend on.
        ends = (node for node in (*self.layers, *self.averages) if node.name not in self.tail)
        self.body = with_makers(graph, ends)

    def _left(self, scheme: Scheme, excluded: Sequence[str]) -> dict[str, str]:
        """The layers that stay in floating point by default, with the reason."""
        left = {}
        for node in self.layers:
            name = node.name or ""
            if name in self.tail:
                left[name] = "it computes the mean of a distribution"
            elif node.op_type not in scheme.operators:
                left[name] = f"{scheme.name} computes {node.op_type} in floating point"
            elif is_depthwise(node) and not scheme.depthwise:
                left[name] = "depthwise convolutions are not faster in 8 bits and lose most accuracy"
            elif not scheme.float_results and self._feeds_tail(node):
                left[name] = (
                    f"its result stays in floating point, and {scheme.name} then computes the layer in floating point"
                )
        few = self._early(scheme, {*left, *excluded})
        few |= self._late(scheme, {*left, *excluded, *few})
        # If no layer would remain, these rules are ignored.
        floating = {*few, *left, *excluded} & {node.name or "" for node in self.layers}
        return few | left if len(floating) < len(self.layers) else left

    def _early(self, scheme: Scheme, floating: Collection[str]) -> dict[str, str]:
        """Layers at the start of the model that are faster in floating point, with the reason."""
        left: dict[str, str] = {}
        behind = set[str]()  # nodes after a quantised layer
        layers = {node.name for node in self.layers}
        for name, node in self.nodes.items():
            if any(maker.name in behind for maker in node.predecessors()):
                behind.add(name)
            elif name in layers and name not in floating:
                products = _products(node)
                if products < scheme.least_products and not self._feeds_pooling(node):
                    left[name] = f"{scheme.name} computes {products} products per value faster in floating point"
                else:
                    behind.add(name)
        return left

    def _late(self, scheme: Scheme, floating: Collection[str]) -> dict[str, str]:
        """Layers at the end of the model that are faster in floating point, with the reason.

        They begin with a layer that is slower in 8 bits, and no layer after it gains much from 8 bits.
        """
        layers = {node.name or "": node for node in self.layers if node.name not in floating}
        gaining = (node for node in layers.values() if not self._has_few(node, scheme.least_products))
        before = with_makers(self.model.graph, gaining)
        left: dict[str, str] = {}
        behind = set[str]()
        for name, node in self.nodes.items():
            follows = any(maker.name in behind for maker in node.predecessors())
            if name in layers and node not in before and (follows or self._has_few(node, scheme.least_last_products)):
                left[name] = f"{scheme.name} computes it and the layers after it faster in floating point"
            if follows or name in left:
                behind.add(name)
        return left

    def _has_few(self, node: ir.Node, least: int) -> bool:
        """Whether a layer has fewer products per value than `least`, and a function that 8 bits make slower."""
        functions = {self.nodes[name].op_type for name in self.functions[node.name or ""]}
        return _products(node) < least and not functions <= {"Clip", "Relu"}

    def plan(self, scheme: Scheme, excluded: tuple[str, ...]) -> Plan:
        """The plan with these nodes in floating point."""
        left = self._left(scheme, excluded)
        floating = {member for name in (*left, *excluded) for member in (name, *self.functions.get(name, ()))}
        layers = [node.name or "" for node in self.layers if node.name not in floating]
        if not layers:
            what = "has no convolution or matrix product with weights to quantise"
            if any(value.name in self.model.graph.initializers for value in self.model.graph.inputs):
                what += "; its weights are inputs as well: `infersdk graph lint MODEL --fix -o FILE` changes that"
            if left or excluded:
                reason = next(iter(left.values()), "they are excluded")
                what = f"has no layer left to quantise for {scheme.name}: {reason}"
            raise UnsupportedModelError(f"the model {what}")
        chosen = self._chosen(scheme, layers, floating)
        points, moved = self._points(scheme, chosen), dict[str, str]()
        if scheme.moves:
            points, moved, moving = move_quantizers(self.model.graph, points, chosen, self.floats)
            chosen = [name for name in self.nodes if name in moving or name in chosen]
        return Plan(
            self.model, scheme, tuple(layers), tuple(chosen), points, moved, left, excluded,
            _graph=self,
        )  # fmt: skip

    def _points(self, scheme: Scheme, chosen: Sequence[str]) -> dict[str, str]:
        """The quantised values for quantised nodes, each with the value whose range it has."""
        nodes = [self.nodes[name] for name in chosen]
        values = {value for node in nodes for value in self._read(node)}
        if scheme.between:
            layers = [node for node in nodes if _has_weights(node) and not self._feeds_tail(node)]
            values |= {self._result(scheme, node) for node in layers}
            read = set(values)
            values |= {value for node in nodes for value in node.outputs if value in read}
            values -= {node.outputs[0] for node in nodes if self._result(scheme, node) is not node.outputs[0]}
        result: dict[str, str] = {}
        quantised = set(chosen)
        for name, value in graph_values(self.model.graph):
            if value not in values or value not in self.floats:
                continue
            maker = value.producer()
            source = maker.inputs[0].name if maker is not None and maker.inputs and maker.inputs[0] else ""
            same = maker is not None and has_same_scale(maker) and maker.name in quantised and source in result
            result[name] = result[source or ""] if same else name
        return result

    def _read(self, node: ir.Node) -> list[ir.Value]:
        """The activations that a quantised node reads."""
        if node.op_type not in _SEVERAL_INPUTS:
            return [node.inputs[0]] if node.inputs[0] in self.floats else []
        return [value for value in node.inputs if value is not None and value in self.floats]

    def _result(self, scheme: Scheme, node: ir.Node) -> ir.Value:
        """The value to quantise as the result of a layer: after a ReLU if codes are unsigned."""
        uses = list(node.outputs[0].consumers())
        if not scheme.signed and _has_weights(node) and len(uses) == 1 and not node.outputs[0].is_graph_output():
            (follower,) = uses
            if follower.op_type == "Relu":
                return follower.outputs[0]
        return node.outputs[0]

    def _chosen(self, scheme: Scheme, layers: Sequence[str], floating: Collection[str]) -> list[str]:
        """The nodes that are quantised, in order."""
        chosen = set(layers)
        if not scheme.between:
            return [name for name in self.nodes if name in chosen]
        results = [self._result(scheme, self.nodes[name]).producer() for name in layers]
        inside = {node.name for node in results if node is not None} - set(layers)
        chosen |= {
            name
            for name, node in self.nodes.items()
            if node.op_type in BETWEEN and node in self.body and name not in floating and name not in inside
            and node.outputs[0] in self.floats
        }  # fmt: skip
        # Other nodes than layers are only quantised if a quantised node reads their result.
        for name in reversed(self.nodes):
            readers = {use.name for use in self.nodes[name].successors()}
            if name not in layers and not readers & chosen:
                chosen.discard(name)
        return [name for name in self.nodes if name in chosen]

    def _feeds_pooling(self, node: ir.Node) -> bool:
        """Whether a pooling reads the result of a layer. In floating point, the pooling would cost more."""
        inner = (node, *(self.nodes[name] for name in self.functions[node.name or ""]))
        return any(use.op_type in ("AveragePool", "MaxPool") for one in inner for use in one.successors())

    def _feeds_tail(self, node: ir.Node) -> bool:
        """Whether the result is a model output or is read by the tail."""
        value = node.outputs[0]
        return value.is_graph_output() or any(use not in self.body for use in value.consumers())


def _has_weights(node: ir.Node) -> bool:
    """Whether a node is a layer that can be quantised.

    The weights of a matrix product must be a matrix, since ONNX Runtime rejects scales per column for other ranks. A
    Gemm must not transpose its data, since its channels would be the first axis.
    """
    if node.op_type not in WEIGHTED or len(node.inputs) < 2:
        return False
    data, weights = node.inputs[:2]
    if data is None or data.is_initializer() or weights is None or not weights.is_initializer():
        return False
    if weights.is_graph_input():
        return False
    if node.op_type == "Gemm":
        return not node.attributes.get_int("transA", 0)
    return node.op_type != "MatMul" or weight_array(node).ndim == 2


def _products(node: ir.Node) -> int:
    """The number of products per value of the result of a layer."""
    shape = weight_array(node).shape
    if node.op_type == "Conv":
        return int(np.prod(shape[1:]))
    return int(shape[0] if output_axis(node) else shape[1])


def _is_mean(node: ir.Node) -> bool:
    """Whether a layer computes the mean of a distribution: one output after a softmax (YOLOv8's DFL)."""
    if weight_array(node).shape[output_axis(node)] != 1:
        return False
    maker = data_input(node).producer()
    while maker is not None and has_same_scale(maker) and maker.inputs[0] is not None:
        maker = maker.inputs[0].producer()
    return maker is not None and maker.op_type == "Softmax"


def _functions_of(node: ir.Node) -> list[ir.Node]:
    """The nodes of the activation function of a layer: one of `FUNCTIONS`, or x * sigmoid(x)."""
    result = node.outputs[0]
    uses = [use for use in result.consumers() if use.graph is node.graph]
    found = [use for use in uses if use.op_type in FUNCTIONS and use.inputs[0] is result]
    made = {result, *(value for use in found for value in use.outputs)}
    for use in uses:
        if use.op_type == "Mul" and made.issuperset(use.inputs):
            found.append(use)
    return found


def output_axis(node: ir.Node) -> int:
    """The output channel axis of the weights of a layer."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "Gemm":
        return 0 if node.attributes.get_int("transB", 0) else -1
    return 1 if node.op_type == "ConvTranspose" else -1


def data_input(node: ir.Node) -> ir.Value:
    """The activation input of a layer."""
    value = node.inputs[0]
    assert value is not None
    return value


def weight_array(node: ir.Node) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The weights of a layer as float32."""
    weights = node.inputs[1]
    assert weights is not None
    assert weights.const_value is not None
    return np.asarray(weights.const_value.numpy(), np.float32)
