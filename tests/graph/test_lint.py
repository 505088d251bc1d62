"""Lint rules, their fixes, and the trial on the runtimes of this machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk.errors import ConfigError, ModelFormatError
from infersdk.graph import Graph
from infersdk.graph import open as open_graph
from infersdk.graph.lint import RULES, fix, lint
from infersdk.graph.trial import try_model

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")
models = pytest.importorskip("onnx_models")
pytest.importorskip("onnxruntime")

node, value = models.node, models.value
RTX = any(importlib.util.find_spec(name) is not None for name in ("tensorrt_rtx", "tensorrt_rtx_bindings"))


def save(path: Path, nodes: list[Any], weights: dict[str, Any] | None = None, **options: Any) -> Graph:
    shape = options.pop("shape", ("n", 4))
    arrays = {name: np.asarray(array) for name, array in (weights or {}).items()}
    return open_graph(
        models.save(
            path, nodes, [value("x", shape)], [value("y", [None] * options.pop("rank", len(shape)))], arrays, **options
        )
    )


def rules(graph: Graph) -> set[str]:
    return {finding.rule for finding in lint(graph)}


def run(graph: Graph, x: Any) -> Any:
    return models.run(graph, x)[0]


def test_a_good_model_has_no_findings(tmp_path: Path) -> None:
    graph = save(tmp_path / "m.onnx", [node("Relu", "x", "y", name="r")])
    assert lint(graph) == []
    assert fix(graph) == []


CASES: dict[str, tuple[list[Any], dict[str, Any], dict[str, Any]]] = {
    "unnamed-nodes": ([node("Relu", "x", "y")], {}, {}),
    "fixed-batch": ([node("Relu", "x", "y", name="r")], {}, {"shape": (1, 4)}),
    "broken-batch": ([node("Reshape", "x t", "y", name="r")], {"t": [1, 2, 2]}, {"rank": 3}),
    "idle-nodes": ([node("Identity", "x", "a", name="i"), node("Relu", "a", "y", name="r")], {}, {}),
    "unnamed-axes": ([node("Relu", "x", "y", name="r")], {}, {"shape": ("n", "?", "?")}),
    "wide-indices": ([node("Gather", "x i", "y", name="g", axis=1)], {"i": [0, 1] * 20}, {}),
    "large-constants": (
        [node("Add", "x c", "y", name="a")], {"c": np.ones((1, 40000), np.float32)}, {"shape": ("n", 40000)}
    ),
    "old-opset": ([node("Relu", "x", "y", name="r")], {}, {"opset": 11}),
    "data-dependent-shapes": ([node("NonZero", "x", "y", name="z")], {}, {}),
    "float64": ([node("Cast", "x", "d", to=11, name="c"), node("Cast", "d", "y", to=1, name="b")], {}, {}),
    "weights-as-inputs": ([node("Add", "x w", "y", name="a")], {"w": np.ones(4, np.float32)}, {"ir_version": 3}),
}  # fmt: skip


@pytest.mark.parametrize("rule", CASES)
def test_each_rule_finds_its_fault_alone_and_mends_it(tmp_path: Path, rule: str) -> None:
    nodes, weights, options = CASES[rule]
    graph = save(tmp_path / "m.onnx", nodes, weights, **options)
    if rule == "weights-as-inputs":
        graph.model.graph.inputs.append(graph.value("w"))
    before = [str(one) for one in graph.nodes()]
    found = lint(graph)
    assert {finding.rule for finding in found} == {rule}
    assert [str(one) for one in graph.nodes()] == before, "looking changes nothing"
    assert all(finding.why and finding.what and finding.where for finding in found)
    mend = next(one.fix for one in RULES if one.name == rule)
    assert {finding.fix for finding in found} == {mend}
    if mend is None:
        return
    if mend.name == "clean-up":
        pytest.importorskip("onnxslim")
    sizes = [1, *(size if isinstance(size, int) else 4 for size in options.get("shape", (1, 4))[1:])]
    x = np.random.default_rng(0).random(sizes, dtype=np.float32)
    want = run(graph, x)
    (done,) = fix(graph)
    assert (done.name, done.error) == (mend.name, "")
    graph.check()
    np.testing.assert_array_equal(run(graph, x), want)
    assert lint(graph) == []


def test_targets_that_are_computed_for_nothing(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "s", name="s"), node("Gather", "s zero", "b", name="g"),
        node("Unsqueeze", "b axis", "b1", name="u"), node("Concat", "b1 rest", "t", axis=0, name="c"),
        node("Reshape", "x t", "y", name="flat"),
    ]  # fmt: skip
    graph = save(tmp_path / "m.onnx", nodes, {"zero": 0, "axis": [0], "rest": [2, 2]}, rank=3)
    (found,) = lint(graph)
    assert (found.rule, found.where) == ("shape-arithmetic", "node 'flat' (Reshape)")
    assert found.what == "its target is computed at run time, but is always [0, 2, 2]"
    x = np.random.default_rng(0).random((3, 4), dtype=np.float32)
    want = run(graph, x)
    assert [done.name for done in fix(graph)] == ["static-reshapes"]
    assert [one.op_type for one in graph.nodes()] == ["Reshape"]
    assert lint(graph) == []
    np.testing.assert_array_equal(run(graph, x), want)


def test_targets_that_numbers_cannot_say_stay_computed(tmp_path: Path) -> None:
    """Two sizes that follow from the input without being one of its axes: one -1 is not enough."""
    nodes = [
        node("Shape", "x", "s", name="s"), node("Tile", "x two", "wide", name="w"), node("Mul", "s by", "t", name="m"),
        node("Reshape", "wide t", "y", name="r"),
    ]  # fmt: skip
    graph = save(tmp_path / "m.onnx", nodes, {"two": [2, 2], "by": [4, 1]}, shape=("n", "w"))
    assert "shape-arithmetic" not in rules(graph)


def test_what_a_mend_leaves_is_mended_as_well(tmp_path: Path) -> None:
    """ONNX's converter makes nodes without names, after the rule on names has had its turn."""
    nodes = [node("Softmax", "x", "y", name="odd", axis=1)]
    graph = save(tmp_path / "m.onnx", nodes, shape=("n", 3, 4), opset=11)
    assert rules(graph) == {"old-opset"}
    done = [one.name for one in fix(graph)]
    assert done[0] == "set-opset"
    assert len(set(done)) == len(done)
    assert lint(graph) == []


def test_modes_that_runtimes_differ_in(tmp_path: Path) -> None:
    resize = onnx.helper.make_node(
        "Resize", ["x", "", "s"], ["y"], name="up", coordinate_transformation_mode="half_pixel_symmetric", antialias=1,
        mode="linear",
    )  # fmt: skip
    graph = save(tmp_path / "m.onnx", [resize], {"s": np.ones(4, np.float32)}, opset=19, shape=("n", 3, 4, 4))
    assert [finding.what for finding in lint(graph)] == [
        "coordinate_transformation_mode half_pixel_symmetric", "antialias"
    ]  # fmt: skip


def test_operators_and_versions_of_elsewhere(tmp_path: Path) -> None:
    graph = save(tmp_path / "m.onnx", [node("Relu", "x", "y", name="r")])
    graph.nodes()[0].domain = "com.example"
    assert rules(graph) == {"other-operators"}
    graph = save(tmp_path / "m.onnx", [node("Relu", "x", "y", name="r")])
    graph.model.graph.opset_imports[""] = 999
    found = [finding.what for finding in lint(graph) if finding.rule == "new-opset"]
    assert any("the installed onnx " in what for what in found)
    assert any("the installed onnxruntime: " in what and "999" in what for what in found)
    graph.model.graph.opset_imports[""] = 21
    assert "new-opset" not in rules(graph)


def test_a_batch_that_cannot_be_freed_has_no_fix(tmp_path: Path) -> None:
    graph = save(tmp_path / "m.onnx", [node("Softmax", "x", "y", axis=0, name="odd")], shape=(1, 4))
    (found,) = lint(graph)
    assert found.fix is None
    assert found.what.startswith("it cannot be freed: node 'odd' (Softmax)")
    assert fix(graph) == []


# ---- trial ----


def test_a_model_that_all_runtimes_take(tmp_path: Path) -> None:
    path = models.double(tmp_path / "m.onnx")
    for result in try_model(path):
        assert result.status in ("ok", "not tried"), result
        assert (result.status == "ok") == (not result.detail)
        if result.backend != "tensorrt-rtx" or RTX:
            assert result.status == "ok"


def test_what_a_runtime_refuses_is_told(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    graph = open_graph(models.double(path))
    graph.nodes()[0].domain, graph.model.graph.opset_imports["com.example"] = "com.example", 1
    graph.save(path)
    for name in ("onnxruntime", "openvino"):
        if importlib.util.find_spec(name) is not None:
            (result,) = try_model(path, [name])
            assert result.status == "failed"
            assert "Add" in result.detail


@pytest.mark.skipif(not RTX, reason="TensorRT-RTX is not installed")
def test_a_build_knows_more_than_a_table_of_operators(tmp_path: Path) -> None:
    """TensorRT-RTX's parser takes NonMaxSuppression; its builder has nothing that runs it."""
    nodes = [node("NonMaxSuppression", "boxes scores k", "y", name="nms")]
    weights = {"k": np.asarray([4])}
    path = models.save(tmp_path / "m.onnx", nodes, "float[1,8,4] boxes, float[1,2,8] scores", "int64[?,3] y", weights)
    (result,) = try_model(path, ["tensorrt-rtx"])
    assert result.status == "failed"
    assert "NonMaxSuppression" in result.detail or "nms" in result.detail


def test_functions_stay_where_a_mend_fails() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 11, "d": 1]>
        g (float[n,4] x) => (float[n,4] y) { [call] h = d.f(x)  [unknown] y = NoOperator(h) }
        <domain: "d", opset_import: ["": 11]> f (a) => (b) { b = Relu(a) }
    """)
    graph = Graph.parse(model.SerializeToString())
    (done,) = fix(graph)
    assert (done.name, done.error[:14]) == ("set-opset", "cannot convert")
    assert [node.op_type for node in graph.nodes()] == ["f", "NoOperator"]
    assert list(graph.model.functions) == [("d", "f", "")]


@pytest.mark.skipif(not RTX, reason="TensorRT-RTX is not installed")
def test_free_axes_are_built_for_one_size(tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", [node("Relu", "x", "y", name="r")], shape=("n", "side", 4))
    for shapes in ({"x": (1, 8, 4)}, {}):
        assert try_model(tmp_path / "m.onnx", ["tensorrt-rtx"], shapes=shapes)[0].status == "ok"


def test_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot try backend 'ncnn'; use one of onnxruntime, openvino, tensorrt-rtx"):
        try_model(models.double(tmp_path / "m.onnx"), ["ncnn"])
    with pytest.raises(ConfigError, match=r"a shape is given for 'y'; the model's inputs are \['x'\]"):
        try_model(tmp_path / "m.onnx", ["onnxruntime"], shapes={"y": (1, 4)})
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    with pytest.raises(ModelFormatError):
        try_model(tmp_path / "junk.onnx")


@pytest.mark.slow
@pytest.mark.assets
def test_a_real_model_whose_axes_have_no_names(assets: Path) -> None:
    """Its height and width are both called `?`, and TensorRT takes them for equal."""
    path = assets / "ocr" / "ch_ppocr_mobile_v2.0_cls_infer.onnx"
    graph = open_graph(path)
    assert "unnamed-axes" in rules(graph)
    assert all(not done.error for done in fix(graph))
    assert lint(graph) == []
    x = np.random.default_rng(0).random((2, 3, 48, 192), dtype=np.float32)
    np.testing.assert_allclose(run(graph, x), run(open_graph(path), x), rtol=1e-5, atol=1e-6)
