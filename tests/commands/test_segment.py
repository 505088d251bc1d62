"""`infersdk segment` and `infersdk embed`, and what other commands say of such models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from head_models import head_model
from PIL import Image

from infersdk.cli import main
from infersdk.data import DETECTOR

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def run(*arguments: str | Path) -> int:
    try:
        return main([str(a) for a in arguments])
    except SystemExit as stop:  # argparse
        return int(stop.code or 0)


@pytest.fixture(name="image")
def _image(tmp_path: Path) -> Path:
    path = tmp_path / "image.png"
    Image.new("RGB", (40, 20), (90, 90, 90)).save(path)
    return path


def scene(folder: Path) -> Path:
    scores = np.zeros((2, 64, 64), np.float32)
    scores[0, :32], scores[1, 32:] = 1, 1
    return head_model(folder / "scene.onnx", [scores], {"names": "{0: 'sky', 1: 'road'}"})


def test_segment(tmp_path: Path, image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("segment", image, "--model", scene(tmp_path), "--preset", "unit")
    target = tmp_path / "drawn.png"
    assert run(*command, "--json", "-o", target) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert [one["label"] for one in row["classes"]] == ["sky", "road"]
    assert sum(one["area"] for one in row["classes"]) == pytest.approx(1)
    assert (row["size"], row["output"]) == ([40, 20], str(target))
    assert set(row["milliseconds"]) == {"read", "preprocess", "infer", "postprocess", "total"}
    drawn = np.asarray(Image.open(target))
    assert (drawn[0] == 90).all(), "the background"
    assert (drawn[-1] != 90).any()
    assert run(*command) == 0
    shown = capsys.readouterr().out
    assert "road" in shown
    assert "50.0%" in shown


def test_segment_of_several_maps(tmp_path: Path, image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    maps = [np.zeros((2, 64, 64), np.float32)] * 2
    model = head_model(tmp_path / "m.onnx", maps, {}, names=("lanes", "segmentation"))
    assert run("segment", image, "--model", model) == 2
    assert 'area="lanes", lanes="segmentation"' in capsys.readouterr().err
    settings = ("--setting", "area=lanes", "--setting", "lanes=segmentation")
    assert run("segment", image, "--model", model, *settings, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert [one["map"] for one in row["classes"]] == ["area", "lanes"]
    assert run("segment", image, "--model", model, *settings) == 0
    assert "background" in capsys.readouterr().out


def test_embed(tmp_path: Path, image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vector = np.arange(1, 65, dtype=np.float32)
    model = head_model(tmp_path / "v.onnx", [vector], {})
    assert run("embed", image, image, "--model", model, "--json", "--preset", "unit") == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 2
    np.testing.assert_allclose(rows[0]["vector"], vector / np.linalg.norm(vector), rtol=1e-5)
    assert rows[1]["cosines"] == pytest.approx([1, 1])
    assert run("embed", image, image, "--model", model) == 0
    assert "1.000" in capsys.readouterr().out


def test_the_command_that_is_right(tmp_path: Path, image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = head_model(tmp_path / "v.onnx", [np.ones(64, np.float32)], {"task": "embedding"})
    for command, words in (
        (("detect", image, "--model", scene(tmp_path), "--setting", "preset=unit"), "use infersdk segment"),
        (("detect", image, "--model", vectors), "use infersdk embed"),
        (("segment", image, "--model", DETECTOR), "use infersdk detect"),
        (("segment", image, "--model", scene(tmp_path), "--opacity", "2"), "--opacity is 2"),
        (("embed", image, "--model", DETECTOR), "not a model for Embedder"),
    ):
        assert run(*command) != 0
        assert words in capsys.readouterr().err


def test_bench_of_maps_and_vectors(tmp_path: Path, image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = head_model(tmp_path / "v.onnx", [np.ones(64, np.float32)], {"task": "embedding"})
    fast = ("--time", "0.2", "--rounds", "1", "--warmup", "0.1", "--data", image.parent, "--json")
    fast += ("--backends", "onnxruntime")
    unit = ("--preset", "unit")
    for model, kind, more in ((vectors, "embedding", ()), (scene(tmp_path), "segmentation", unit)):
        assert run("bench", model, *fast, *more) == 0, capsys.readouterr().err
        (row,) = json.loads(capsys.readouterr().out)["rows"]
        assert (row["status"], row["ran"]["kind"]) == ("ok", kind)
