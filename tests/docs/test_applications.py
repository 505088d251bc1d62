"""The page of applications: the code of its sections, its configuration and its drawings."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from docs.page_code import cut

from infersdk import models

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "applications.md"


def code_of_section(title: str) -> str:
    """The Python code below a heading, up to the next one of its level."""
    section = re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    (text,) = (part for part in section if part.startswith(f"{title}\n"))
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))


def code_of_text() -> str:
    page = PAGE.parent / "tasks" / "ocr.md"
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE))


@pytest.mark.assets
def test_code_of_cameras(assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("onnxruntime", "av"):
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


FILES = {
    "yolov8n.onnx": "models/yolov8n.onnx", "osnet.onnx": "models/osnet_x0_25_msmt17.onnx",
    "det.onnx": "ocr/ch_PP-OCRv4_det_infer.onnx", "rec.onnx": "ocr/ch_PP-OCRv4_rec_infer.onnx",
    "cls.onnx": "ocr/ch_ppocr_mobile_v2.0_cls_infer.onnx", "aerial.jpg": "images/zidane.jpg",
    "street.jpg": "images/bus.jpg", "page.png": "ocr/latin.jpg",
}  # fmt: skip


@pytest.fixture
def folder(assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the page names."""
    for module in ("onnxruntime", "openvino", "cv2"):
        pytest.importorskip(module)
    for name, source in FILES.items():
        (tmp_path / name).symlink_to(assets / source)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.assets
def test_code_of_images_and_text(folder: Path, assets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {}
    try:
        for title in ("Large images: tiles", "Two stages"):
            exec(compile(code_of_section(title), "applications.md", "exec"), namespace)
        exec(compile(code_of_text(), "ocr.md", "exec"), namespace)
        assert "person" in namespace["boxes"].labels
        people = namespace["people"]("street.jpg")
        assert len(people) == 4
        assert all(len(one.vector) == 512 for one in people.columns["vector"])
        truth = json.loads((assets / "ocr" / "truth.json").read_text())["latin.jpg"]
        assert namespace["found"].text.replace(" ", "") == "\n".join(truth).replace(" ", "")
        assert len(set(namespace["texts"])) == 1
        assert (folder / "out.png").stat().st_size > 1000
    finally:
        for name in ("detector", "people"):
            if name in namespace:
                namespace[name].close()


@pytest.mark.assets
def test_the_configuration(folder: Path) -> None:
    (text,) = re.findall(r'^```toml title="app.toml"\n(.*?)^```', PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    (folder / "app.toml").write_text(text)
    with ExitStack() as opened:
        made = {name: opened.enter_context(model) for name, model in models.create(folder / "app.toml").items()}
        assert "person" in made["aerial"]("aerial.jpg").labels
        assert len(made["people"]("street.jpg").columns["vector"]) == 4
        assert len(made["reader"].submit("page.png").result(60)) == 1


def test_each_application_is_drawn() -> None:
    drawings = re.findall(r"^!\[[^]]+\]\((applications-[\w-]+\.svg)\)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(drawings) == 4
    for name in drawings:
        assert ElementTree.parse(PAGE.parent / name).getroot().tag.endswith("svg")
