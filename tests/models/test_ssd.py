"""Scores and boxes for each anchor: SSD, UltraFace, YOLO-NAS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_models import head_model

from infersdk import models
from infersdk.errors import ConfigError, UnsupportedModelError
from infersdk.models import SSD, YOLONAS, UltraFace, load

pytest.importorskip("onnxruntime")

IMAGE = np.zeros((32, 128, 3), np.uint8)
#: Of an input of 64 x 64: 8 x 8 cells with three boxes, 4 x 4 and 2 x 2 with two, and one cell with three.
FACE_ANCHORS = 64 * 3 + 16 * 2 + 4 * 2 + 3
#: Those of a YOLO-NAS: one box for each cell.
CELLS = 64 + 16 + 4


def outputs(anchors: int, classes: int, background: bool) -> dict[str, np.ndarray[Any, Any]]:
    """Anchors 5 and 9 overlap by 0.6 and have class 1 (9 has the higher score), anchor 7 has class 0."""
    first = int(background)
    scores = np.zeros((anchors, first + classes), np.float32)
    corners = np.random.default_rng(0).uniform(0, 0.8, (anchors, 2))
    boxes = np.hstack([corners, corners + 0.1]).astype(np.float32)
    for row, number, score, box in (
        (5, 1, 0.8, (0.25, 0.25, 0.5, 0.5)),
        (9, 1, 0.9, (0.25, 0.25, 0.5, 0.65)),
        (7, 0, 0.85, (0.5, 0.5, 1.0, 1.0)),
    ):
        scores[row, first + number % classes], boxes[row] = score, box
    if background:
        scores[:, 0] = 1 - scores[:, 1:].sum(axis=1)
    return {"scores": scores, "boxes": boxes}


def made(path: Path, values: dict[str, np.ndarray[Any, Any]], metadata: dict[str, str] | None = None) -> Path:
    return head_model(path, list(values.values()), metadata or {}, names=list(values))


def in_every_way(model: Any) -> list[Any]:
    return [model(IMAGE), model.submit(IMAGE).result(30), *model.map([IMAGE] * 5), *model.stream([IMAGE])]


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_faces_come_back_to_the_image(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    path = made(tmp_path / "m.onnx", outputs(FACE_ANCHORS, 1, True))
    with load(path, backend=backend, max_batch=4) as model:
        assert type(model) is UltraFace
        for found in in_every_way(model):
            np.testing.assert_allclose(found.scores, [0.9, 0.85], rtol=1e-6)
            np.testing.assert_allclose(found.xyxy, [[32, 8, 64, 20.8], [64, 16, 128, 32]], atol=1e-4)
            assert found.labels == ["face", "face"]
            assert found.stats == (3, 0, 2, 0)
        assert len(model(IMAGE, conf=0.87)) == 1
        assert len(model(IMAGE, iou=0.7)) == 3
        limited = model(IMAGE, max_det=1)
        assert (len(limited), limited.stats.dropped_detections) == (1, 1)


def test_faces_have_pixels_about_zero(tmp_path: Path) -> None:
    with UltraFace(made(tmp_path / "m.onnx", outputs(FACE_ANCHORS, 1, True))) as model:
        (inputs,) = model.details.network_inputs([np.full((64, 64, 3), (255, 127, 0), np.uint8)])
    np.testing.assert_allclose(inputs["images"][0, :, 0, 0], [-127 / 128, 0, 1], atol=1e-6)  # RGB of a BGR image


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_ssd_has_to_be_named(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    path = made(tmp_path / "m.onnx", outputs(300, 3, True))
    with pytest.raises(UnsupportedModelError, match=r'first class is the background.*type="ssd"'):
        load(path, backend=backend)
    table = {"type": "ssd", "path": str(path), "backend": backend, "names": ["a", "b", "c"]}
    with models.create({"models": {"things": table}})["things"] as model:
        assert type(model) is SSD
        for found in in_every_way(model):
            assert found.labels == ["b", "a"]
            np.testing.assert_allclose(found.xyxy, [[32, 8, 64, 20.8], [64, 16, 128, 32]], atol=1e-4)
        assert model(IMAGE, classes="a").labels == ["a"]
    with pytest.raises(ConfigError, match="no class 'd'"):
        SSD(path, backend, names=["a", "b", "c"], classes="d")


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_yolo_nas_comes_back_to_the_image(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    values = outputs(CELLS, 3, False)
    values["boxes"] *= 64
    cells = [(x * s, y * s, x * s + s, y * s + s) for s in (8, 16, 32) for y in range(64 // s) for x in range(64 // s)]
    low = values["scores"].max(axis=1) == 0
    values["boxes"][low] = np.array(cells, np.float32)[low]
    path = made(tmp_path / "m.onnx", {"904": values["boxes"], "913": values["scores"]}, {"names": "['a', 'b', 'c']"})
    with load(path, backend=backend, max_batch=4, iou=0.5) as model:
        assert type(model) is YOLONAS
        for found in in_every_way(model):  # 128 x 32 at 60 / 128, on a canvas of 64: 2 pixels at the left, 24 above
            assert found.labels == ["b", "a"]
            scale = 128 / 60
            edges = np.array([[16, 16, 32, 41.6], [32, 32, 64, 64]]) - (2, 24, 2, 24)
            np.testing.assert_allclose(found.xyxy, np.clip(edges * scale, 0, (128, 32, 128, 32)), atol=1e-4)
        assert len(model(IMAGE, iou=0.7)) == 3
        (inputs,) = model.details.network_inputs([np.full((32, 128, 3), 255, np.uint8)])
    assert inputs["images"][0, 0, 32].tolist() == pytest.approx([114 / 255] * 2 + [1] * 60 + [114 / 255] * 2)


@pytest.mark.parametrize(
    ("kind", "values", "change", "words"),
    [
        (UltraFace, (FACE_ANCHORS, 1, True), lambda scores, boxes: (scores * 3, boxes), "scores lie in 0"),
        (UltraFace, (FACE_ANCHORS, 1, True), lambda scores, boxes: (scores / 2, boxes), "add up to 0.5"),
        (UltraFace, (FACE_ANCHORS, 1, True), lambda scores, boxes: (scores, boxes * 64), "fractions of the input"),
        (UltraFace, (FACE_ANCHORS, 1, True), lambda scores, boxes: (scores, boxes[:, [2, 3, 0, 1]]), "in that order"),
        (SSD, (300, 3, True), lambda scores, boxes: (scores[:, ::-1], boxes), "the background, is that of 0% of"),
        (YOLONAS, (CELLS, 3, False), lambda scores, boxes: (scores, boxes), "they may be fractions"),
        (YOLONAS, (CELLS, 3, False), lambda scores, boxes: (scores * 0 + (0.2, 0.5, 0.3), boxes * 64), "add up to 1"),
    ],
)
def test_other_values_are_refused(tmp_path: Path, kind: Any, values: Any, change: Any, words: str) -> None:
    scores, boxes = change(*outputs(*values).values())
    path = made(tmp_path / "m.onnx", {"scores": scores, "boxes": boxes})
    with kind(path) as model, pytest.raises(UnsupportedModelError, match=words):
        model(IMAGE)


def test_other_numbers_of_anchors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=f"has 300 anchors, and an UltraFace of 64 x 64 has {FACE_ANCHORS}"):
        UltraFace(made(tmp_path / "a.onnx", outputs(300, 1, True)))
    with pytest.raises(UnsupportedModelError, match=f"has 300 anchors, and the grids of 64 x 64 have {CELLS} cells"):
        YOLONAS(made(tmp_path / "b.onnx", outputs(300, 1, False)))
