"""`infersdk detect` and `quantize` with masks and keypoints: images, JSON and videos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_models import head_model
from PIL import Image

from infersdk.cli import main

pytest.importorskip("onnx")

#: A box of 100 x 50 pixels of an image of 200 x 100.
BOX = (50, 25, 150, 75)


def head(*extra: float) -> np.ndarray[Any, Any]:
    output = np.zeros((5 + len(extra), 84), np.float32)
    output[:, 20] = [32, 32, 32, 16, 0.9, *extra]
    return output


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, names = tmp_path_factory.mktemp("models"), {"names": "{0: 'cat'}"}
    rows = np.zeros((300, 12), np.float32)
    rows[0] = 16, 24, 48, 40, 0.9, 0, 20, 32, 0.9, 44, 32, 0.9
    return {
        "mask": head_model(folder / "seg.onnx", [head(1.0), np.full((1, 16, 16), 9.0)], names),
        "keypoints": head_model(folder / "pose.onnx", [rows], names | {"kpt_shape": "[2, 3]"}),
    }


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "grey.png"
    Image.new("RGB", (200, 100), (90, 90, 90)).save(path)
    return path


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("column", ["mask", "keypoints"])
def test_an_image(
    models: dict[str, Path], image: Path, column: str, backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(backend)
    drawn = tmp_path / "out.png"
    command = ["detect", str(image), "--model", str(models[column]), "--backend", backend, "-o", str(drawn), "--json"]
    assert main(command) == 0
    (row,) = json.loads(capsys.readouterr().out)[0]["detections"]
    assert row["xyxy"] == pytest.approx(BOX, abs=1e-3)
    if column == "mask":
        assert row["mask"]["size"] == [100, 200]
    else:
        assert row["keypoints"][1] == pytest.approx([137.5, 50, 0.9], abs=1e-3)
    changed = (np.asarray(Image.open(drawn)) != 90).any(2)
    inside = changed[30:70, 55:145]
    assert inside.all() if column == "mask" else 0 < inside.mean() < 0.5


@pytest.mark.parametrize("column", ["mask", "keypoints"])
def test_a_video(
    models: dict[str, Path], image: Path, column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("av")
    pytest.importorskip("onnxruntime")
    from infersdk.video import VideoReader, VideoWriter

    with VideoWriter(tmp_path / "in.mp4", fps=10) as writer:
        for number in range(6):
            writer.write(Image.open(image), number / 10)
    target = tmp_path / "out.mp4"
    command = ["detect", str(tmp_path / "in.mp4"), "--model", str(models[column]), "-o", str(target), "--json"]
    assert main(command) == 0
    *frames, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert len(frames) == summary["summary"]["frames"] == 6
    assert all(column in frame["detections"][0] for frame in frames)
    with VideoReader(target) as drawn:
        for frame in drawn:
            assert abs(frame.pixels[45:55, 60:140].astype(int) - 90).max() > 40


def test_objects_are_followed(
    models: dict[str, Path], image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("av", "onnxruntime", "trackers"):
        pytest.importorskip(module)
    from infersdk.video import VideoWriter

    with VideoWriter(tmp_path / "in.mp4", fps=10) as writer:
        for number in range(5):
            writer.write(Image.open(image), number / 10)
    command = ["detect", str(tmp_path / "in.mp4"), "--model", str(models["mask"]), "--track", "--json"]
    assert main(command) == 0
    *frames, _ = map(json.loads, capsys.readouterr().out.splitlines())
    assert [frame["detections"][0]["track_id"] for frame in frames] == [-1, 0, 0, 0, 0]
    assert main(["detect", str(image), "--model", str(models["mask"]), "--track"]) == 2
    assert "give videos alone" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.assets
@pytest.mark.parametrize("name", ["yolov8n-seg", "yolov8n-pose"])
def test_quantising(assets: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    images = tmp_path / "images"
    images.mkdir()
    for file in sorted((assets / "coco" / "val").glob("*.jpg"))[:10]:
        (images / file.name).write_bytes(file.read_bytes())
    model, target = assets / "models" / f"{name}.onnx", tmp_path / "int8.onnx"
    command = ["quantize", str(model), "--data", str(images), "--method", "minmax", "-o", str(target), "--json"]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["layers"] > 50
    assert report["agreement"] > 70
