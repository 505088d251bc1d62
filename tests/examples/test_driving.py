"""The example with two models on one video."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("av")
pytest.importorskip("onnxruntime")


@pytest.mark.assets
@pytest.mark.slow
def test_driving(assets: Path, tmp_path: Path) -> None:
    from infersdk.video import VideoReader

    example = Path(__file__).resolve().parents[2] / "examples" / "driving.py"
    spec = importlib.util.spec_from_file_location("driving", example)
    assert spec is not None
    assert spec.loader is not None
    driving = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(driving)
    models = assets / "models"
    told = driving.main(
        [
            str(assets / "driving" / "drive.mp4"), str(tmp_path / "out.mp4"), "--frames", "40",
            "--detector", str(models / "yolov5n.onnx"), "--detector-names", str(models / "coco80.txt"),
            "--classifier", str(models / "squeezenet1.1.onnx"), "--classifier-names", str(models / "imagenet1000.txt"),
        ]
    )  # fmt: skip
    assert told["frames"] == 40
    assert told["found"]["car"] > 20
    assert set(told["found"]) <= driving.VEHICLES
    with VideoReader(assets / "driving" / "drive.mp4") as source, VideoReader(tmp_path / "out.mp4") as drawn:
        assert drawn.size == source.size
        assert drawn.fps == pytest.approx(source.fps, rel=1e-3)
        frames = list(drawn)
        for frame, original in zip(frames, source, strict=False):
            assert frame.time == pytest.approx(original.time, abs=1e-3)
            # The same frame at the same place: all but the boxes is as it was.
            assert abs(frame.pixels.astype(int) - original.pixels).mean() < 12
    assert len(frames) == 40
