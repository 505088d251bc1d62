"""The code of the task pages, in a folder with the files that they name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from docs.page_code import cut

from docs import scenes
from infersdk.models import TYPES, ClassMap

ROOT = Path(__file__).resolve().parent.parent.parent
#: The files of each page, and which of the test data they are. Of a folder of images the page gets the first ones.
PAGES = {
    "segment.md": {
        "yolov8n-seg.onnx": "models/yolov8n-seg.onnx", "bus.jpg": "images/bus.jpg",
        "instances_val.json": "coco/instances_val.json", "val": "coco/val",
    },
    "pose.md": {
        "yolov8n-pose.onnx": "models/yolov8n-pose.onnx", "zidane.jpg": "images/zidane.jpg",
        "person_keypoints.json": "keypoints/person_keypoints.json", "val": "keypoints/val",
    },
    "semantic.md": {
        "scene.onnx": "",
        "selfie_segmentation.onnx": "models/selfie_segmentation.onnx", "twinlitenet.onnx": "models/twinlitenet.onnx",
        "bus.jpg": "images/bus.jpg", "frame_01.jpg": "driving/frame_01.jpg",
    },
    "faces.md": {"yunet_n_dynamic.onnx": "face/yunet_n_dynamic.onnx", "zidane.jpg": "images/zidane.jpg"},
    "vectors.md": {
        "osnet_x0_25_msmt17.onnx": "models/osnet_x0_25_msmt17.onnx", "yolov8n.onnx": "models/yolov8n.onnx",
        "bus.jpg": "images/bus.jpg", "zidane.jpg": "images/zidane.jpg",
    },
}  # fmt: skip
#: Images that accuracy is measured on here.
IMAGES = 4


def code_of(page: str) -> str:
    text = (ROOT / "docs" / page).read_text("utf-8")
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))


def first_images(truth: Path) -> dict[str, Any]:
    """The annotations of the first images."""
    data = json.loads(truth.read_text())
    annotated = sorted({entry["image_id"] for entry in data["annotations"]})[:IMAGES]
    return {
        **data,
        "images": [entry for entry in data["images"] if entry["id"] in annotated],
        "annotations": [entry for entry in data["annotations"] if entry["image_id"] in annotated],
    }


@pytest.mark.assets
@pytest.mark.parametrize("page", PAGES)
def test_code_of_a_page(page: str, assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("onnxruntime", "openvino", "pycocotools", "supervision"):
        pytest.importorskip(module)
    for name, source in PAGES[page].items():
        if not source:
            scenes.make(name, tmp_path)
        elif name.endswith(".json"):
            (tmp_path / name).write_text(json.dumps(first_images(assets / source)))
        else:
            (tmp_path / name).symlink_to(assets / source)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    try:
        exec(compile(code_of(f"tasks/{page}"), page, "exec"), namespace)
        figures = namespace.get("figures", {})
        assert all(figure > 0.1 for figure in figures.values()), figures
        found = namespace["found"]
        assert isinstance(found, ClassMap) or len(found) >= 2
        saved = [
            path for path in tmp_path.iterdir() if path.suffix in (".jpg", ".png", ".json") and not path.is_symlink()
        ]
        assert saved
    finally:
        if "model" in namespace:
            namespace["model"].close()


def test_the_table_names_every_wrapper() -> None:
    text = (ROOT / "docs" / "tasks" / "README.md").read_text("utf-8")
    named = re.findall(r"^\|[^|\n]*\|[^|\n]*\| `([\w-]+)` \|", text, re.MULTILINE)
    named.remove("type")  # the head of the column
    assert sorted(named) == sorted(TYPES)


@pytest.mark.assets
def test_code_of_several_models(assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("onnxruntime", "av"):
        pytest.importorskip(module)
    cut(assets / "video" / "people.mp4", tmp_path / "people.mp4", 70, 12)
    files = "models/yolov8n-pose.onnx models/yolov8n-seg.onnx images/bus.jpg images/zidane.jpg"
    for name in files.split():
        (tmp_path / Path(name).name).symlink_to(assets / name)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    exec(compile(code_of("several-models.md"), "several-models.md", "exec"), namespace)
    assert set(namespace["result"].errors) == {"people"}
    assert max(namespace["numbers"]) >= 0
    assert (tmp_path / "tracked.jpg").stat().st_size > 1000
