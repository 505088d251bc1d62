"""`Graph`: an ONNX model to walk through, to ask, and to change.

::

    graph = infersdk.graph.open("yolov5s.onnx")
    for node in graph.nodes("Conv", name="/model.24/*"):
        print(node.name, graph.weights[node.inputs[1].name].shape)
    graph.replace(graph.nodes("HardSwish"), "Silu")
    graph.save("changed.onnx")

Nodes and values are those of `onnx_ir` (`onnx_ir.Node`, `onnx_ir.Value`), and `graph.model` is its `onnx_ir.Model`:
what this class does not do, that package does. Wherever a value is taken, its name is as well, and an array as a new
weight.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, ModelFormatError, nearest
from .files import model_bytes, parse_model, read_model, write_model
from .parts import extract_part, join_models, rewire
from .passes import Pass, SetOpset, apply_passes
from .weights import Weights, add_weight, drop_unused_weights, graph_values

if TYPE_CHECKING:
    import os

    import numpy.typing as npt
    import onnx_ir as ir

    #: A value of the graph, its name, or an array that becomes a weight.
    ValueLike = ir.Value | str | npt.NDArray[Any] | float

__all__ = ["Graph", "open"]


def open(path: str | os.PathLike[str]) -> Graph:  # noqa: A001 - infersdk.graph.open(), as PIL.Image.open()
    """The graph of an ONNX file. Weights in other files are read when they are looked at.

    Raises:
        ModelNotFoundError, ModelFormatError, UnsupportedModelError, BackendUnavailableError: as `read_model`.
    """
    return Graph(read_model(path))


class Graph:
    """An ONNX model.

    Attributes:
        model: the `onnx_ir.Model` that all methods work on.
        weights: the weights and constants by their names, as NumPy arrays; see `Weights`.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.weights = Weights(model)

    @classmethod
    def parse(cls, content: bytes) -> Graph:
        """The graph in the bytes of an ONNX file. Errors are those of `open()`."""
        return cls(parse_model(content))

    def __repr__(self) -> str:
        names = [", ".join(f"{value.name} {value.shape}" for value in side) for side in (self.inputs, self.outputs)]
        return f"<Graph {names[0]} -> {names[1]}, {len(self.model.graph)} nodes>"

    # ---- asking ----

    @property
    def inputs(self) -> list[ir.Value]:
        """The inputs, without weights that may be given."""
        return [value for value in self.model.graph.inputs if value.name not in self.model.graph.initializers]

    @property
    def outputs(self) -> list[ir.Value]:
        return list(self.model.graph.outputs)

    @property
    def opset(self) -> int:
        """The version of the ONNX standard that the operators follow."""
        return int(self.model.graph.opset_imports.get("", 0))

    @property
    def metadata(self) -> MutableMapping[str, str]:
        """The texts that exporters leave in a model: such as the names of classes."""
        return self.model.metadata_props

    def nodes(self, operator: str | Collection[str] | None = None, name: str | None = None) -> list[ir.Node]:
        """The nodes in order, without those of inner graphs.

        Args:
            operator: of one type, `"Conv"`, or of several.
            name: whose name fits a pattern, `"/model.24/*"`.
        """
        kinds = {operator} if isinstance(operator, str) else operator
        return [
            node
            for node in self.model.graph
            if (kinds is None or node.op_type in kinds) and (name is None or fnmatch.fnmatchcase(node.name or "", name))
        ]

    def node(self, name: str) -> ir.Node:
        """The node of a name.

        Raises:
            ConfigError: there is none, or more than one.
        """
        result = [node for node in self.model.graph if node.name == name]
        if len(result) == 1:
            return result[0]
        if result:
            raise ConfigError(f"{len(result)} nodes are called {name!r}; apply the pass NameNodes first")
        raise unknown("node", name, [node.name or "" for node in self.model.graph])

    def value(self, name: str) -> ir.Value:
        """The value of a name: an input, a weight, or the result of a node.

        Raises:
            ConfigError: there is none.
        """
        known = dict(graph_values(self.model.graph))
        if name not in known:
            raise unknown("value", name, list(known))
        return known[name]

    def chains(self, *operators: str) -> list[tuple[ir.Node, ...]]:
        """Nodes of these types one after another, each taking a result of the one before: `chains("Conv", "Relu")`."""
        result: list[tuple[ir.Node, ...]] = [(node,) for node in self.nodes(operators[0])]
        for operator in operators[1:]:
            result = [
                (*chain, node)
                for chain in result
                for node in dict.fromkeys(node for output in chain[-1].outputs for node in output.consumers())
                if node.op_type == operator
            ]
        return result

    # ---- changing ----

    def add(
        self,
        operator: str,
        *inputs: ValueLike | None,
        name: str | None = None,
        outputs: int | Sequence[str] = 1,
        domain: str = "",
        **attributes: Any,
    ) -> ir.Node:
        """A new node; what it gives is `node.outputs`. It stands behind the nodes whose results it takes.

        Args:
            inputs: what it takes; None leaves an optional input out.
            outputs: their number, or their names.
            attributes: as `onnx.helper.make_node` takes them: numbers, texts, arrays, and sequences of these.

        Raises:
            ConfigError: there is no value of a name, or the name of an output is taken.
        """
        import onnx_ir as ir

        values = [None if value is None else self._as_value(value) for value in inputs]
        given = {key: ir.tensor(value) if isinstance(value, np.ndarray) else value for key, value in attributes.items()}
        made = ir.node(
            operator, values, given, domain=domain, name=name,
            num_outputs=outputs if isinstance(outputs, int) else len(outputs),
        )  # fmt: skip
        taken = {value for value, _ in graph_values(self.model.graph)}
        if not isinstance(outputs, int):
            for value, chosen in zip(made.outputs, outputs, strict=True):
                if chosen in taken:
                    raise ConfigError(f"there is a value {chosen!r} already")
                value.name = chosen
        self.model.graph.append(made)
        self.model.graph.sort()
        return made

    def insert(
        self, operator: str, after: ValueLike, *inputs: ValueLike | None, name: str | None = None, **attributes: Any
    ) -> ir.Node:
        """A new node between a value and all that take it. An output of the model keeps its name.

        Args:
            after: the value, which is the first input of the new node.
            inputs: its other inputs.
        """
        value = self._as_value(after)
        uses, is_output, called = list(value.uses()), value.is_graph_output(), value.name
        node = self.add(operator, value, *inputs, name=name, **attributes)
        result = node.outputs[0]
        if result.shape is None and is_output:
            result.type, result.shape = value.type, value.shape
        for use in uses:
            use.node.replace_input_with(use.idx, result)
        if is_output:
            outputs = self.model.graph.outputs
            outputs[list(outputs).index(value)] = result
            if value.is_graph_input():
                raise ConfigError(
                    f"{called!r} is an input that is an output as well; put an Identity between them first"
                )
            value.name, result.name = f"{called}_before_{operator}", called
        self.model.graph.sort()
        return node

    def replace(
        self, nodes: ir.Node | Iterable[ir.Node], operator: str, *inputs: ValueLike | None, **attributes: Any
    ) -> list[ir.Node]:
        """Puts another node in the place of each, with the same results.

        Args:
            nodes: one, or several, each of which is replaced.
            inputs: what the new node takes; what the old one took if nothing is given.

        Returns:
            The new nodes.
        """
        import onnx_ir as ir

        made = []
        for node in [nodes] if isinstance(nodes, ir.Node) else list(nodes):
            new = self.add(operator, *(inputs or node.inputs), outputs=len(node.outputs), **attributes)
            rewire(self.model.graph, node.outputs, new.outputs)
            self._remove([node])
            new.name = node.name
            made.append(new)
        self.model.graph.sort()
        return made

    def fuse(self, nodes: Sequence[ir.Node], operator: str, *inputs: ValueLike | None, **attributes: Any) -> ir.Node:
        """Puts one node in the place of several, whose last one gives the result.

        Raises:
            ConfigError: something else takes what one of the others gives.
        """
        *inner, last = nodes
        for node in inner:
            for output in node.outputs:
                others = [use for use in output.consumers() if use not in nodes]
                if others or output.is_graph_output():
                    where = f"node {others[0].name!r}" if others else "the model as an output"
                    raise ConfigError(f"the result {output.name!r} of {node.name!r} is taken by {where}")
        (made,) = self.replace(last, operator, *inputs, **attributes)
        self._remove(reversed(inner))
        return made

    def delete(self, node: ir.Node, keep: int = 0) -> None:
        """Takes a node out; what took its first result takes its input number `keep`.

        Raises:
            ConfigError: it has no such input, or something takes another result of it.
        """
        source = node.inputs[keep] if keep < len(node.inputs) else None
        if source is None:
            raise ConfigError(f"node {node.name!r} has no input {keep} to put in the place of its result")
        for output in node.outputs[1:]:
            if output.uses() or output.is_graph_output():
                raise ConfigError(
                    f"the result {output.name!r} of node {node.name!r} is taken; replace the node instead"
                )
        if node.outputs[0].is_graph_output() and (source.producer() is None or source.is_graph_output()):
            self.replace(node, "Identity", source)  # an output has a node of its own
            return
        rewire(self.model.graph, node.outputs[:1], [source])
        self._remove([node])

    def rename(self, old: str, new: str) -> None:
        """Another name for a node, or for a value: an input, an output, a weight.

        Raises:
            ConfigError: there is nothing of that name, or the new name is taken.
        """
        values = dict(graph_values(self.model.graph))
        nodes = [node for node in self.model.graph if node.name == old]
        if new in values or any(node.name == new for node in self.model.graph):
            raise ConfigError(f"the name {new!r} is taken")
        if old not in values and not nodes:
            raise unknown("node or value", old, [*values, *(node.name or "" for node in self.model.graph)])
        if old in values:
            values[old].name = new
        for node in nodes:
            node.name = new

    def add_input(self, name: str, dtype: Any, shape: Sequence[int | str | None]) -> ir.Value:
        """A new input of the model; axes are sizes, names, or None."""
        import onnx_ir as ir

        if name in dict(graph_values(self.model.graph)):
            raise ConfigError(f"there is a value {name!r} already")
        value = ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype))), shape=ir.Shape(shape))
        self.model.graph.inputs.append(value)
        return value

    def add_output(self, value: ValueLike) -> ir.Value:
        """Makes a value an output as well. Its type and shape are inferred where the graph does not say."""
        result = self._as_value(value)
        if not result.is_graph_output():
            if result.type is None or result.shape is None:
                self.infer_shapes()
            self.model.graph.outputs.append(result)
        return result

    def remove_output(self, value: ValueLike) -> None:
        """An output that the model no longer gives; what was computed for it alone goes."""
        result = self._as_value(value)
        if not result.is_graph_output():
            raise unknown("output", str(result.name), [output.name or "" for output in self.outputs])
        if len(self.model.graph.outputs) == 1:
            raise ConfigError(f"{result.name!r} is the only output; a model gives something")
        self.model.graph.outputs.remove(result)
        self.drop_unused()

    # ---- parts and wholes ----

    def extract(self, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
        """The part of the model between values, as a model of its own. Weights are shared, not copied.

        Raises:
            ConfigError: there is no value of a name, or the outputs take something that is not behind the inputs.
        """
        for name in (*inputs, *outputs):
            self.value(name)
        self.infer_shapes()
        return Graph(extract_part(self.model, inputs, outputs))

    def join(self, other: Graph, connect: Mapping[str, str] | None = None, prefix: str = "joined/") -> None:
        """Puts another model behind this one.

        Args:
            other: it is left as it is.
            connect: which output, or other value, of this model is which input of the other. What is not connected
                stays an input, or an output. None connects outputs and inputs in order; there must be as many.
            prefix: in front of names of the other model that this one has as well.

        Raises:
            ConfigError: a name that does not exist, numbers or opsets that differ.
        """
        if connect is None:
            ours, theirs = [value.name or "" for value in self.outputs], [value.name or "" for value in other.inputs]
            if len(ours) != len(theirs):
                raise ConfigError(
                    f"the outputs are {ours} and the other inputs {theirs}: say by connect= what goes where"
                )
            connect = dict(zip(ours, theirs, strict=True))
        if self.opset != other.opset:
            raise ConfigError(f"the opsets are {self.opset} and {other.opset}; raise one by set_opset() first")
        known = [value.name or "" for value in other.inputs]
        for target in connect.values():
            if target not in known:
                raise unknown("input", target, known)
        join_models(self.model, other.model, {target: self.value(source) for source, target in connect.items()}, prefix)

    # ---- the whole ----

    def set_opset(self, version: int) -> None:
        """Rewrites the operators for another version of the standard; runtimes say which they know.

        Raises:
            UnsupportedModelError: ONNX's converter cannot do it.
        """
        self.apply(SetOpset(version))

    def infer_shapes(self) -> None:
        """Writes the shapes and types into the values, as far as they can be inferred."""
        from .shapes import infer_shapes

        infer_shapes(self.model)

    def apply(self, *passes: Pass) -> bool:
        """Applies passes in their order (`infersdk.graph.passes`); returns whether one changed the model."""
        return apply_passes(self.model, passes)

    def drop_unused(self) -> None:
        """Takes out nodes and weights that no output needs."""
        from onnx_ir.passes.common import RemoveUnusedNodesPass

        RemoveUnusedNodesPass()(self.model)
        drop_unused_weights(self.model.graph)

    def check(self) -> None:
        """Asks ONNX's checker whether the model is valid: operators, types, shapes, order.

        Raises:
            ModelFormatError: it is not; the message says where.
        """
        import onnx

        try:
            onnx.checker.check_model(self.bytes(), full_check=True)
        except Exception as error:  # the checker and the inference have exceptions of their own
            raise ModelFormatError(f"the model is not valid: {' '.join(str(error).split())}") from None

    def bytes(self) -> bytes:
        """The model as the bytes of one ONNX file. Errors are those of `model_bytes`."""
        return model_bytes(self.model)

    def save(self, path: str | os.PathLike[str], *, external_data: str | None = None) -> Path:
        """Writes an ONNX file in one step: a file of that name is complete, or is what it was before.

        Args:
            external_data: the name of a file in the same folder for the weights; needed beyond 2 GiB.

        Raises:
            OutputError, ModelFormatError, UnsupportedModelError: as `write_model`.
        """
        return write_model(self.model, path, external_data=external_data)

    # ---- within ----

    def _as_value(self, value: ValueLike) -> ir.Value:
        import onnx_ir as ir

        if isinstance(value, ir.Value):
            return value
        if isinstance(value, str):
            return self.value(value)
        array = np.asarray(value, np.float32 if isinstance(value, float) else None)
        taken, number = dict(graph_values(self.model.graph)), 0
        while (name := f"constant_{number}") in taken:
            number += 1
        return add_weight(self.model.graph, name, array)

    def _remove(self, nodes: Iterable[ir.Node]) -> None:
        for node in nodes:
            self.model.graph.remove(node, safe=True)
        drop_unused_weights(self.model.graph)


def unknown(what: str, name: str, known: Sequence[str]) -> ConfigError:
    """The error for a name that does not exist, with one that is like it."""
    return ConfigError(f"the model has no {what} {name!r}{nearest(name, known)}")
