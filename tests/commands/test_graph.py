"""`infersdk graph ...`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk.cli import main
from infersdk.graph import open as open_graph

pytest.importorskip("onnx_ir")
models = pytest.importorskip("onnx_models")
pytest.importorskip("onnxruntime")

W = np.arange(16, dtype=np.float32).reshape(4, 4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    nodes = [models.node("MatMul", "x w", "a", name="one"), models.node("Relu", "a", "b", name="two"),
             models.node("Reshape", "b t", "y", name="three")]  # fmt: skip
    weights = {"w": W, "t": np.asarray([1, 2, 2])}
    return models.save(tmp_path / "m.onnx", nodes, "float[1,4] x", "float[1,2,2] y", weights)


def run(path: Path, **feeds: Any) -> Any:
    return models.run(path, feeds)[0]


def test_show(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "show", str(path), "--json", "--operator", "Relu"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["node"], row["operator"], row["inputs"], row["outputs"]) == ("two", "Relu", "a", "b [1,4]")
    assert main(["graph", "show", str(path), "--weights", "--json", "--name", "w"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"weight": "w", "type": "float32", "shape": [4, 4], "from": 0.0, "to": 15.0}
    ]
    assert main(["graph", "show", str(path), "--limit", "1"]) == 0
    out = capsys.readouterr().out
    assert "MatMul" in out
    assert "2 more: --limit 3 shows them" in out
    assert main(["graph", "show", str(path), "--limit", "1", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
    assert main(["graph", "show", str(path), "--weights", "--operator", "Relu"]) == 2
    assert "--operator is about nodes" in capsys.readouterr().err
    assert main(["graph", "show", str(path), "--limit", "-1"]) == 2
    assert "--limit is a whole number from 0, not -1" in capsys.readouterr().err


def test_weights_that_are_infinite_are_valid_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    side = [models.value(name, (1, 2)) for name in "xy"]
    mask = {"mask": np.asarray([0, -np.inf], np.float32)}
    path = models.save(tmp_path / "m.onnx", [models.node("Add", "x mask", "y")], side[:1], side[1:], mask)
    assert main(["graph", "show", str(path), "--weights", "--json"]) == 0
    assert '"from": "-inf"' in capsys.readouterr().out


def test_free_batch(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.onnx"
    assert main(["graph", "free-batch", str(path), "-o", str(out)]) == 0
    assert "x [batch,4] -> y [batch,2,2]" in capsys.readouterr().out
    x = np.random.default_rng(0).random((3, 4), dtype=np.float32)
    np.testing.assert_array_equal(run(out, x=x), np.concatenate([run(path, x=row[None]) for row in x]))
    assert main(["graph", "free-batch", str(out), "-o", str(out)]) == 0
    assert "nothing to change" in capsys.readouterr().out


def test_inputs_without_a_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = [models.value("x", (1, 4)), models.value("z", None)]
    path = models.save(tmp_path / "m.onnx", [models.node("Add", "x z", "y")], inputs, [models.value("y", (1, 4))])
    assert main(["graph", "lint", str(path), "--json"]) == 1
    found = {one["rule"]: one["what"] for one in json.loads(capsys.readouterr().out)["findings"]}
    assert found["fixed-batch"].startswith("it cannot be freed: input 'z' has no declared shape; export the model")
    assert "unnamed-nodes" in found
    free = models.save(tmp_path / "f.onnx", [models.node("Relu", "z", "y")], inputs[1:], [models.value("y", None)])
    assert main(["graph", "free-batch", str(free), "-o", str(tmp_path / "out.onnx")]) != 0
    shown = capsys.readouterr()
    assert "the model is not valid" in shown.err
    assert "written" not in shown.out


def test_lint(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "lint", str(path)]) == 1
    out = capsys.readouterr().out
    assert "m.onnx: 2 findings" in out
    assert "fixed-batch (all)" in out
    assert "    node 'three' (Reshape): it contains the batch size as a number" in out
    fixed = tmp_path / "fixed.onnx"
    assert main(["graph", "lint", str(path), "--fix", "-o", str(fixed), "--trial", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["findings"] == []
    assert report["fixed"] == [{"name": "free-batch", "error": ""}]
    assert {trial["backend"] for trial in report["trials"]} == {"onnxruntime", "openvino", "tensorrt-rtx"}
    assert main(["graph", "lint", str(fixed)]) == 0
    assert main(["graph", "lint", str(path), "--fix"]) == 2
    assert "--fix and --output go together" in capsys.readouterr().err


def test_trial(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "trial", str(path), "--backends", "onnxruntime", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["backend"], row["status"]) == ("onnxruntime", "ok")
    assert main(["graph", "trial", str(path), "--backends", "ncnn"]) == 2
    assert main(["graph", "trial", str(path), "--compute-capability", "abc"]) == 2
    assert "a compute capability is a number such as 8.9, not 'abc'" in capsys.readouterr().err


def test_parts_and_wholes(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, tail, whole, part = (tmp_path / f"{name}.onnx" for name in ("head", "tail", "whole", "part"))
    x = np.ones((1, 4), np.float32)
    assert main(["graph", "split", str(path), str(head), str(tail)]) == 0
    assert [node.name for node in open_graph(head).nodes()] == ["one"]
    assert main(["graph", "join", str(head), str(tail), "-o", str(whole)]) == 0
    np.testing.assert_array_equal(run(whole, x=x), run(path, x=x))
    assert main(["graph", "split", str(path), str(head), str(tail), "--at", "b"]) == 0
    assert [node.name for node in open_graph(head).nodes()] == ["one", "two"]
    assert main(["graph", "extract", str(path), "--inputs", "a", "--outputs", "b", "-o", str(part)]) == 0
    np.testing.assert_array_equal(run(part, a=-x), 0 * x)
    assert main(["graph", "rename", str(path), "x=images", "y=out", "-o", str(whole)]) == 0
    np.testing.assert_array_equal(run(whole, images=x), run(path, x=x))
    capsys.readouterr()
    assert main(["graph", "rename", str(path), "x", "-o", str(whole)]) == 2
    assert "names 'x' is not of the form OLD=NEW" in capsys.readouterr().err
    assert main(["graph", "rename", str(path), "x=a", "x=b", "-o", str(whole)]) == 2
    assert "x is given twice" in capsys.readouterr().err
    assert main(["graph", "split", str(path), str(head), str(tail), "--at", "y"]) == 2
    assert main(["graph", "split", str(path), str(head), str(head)]) == 2


def test_edits_of_image_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [models.node("GlobalAveragePool", "x", "y", name="pool")]
    path = models.save(tmp_path / "p.onnx", nodes, [models.value("x", (1, 3, 8, 8))], [models.value("y", (1, 3, 1, 1))])
    out = tmp_path / "out.onnx"
    assert main(["graph", "resize-input", str(path), "6x4", "-o", str(out)]) == 0
    assert str(open_graph(out).inputs[0].shape) == "[1,3,4,6]"
    image = np.random.default_rng(0).integers(0, 256, (1, 5, 7, 3), np.uint8)
    assert main(["graph", "image-in", str(path), "--mean", "0.5,x", "-o", str(out)]) == 2
    assert "argument --mean: '0.5,x' is not of the form 0.5,0.25,0.1" in capsys.readouterr().err
    assert main(["graph", "image-in", str(path), "--resize", "stretch", "--mean", "0.5", "-o", str(out)]) == 0
    assert abs(run(out, x=image) - (image.mean((1, 2)) / 255 - 0.5).reshape(1, 3, 1, 1)).max() < 0.05
    assert main(["graph", "opset", str(path), "19", "-o", str(out), "--external-data", "w.bin"]) == 0
    assert open_graph(out).opset == 19
    capsys.readouterr()
    assert main(["graph", "resize-input", str(path), "big", "-o", str(out)]) == 2
    assert "'big' is not a size; use 640 or 640x480" in capsys.readouterr().err
    assert main(["graph", "add-nms", str(path), "--head", "yolov5", "-o", str(out)]) == 2
    assert "the model must have one output with three axes" in capsys.readouterr().err
    assert main(["graph", "add-nms", str(path), "--head", "yolov5", "--num-classes", "3", "-o", str(out)]) == 2
    assert "--num-classes is for --nms infersdk" in capsys.readouterr().err


OWN_OPERATOR = """
from infersdk.custom_ops.packaged.detection_nms import DetectionNMS


class Boxes(DetectionNMS):
    name, domain, cuda = "DetectionNMS", "example", None
"""


def test_the_exact_nms_and_what_the_lint_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {"t": np.array([0, -1, 9])}
    nodes = [models.node("Reshape", "x t", "y", name="rows")]
    head = models.save(tmp_path / "head.onnx", nodes, "float[n,3,8,9] x", "float[n,rows,values] y", weights)
    out = tmp_path / "boxes.onnx"
    assert main(["graph", "add-nms", str(head), "--head", "yolov5", "--nms", "infersdk", "-o", str(out)]) == 0
    (node,) = open_graph(out).nodes("DetectionNMS")
    assert node.attributes["num_classes"].value == 4  # traced, where the file leaves it open
    capsys.readouterr()
    assert main(["graph", "lint", str(out)]) == 0
    assert "nothing found" in capsys.readouterr().out
    graph = open_graph(out)
    graph.nodes("DetectionNMS")[0].domain = "example"
    graph.model.graph.opset_imports["example"] = 1
    graph.save(out)
    assert main(["graph", "lint", str(out)]) == 1
    assert "other-operators" in capsys.readouterr().out
    (tmp_path / "own_operators.py").write_text(OWN_OPERATOR)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = ["--custom-ops", "own_operators:Boxes"]
    assert main(["graph", "lint", str(out), *own]) == 1  # it is known, and has one kernel
    found = " ".join(capsys.readouterr().out.split())  # lines are wrapped
    assert "other-operators" not in found
    assert "example::DetectionNMS has no kernel for 'cuda'" in found
    assert main(["graph", "trial", str(out), "--backends", "onnxruntime", *own]) == 0
    assert main(["graph", "lint", str(out), "--custom-ops", "own_operators"]) == 2
    assert "MODULE:CLASS" in capsys.readouterr().err
    assert main(["graph", "lint", str(out), "--custom-ops", "own_operators:Nothing"]) == 2
    assert "Nothing" in capsys.readouterr().err
    (tmp_path / "damaged_operators.py").write_text("x(")
    assert main(["graph", "lint", str(out), "--custom-ops", "json:JSONDecoder"]) == 2
    assert "use classes that derive from infersdk.custom_ops.CustomOp" in capsys.readouterr().err
    assert main(["graph", "lint", str(out), "--custom-ops", "damaged_operators:Boxes"]) == 2
    assert "SyntaxError" in capsys.readouterr().err


def test_parts_of_a_model_without_names_and_with_weights_in_nodes(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    weight = onnx.numpy_helper.from_array(np.arange(8, dtype=np.float32).reshape(2, 4, 1, 1) + 0.5, "w")
    nodes = [
        onnx.helper.make_node("Constant", [], ["w"], value=weight), models.node("Conv", "x w", "c"),
        models.node("Relu", "c", "r"), models.node("Neg", "r", "y"),
    ]  # fmt: skip
    path = models.save(tmp_path / "p.onnx", nodes, [models.value("x", (1, 4, 3, 3))], [models.value("y", (1, 2, 3, 3))])
    head, tail, whole = (tmp_path / f"{name}.onnx" for name in ("head", "tail", "whole"))
    assert main(["graph", "split", str(path), str(head), str(tail)]) == 0
    assert [node.op_type for node in open_graph(tail).nodes()] == ["Relu", "Neg"]
    assert main(["graph", "join", str(head), str(tail), "-o", str(whole)]) == 0
    x = np.random.default_rng(0).normal(size=(1, 4, 3, 3)).astype(np.float32)
    np.testing.assert_array_equal(run(whole, x=x), run(path, x=x))
