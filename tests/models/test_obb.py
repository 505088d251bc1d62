"""Oriented boxes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from head_models import head_model

from infersdk import models
from infersdk.errors import InputError, UnsupportedModelError
from infersdk.image import Geometry
from infersdk.models import EndToEndOBB, YOLOv8, YOLOv8OBB, load
from infersdk.models.obb import to_source
from infersdk.ops import nms_oriented

pytest.importorskip("onnxruntime")

IMAGE = np.zeros((100, 200, 3), np.uint8)  # scale 0.32 onto 64 x 64: 16 rows of padding above
METADATA = {"task": "obb", "names": "{0: 'plane', 1: 'ship'}"}


def two_boxes() -> np.ndarray:
    output = np.zeros((7, 84), np.float32)
    output[:, 70] = [32, 32, 32, 8, 0.9, 0, np.pi / 6]
    output[:, 71] = [33, 32, 32, 8, 0.8, 0, np.pi / 6 + 0.1]  # the same, a little worse
    output[:, 5] = [16, 24, 16, 8, 0, 0.7, 0]
    return output


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_boxes_come_back_to_the_image(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    path = head_model(tmp_path / "m.onnx", [two_boxes()], METADATA)
    with load(path, backend=backend, max_batch=4) as model:
        assert type(model) is YOLOv8OBB
        assert model.details.class_count == 2
        for found in (model(IMAGE), model.submit(IMAGE).result(30), *model.map([IMAGE] * 5), *model.stream([IMAGE])):
            assert found.labels == ["plane", "ship"]
            np.testing.assert_allclose(found.oriented[0], [100, 50, 100, 25, np.pi / 6], atol=1e-3)
            np.testing.assert_allclose(found.oriented[1], [50, 25, 50, 25, 0], atol=1e-3)
            corners = [[25, 12.5], [75, 12.5], [75, 37.5], [25, 37.5]]
            np.testing.assert_allclose(found.corners[1], corners, atol=1e-3)
            np.testing.assert_allclose(found.xyxy[1], [25, 12.5, 75, 37.5], atol=1e-3)
            width, height = 100 * np.cos(np.pi / 6) + 25 / 2, 50 + 25 * np.cos(np.pi / 6)
            around = [100 - width / 2, 50 - height / 2, 100 + width / 2, 50 + height / 2]
            np.testing.assert_allclose(found.xyxy[0], around, atol=1e-3)
            assert found.angles.tolist() == found.oriented[:, 4].tolist()
            assert (found.stats.candidates, found.stats.kept) == (3, 2)
        assert len(model(IMAGE, iou=0.999)) == 3
        assert len(model(IMAGE, conf=0.85)) == 1
        assert model(IMAGE, classes="ship").labels == ["ship"]
        limited = model(IMAGE, max_det=1)
        assert (len(limited), limited.stats.dropped_detections) == (1, 1)
        assert np.shape(found.to_dicts()[0]["oriented"]) == (5,)
        assert found[found.scores > 0.85].oriented.shape == (1, 5)
    table = {"type": "yolo11-obb", "path": str(path), "backend": backend, "conf": 0.85}
    with models.create({"models": {"planes": table}})["planes"] as model:
        assert len(model(IMAGE)) == 1


def test_boxes_of_other_classes_do_not_suppress(tmp_path: Path) -> None:
    output = two_boxes()
    output[4:6, 71] = 0, 0.8
    with load(head_model(tmp_path / "m.onnx", [output], METADATA)) as model:
        assert len(model(IMAGE)) == 3
        assert len(model(IMAGE, class_agnostic=True)) == 2


def test_metadata_first_then_shapes(tmp_path: Path) -> None:
    named = head_model(tmp_path / "m.onnx", [two_boxes()], {"names": METADATA["names"]})
    with load(named) as model:
        assert type(model) is YOLOv8OBB
    with pytest.raises(UnsupportedModelError, match="oriented boxes"):
        YOLOv8(named)
    bare = head_model(tmp_path / "n.onnx", [two_boxes()], {})
    with load(bare) as model:
        assert type(model) is YOLOv8  # nothing says that one of its values is an angle
    with YOLOv8OBB(bare, names=["plane", "ship"]) as model:
        assert len(model(IMAGE)) == 2
    with pytest.raises(UnsupportedModelError, match="task is 'pose'"):
        YOLOv8OBB(head_model(tmp_path / "p.onnx", [two_boxes()], METADATA | {"task": "pose"}))
    upright = head_model(tmp_path / "d.onnx", [np.zeros((6, 84), np.float32)], {})
    with load(upright) as model, pytest.raises(InputError, match="no angles"):
        _ = model(IMAGE).oriented


def test_an_angle_that_is_not_finite_is_no_box(tmp_path: Path) -> None:
    output = two_boxes()
    output[6, 70] = np.nan
    with YOLOv8OBB(head_model(tmp_path / "m.onnx", [output], METADATA)) as model:
        assert [round(float(score), 3) for score in model(IMAGE).scores] == [0.8, 0.7]


def test_sides_follow_scales_that_differ() -> None:
    geometry = Geometry.stretch((128, 32), (64, 64))  # x twice, y half
    boxes = np.array([[32, 32, 10, 4, 0], [32, 32, 10, 4, np.pi / 2], [32, 32, 10, 10, np.pi / 4]], np.float32)
    found = to_source(boxes, geometry)
    np.testing.assert_allclose(found[0], [64, 16, 20, 2, 0], atol=1e-4)
    np.testing.assert_allclose(found[1], [64, 16, 5, 8, np.pi / 2], atol=1e-4)
    assert found[2, 4] == pytest.approx(np.arctan2(0.5, 2))


def test_a_plain_reference_agrees(tmp_path: Path, rng: np.random.Generator) -> None:
    output = np.zeros((7, 84), np.float32)
    output[:2], output[2:4] = rng.uniform(0, 64, (2, 84)), rng.uniform(4, 30, (2, 84))
    output[4:6], output[6] = rng.random((2, 84)), rng.uniform(-0.7, 2.3, 84)
    with YOLOv8OBB(head_model(tmp_path / "m.onnx", [output], METADATA), conf=0.3, iou=0.4) as model:
        found = model(np.zeros((64, 64, 3), np.uint8))
    scores, classes = output[4:6].max(axis=0), output[4:6].argmax(axis=0)
    chosen = np.flatnonzero(scores > 0.3)
    boxes = output[[0, 1, 2, 3, 6]][:, chosen].T
    kept = nms_oriented(boxes, scores[chosen], classes[chosen], iou=0.4)
    np.testing.assert_allclose(found.oriented, boxes[kept], atol=1e-4)
    np.testing.assert_array_equal(found.scores, scores[chosen][kept])


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_rows_that_are_chosen_inside_come_back_to_the_image(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    rows = np.zeros((300, 7), np.float32)
    rows[0], rows[1] = (
        [16, 24, 16, 8, 0.7, 1, 0],
        [32, 32, 32, 8, 0.9, 0, np.pi / 6],
    )  # centre, size, score, class, angle
    path = head_model(tmp_path / "m.onnx", [rows], METADATA | {"end2end": "True"})
    with load(path, backend=backend, max_batch=4) as model:
        assert type(model) is EndToEndOBB
        for found in (model(IMAGE), model.submit(IMAGE).result(30), *model.map([IMAGE] * 5), *model.stream([IMAGE])):
            assert found.labels == ["plane", "ship"]
            np.testing.assert_allclose(found.oriented[0], [100, 50, 100, 25, np.pi / 6], atol=1e-3)
            np.testing.assert_allclose(found.oriented[1], [50, 25, 50, 25, 0], atol=1e-3)
            np.testing.assert_allclose(found.xyxy[1], [25, 12.5, 75, 37.5], atol=1e-3)
        assert model(IMAGE, classes="ship").labels == ["ship"]
        assert len(model(IMAGE, conf=0.8)) == 1
    with pytest.raises(UnsupportedModelError, match=r'last value of its boxes is an angle.*type="end-to-end-obb"'):
        load(head_model(tmp_path / "n.onnx", [rows], {}))
    with load(tmp_path / "n.onnx", type="yolo26-obb") as model:
        assert len(model(IMAGE)) == 2
    rows[0, 6] = 100
    path = head_model(tmp_path / "o.onnx", [rows], METADATA | {"end2end": "True"})
    with load(path) as model, pytest.raises(UnsupportedModelError, match="angles reach from"):
        model(IMAGE)


def test_chosen_rows_equal_the_formula_of_the_letterbox(tmp_path: Path, rng: np.random.Generator) -> None:
    """Ultralytics subtracts the padding from centres, and divides centres and sides by the scale."""
    rows = np.column_stack([
        rng.uniform(0, 64, (300, 2)), rng.uniform(1, 30, (300, 2)), np.sort(rng.uniform(0.3, 1, 300))[::-1],
        rng.integers(0, 2, 300), rng.uniform(-0.7, 2.3, 300),
    ]).astype(np.float32)  # fmt: skip
    with load(head_model(tmp_path / "m.onnx", [rows], METADATA | {"end2end": "True"})) as model:
        for _ in range(100):
            height, width = (int(side) for side in 64 * rng.integers(1, 20, 2))
            scale = min(64 / height, 64 / width)
            if width * scale % 2 or height * scale % 2:
                continue  # whole pixels of padding on both sides: the formula has no rounding then
            pad = (64 - width * scale) / 2, (64 - height * scale) / 2
            found = model(np.zeros((height, width, 3), np.uint8))
            np.testing.assert_allclose(found.oriented[:, :2], (rows[:, :2] - pad) / scale, atol=1e-3)
            np.testing.assert_allclose(found.oriented[:, 2:4], rows[:, 2:4] / scale, atol=1e-3)
            turned = np.stack([np.cos(found.angles - rows[:, 6]), np.sin(found.angles - rows[:, 6])])
            np.testing.assert_allclose(turned, [[1] * 300, [0] * 300], atol=1e-5)
