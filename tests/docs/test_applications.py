"""The page of applications: the code of its section of cameras."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from infersdk import models

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "applications.md"


def code_of_section(title: str) -> str:
    """The Python code below a heading, up to the next one of its level."""
    section = re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    (text,) = (part for part in section if part.startswith(f"{title}\n"))
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))


def cut(source: Path, target: Path, start: int, count: int) -> None:
    from infersdk.video import VideoReader, VideoWriter

    with VideoReader(source) as reader, VideoWriter(target, reader.size, reader.fps) as writer:
        for frame in itertools.islice(reader, start, start + count):
            writer.write(frame)


@pytest.mark.assets
def test_code_of_cameras(assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("onnxruntime", "av", "trackers", "supervision"):
        pytest.importorskip(module)
    cut(assets / "video" / "people.mp4", tmp_path / "hall.mp4", 212, 36)
    cut(assets / "video" / "people.mp4", tmp_path / "door.mp4", 70, 12)
    monkeypatch.chdir(tmp_path)
    with models.load(assets / "models" / "yolov8n.onnx", max_batch=4) as detector:
        namespace: dict[str, Any] = {"detector": detector}
        exec(compile(code_of_section("Many cameras"), "applications.md", "exec"), namespace)
    health = namespace["health"]
    assert {name: (h.state, h.results) for name, h in health.items()} == {"door": ("ended", 12), "hall": ("ended", 36)}
    assert len(namespace["occupied"]) == 36
    assert max(namespace["occupied"]) >= 1
    assert namespace["middle"].in_count + namespace["middle"].out_count >= 1, "someone crosses the line"
