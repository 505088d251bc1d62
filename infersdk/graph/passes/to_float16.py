"""Converts FP32 graphs to FP16, for runtimes that run a graph in its own types.

Each node computes in float16 or in float32. A value that is used in both types has one Cast. These stay in float32:

- nodes and operators that the caller names,
- operators without a float16 form in the ONNX standard, or with inaccurate results in float16 (`ALWAYS_FP32`),
- operators that read or make sequences, and operators on their elements,
- operators outside of the standard, except for some of ONNX Runtime's,
- arithmetic on indices and sizes (`index_arithmetic`).

Values between two float32 nodes are not rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import ConfigError, UnsupportedModelError, nearest
from ..index_arithmetic import index_nodes
from ..parts import inline_functions
from ..precision import is_quantized, precision_of
from ..types import element_types, inner_graphs, parameter_at, schema_of
from ..weights import add_weight, constant_of, free_name, taken_names
from ._sizes import lift_constants
from .base import Pass
from .name_nodes import NameNodes

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["ALWAYS_FP32", "FP16_MAX", "ToFloat16", "round_to_float16", "stays_fp32"]

#: The largest finite float16.
FP16_MAX = 65504.0
#: The smallest positive float16.
FP16_TINY = 2.0**-24

#: Operators that stay in float32: sums over whole axes, box coordinates, and comparisons of scores, which have ties in
#: float16; and operators that runtimes do not have in float16.
ALWAYS_FP32 = frozenset(
    {"CumSum", "NonMaxSuppression", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Range",
     "RoiAlign", "TopK", "Upsample"}
)  # fmt: skip
#: Operators of ONNX Runtime that accept float16 for all float32 inputs.
_RUNTIME_OPERATORS = frozenset(
    {"Attention", "BiasGelu", "FastGelu", "FusedConv", "FusedGemm", "FusedMatMul", "Gelu", "MultiHeadAttention",
     "QuickGelu", "SimplifiedLayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"}
)  # fmt: skip
#: Operators whose results do not depend on the type of the input.
_INDIFFERENT = frozenset({"Shape", "Size"})
_FLOAT, _HALF = "tensor(float)", "tensor(float16)"


def round_to_float16(array: npt.NDArray[Any]) -> npt.NDArray[np.float16]:
    """Rounds weights to float16. Finite values stay finite and non-zero values non-zero.

    Very small constants often protect a division by 0.
    """
    with np.errstate(over="ignore", under="ignore"):
        half = np.asarray(array, np.float32).astype(np.float16)
    limit = np.float16(FP16_MAX)
    half = np.where(np.isinf(half) & np.isfinite(array), np.copysign(limit, half), half)
    return np.where((half == 0) & (array != 0), np.copysign(np.float16(FP16_TINY), half), half)


@dataclass(frozen=True)
class ToFloat16(Pass):
    """Converts weights and arithmetic to float16, with functions inlined. A model that is not FP32 is not changed.

    Attributes:
        keep_nodes: names of nodes that stay in float32; `name_nodes` defines the names of nodes without one.
            `fp16_parity.find_fp16_loss` finds the nodes that need it.
        keep_ops: further operators that stay in float32.
        keep_io: whether inputs and outputs of the model keep their types.

    Raises (`apply`):
        ConfigError: the model has no node or operator of a given name, names are one string, or nodes are named for
            a model that is not FP32.
        UnsupportedModelError: weights are quantised, most layers cannot be converted, or functions of the model cannot
            be inlined.
    """

    name: ClassVar[str] = "to-float16"
    version: ClassVar[int] = 4

    keep_nodes: tuple[str, ...] = ()
    keep_ops: tuple[str, ...] = ()
    keep_io: bool = True

    def apply(self, model: ir.Model) -> bool:
        if (precision := precision_of(model)) != "fp32":
            if self.keep_nodes:
                raise ConfigError(f"fp16_keep applies to fp32 models, and this model is {precision}; remove it")
            return False
        if is_quantized(model):
            raise UnsupportedModelError("the model is quantised; convert the original fp32 model")
        inline_functions(model)
        NameNodes().apply(model)
        nodes, operators = {node.name or "" for node in model.graph}, {node.op_type for node in model.graph.all_nodes()}
        for what, given, known in (("node", self.keep_nodes, nodes), ("operator", self.keep_ops, operators)):
            if isinstance(given, str):
                raise ConfigError(f"the {what}s to keep in fp32 are a tuple of names, as ({given!r},), not a string")
            for name in given:
                if name not in known:
                    raise ConfigError(f"the model has no {what} {name!r} to keep in fp32{nearest(name, sorted(known))}")
        lift_constants(model)
        _Conversion(model, self).run()
        if (left := precision_of(model)) != "fp16":
            raise UnsupportedModelError(
                f"most layers of the model stay in {left}: they have no fp16 form or are kept by name"
            )
        return True


def stays_fp32(model: ir.Model) -> set[ir.Node]:
    """The nodes that `ToFloat16()` keeps in float32, without nodes that have subgraphs."""
    types, opsets = element_types(model), model.graph.opset_imports
    index = index_nodes(model.graph, types)
    return {
        node
        for node in model.graph
        if not inner_graphs(node) and (node in index or not _has_float16_form(node, types, opsets))
    }


def _has_float16_form(node: ir.Node, types: Mapping[ir.Value, ir.DataType], opsets: Mapping[str, int]) -> bool:
    """Whether a node computes in float32 and all its type variables allow float16."""
    import onnx_ir as ir

    if node.op_type in ALWAYS_FP32 or node.op_type in _INDIFFERENT or inner_graphs(node):
        return False
    inputs = [(index, types.get(value)) for index, value in enumerate(node.inputs) if value is not None]
    full = ir.DataType.FLOAT
    if any(kind is None for _, kind in inputs) or node.outputs[0] not in types:
        return False  # a sequence, an optional value, or of unknown type
    if full not in (kind for _, kind in inputs) and full not in (types.get(output) for output in node.outputs):
        return False
    schema = schema_of(node, opsets)
    if schema is None:
        return node.op_type in _RUNTIME_OPERATORS
    parameters = [parameter_at(schema.inputs, index) for index, kind in inputs if kind == full]
    parameters = [one for one in parameters if one is None or one.type_str != _FLOAT]
    if types.get(node.outputs[0]) == full:
        parameters.append(parameter_at(schema.outputs, 0))
    return bool(parameters) and all(map(_allows_half, parameters))


def _allows_half(parameter: Any) -> bool:
    return parameter is not None and _HALF in parameter.types


class _Conversion:
    """The state of one conversion."""

    def __init__(self, model: ir.Model, settings: ToFloat16) -> None:
        import onnx_ir as ir

        self._ir, self._full, self._half = ir, ir.DataType.FLOAT, ir.DataType.FLOAT16
        self._model, self._settings = model, settings
        self._opsets = model.graph.opset_imports
        self._taken = taken_names(model.graph)
        self._before = element_types(model)
        self._types = dict(self._before)  # after the conversion
        self._narrow: set[ir.Node] = set()
        self._converted: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def run(self) -> None:
        graphs, nodes = list(self._model.graphs()), list(self._model.graph.all_nodes())
        self._choose(self._model.graph, kept=False)
        if not self._settings.keep_io:
            for given in self._model.graph.inputs:
                self._retype(given)
        for node in nodes:
            if node in self._narrow:
                self._retype_results(node)
        for node in nodes:
            for index, value in enumerate(node.inputs):
                if value is not None and (wanted := self._wanted(node, index, value)) is not None:
                    node.replace_input_with(index, self._as(value, wanted))
        for graph in graphs:
            self._convert_outputs(graph)
            self._drop_unused(graph)

    def _choose(self, graph: ir.Graph, *, kept: bool) -> None:
        """Selects the nodes that compute in float16."""
        index = index_nodes(graph, self._types)
        for node in graph:
            stays = kept or node.name in self._settings.keep_nodes or node.op_type in self._settings.keep_ops
            if not stays and node not in index and _has_float16_form(node, self._types, self._opsets):
                self._narrow.add(node)
            for inner in inner_graphs(node):
                self._choose(inner, kept=stays)

    def _retype(self, value: ir.Value) -> None:
        if self._before.get(value) == self._full:
            self._types[value] = self._half
            if value.type is not None:
                value.dtype = self._half
            if value.const_value is not None:
                value.const_value = self._ir.tensor(round_to_float16(value.const_value.numpy()), name=value.name)

    def _retype_results(self, node: ir.Node) -> None:
        schema = schema_of(node, self._opsets)
        for index, output in enumerate(node.outputs):
            if schema is None or _allows_half(parameter_at(schema.outputs, index)):
                self._retype(output)
        attributes = node.attributes
        if node.op_type == "Cast" and self._before.get(node.outputs[0]) == self._full:
            attributes["to"] = self._ir.AttrInt64("to", int(self._half))
        elif node.op_type == "EyeLike" and "dtype" in attributes:
            attributes["dtype"] = self._ir.AttrInt64("dtype", int(self._half))
        elif node.op_type == "ConstantOfShape":
            value = attributes["value"].as_tensor().numpy() if "value" in attributes else np.zeros(1, np.float32)
            attributes["value"] = self._ir.AttrTensor("value", self._ir.tensor(round_to_float16(value)))

    def _wanted(self, node: ir.Node, index: int, value: ir.Value) -> ir.DataType | None:
        """The type in which a node reads a value; None if any type is valid."""
        if self._before.get(value) != self._full or node.op_type == "Cast" or node.op_type in _INDIFFERENT:
            return None
        if node not in self._narrow:
            return self._full
        schema = schema_of(node, self._opsets)
        parameter = parameter_at(schema.inputs, index) if schema is not None else None
        return self._full if parameter is not None and parameter.type_str == _FLOAT else self._half

    def _as(self, value: ir.Value, wanted: ir.DataType) -> ir.Value:
        """The value in a type: itself, or a shared conversion."""
        if self._types[value] == wanted:
            return value
        if (value, wanted) not in self._converted:
            self._converted[value, wanted] = self._cast(value, wanted)
        return self._converted[value, wanted]

    def _cast(self, value: ir.Value, wanted: ir.DataType) -> ir.Value:
        """Adds a Cast, or a float16 copy of a weight."""
        name = free_name(f"{value.name}_{'fp16' if wanted == self._half else 'fp32'}", self._taken)
        graph, maker = value.graph, value.producer()
        assert graph is not None
        if maker is None and (weight := constant_of(value)) is not None:
            return add_weight(graph, name, round_to_float16(weight))
        output = self._ir.Value(name=name, shape=value.shape)
        if value.shape is not None or value.is_graph_output():  # a type without a shape is not valid
            output.type = self._ir.TensorType(wanted)
        cast = self._ir.node(
            "Cast", [value], {"to": int(wanted)}, outputs=[output], name=free_name(f"{name}_cast", self._taken)
        )
        if maker is not None:
            graph.insert_after(maker, cast)
        elif len(graph):
            graph.insert_before(graph[0], cast)
        else:
            graph.append(cast)
        return output

    def _convert_outputs(self, graph: ir.Graph) -> None:
        """Keeps the types of outputs, unless `keep_io` is off, and always their names."""
        main = graph is self._model.graph
        wanted = self._half if main and not self._settings.keep_io else self._full
        for index, value in enumerate(graph.outputs):
            if self._before.get(value) != self._full or self._types[value] == wanted:
                continue
            converted, name = self._as(value, wanted), value.name
            graph.outputs[index] = converted
            if main:
                value.name = free_name(f"{name}_{'fp32' if wanted == self._half else 'fp16'}", self._taken)
                converted.name = name

    def _drop_unused(self, graph: ir.Graph) -> None:
        """Removes unused weights. Their float16 copies take over their names."""
        for value in list(graph.initializers.values()):
            if value.uses() or value.is_graph_output() or value.is_graph_input():
                continue
            name = value.name or ""
            del graph.initializers[name]
            if (copy := self._converted.get((value, self._half))) is not None and not copy.is_graph_output():
                copy.name = name
