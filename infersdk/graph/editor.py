"""`Graph`: an ONNX model to inspect and edit.

::

    graph = infersdk.graph.open("yolov5s.onnx")
    for node in graph.nodes("Conv", name="/model.24/*"):
        print(node.name, graph.weights[node.inputs[1].name].shape)
    graph.replace(graph.nodes("HardSwish"), "Silu")
    graph.save("changed.onnx")

Nodes and values are `onnx_ir.Node` and `onnx_ir.Value`, and `graph.model` is an `onnx_ir.Model`, so `onnx_ir` can make
other edits. A parameter that takes a value also takes its name, or an array, which becomes a new weight.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, ModelFormatError, nearest
from .files import model_bytes, read_model, write_model
from .parts import extract_part, join_models, rewire
from .passes import Pass, SetOpset, apply_passes
from .shapes import infer_shapes, is_unknown
from .types import inner_graphs, read_values
from .weights import (
    Weights,
    add_weight,
    data_inputs,
    drop_unused_weights,
    free_name,
    graph_values,
    taken_names,
    tensor_of,
    value_names,
)

if TYPE_CHECKING:
    import os

    import numpy.typing as npt
    import onnx_ir as ir

    #: A value of the graph, its name, or an array that becomes a weight.
    ValueLike = ir.Value | str | npt.NDArray[Any] | float

__all__ = ["Graph", "open"]


def open(path: str | os.PathLike[str]) -> Graph:  # noqa: A001 - infersdk.graph.open(), as PIL.Image.open()
    """Opens an ONNX file. External data is read on first access.

    Raises:
        ModelNotFoundError, ModelFormatError, UnsupportedModelError, BackendUnavailableError: as `read_model`.
    """
    return Graph(read_model(path))


class Graph:
    """An ONNX model.

    Attributes:
        model: the underlying `onnx_ir.Model`.
        weights: the weights and constants by name, as NumPy arrays; see `Weights`.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.weights = Weights(model)

    @classmethod
    def parse(cls, content: bytes) -> Graph:
        """Parses the bytes of an ONNX file. Raises the errors of `open()`."""
        return cls(read_model(content))

    def __repr__(self) -> str:
        names = [", ".join(f"{value.name} {value.shape}" for value in side) for side in (self.inputs, self.outputs)]
        return f"<Graph {names[0]} -> {names[1]}, {len(self.model.graph)} nodes>"

    # ---- inspecting ----

    @property
    def inputs(self) -> list[ir.Value]:
        """The inputs that are not weights."""
        return data_inputs(self.model)

    @property
    def outputs(self) -> list[ir.Value]:
        return list(self.model.graph.outputs)

    @property
    def opset(self) -> int:
        """The opset version of the ONNX standard."""
        return int(self.model.graph.opset_imports.get("", 0))

    @property
    def metadata(self) -> MutableMapping[str, str]:
        """The metadata that exporters write, such as class names."""
        return self.model.metadata_props

    def nodes(self, operator: str | Collection[str] | None = None, name: str | None = None) -> list[ir.Node]:
        """The nodes of the main graph in order.

        Args:
            operator: only nodes of this operator, such as `"Conv"`, or of one of several.
            name: only nodes whose name matches this pattern, such as `"/model.24/*"`.
        """
        kinds = {operator} if isinstance(operator, str) else operator
        return [
            node
            for node in self.model.graph
            if (kinds is None or node.op_type in kinds) and (name is None or fnmatch.fnmatchcase(node.name or "", name))
        ]

    def node(self, name: str) -> ir.Node:
        """The node with a name.

        Raises:
            ConfigError: no node or more than one node has that name.
        """
        result = [node for node in self.model.graph if node.name == name]
        if len(result) == 1:
            return result[0]
        if result:
            raise ConfigError(f"{len(result)} nodes have the name {name!r}; apply the pass NameNodes first")
        raise unknown("node", name, [node.name or "" for node in self.model.graph])

    def value(self, name: str) -> ir.Value:
        """The value with a name: an input, a weight, or the output of a node.

        Raises:
            ConfigError: no value has that name.
        """
        known = dict(graph_values(self.model.graph))
        if name not in known:
            raise unknown("value", name, list(known))
        return known[name]

    def chains(self, first: str, *operators: str) -> list[tuple[ir.Node, ...]]:
        """Chains of nodes of these operators, each reading an output of the one before: `chains("Conv", "Relu")`."""
        result: list[tuple[ir.Node, ...]] = [(node,) for node in self.nodes(first)]
        for operator in operators:
            result = [
                (*chain, node)
                for chain in result
                for node in dict.fromkeys(node for output in chain[-1].outputs for node in output.consumers())
                if node.op_type == operator
            ]
        return result

    # ---- editing ----

    def add(
        self,
        operator: str,
        *inputs: ValueLike | None,
        name: str | None = None,
        outputs: int | Sequence[str] = 1,
        domain: str = "",
        **attributes: Any,
    ) -> ir.Node:
        """Adds a node after the nodes that compute its inputs. Its results are `node.outputs`.

        Args:
            inputs: the inputs; None omits an optional input.
            outputs: the number of outputs, or their names.
            domain: of the operator; one that the model does not import is imported with version 1.
            attributes: as in `onnx.helper.make_node`, or graphs and tensors of `onnx_ir`. An array is a tensor; None
                omits an attribute.

        Raises:
            ConfigError: an input name does not exist, an output name is taken, or ONNX has no such attribute or element
                type.
        """
        import onnx_ir as ir

        given = [_attribute(key, value) for key, value in attributes.items() if value is not None]
        taken = value_names(self.model.graph)
        if isinstance(outputs, int):
            names = [free_name(f"{name or operator}_output", taken) for _ in range(outputs)]
        else:
            names = [outputs] if isinstance(outputs, str) else list(outputs)
            if clash := [one for one in names if one in taken or names.count(one) > 1]:
                raise ConfigError(f"the name {clash[0]!r} is taken")
            taken.update(names)
        values = [None if value is None else self._as_value(value, taken) for value in inputs]
        made = ir.Node(domain, operator, values, given, name=name, num_outputs=len(names))
        if domain:
            self.model.graph.opset_imports.setdefault(domain, 1)
        for value, chosen in zip(made.outputs, names, strict=True):
            value.name = chosen
        self.model.graph.append(made)
        self.model.graph.sort()
        return made

    def insert(
        self, operator: str, after: ValueLike, *inputs: ValueLike | None, name: str | None = None, **attributes: Any
    ) -> ir.Node:
        """Inserts a node between a value and all its users. An output of the model keeps its name.

        Args:
            after: the value, which becomes the first input of the new node.
            inputs: the other inputs.

        Raises:
            ConfigError: the value is both an input and an output of the model.
        """
        value = self._as_value(after)
        uses, is_output, called = list(value.uses()), value.is_graph_output(), value.name
        if is_output and value.is_graph_input():
            raise ConfigError(
                f"{called!r} is both an input and an output of the model; insert an Identity between them first"
            )
        node = self.add(operator, value, *inputs, name=name, **attributes)
        result = node.outputs[0]
        for use in uses:
            use.node.replace_input_with(use.idx, result)
        if is_output:
            outputs = self.model.graph.outputs
            outputs[list(outputs).index(value)] = result
            value.name = free_name(f"{called}_before_{operator}", value_names(self.model.graph))
            result.name = called
        self.model.graph.sort()
        self._infer_from([value] if is_output else [], [result])
        return node

    def replace(
        self, nodes: ir.Node | Iterable[ir.Node], operator: str, *inputs: ValueLike | None, **attributes: Any
    ) -> list[ir.Node]:
        """Replaces each node by a new one with the same outputs.

        Args:
            nodes: one node or several.
            inputs: the inputs of each new node; those of the old node by default.

        Returns:
            The new nodes.
        """
        import onnx_ir as ir

        made: list[ir.Node] = []
        before: list[ir.Value] = []
        for node in [nodes] if isinstance(nodes, ir.Node) else list(nodes):
            new = self.add(operator, *(inputs or node.inputs), outputs=len(node.outputs), **attributes)
            rewire(self.model.graph, node.outputs, new.outputs)
            self._remove([node])
            new.name = node.name
            made.append(new)
            before.extend(node.outputs)
        self.model.graph.sort()
        self._infer_from(before, [output for new in made for output in new.outputs])
        return made

    def fuse(self, nodes: Sequence[ir.Node], operator: str, *inputs: ValueLike | None, **attributes: Any) -> ir.Node:
        """Replaces several nodes by one, which computes the outputs of the last.

        Args:
            inputs: the inputs of the new node; those of the last node by default.

        Raises:
            ConfigError: no nodes are given, a node outside of them uses an output of another one, or the new node
                would.
        """
        if not nodes:
            raise ConfigError(f"no nodes are given to fuse into {operator!r}; give at least one")
        *inner, last = nodes
        read = [getattr(value, "name", value) for value in inputs or last.inputs if not isinstance(value, np.ndarray)]
        for node in inner:
            for output in node.outputs:
                if output.name in read:
                    raise ConfigError(
                        f"the new node would read {output.name!r}, which {node.name!r} computes; give other inputs"
                    )
                others = [use for use in output.consumers() if use not in nodes]
                if others or output.is_graph_output():
                    where = f"node {others[0].name!r}" if others else "the model as an output"
                    raise ConfigError(f"the output {output.name!r} of {node.name!r} is used by {where}")
        (made,) = self.replace(last, operator, *inputs, **attributes)
        self._remove(reversed(inner))
        return made

    def delete(self, node: ir.Node, keep: int = 0) -> None:
        """Removes a node. Users of its first output get its input number `keep` instead.

        Raises:
            ConfigError: the node has no such input, or another output of it is used.
        """
        source = node.inputs[keep] if keep < len(node.inputs) else None
        if source is None:
            raise ConfigError(f"node {node.name!r} has no input {keep} to replace its output")
        for output in node.outputs[1:]:
            if output.uses() or output.is_graph_output():
                raise ConfigError(f"the output {output.name!r} of node {node.name!r} is used; replace the node instead")
        if node.outputs[0].is_graph_output() and (source.producer() is None or source.is_graph_output()):
            self.replace(node, "Identity", source)  # an output needs a node that computes it
            return
        rewire(self.model.graph, node.outputs[:1], [source])
        self._remove([node])
        self._infer_from(node.outputs[:1], [source])

    def rename(self, old: str, new: str) -> None:
        """Renames a node or a value.

        Raises:
            ConfigError: the name does not exist, or the new name is taken.
        """
        values = dict(graph_values(self.model.graph))
        nodes = [node for node in self.model.graph if node.name == old]
        if new in taken_names(self.model.graph):
            raise ConfigError(f"the name {new!r} is taken")
        if not new:
            raise ConfigError(f"{old!r} cannot be renamed to an empty name; give another one")
        if old not in values and not nodes:
            raise unknown("node or value", old, [*values, *(node.name or "" for node in self.model.graph)])
        if old in values:
            values[old].name = new
        for node in nodes:
            node.name = new

    def add_output(self, value: ValueLike) -> ir.Value:
        """Makes a value an output of the model. Infers its type and shape if they are not declared."""
        result = self._as_value(value)
        if not result.is_graph_output():
            if result.type is None or result.shape is None:
                self.infer_shapes()
            self.model.graph.outputs.append(result)
        return result

    # ---- splitting and joining ----

    def extract(self, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
        """The part of the model between values, as a separate model. Weights are shared, not copied.

        Raises:
            ConfigError: a name does not exist, or the outputs cannot be computed from the inputs.
        """
        for name in (*inputs, *outputs):
            self.value(name)
        self.infer_shapes()
        return Graph(extract_part(self.model, inputs, outputs))

    def join(self, other: Graph, connect: Mapping[str, str] | None = None, prefix: str = "joined/") -> None:
        """Appends another model.

        Args:
            other: the other model, which is not changed.
            connect: values of this model by the inputs of the other that they feed, as `{value: input}`. Values that
                are not connected remain inputs or outputs. None connects outputs to inputs in order.
            prefix: prefix for names of the other model that this model also has.

        Raises:
            ConfigError: a name does not exist, or the numbers of outputs and inputs, or the opsets, differ.
            UnsupportedModelError: functions of the other model cannot be inlined.
        """
        if connect is None:
            ours, theirs = [value.name or "" for value in self.outputs], [value.name or "" for value in other.inputs]
            if len(ours) != len(theirs):
                raise ConfigError(
                    f"the outputs are {ours} and the inputs of the other model {theirs}; connect them with connect="
                )
            connect = dict(zip(ours, theirs, strict=True))
        if self.opset != other.opset:
            raise ConfigError(
                f"the opsets are {self.opset} and {other.opset}; raise the lower one with set_opset() first"
            )
        known = [value.name or "" for value in other.inputs]
        for target in connect.values():
            if target not in known:
                raise unknown("input", target, known)
        join_models(self.model, other.model, {target: self.value(source) for source, target in connect.items()}, prefix)

    # ---- the whole model ----

    def set_opset(self, version: int) -> None:
        """Converts the operators to another opset version.

        Raises:
            ConfigError: the version does not exist, or the installed onnx does not know it.
            UnsupportedModelError: ONNX's converter fails.
        """
        self.apply(SetOpset(version))

    def infer_shapes(self) -> None:
        """Infers the shapes and types of the values and stores them."""
        infer_shapes(self.model)

    def apply(self, *passes: Pass) -> bool:
        """Applies passes (`infersdk.graph.passes`) in order; returns whether one changed the model."""
        return apply_passes(self.model, passes)

    def check(self) -> None:
        """Validates the model with ONNX's checker: operators, types, shapes and order.

        Raises:
            ModelFormatError: the model is not valid; the message names the place.
        """
        import onnx

        try:
            onnx.checker.check_model(self.bytes(), full_check=True)
        except Exception as error:  # the checker and the shape inference raise different types
            raise ModelFormatError(f"the model is not valid: {' '.join(str(error).split())}") from None

    def bytes(self) -> bytes:
        """Serialises the model to the bytes of one ONNX file. Raises the errors of `model_bytes`."""
        return model_bytes(self.model)

    def save(self, path: str | os.PathLike[str], *, external_data: str | None = None) -> Path:
        """Writes an ONNX file atomically.

        Args:
            external_data: name of a file in the same folder for the weights; required for models above 2 GiB.

        Raises:
            OutputError, ModelFormatError, UnsupportedModelError: as `write_model`.
        """
        return write_model(self.model, path, external_data=external_data)

    # ---- internal ----

    def _infer_from(self, before: Sequence[ir.Value], after: Sequence[ir.Value]) -> None:
        """Infers the types and shapes of the values `after` and of those that depend on them.

        Declared sizes and types remain where inference finds none. Values of `after` without any get those of `before`.
        """
        import onnx_ir as ir

        found = dict.fromkeys(after)
        for node in self.model.graph:
            if not found.keys().isdisjoint(read_values(node)):
                inner = [one for graph in inner_graphs(node) for one in graph.all_nodes()]
                found.update(dict.fromkeys(output for one in (node, *inner) for output in one.outputs))
        declared = {
            value: (value.type, value.shape)
            for value in found
            if value.producer() is not None and isinstance(value.type, ir.TensorType | None)
        }
        for value in declared:
            value.type = value.shape = None
        self.infer_shapes()
        for value, (kind, shape) in declared.items():
            value.type = kind if value.type is None else value.type
            if value.shape is None:
                value.shape = shape
            elif shape is not None and len(shape) == len(value.shape):
                pairs = zip(shape, value.shape, strict=True)
                value.shape = ir.Shape([old if is_unknown(new) else new for old, new in pairs])
        for old, value in zip(before, after, strict=False):
            if value in declared:
                value.type = old.type if value.type is None else value.type
                value.shape = old.shape if value.shape is None else value.shape

    def _as_value(self, value: ValueLike, taken: set[str] | None = None) -> ir.Value:
        """The value; an array becomes a weight with a name outside `taken`, the names of the graph by default."""
        import onnx_ir as ir

        if isinstance(value, ir.Value):
            return value
        if isinstance(value, str):
            return self.value(value)
        array = np.asarray(value, np.float32 if isinstance(value, float) else None)
        name = free_name("constant", value_names(self.model.graph) if taken is None else taken)
        return add_weight(self.model.graph, name, array)

    def _remove(self, nodes: Iterable[ir.Node]) -> None:
        for node in nodes:
            self.model.graph.remove(node, safe=True)
        drop_unused_weights(self.model.graph)


def _attribute(key: str, value: Any) -> ir.Attr:
    """An attribute of a node. Raises ConfigError if ONNX has no attribute of this type."""
    import onnx
    import onnx_ir as ir

    if isinstance(value, np.ndarray):
        value = tensor_of(value)
    try:
        if isinstance(value, ir.Attr | ir.Graph | ir.TensorProtocol):
            return ir.convenience.convert_attribute(key, value)
        made: ir.Attr = ir.from_proto(onnx.helper.make_attribute(key, value))
    except Exception as error:  # onnx, protobuf and onnx_ir raise several types
        raise ConfigError(
            f"ONNX has no attribute {key}={value!r} ({' '.join(str(error).split())}); use a number, a text, an array, "
            "or a sequence of numbers or of texts"
        ) from None
    return made


def unknown(what: str, name: str, known: Sequence[str]) -> ConfigError:
    """The error for a name that does not exist, with the nearest name that does."""
    return ConfigError(f"the model has no {what} {name!r}{nearest(name, known)}")
