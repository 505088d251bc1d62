"""`infersdk quantize`: from the packaged models and a folder of images to an INT8 file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import command_line
import numpy as np
import pytest
from PIL import Image
from raw_head_models import yolov5_model

from infersdk import quant
from infersdk.commands.quantize import _keep
from infersdk.data import CLASSIFIER, DETECTOR, IMAGE
from infersdk.models import Classifier

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parts of the packaged image."""
    folder = tmp_path_factory.mktemp("images")
    with Image.open(IMAGE) as whole:
        width, height = whole.size
        for i in range(40):
            left, top = width * (i % 8) // 16, height * (i // 8) // 10
            whole.crop((left, top, left + width // 2, top + height // 2)).save(folder / f"{i:02d}.png")
    (folder / "notes.txt").write_text("not an image")
    return folder


run = partial(command_line.run, "quantize")


def test_a_detector(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, table, cache = tmp_path / "d.int8.onnx", tmp_path / "t.json", tmp_path / "t.cache"
    arguments = (DETECTOR, "--data", images, "-o", output, "--table", table, "--json")
    assert run(*arguments, "--limit", 36, "--tensorrt-cache", cache) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["output"] == str(output)
    methods = ["mse", "percentile 99.999", "mse, no bias correction"]
    # The first that agrees well enough is taken.
    assert list(report["methods"]) == (methods[:1] if report["methods"]["mse"] >= 92 else methods)
    assert report["agreement"] > 85
    assert abs(report["score_shift"]) < 0.05
    assert report["target"] == "onnxruntime"
    assert report["samples"] == 36  # those that were kept apart while methods were compared are in the final table
    assert 0 < report["measured"] < 36
    assert report["speed"]["fp32_ms"] > 0
    assert report["speed"]["backend"] == "onnxruntime"
    assert output.stat().st_size < DETECTOR.stat().st_size
    assert cache.read_text().startswith("TRT-")
    # The table again, without calibration, and without images.
    first = output.read_bytes()
    assert run(*arguments) == 0
    assert run(DETECTOR, "-o", tmp_path / "again.onnx", "--table", table) == 0
    assert output.read_bytes() == first == (tmp_path / "again.onnx").read_bytes()
    shown = capsys.readouterr().out
    assert "layers in INT8" in shown


def test_images_without_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, output = tmp_path / "images", tmp_path / "d.int8.onnx"
    folder.mkdir()
    for number in range(8):
        Image.effect_noise((96, 96), 9).save(folder / f"{number}.png")
    arguments = (DETECTOR, "--data", folder, "-o", output, "--json")
    words = "finds nothing in the 8 images for comparison, so results are not compared; give images in which"
    with pytest.warns(RuntimeWarning, match=words):
        assert run(*arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["agreement"], report["score_shift"], report["measured"]) == (None, None, 0)
    assert run(*arguments, "--max-score-shift", 0.02) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_what_is_compared_is_what_load_runs(tmp_path: Path, backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A detector whose boxes are decoded natively is compared so, unless a setting says otherwise."""
    pytest.importorskip(backend)
    model, folder = yolov5_model(tmp_path / "m.onnx", size=(96, 96)), tmp_path / "images"
    folder.mkdir()
    for index in range(10):
        pixels = np.random.default_rng(index).integers(0, 256, (60, 90, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
    command = [model, "--data", folder, "--method", "minmax", "--max-drop", 100, "--backend", backend]
    command += ["--target", "portable", "-o", tmp_path / "int8.onnx"]
    assert run(*command, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["decode_head"] == {"fp32": "native", "int8": "native"}
    assert report["agreement"] > 50
    assert report["speed"]["fp32_ms"] > 0
    assert run(*command) == 0
    assert "boxes are decoded natively, as models.load() loads both files" in capsys.readouterr().out
    assert run(*command, "--json", "--decode-head", "graph") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["decode_head"] == {"fp32": "graph", "int8": "graph"}
    assert run(*command, "--decode-head", "graph") == 0
    assert "decoded natively" not in capsys.readouterr().out


def test_a_classifier_in_words(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, output = tmp_path / "external.onnx", tmp_path / "c.onnx"
    onnx.save(onnx.load(str(CLASSIFIER)), str(model), save_as_external_data=True, location="external.data")
    arguments = (model, "--data", images, "--type", "classifier", "--preset", "unit", "--resize", 32)
    assert run(*arguments, "--method", "entropy", "-o", output) == 0
    shown = " ".join(capsys.readouterr().out.split())
    before = model.stat().st_size + model.with_suffix(".data").stat().st_size
    assert f"{output.stat().st_size:,} bytes ({before / output.stat().st_size:.1f} times smaller)" in shown
    assert "results agree with FP32 by" in shown
    assert "INT8 is" in shown
    assert "FP32" in shown
    assert "ms a run on onnxruntime" in shown


def test_limits_and_the_exit_code(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (CLASSIFIER, "--data", images, "--preset", "unit", "--resize", 32, "--method", "minmax")
    arguments = (*arguments, "--limit", 16, "-o", tmp_path / "c.onnx")
    assert run(*arguments, "--max-drop", 100, "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["search"]["reached"] is True
    assert plain["search"]["floating"] == []
    for limits in (("--max-drop", 0), ("--max-score-shift", 0)):
        code = run(*arguments, *limits, "--json")
        found = json.loads(capsys.readouterr().out)
        assert code == (0 if found["search"]["reached"] else 1)
        if limits[0] == "--max-drop":
            assert found["agreement"] >= plain["agreement"]
            costs = [step["cost_ms"] for step in found["search"]["front"]]
            assert costs == sorted(costs)
    assert run(*arguments, "--max-drop", 0, "--max-score-shift", 0) == code
    shown = " ".join(capsys.readouterr().out.split())
    assert ("--max-drop 0 --max-score-shift 0 is not kept" in shown) == (code == 1)


def test_each_backend_gets_its_form(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openvino")
    settings = ("--preset", "unit", "--resize", 32, "--method", "minmax", "--max-drop", 100)
    common = (CLASSIFIER, "--data", images, "--limit", 16, *settings, "--json")
    points = {}
    for backend, target in (("openvino", None), ("onnxruntime", None), ("onnxruntime", "portable")):
        output = tmp_path / f"{backend}.{target}.onnx"
        chosen = ("--target", target) if target else ()
        assert run(*common, "--backend", backend, *chosen, "-o", output) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["target"] == (target or backend)
        assert report["speed"]["backend"] == backend
        nodes = [each.op_type for each in onnx.load(output).graph.node]
        points[backend, target] = nodes.count("QuantizeLinear") / report["layers"]
    assert points["openvino", None] < points["onnxruntime", None]


@pytest.mark.parametrize("stage", ["comparing results", "comparing speed"])
def test_sigterm_keeps_what_was_measured(images: Path, tmp_path: Path, stage: str) -> None:
    output = tmp_path / "c.int8.onnx"
    command = [
        *(sys.executable, "-m", "infersdk", "quantize", str(CLASSIFIER), "--data", str(images), "-o", str(output)),
        *("--limit", "33", "--preset", "unit", "--resize", "32"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stderr is not None
    lines = []
    while not (lines and stage in lines[-1]):
        lines.append(process.stderr.readline())
        assert lines[-1], lines
    process.terminate()
    out, rest = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, ""), rest
    assert re.match(r"\[\d+:\d\d:\d\d\] calibrating on \d+ images", lines[0])
    assert rest.endswith("infersdk: terminated\n")
    assert f"written: {output}; not measured to the end" in rest
    onnx.checker.check_model(onnx.load(output))


def test_what_was_observed_before_an_interruption_is_kept(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted(images.glob("*.png"))
    work = quant.Workflow(CLASSIFIER, files, lambda path: Classifier(path, preset="unit", resize=32))

    def interrupted(output: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(work, "write", interrupted)
    table, output = tmp_path / "t.json", tmp_path / "c.onnx"
    with pytest.raises(KeyboardInterrupt):
        work.run(output)
    _keep(work, table)
    text = " ".join(capsys.readouterr().err.split())
    assert f"written: {table}, the calibration by mse; --table {table} goes on from there" in text
    assert quant.CalibrationTable.load(table).samples == len(files)
    assert run(CLASSIFIER, "-o", output, "--table", table) == 0
    assert output.exists()


def test_layers_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(DETECTOR, "--layers", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["operator"] for row in rows} <= {"Conv", "Gemm", "MatMul"}
    assert run(DETECTOR, "--layers") == 0
    count = len([row for row in rows if not row["note"]])
    assert f"{count} layers can be quantised for onnxruntime" in capsys.readouterr().out
    assert any("faster in floating point" in row["note"] for row in rows)
    excluded = rows[0]["name"]
    assert run(DETECTOR, "--layers", "--json", "--exclude", excluded) == 0
    notes = {row["name"]: row["note"] for row in json.loads(capsys.readouterr().out)}
    assert notes.keys() == {row["name"] for row in rows}
    assert notes[excluded] == "left in floating point: it is excluded"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--data is missing"),
        (["--data", "no/such/folder"], "no data at"),
        (["--data", "{empty}"], "no images in"),
        (["--data", "{images}", "--limit", "3"], "at least 8 samples, not 3"),
        (["--data", "{images}", "--limit", "0"], "--limit"),
        (["--data", "{images}", "--exclude", "nonesuch"], "no node 'nonesuch'"),
        (["--data", "{images}", "--method", "percentile", "--percentile", "101"], "percentile"),
        (["--data", "{images}", "--percentile", "99"], "--percentile 99 needs --method percentile"),
        (["--data", "{blank}"], "all values of activation"),
    ],
)
def test_wrong_use(
    arguments: list[str], words: str, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, blank = tmp_path / "empty", tmp_path / "blank"
    empty.mkdir()
    blank.mkdir()
    for i in range(8):
        Image.new("RGB", (32, 32)).save(blank / f"{i}.png")
    given = [a.format(empty=empty, images=images, blank=blank) for a in arguments]
    options = ["--preset", "unit", "--resize", "32", "-o", str(tmp_path / "q.onnx")]
    assert run(CLASSIFIER, *given, *options) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "q.onnx").exists()


def test_tables_and_models_that_do_not_fit(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, output = tmp_path / "t.json", tmp_path / "q.onnx"
    settings = ("--data", images, "--preset", "unit", "--resize", 32, "--method", "minmax", "--limit", 12)
    assert run(CLASSIFIER, *settings, "--table", table, "-o", output) == 0
    assert run(DETECTOR, "--table", table, "-o", tmp_path / "d.onnx") == 2
    assert "calibrate this model" in capsys.readouterr().err
    assert run(CLASSIFIER, "--table", table, "--method", "entropy", "-o", output) == 2
    assert "was made by minmax" in capsys.readouterr().err
    percentile = (*settings, "--method", "percentile", "--percentile")
    cut = tmp_path / "cut.json"
    assert run(CLASSIFIER, *percentile, 90, "--table", cut, "-o", output) == 0
    assert run(CLASSIFIER, *percentile, 99, "--table", cut, "-o", output) == 2
    assert "was made with the percentile 90.0; it cannot be used for 99" in capsys.readouterr().err
    assert run(CLASSIFIER, *percentile, 90, "--table", cut, "--no-bias-correction", "-o", output) == 0
    assert "biases corrected" not in capsys.readouterr().out
    assert run(output, *settings) == 2
    assert "is quantised already" in capsys.readouterr().err
