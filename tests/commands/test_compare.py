"""`infersdk compare`: exit codes, JSON and tables."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import command_line
import numpy as np
import pytest
from onnx_models import node, save, value

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")


run = partial(command_line.run, "compare")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = exp(x @ w), which grows what bfloat16 rounds off."""
    nodes = [node("MatMul", "x w", "m", name="product"), node("Exp", "m", "y", name="growth")]
    weights = {"w": np.random.default_rng(2).normal(size=(64, 64)).astype(np.float32)}
    return save(tmp_path / "m[1].onnx", nodes, [value("x", ("n", 64))], [value("y", ("n", 64))], weights)


def test_agreement(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, "--batch", 3, "--layers") == 0
    shown = capsys.readouterr().out
    assert "agrees" in shown
    assert "m[1].onnx" in shown.replace("\n", "")
    assert run(model, "--json", "--batch", 3, "--backends", "openvino,onnxruntime") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["agrees"] is True
    assert report["reference"] == "openvino"
    assert report["sides"][0]["outputs"][0]["elements"] == 3 * 64
    assert report["sides"][0]["first_layer"] is None


def test_difference(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No two runtimes meet a tolerance of nothing."""
    data = tmp_path / "data"
    data.mkdir()
    np.save(data / "x.npy", np.random.default_rng(5).normal(size=(2, 64)).astype(np.float32))
    arguments = (model, "--data", data, "--atol", 0, "--rtol", 0, "--layers")
    assert run(*arguments) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "differs" in shown
    assert re.search(r"openvino differs from layer (1: MatMul 'product'|2: Exp 'growth')", shown)
    assert run(*arguments, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["agrees"] is False
    assert report["sides"][0]["first_layer"]["node"] in ("product", "growth")
    assert report["tolerance"] == {"atol": 0, "rtol": 0, "cosine": 1e-4}


def test_nan_and_json(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NaN agrees with NaN; where it does not, the infinite difference is valid JSON all the same."""
    np.save(tmp_path / "x.npy", np.full((2, 64), np.nan, np.float32))
    arguments = (model, "--data", tmp_path / "x.npy", "--json")
    assert run(*arguments, "--backends", "onnxruntime,onnxruntime@cpu") == 0
    run(*arguments)
    for text in capsys.readouterr().out.split("\n}\n")[:-1]:
        json.loads(text + "}", parse_constant=pytest.fail)


def test_seeds_repeat(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for seed in (7, 7, 8):
        run(model, "--seed", seed, "--json")
        shown.append(json.loads(capsys.readouterr().out)["sides"][0]["outputs"])
    assert shown[0] == shown[1] != shown[2]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--backends", "onnxruntime"], 2, "two or more"),
        (["--backends", "onnxruntime,nonesuch"], 3, "nonesuch"),
        (["--backends", "onnxruntime,openvino@cuda"], 3, "cuda"),
        (["--backends", "onnxruntime,openvino/fp99"], 2, "fp99"),
        (["--atol", "-1"], 2, "atol"),
        (["--atol", "much"], 2, "much"),
        (["--batch", "0"], 2, "--batch"),
        (["--seed", "-3"], 2, "--seed"),
        (["--shape", "x=1,y"], 2, "--shape"),
        (["--shape", "x=1,64", "--shape", "x=2,64"], 2, "--shape x is given twice: '1,64' and '2,64'"),
        (["--shape", "z=1,64"], 2, "'z'"),
        (["--data", "no/such/folder"], 2, "no/such/folder"),
    ],
)
def test_wrong_use(
    model: Path, arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model, *arguments) == code
    assert words in capsys.readouterr().err


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("no/such.onnx") == 2
    assert "no/such.onnx" in capsys.readouterr().err
