"""Small ONNX models for the tests: each a file of a few hundred bytes with known arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

Dim = int | str | None


def value(name: str, shape: Sequence[Dim] | None, dtype: str = "float32") -> Any:
    """A graph's input or output."""
    code = onnx.TensorProto.STRING if dtype == "string" else onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return onnx.helper.make_tensor_value_info(name, code, shape)


def typed(name: str, shape: Sequence[Dim] | None, kind: str) -> Any:
    """One of an element type that NumPy has not, by ONNX's name: `"BFLOAT16"`."""
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.DataType.Value(kind), shape)


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    """`node("Add", "a b", "c")`."""
    return onnx.helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def save(
    path: Path,
    nodes: Sequence[Any],
    inputs: Sequence[Any] | str,
    outputs: Sequence[Any] | str,
    weights: dict[str, np.ndarray[Any, Any]] | None = None,
    *,
    opset: int = 17,
    ir_version: int = 8,
    metadata: dict[str, str] | None = None,
    domains: Mapping[str, int] | None = None,
) -> Path:
    """Writes a model of these parts; returns the path.

    Args:
        inputs, outputs: made by `value()`, or in ONNX's text form: `"float[n,4] x, int64[?] y"`.
        domains: the version of each domain of operators that are not ONNX's.
    """
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    sides = [
        onnx.parser.parse_graph(f"g ({s}) => () {{ }}").input if isinstance(s, str) else s for s in (inputs, outputs)
    ]
    graph = onnx.helper.make_graph(nodes, path.stem, *sides, constants)
    opsets = [onnx.helper.make_opsetid(*one) for one in {"": opset, **(domains or {})}.items()]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, producer_name="tests")
    onnx.helper.set_model_props(model, metadata or {})
    path.write_bytes(model.SerializeToString())
    return path


def save_text(path: Path, graph: str, weights: dict[str, np.ndarray[Any, Any]] | None = None, **options: Any) -> Path:
    """As `save()`, of a graph in ONNX's text form: `(float[n,4] x) => (float[?,4] y) { y = Concat<axis=0>(x, x) }`."""
    parts = onnx.parser.parse_graph(f"graph {graph}")
    return save(path, parts.node, parts.input, parts.output, weights, **options)


def numbered(nodes: Sequence[Any]) -> Sequence[Any]:
    """The nodes, each named by its operator and its place: `Conv_0`."""
    for index, each in enumerate(nodes):
        each.name = f"{each.op_type}_{index}"
    return nodes


def operators(path: Path) -> Counter[str]:
    """How often each operator stands in a file."""
    return Counter(each.op_type for each in onnx.load(str(path)).graph.node)


def run(model: Any, feeds: Any = None, *, optimized: bool | Path = True) -> list[Any]:
    """What ONNX Runtime makes of a file, its content, or a `Graph`, which is checked first.

    Args:
        feeds: arrays by name, or the array of the first input.
        optimized: False: one node after another, as the file has them; a path: the optimised file is written there.
    """
    import onnxruntime

    if hasattr(model, "check"):
        model.check()
        model = model.bytes()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if isinstance(optimized, Path):
        options.optimized_model_filepath = str(optimized)
    elif not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = model if isinstance(model, bytes) else str(model)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    given = feeds if isinstance(feeds, dict) else {session.get_inputs()[0].name: feeds}
    return list(session.run(None, given))


def need_runtime(release: tuple[int, int], older: str) -> None:
    """Skips a test with an ONNX Runtime before this release, of which `older` says what it does."""
    import onnxruntime

    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < release:
        pytest.skip(f"ONNX Runtime {onnxruntime.__version__} {older}")


def double(path: Path, shape: Sequence[Dim] = ("batch", 4), dtype: str = "float32", **options: Any) -> Path:
    """y = x + x."""
    return save(path, [node("Add", "x x", "y")], [value("x", shape, dtype)], [value("y", shape, dtype)], **options)


def identity(path: Path, shape: Sequence[Dim], dtype: str = "float32", declared: Sequence[Dim] | None = None) -> Path:
    """y = x, its shape declared as `declared`."""
    out = value("y", shape if declared is None else declared, dtype)
    return save(path, [node("Identity", "x", "y")], [value("x", shape, dtype)], [out])


def nonzero(path: Path) -> Path:
    """The indices of what is not zero, [2, found]: a shape that depends on the data."""
    return save(path, [node("NonZero", "x", "y")], [value("x", ("n", 4))], [value("y", (2, None), "int64")])


def found(path: Path, named: Dim = "found", width: Dim = 4) -> Path:
    """The row and the column of each number of x that is not zero, [found, 2]."""
    return save(
        path,
        [node("NonZero", "x", "n"), node("Transpose", "n", "y", perm=[1, 0])],
        [value("x", ("batch", width))],
        [value("y", (named, 2), "int64")],
    )


def twice_as_many(path: Path, named: str = "batch") -> Path:
    """y has twice the rows of x, though both are declared [batch, 2]; z = x."""
    return save(
        path,
        [node("Concat", "x x", "y", axis=0), node("Identity", "x", "z")],
        [value("x", ("batch", 2))],
        [value("y", (named, 2)), value("z", ("batch", 2))],
    )


def sequence(path: Path) -> Path:
    """s is the sequence of a and b."""
    out = onnx.helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, None)
    return save(path, [node("SequenceConstruct", "a b", "s")], [value("a", ("n",)), value("b", ("m",))], [out])


def reshape(path: Path) -> Path:
    """x in rows of `shape`: fails where the number of elements is another."""
    return save(
        path,
        [node("Reshape", "x shape", "y")],
        [value("x", ("n",)), value("shape", (2,), "int64")],
        [value("y", (None, None))],
    )
