"""`infersdk layers`: tables, JSON, files, and what it refuses."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import command_line
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
from layers.models import small_network


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small_network(tmp_path / "m[1].onnx")


run = partial(command_line.run, "layers")
QUICK = ("--runs", "2", "--warm-up", "1")


def test_a_table_of_two_backends(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(model, "--backends", "onnxruntime,openvino", *QUICK, "--option", "threads=1") == 0
    out = capsys.readouterr().out
    assert "m[1].onnx" in out
    assert "without the profiler" in out
    assert "openvino" in out
    row = next(line for line in out.splitlines() if "/branch/Conv" in line)
    assert "Conv + Relu" in row
    assert "fp32" in row


def test_json(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, "--json", *QUICK) == 0
    found = json.loads(capsys.readouterr().out)
    (side,) = found["sides"]
    assert side["backend"] == "onnxruntime"
    named = {node["name"]: node["sides"]["onnxruntime"] for node in found["nodes"]}
    assert named["/target"] == {"fate": "constant", "layers": []}
    assert named["/branch/Conv"]["layers"] == named["/branch/Relu"]["layers"] != []
    assert sum(row["seconds"]["onnxruntime"] or 0 for row in found["rows"]) == pytest.approx(side["layer_seconds"])


def test_files(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("vl_convert")
    page, trace = tmp_path / "l.html", tmp_path / "l.json"
    assert run(model, "--html", page, "--trace", trace, *QUICK) == 0
    assert page.read_text().startswith("<!doctype html>")
    assert any(event["ph"] == "X" for event in json.loads(trace.read_text())["traceEvents"])
    assert str(page) in capsys.readouterr().out


def test_rows_by_time(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, "--sort", "time", "--backends", "openvino", *QUICK) == 0
    cells = [line.split("│") for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    times = [float(row[5]) for row in cells if row[5].strip()]
    assert times == sorted(times, reverse=True)
    assert len(times) >= 4


def test_layers_of_a_build(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    assert run(model, "--backends", "tensorrt-rtx/fp16", "--compute-capability", "8.9") == 0
    assert "Nothing ran" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--backends", "nothing"], 3, "no backend 'nothing'"),
        (["--backends", "openvino,openvino"], 2, "each target once"),
        (["--runs", "0"], 2, "runs must be at least 1, not 0"),
        (["--option", "streams=2"], 2, "unknown field `streams`"),
        (["--shape", "z=1,2"], 2, "'z'"),
        (["--compute-capability", "8.9"], 2, "cannot list layers"),
        (["--compute-capability", "8.9", "--backends", "openvino,tensorrt-rtx"], 2, "tensorrt-rtx alone"),
    ],
)
def test_what_it_refuses(
    model: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    assert run(model, *arguments) == code
    assert message in capsys.readouterr().err
