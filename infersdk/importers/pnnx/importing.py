"""A PNNX graph as an ONNX model: each operator by its translator, and what has none listed at once."""

from __future__ import annotations

import importlib.util
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ConfigError, ModelFormatError, UnsupportedModelError
from ...graph.builder import GraphBuilder
from ..conversion import Imported, Reference, Request
from ..missing import missing_operators
from . import operators as _operators  # registers the translators
from .graph import Operand, Operator, PnnxGraph, known_shapes
from .raw import RAW, raised
from .running import run
from .translation import OPERATORS, Translation

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["import_pnnx", "translate"]

assert _operators
_CONTAINERS = {"prim::TupleConstruct", "prim::ListConstruct", "prim::TupleUnpack", "prim::ListUnpack"}
_ENDS = {"pnnx.Input", "pnnx.Output", "pnnx.Attribute"}


def import_pnnx(request: Request) -> Imported:
    """The importer of `.pnnx.param` files."""
    source = request.source
    if request.shapes:
        raise ConfigError("a PNNX graph says its shapes itself; leave shapes out, or run pnnx with inputshape=[...]")
    graph = PnnxGraph.read(source)
    model, notes = translate(graph)
    return Imported(model, _reference(graph), notes)


def _reference(graph: PnnxGraph) -> Reference | str:
    if importlib.util.find_spec("torch") is None:
        return "PyTorch, which runs PNNX graphs operator by operator, is not installed: pip install torch"
    if known_shapes(graph.inputs) is None:
        return "the file does not say the shapes of its inputs"
    import torch

    def run_all(sets: list[list[Any]]) -> list[list[Any]]:
        result = []
        for arrays in sets:
            values = run(graph, arrays)
            result.append([leaf for operand in graph.outputs for leaf in _leaves(values[operand.name])])
        return result

    return Reference(f"PyTorch {torch.__version__}, operator by operator", run_all)


def _leaves(value: Any) -> list[Any]:
    return [leaf for inner in value for leaf in _leaves(inner)] if isinstance(value, (list, tuple)) else [value]


def translate(graph: PnnxGraph) -> tuple[ir.Model, list[str]]:
    """The ONNX model of a graph, and what is to be known about it.

    Raises:
        UnsupportedModelError: operators have no translation; all are listed with their numbers.
        ModelFormatError: the file is damaged.
    """
    missing = Counter(
        one.type
        for one in graph.operators
        if one.type not in OPERATORS and one.type not in _CONTAINERS | _ENDS | set(RAW)
    )
    if missing:
        raise missing_operators("the PNNX importer", missing)
    return _Translator(graph).run()


class _Translator:
    def __init__(self, graph: PnnxGraph) -> None:
        import onnx_ir as ir

        self.graph = graph
        self.opset = 18
        self.values: dict[Operand, Any] = {}
        self.dtypes: dict[int, np.dtype[Any]] = {}
        self.taken: set[int] = set()  # values that are outputs of the model
        self.inputs = [self._input(operand, index) for index, operand in enumerate(graph.inputs)]
        self.onnx = ir.Graph(self.inputs, [], nodes=[], opset_imports={"": 18}, name="pnnx")
        self.build = GraphBuilder(self.onnx)

    def _input(self, operand: Operand, index: int) -> Any:
        import onnx_ir as ir

        dtype = operand.dtype or np.dtype(np.float32)
        if dtype.kind == "c":
            raise UnsupportedModelError(
                f"input {index} is of complex numbers, which ONNX operators do not compute with"
            )
        shape = [f"input{index}_{axis}" if size is None else size for axis, size in enumerate(operand.shape or ())]
        value = ir.Value(name=f"in{index}", type=ir.TensorType(ir.DataType.from_numpy(dtype)), shape=ir.Shape(shape))
        if operand.shape is None:
            raise UnsupportedModelError(
                f"input {index} has no shape in the file; run pnnx with inputshape=[1,3,640,640], or as many as it "
                f"has inputs"
            )
        self._keep(operand, value)
        return value

    def _keep(self, operand: Operand, value: Any) -> None:
        self.values[operand] = value
        if operand.dtype is not None and not isinstance(value, list):
            self.dtypes.setdefault(id(value), operand.dtype)

    def run(self) -> tuple[ir.Model, list[str]]:
        import onnx_ir as ir

        failed: Counter[str] = Counter()
        notes: list[str] = []
        for one in self.graph.operators:
            if one.type in ("pnnx.Input", "pnnx.Output"):
                continue
            if any(operand not in self.values for operand in one.inputs):
                continue  # behind an operator that failed
            try:
                results = self._results(one)
            except UnsupportedModelError as error:
                failed[str(error)] += 1
                continue
            except (ModelFormatError, MemoryError):
                raise
            except (
                TypeError,
                ValueError,
                IndexError,
                KeyError,
                AttributeError,
                ArithmeticError,
                StopIteration,
            ) as error:
                # Numbers and shapes of the file that do not fit together.
                raise ModelFormatError(
                    f"operator {one.name!r} ({one.type}) is damaged: its parameters {one.params} and shapes do not "
                    f"fit: {error}"
                ) from error
            for operand, value in zip(one.outputs, results, strict=False):
                self._keep(operand, value)
                if id(value) not in self.dtypes and one.inputs:  # as a rule it is that of the first input
                    self.dtypes[id(value)] = self.dtypes.get(id(self.values[one.inputs[0]]), np.dtype(np.float32))
            if len(results) < len(one.outputs):
                raise ModelFormatError(
                    f"operator {one.name!r} ({one.type}) gives {len(results)} of {len(one.outputs)} results"
                )
        if failed:
            raise missing_operators("the PNNX importer", failed)
        outputs = [value for operand in self.graph.outputs for value in _leaves(self.values[operand])]
        if not outputs:
            raise ModelFormatError("the PNNX graph has no outputs")
        self.onnx.outputs.extend(self._output(value, index) for index, value in enumerate(outputs))
        self.onnx.opset_imports[""] = self.opset
        self._write_shapes()
        return ir.Model(self.onnx, ir_version=10, producer_name="infersdk", producer_version="pnnx"), notes

    def _results(self, one: Operator) -> list[Any]:
        one = raised(one) if one.type in RAW else one
        inputs = [self.values[operand] for operand in one.inputs]
        if one.type in ("prim::TupleConstruct", "prim::ListConstruct"):
            return [list(inputs)]
        if one.type in ("prim::TupleUnpack", "prim::ListUnpack"):
            if not inputs or not isinstance(inputs[0], list):
                raise ModelFormatError(f"operator {one.name!r} unpacks what is not a tuple")
            return list(inputs[0])
        if one.type == "pnnx.Attribute":
            if len(one.attributes) != 1:
                raise ModelFormatError(f"operator {one.name!r} has {len(one.attributes)} weights, not one")
            (weight,) = one.attributes.values()
            if weight.dtype.kind == "c":
                raise UnsupportedModelError("pnnx.Attribute: complex numbers")
            return [self.build.constant(weight.array, name=one.name)]
        if any(operand.dtype is not None and operand.dtype.kind == "c" for operand in (*one.inputs, *one.outputs)):
            raise UnsupportedModelError(f"{one.type}: complex numbers")
        self.build.prefix(f"{one.name}/")
        call = Translation(one, self.build, inputs, self.dtypes)
        result = OPERATORS[one.type](call)
        self.opset = max(self.opset, call.opset)
        return list(result) if isinstance(result, (list, tuple)) else [result]

    def _output(self, value: Any, index: int) -> ir.Value:
        """Each output has a node of its own."""
        if id(value) in self.taken or isinstance(value, (np.ndarray, int, float)) or value.producer() is None:
            made: ir.Value = self.build("Identity", value)
        else:
            made = value
        self.taken.add(id(made))
        made.name = f"out{index}"
        return made

    def _write_shapes(self) -> None:
        import onnx_ir as ir

        known = {id(value): operand for operand, value in self.values.items() if not isinstance(value, list)}
        for value in self.onnx.outputs:
            source = value
            node = value.producer()
            if (
                id(value) not in known
                and node is not None
                and node.op_type == "Identity"
                and node.inputs[0] is not None
            ):
                source = node.inputs[0]
            operand = known.get(id(source))
            dtype = self.dtypes.get(id(source), np.dtype(np.float32))
            value.type = ir.TensorType(ir.DataType.from_numpy(operand.dtype if operand and operand.dtype else dtype))
            if operand is not None and operand.shape is not None:
                value.shape = ir.Shape(operand.shape)
