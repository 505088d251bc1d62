"""Weights in other forms, and graphs cleaned up: the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk.errors import ConfigError, UnsupportedModelError
from infersdk.graph import Graph
from infersdk.graph import open as open_graph
from infersdk.graph.passes import CleanUp, NarrowIndices, SetOpset, ShrinkConstants, WeightsOffInputs

onnx = pytest.importorskip("onnx")
models = pytest.importorskip("onnx_models")
pytest.importorskip("onnxruntime")

node, value, run = models.node, models.value, models.run


def test_indices_of_32_bits(tmp_path: Path) -> None:
    weights = {"i": np.asarray([2, 0, -1]), "shape": np.asarray([3, 1]), "far": np.asarray([2**40])}
    nodes = [node("Gather", "x i", "g"), node("Reshape", "g shape", "y"), node("Add", "far far", "z")]
    path = models.save(tmp_path / "m.onnx", nodes, "float[3] x", "float[3,1] y, int64[1] z", weights)
    graph = open_graph(path)
    assert graph.apply(NarrowIndices())
    assert {name: array.dtype.name for name, array in graph.weights.items()} == {
        "i": "int32", "shape": "int64", "far": "int64"
    }  # fmt: skip
    x = np.asarray([1, 2, 3], np.float32)
    np.testing.assert_array_equal(run(graph, x)[0], run(path, x)[0])
    assert not graph.apply(NarrowIndices())


def test_constants_that_repeat(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    anchors = np.broadcast_to(np.asarray([[1, 2], [3, 4]], np.float32).reshape(1, 2, 1, 1, 2), (1, 2, 16, 16, 2))
    weights = {"a": anchors.copy(), "real": rng.random((1, 2, 16, 16, 2), dtype=np.float32),
               "alone": np.ones((1, 512), np.float32)}  # fmt: skip
    nodes = [node("Mul", "x a", "m"), node("Add", "m real", "y"), node("Add", "one alone", "z")]
    weights["one"] = np.ones((1, 1), np.float32)
    path = models.save(
        tmp_path / "m.onnx", nodes, "float[n,2,16,16,2] x", "float[n,2,16,16,2] y, float[1,512] z", weights
    )
    graph = open_graph(path)
    assert graph.apply(ShrinkConstants())
    shapes = {name: array.shape for name, array in graph.weights.items()}
    assert shapes["a"] == (1, 2, 1, 1, 2)
    assert shapes["real"] == (1, 2, 16, 16, 2)
    assert shapes["alone"] == (1, 512), "nothing else has these axes"
    x = rng.random((3, 2, 16, 16, 2), dtype=np.float32)
    for got, want in zip(run(graph, x), run(path, x), strict=True):
        np.testing.assert_array_equal(got, want)
    assert not graph.apply(ShrinkConstants())


def test_weights_that_are_inputs(tmp_path: Path) -> None:
    path = models.save(
        tmp_path / "m.onnx", [node("Add", "x w", "y")], [value("x", (2,)), value("w", (2,))], [value("y", (2,))],
        {"w": np.ones(2, np.float32)}, ir_version=3, opset=8,
    )  # fmt: skip
    graph = open_graph(path)
    assert [given.name for given in graph.inputs] == ["x"]
    assert graph.apply(WeightsOffInputs())
    assert [given.name for given in graph.model.graph.inputs] == ["x"]
    assert graph.model.ir_version == 4
    np.testing.assert_array_equal(run(graph, np.ones(2, np.float32))[0], [2, 2])
    assert not graph.apply(WeightsOffInputs())


def test_the_opset(tmp_path: Path) -> None:
    graph = open_graph(models.double(tmp_path / "m.onnx", opset=11))
    assert graph.apply(SetOpset(18))
    assert graph.opset == 18
    assert not graph.apply(SetOpset(18))
    for opset in (0, 999, "17", 17.0):
        with pytest.raises(ConfigError, match=f"opset is from 1 to .*, not {opset!r}"):
            graph.apply(SetOpset(opset))


def test_cleaned_up(tmp_path: Path) -> None:
    pytest.importorskip("onnxslim")
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(4, 3, 3, 3)), "scale": rng.random(4), "bias": rng.random(4),
               "mean": rng.random(4), "var": rng.random(4) + 0.5, "two": np.asarray(2.0)}  # fmt: skip
    nodes = [
        node("Mul", "two two", "four"), node("Conv", "x w", "c"),
        node("BatchNormalization", "c scale bias mean var", "b"),
        node("Identity", "b", "i"), node("Mul", "i four", "m"), node("Shape", "m", "s"), node("Gather", "s zero", "n"),
        node("Unsqueeze", "n axis", "n1"), node("Concat", "n1 rest", "target", axis=0),
        node("Reshape", "m target", "y"),
    ]  # fmt: skip
    arrays = {name: array.astype(np.float32) for name, array in weights.items()}
    arrays |= {"zero": np.asarray(0), "axis": np.asarray([0]), "rest": np.asarray([-1])}
    path = models.save(tmp_path / "m.onnx", nodes, "float[n,3,6,6] x", "float[n,64] y", arrays, metadata={"k": "v"})
    graph = open_graph(path)
    assert graph.apply(CleanUp())
    assert {"Conv", "Reshape"} <= {one.op_type for one in graph.nodes()} <= {"Conv", "Mul", "Reshape"}
    assert graph.metadata == {"k": "v"}
    x = rng.random((3, 3, 6, 6)).astype(np.float32)
    np.testing.assert_allclose(run(graph, x)[0], run(path, x)[0], rtol=1e-4, atol=1e-5)


def test_unused_inputs_stay_in_their_places(tmp_path: Path) -> None:
    pytest.importorskip("onnxslim")
    inputs = [value(name, ("n", 4)) for name in ("before", "x", "after")]
    nodes = [node("Identity", "x", "i"), node("Neg", "i", "y")]
    graph = open_graph(models.save(tmp_path / "m.onnx", nodes, inputs, [value("y", ("n", 4))]))
    before = repr(graph).replace("2 nodes", "1 nodes")
    assert graph.apply(CleanUp())
    assert repr(graph) == before
    graph.check()


@pytest.mark.parametrize(
    "model",
    [
        "g (float[4] x) => (float[4] y) { a = RandomNormalLike(x)  b = RandomNormalLike(x)  y = Sub(a, b) }",
        "g (float[4] x, bool c) => (float[4] y) { y = If(c) <then_branch = t () => (float[4] p) { p = Neg(x) }, "
        "else_branch = e () => (float[4] q) { q = Bernoulli(x) }> }",
        "g (float[4] x) => (float[4] y) { a = d.f(x)  b = d.f(x)  y = Sub(a, b) } "
        '<domain: "d", opset_import: ["": 17]> f (v) => (w) { w = RandomUniformLike(v) }',
    ],
)
def test_random_numbers_are_not_cleaned_up(model: str) -> None:
    """onnxslim merges nodes with the same inputs, and computes random nodes with constant inputs."""
    pytest.importorskip("onnxslim")
    header = '<ir_version: 8, opset_import: ["": 17, "d": 1]> '
    graph = Graph.parse(onnx.parser.parse_model(header + model).SerializeToString())
    before = graph.bytes()
    with pytest.raises(UnsupportedModelError, match="has random results, .* make the random numbers an input"):
        graph.apply(CleanUp())
    assert graph.bytes() == before


@pytest.mark.slow
@pytest.mark.assets
@pytest.mark.parametrize(
    ("name", "most", "shape"),
    [("yolov5n", 240, (2, 3, 640, 640)), ("osnet_x0_25_msmt17", 392, (2, 3, 256, 128)),
     ("yolov8n-seg", 268, (2, 3, 320, 320))],
)  # fmt: skip
def test_real_models_cleaned_up(assets: Path, name: str, most: int, shape: tuple[int, ...]) -> None:
    pytest.importorskip("onnxslim")
    path = assets / "models" / f"{name}.onnx"
    graph = open_graph(path)
    graph.apply(CleanUp())
    assert len(graph.nodes()) <= most
    x = np.random.default_rng(0).random(shape, dtype=np.float32)
    for got, want in zip(run(graph, x), run(path, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_the_sign_of_zeros_stays(tmp_path: Path) -> None:
    zeros = np.zeros((1, 512), np.float32)
    zeros[0, ::2] = -0.0
    path = models.save(tmp_path / "m.onnx", [node("Div", "x a", "y")], "float[n,512] x", "float[n,512] y", {"a": zeros})
    graph = open_graph(path)
    assert not graph.apply(ShrinkConstants())
    assert np.signbit(graph.weights["a"]).tolist() == np.signbit(zeros).tolist()


@pytest.mark.parametrize(
    ("nodes", "shape", "constant"),
    [
        ([node("Add", "a b", "c"), node("Add", "x c", "y")], ("n", 1), (1, 512)),  # each is as large as the other
        ([node("Add", "x a", "m"), node("Add", "m b", "y")], (1, 1, "h", "w"), (1, 1, 640, 640)),
        ([node("Add", "x a", "m"), node("Add", "m b", "y")], (1, 1, 1, 1), (1, 1, 32, 32)),
    ],
)
def test_constants_that_give_the_result_its_size(
    tmp_path: Path, nodes: list[Any], shape: tuple[Any, ...], constant: tuple[int, ...]
) -> None:
    weights = {"a": np.ones(constant, np.float32), "b": np.ones(constant, np.float32)}
    outputs = [value("y", [None] * len(shape))]
    graph = open_graph(models.save(tmp_path / "m.onnx", nodes, [value("x", shape)], outputs, weights))
    graph.apply(ShrinkConstants())
    x = np.ones([1] * len(shape), np.float32)
    np.testing.assert_array_equal(run(graph, x)[0], np.full(constant, 3, np.float32))
