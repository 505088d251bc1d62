"""`infersdk bench` and `infersdk tune`: arguments, exit codes and files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run

import infersdk
from infersdk.data import CLASSIFIER, DETECTOR, IMAGE
from infersdk.errors import OutputError
from infersdk.testing import contract_model

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

QUICK = ("--time", 0.05, "--rounds", 5, "--warmup", 0.1, "--starts", 0)


@pytest.fixture
def net(tmp_path: Path) -> Path:
    file = tmp_path / "net[1].onnx"
    file.write_bytes(contract_model("net"))
    return file


def test_all_outputs_and_a_comparison(net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = {name: tmp_path / "out" / f"r.{name}" for name in ("json", "csv", "html")}
    code = run(
        "bench", net, "--backends", "onnxruntime,onnxruntime@cuda:99", "--batch", 3, *QUICK,
        "-o", made["json"], "--csv", made["csv"], "--html", made["html"],
    )  # fmt: skip
    out = capsys.readouterr().out
    assert code == 0
    assert out.count("onnxruntime fp32") == 1
    assert "cuda:99" in out
    data = json.loads(made["json"].read_text())
    data["settings"]["seed"] = 7
    assert [row["status"] for row in data["rows"]] == ["ok", "failed"]
    assert data["settings"]["warmup"] == 0.1
    assert len(made["csv"].read_text().splitlines()) == 3
    assert made["html"].read_text().startswith("<!doctype html>")

    assert run("bench", "--compare", made["json"], made["json"]) == 0
    assert "0 moved" in capsys.readouterr().out
    for result in data["rows"][0]["scenarios"].values():
        result["throughput"]["value"] /= 20
        result["throughput"]["rounds"] = [value / 20 for value in result["throughput"]["rounds"]]
    slow = tmp_path / "slow.json"
    slow.write_text(json.dumps(data))
    assert run("bench", "--compare", made["json"], slow) == 1
    shown = capsys.readouterr().out
    assert "slower" in shown
    assert "beyond the noise, and by a factor of 1.03 at least" in shown
    assert "not the same machine, versions, settings or files: seed" in shown
    assert run("bench", "--compare", made["json"], slow, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["slower"] is True
    assert any(change["verdict"] == "slower" for change in report["changes"])
    assert run("bench", "--compare", slow, made["json"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench"], "no model to measure"), (["bench", "none.onnx"], "no model at 'none.onnx'"),
        (["bench", str(DETECTOR), "--batch", "1,x"], "argument --batch: '1,x' is not of the form 1,8,32"),
        (["bench", str(DETECTOR), "--batch", "0"], "a batch is a whole number from 1"),
        (["bench", str(DETECTOR), "--precision", "fp7"], "unknown precision 'fp7'; use one of"),
        (["bench", str(DETECTOR), "--rounds", "0"], "rounds"), (["bench", str(DETECTOR), "--time", "0"], "time"),
        (["bench", str(DETECTOR), "--warmup", "0"], "warmup"),
        (["bench", str(DETECTOR), "--time", "inf"], "time is inf, not a float <= 1000000.0"),
        (["bench", str(DETECTOR), "--time", "nan"], "time is nan, not a float"),
        (["bench", str(DETECTOR), "--data", "nowhere"], "no data at 'nowhere'"),
        (["bench", str(DETECTOR), "--shape", "x"], "--shape 'x' is not of the form"),
        (["bench", "--compare", "a.json", "b.json"], "cannot read the report 'a.json'"),
        (["bench", str(DETECTOR), "--min-change", "0.1"], "goes with --compare"),
        (["bench", str(DETECTOR), "-o", "r.x", "--csv", "./r.x"], "two results go to"),
        (["bench", str(DETECTOR), "--type", "arrays", "--conf", "0.3"], "without conf; leave that out"),
        (["bench", str(DETECTOR), "--type", "arrays", "--from-files"], "without from_files; leave that out"),
        (["layers", str(DETECTOR), "--html", "r.x", "--trace", "r.x"], "two results go to"),
        (["bench", str(DETECTOR), "--backends", ","], "argument --backends: ',' has no name in it"),
        (["layers", str(DETECTOR), "--backends", ",", "--compute-capability", "8.9"], "',' has no name in it"),
        (["tune", "none.onnx"], "no model at 'none.onnx'"),
        (["tune", str(DETECTOR), "-o", "x.json"], "give a name that ends in .toml"),
        (["tune", str(DETECTOR), "--precision", "fp7"], "unknown precision 'fp7'; use one of"),
        (["tune", str(DETECTOR), "--batch", "0"], "--batch takes whole numbers from 1"),
        (["bench", str(DETECTOR), "-o", "/"], "'/' is a folder; give the name of a file"),
        (["predict", str(IMAGE), "--model", str(DETECTOR), "--tile", "64x"], "'64x' is not a size"),
        (["tune", str(DETECTOR), "--budget", "nan"], "a budget is a number of seconds above 0"),
        (["tune", str(DETECTOR), "--budget", "inf"], "a budget is a number of seconds above 0, not inf"),
        (["tune", str(DETECTOR), "--budget", "0"], "a budget is a number of seconds above 0"),
    ],
)  # fmt: skip
def test_wrong_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err


def test_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", DETECTOR, "--backends", "onnxruntime@cuda:99", *QUICK) == 4
    assert "cuda:99" in capsys.readouterr().out


def test_a_scenario_that_needs_a_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", DETECTOR, "--backends", "onnxruntime", "--scenarios", "multi_stream", *QUICK) == 4
    assert "failed: it can run in none of the requested scenarios" in capsys.readouterr().out


def test_files_are_written_before_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output may be a pipe without a reader, or a full disk."""

    def fail(report: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("infersdk.commands.bench.show", fail)
    output = tmp_path / "r.json"
    assert run("bench", DETECTOR, "--backends", "onnxruntime@cuda:99", *QUICK, "-o", output) == 4
    assert json.loads(output.read_text())["rows"][0]["status"] == "failed"


def test_a_report_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(report: object) -> None:
        raise OutputError("no space left")

    monkeypatch.setattr("infersdk.commands.bench.html_report", fail)
    html, csv = tmp_path / "r.html", tmp_path / "r.csv"
    command = ("bench", DETECTOR, "--backends", "onnxruntime@cuda:99", *QUICK, "--html", html, "--csv", csv)
    assert run(*command) == 2
    shown = capsys.readouterr()
    assert "cuda:99 batch 1 failed" in shown.out
    assert f"written: {csv}" in shown.out
    assert "no space left" in shown.err
    assert not html.exists()


def test_an_unknown_backend_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "r.json"
    assert run("bench", DETECTOR, "--backends", "onnxruntime,openvin", "-o", output, *QUICK) == 3
    captured = capsys.readouterr()
    assert "no backend 'openvin'; there are onnxruntime, openvino" in captured.err
    assert not output.exists()


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_interrupted_writes_what_there_is(tmp_path: Path, number: int, code: int, word: str) -> None:
    """Ctrl-C and SIGTERM; and in a pipe a line for each stage, with the share of all work."""
    output = tmp_path / "r.json"
    command = [
        sys.executable, "-m", "infersdk", "bench", str(CLASSIFIER), "--backends", "onnxruntime", "--time", "60",
        "--rounds", "600", "--warmup", "0.5", "--starts", "0", "--no-accuracy", "-o", str(output),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=tmp_path
    )
    assert process.stderr is not None
    lines = []
    while not (lines and "round 3 of 600" in lines[-1]):
        lines.append(process.stderr.readline())
        assert lines[-1], lines
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # a group of its own, as a shell makes one: Ctrl-C goes to all that is in it
    else:
        process.terminate()
    _, rest = process.communicate(timeout=60)
    assert process.returncode == code, rest
    assert rest.endswith(f"infersdk: {word}\n")
    assert re.fullmatch(r"\[0:\d\d:\d\d\] loading \(0%\): digits_classifier.onnx onnxruntime batch 1\n", lines[0])
    assert re.fullmatch(r"\[0:\d\d:\d\d\] round 1 of 600 \(\d+%\): .*\n", lines[1])
    assert len(lines) == 4
    data = json.loads(output.read_text())
    assert data["interrupted"] is True
    (row,) = data["rows"]
    assert row["status"] == "partial"
    assert row["accuracy"] is None
    assert 2 <= len(row["scenarios"]["single_stream"]["throughput"]["rounds"]) < 600


@pytest.mark.slow
def test_tune(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "tuned.toml"
    code = run(
        "tune", CLASSIFIER, "--backends", "onnxruntime", "--threads", "1", "--precision", "fp32", "--budget", 40,
        "--objective", "throughput", "--batch", "1,2", "--preset", "unit", "--resize", 32, "-o", output,
    )  # fmt: skip
    out = capsys.readouterr().out
    assert code == 0
    assert "written to" in out
    (model,) = infersdk.models.create(output).values()
    with model:
        assert type(model).__name__ == "Classifier"
        assert model.settings.preset == "unit"
        assert model.network.precision == "fp32"
        assert model.network.options.threads == 1
