"""The example with two models and a tracker on one video."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk.config import read
from infersdk.models import Detections, GroupResult
from infersdk.video import VideoReader, VideoWriter

pytest.importorskip("av")
pytest.importorskip("onnxruntime")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "driving.py"


@pytest.fixture
def driving() -> Any:
    spec = importlib.util.spec_from_file_location("driving", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_configuration_names_both_models() -> None:
    tables = read(EXAMPLE.with_suffix(".toml"))["models"]
    assert set(tables) == {"detector", "road"}


class Group:
    """Two models that find nothing."""

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def map(self, frames: Iterable[Any]) -> Iterator[Any]:
        for frame in frames:
            nothing = Detections.of(np.zeros((0, 4)), [], names=(), size=frame.size)
            yield GroupResult(("detector", "road"), {"detector": nothing}, {"road": ValueError("none")})


def test_a_stream_that_changes_its_size(driving: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parts = [tmp_path / "a.ts", tmp_path / "b.ts"]
    for part, size in zip(parts, ((64, 48), (32, 32)), strict=True):
        with VideoWriter(part, size) as writer:
            writer.write(np.zeros((size[1], size[0], 3), np.uint8))
    video, out = tmp_path / "c.ts", tmp_path / "out.mp4"
    video.write_bytes(b"".join(part.read_bytes() for part in parts))
    monkeypatch.setattr(driving, "ModelGroup", Group)
    monkeypatch.setattr(driving.models, "create", lambda config: {})
    assert driving.main([str(video), str(out)])["frames"] == 2
    with VideoReader(out) as reader:
        assert [frame.size for frame in reader] == [(64, 48)] * 2


@pytest.mark.parametrize("frames", ["-1", "0"])
def test_a_number_of_frames_below_one(driving: Any, frames: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        driving.main(["drive.mp4", "out.mp4", "--frames", frames])
    assert f"--frames is {frames}; give 1 or more" in capsys.readouterr().err


@pytest.mark.assets
@pytest.mark.slow
def test_driving(driving: Any, assets: Path, tmp_path: Path) -> None:
    models, video = assets / "models", assets / "driving" / "drive.mp4"
    text = EXAMPLE.with_suffix(".toml").read_text("utf-8")
    for name in ("yolov8n.onnx", "twinlitenet.onnx"):
        text = text.replace(f'"{name}"', repr(str(models / name)))
    config = tmp_path / "driving.toml"
    config.write_text(text)
    done = driving.main([str(video), str(tmp_path / "out.mp4"), "--config", str(config), "--frames", "30"])
    assert done["frames"] == 30
    assert done["followed"]["car"] >= 2
    assert sum(done["followed"].values()) < 60, "numbers are kept from frame to frame"
    assert 0.1 < np.mean(done["areas"]) < 0.4
    with VideoReader(video) as source, VideoReader(tmp_path / "out.mp4") as drawn:
        assert drawn.size == source.size
        assert drawn.fps == pytest.approx(source.fps, rel=1e-3)
        for frame, original in itertools.islice(zip(drawn, source, strict=False), 30):
            assert frame.time == pytest.approx(original.time, abs=1e-3)
            # The same frame at the same place: what is neither road nor box is as it was.
            changed = abs(frame.pixels.astype(int) - original.pixels).max(2) > 40
            assert 0.02 < changed.mean() < 0.5
