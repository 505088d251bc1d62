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
ort = pytest.importorskip("onnxruntime")

W = np.arange(16, dtype=np.float32).reshape(4, 4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    nodes = [models.node("MatMul", "x w", "a", name="one"), models.node("Relu", "a", "b", name="two"),
             models.node("Reshape", "b t", "y", name="three")]  # fmt: skip
    return models.save(
        tmp_path / "m.onnx", nodes, [models.value("x", (1, 4))], [models.value("y", (1, 2, 2))],
        {"w": W, "t": np.asarray([1, 2, 2])},
    )  # fmt: skip


def run(path: Path, **feeds: Any) -> Any:
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feeds)[0]


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


def test_free_batch(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.onnx"
    assert main(["graph", "free-batch", str(path), "-o", str(out)]) == 0
    assert "x [batch,4] -> y [batch,2,2]" in capsys.readouterr().out
    x = np.random.default_rng(0).random((3, 4), dtype=np.float32)
    np.testing.assert_array_equal(run(out, x=x), np.concatenate([run(path, x=row[None]) for row in x]))
    assert main(["graph", "free-batch", str(out), "-o", str(out)]) == 0
    assert "it is so already" in capsys.readouterr().out


def test_lint(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "lint", str(path)]) == 1
    out = capsys.readouterr().out
    assert "m.onnx: 2 findings" in out
    assert "fixed-batch (all)" in out
    assert "    node 'three' (Reshape): a size of it is the batch, written as a number" in out
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
    assert "'x' is not of the form NAME=NAME" in capsys.readouterr().err
    assert main(["graph", "split", str(path), str(head), str(tail), "--at", "y"]) == 2


def test_edits_of_image_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [models.node("GlobalAveragePool", "x", "y", name="pool")]
    path = models.save(tmp_path / "p.onnx", nodes, [models.value("x", (1, 3, 8, 8))], [models.value("y", (1, 3, 1, 1))])
    out = tmp_path / "out.onnx"
    assert main(["graph", "resize-input", str(path), "6x4", "-o", str(out)]) == 0
    assert str(open_graph(out).inputs[0].shape) == "[1,3,4,6]"
    image = np.random.default_rng(0).integers(0, 256, (1, 5, 7, 3), np.uint8)
    assert main(["graph", "image-in", str(path), "--resize", "stretch", "--mean", "0.5", "-o", str(out)]) == 0
    assert abs(run(out, x=image) - (image.mean((1, 2)) / 255 - 0.5).reshape(1, 3, 1, 1)).max() < 0.05
    assert main(["graph", "opset", str(path), "19", "-o", str(out), "--external-data", "w.bin"]) == 0
    assert open_graph(out).opset == 19
    capsys.readouterr()
    assert main(["graph", "resize-input", str(path), "640", "-o", str(out)]) == 2
    assert "'640' is not of the form WIDTHxHEIGHT" in capsys.readouterr().err
    assert main(["graph", "add-nms", str(path), "--head", "yolov5", "-o", str(out)]) == 2
    assert "a head is one output with three axes" in capsys.readouterr().err
