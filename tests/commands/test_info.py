"""`infersdk info`."""

from __future__ import annotations

import importlib.util
import json
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pytest
from framework_files import write_pnnx
from head_models import head_model

from infersdk import cli
from infersdk.data import CLASSIFIER, DETECTOR

run = partial(command_line.run, "info")


def test_onnx(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(DETECTOR, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["format"] == "an ONNX model"
    assert report["inputs"] == [{"name": "images", "dtype": "float32", "shape": ["batch", 3, 320, 320]}]
    assert report["precision"] == "fp32"
    assert report["pixels"] == {}, "it is no classifier"
    assert report["wrapper"] == "yolov5 (infersdk.models.YOLOv5)"
    assert run(DETECTOR) == 0
    text = capsys.readouterr().out
    assert "images: float32 (batch, 3, 320, 320)" in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_pixels_of_a_classifier(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load(CLASSIFIER)
    onnx.helper.set_model_props(model, {"mean": "0.5", "std": "0.25", "input_order": "bgr", "imgsz": "32"})
    onnx.save(model, tmp_path / "m.onnx")
    assert run(tmp_path / "m.onnx", "--json") == 0
    pixels = json.loads(capsys.readouterr().out)["pixels"]
    assert pixels["mean"] == [0.5] * 3
    assert pixels["input_order"] == "bgr"
    assert run(tmp_path / "m.onnx") == 0
    assert "mean 0.5, 0.5, 0.5" in capsys.readouterr().out
    onnx.helper.set_model_props(model, {"mean": "odd"})
    onnx.save(model, tmp_path / "m.onnx")
    assert run(tmp_path / "m.onnx") == 0
    assert "mean is 'odd'" in capsys.readouterr().out


def test_openvino_ir(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ov = pytest.importorskip("openvino")
    ov.save_model(ov.Core().read_model(CLASSIFIER), tmp_path / "m.xml", compress_to_fp16=False)
    assert run(tmp_path / "m.xml", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["format"] == "an OpenVINO IR, read by backend 'openvino'"
    assert report["types"] == ["classifier"]
    assert report["outputs"][0]["name"] == "logits"
    assert report["precision"] == "fp32 on cpu"


def test_engine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    engine = tmp_path / "m.engine"
    assert cli.main(["build", str(CLASSIFIER), "-o", str(engine), "--max-batch", "2"]) == 0
    captured = capsys.readouterr()
    assert "building m.engine" in captured.err, "a line of progress in a pipe"
    assert "tensorrt-rtx" in captured.out, "the TensorRT that is installed"
    assert run(engine, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["format"] == "a TensorRT-RTX engine"
    assert report["inputs"][0]["shape"] == ["batch", 3, 32, 32]
    assert report["metadata"]["task"] == "classify"
    assert report["types"] == ["classifier"]
    assert report["profiles"][-1] == "images (1, 3, 32, 32) to (2, 3, 32, 32)"
    engine.with_name("m.engine.json").unlink()
    assert run(engine) == 0
    assert "not found: " in capsys.readouterr().out


@pytest.mark.parametrize("manifest", ["none", "{}", None, {"inputs": [{"name": "x"}]}, {"metadata": 3}, {"inputs": 3}])
def test_an_engine_with_a_damaged_manifest(manifest: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    engine, moment = tmp_path / "m.engine", "2026-01-01T00:00:00Z"
    engine.write_bytes(b"ftrt" + bytes(100))
    fields = {
        "kind": "engine", "backend": "tensorrt", "label": "m", "sha256": "0", "nbytes": 104, "created": moment,
        "last_used": moment, "details": manifest,
    }  # fmt: skip
    engine.with_name("m.engine.json").write_text(manifest if isinstance(manifest, str) else json.dumps(fields))
    assert run(engine) == 2
    assert "m.engine.json' is damaged; build the engine again" in capsys.readouterr().err


def test_files_for_several_wrappers_and_for_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    for shape, types, nearly, words in (
        ((84, 7), ["yolov5", "yolox"], [], "yolov5 or yolox: models.load() runs the model to decide"),
        (
            (1, 64, 64),
            [],
            ["segmentation", "depth", "background-removal"],
            "segmentation, but its output is one map of numbers",
        ),
        ((3, 4, 5, 6), [], [], "none: it looks like no model that a wrapper here knows: output0"),
    ):
        path = head_model(tmp_path / "m.onnx", [np.zeros(shape, np.float32)], {})
        assert run(path, "--json") == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["types"], list(report["nearly"])) == (types, nearly)
        assert run(path) == 0
        assert words in " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.assets
def test_a_file_that_openvino_alone_reads(capsys: pytest.CaptureFixture[str], assets: Path) -> None:
    pytest.importorskip("openvino")
    if importlib.util.find_spec("tensorflow") is not None:
        pytest.skip("TensorFlow is installed, and converts it")
    assert run(assets / "models" / "face_landmark.tflite", "--json") == 0
    assert json.loads(capsys.readouterr().out)["format"] == "a TensorFlow Lite model, read by backend 'openvino'"


def test_other_files_say_what_helps(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        archive.writestr("m/data.pkl", b"")
    (tmp_path / "m.tflite").write_bytes(b"\x1c\0\0\0TFL3" + bytes(64))
    (tmp_path / "m.onnx").write_bytes(b"no model")
    for name, words in (("m.pt", "checkpoint"), ("m.tflite", "m.tflite"), ("m.onnx", "m.onnx")):
        assert run(tmp_path / name) in (2, 3), "3: TensorFlow and OpenVINO, which read it, are not installed"
        assert words in capsys.readouterr().err


def test_a_model_of_another_framework(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = write_pnnx(
        tmp_path,
        "7767517\n3 2\npnnx.Input in0 0 1 0 #0=(1,3,8,8)f32\nF.relu act 1 1 0 1 #0=(1,3,8,8)f32 #1=(1,3,8,8)f32\n"
        "pnnx.Output out0 1 0 1 #1=(1,3,8,8)f32\n",
    )
    assert run(path, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["format"] == "a PNNX graph, converted to ONNX"
    assert report["inputs"][0]["shape"] == ["batch", 3, 8, 8]


def test_what_detect_takes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A model in ONNX Runtime's own format, and a configuration of a model."""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "m.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    ort.InferenceSession(str(CLASSIFIER), options, providers=["CPUExecutionProvider"])
    assert run(tmp_path / "m.ort", "--json") == 0
    assert json.loads(capsys.readouterr().out)["outputs"][0]["name"] == "logits"
    (tmp_path / "m.toml").write_text(f'[models.digits]\ntype = "classifier"\npath = "{CLASSIFIER}"\n')
    assert run(tmp_path / "m.toml", "--json") == 0
    assert json.loads(capsys.readouterr().out)["format"] == "an ONNX model"


def test_a_model_of_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = tmp_path / "app.json"
    tables = {name: {"type": "classifier", "path": str(CLASSIFIER)} for name in ("digits", "others")}
    app.write_text(json.dumps({"models": {**tables, "aerial": {"type": "tiled"}}}))
    assert run(f"{app}:digits", "--json") == 0
    assert json.loads(capsys.readouterr().out)["format"] == "an ONNX model"
    for name, words in (("", "3 models, digits, others, aerial; name one"), (":aerial", "has no path of a model file")):
        assert run(f"{app}{name}") == 2
        assert words in capsys.readouterr().err
