"""Faces with landmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_models import head_model

from infersdk import models
from infersdk.errors import ConfigError, UnsupportedModelError
from infersdk.image import read_image
from infersdk.models import YuNet, load
from infersdk.ops import FIVE_POINTS, aligned_crops, similarity

pytest.importorskip("onnxruntime")

IMAGE = np.zeros((100, 200, 3), np.uint8)  # scale 0.32 onto 64 x 64: 32 rows of padding below
NAMES = [f"{kind}_{stride}" for kind in ("cls", "obj", "bbox", "kps") for stride in (8, 16, 32)]
VALUES = {"cls": 1, "obj": 1, "bbox": 4, "kps": 10}


def outputs() -> dict[str, np.ndarray[Any, Any]]:
    """Of a canvas of 64 x 64, without a face."""
    return {
        name: np.zeros(((64 // int(name.split("_")[1])) ** 2, VALUES[name.split("_")[0]]), np.float32) for name in NAMES
    }


def made(path: Path, values: dict[str, np.ndarray[Any, Any]]) -> Path:
    return head_model(path, list(values.values()), {}, names=list(values))


def with_faces() -> dict[str, np.ndarray[Any, Any]]:
    """Two faces: cell (2, 2) of stride 8, and cell (2, 0) of stride 16; and a worse copy of the first one."""
    values = outputs()
    cell = 2 * 8 + 2
    values["cls_8"][cell], values["obj_8"][cell] = 0.81, 0.64
    values["bbox_8"][cell] = [0.5, 0.0, np.log(2), np.log(1)]  # centre (20, 16), 16 x 8
    values["kps_8"][cell] = [0, 0, 1, 0, 0.5, 0.5, 0, 1, 1, 1]
    values["cls_8"][cell + 1], values["obj_8"][cell + 1] = 0.64, 0.64
    values["bbox_8"][cell + 1] = [-0.5, 0.0, np.log(2), np.log(1)]
    other = 2
    values["cls_16"][other] = values["obj_16"][other] = 0.9
    values["bbox_16"][other] = [1.0, 1.0, 0.0, 0.0]  # centre (48, 16), 16 x 16
    values["kps_16"][other] = 1.0
    return values


def check_faces(found: Any) -> None:
    np.testing.assert_allclose(found.scores, [0.9, 0.72], rtol=1e-6)
    np.testing.assert_allclose(found.xyxy, [[125, 25, 175, 75], [37.5, 37.5, 87.5, 62.5]], atol=1e-3)
    points = found.columns["keypoints"]
    assert points.shape == (2, 5, 2)
    np.testing.assert_allclose(points[0], [[150, 50]] * 5, atol=1e-3)
    expected = [[50, 50], [75, 50], [62.5, 62.5], [50, 75], [75, 75]]
    np.testing.assert_allclose(points[1], expected, atol=1e-3)
    assert found.labels == ["face", "face"]
    assert found.stats.candidates == 3


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_faces_come_back_to_the_image(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    path = made(tmp_path / "m.onnx", with_faces())
    with load(path, backend=backend, max_batch=4) as model:
        assert type(model) is YuNet
        for found in (model(IMAGE), model.submit(IMAGE).result(30), *model.map([IMAGE] * 5), *model.stream([IMAGE])):
            check_faces(found)
        assert len(model(IMAGE, classes="face")) == 2
        assert len(model(IMAGE, conf=0.8)) == 1
        assert len(model(IMAGE, iou=1.0)) == 3
        limited = model(IMAGE, max_det=1)
        assert (len(limited), limited.stats.dropped_detections) == (1, 1)
    table = {"type": "yunet", "path": str(path), "backend": backend, "conf": 0.8}
    with models.create({"models": {"faces": table}})["faces"] as model:
        assert len(model(IMAGE)) == 1


def test_other_files_are_refused(tmp_path: Path) -> None:
    values = outputs()
    del values["kps_16"]
    with pytest.raises(UnsupportedModelError, match="no output 'kps_16'"):
        YuNet(made(tmp_path / "m.onnx", values))
    values["kps_16"] = np.zeros((16, 8), np.float32)
    with pytest.raises(UnsupportedModelError, match="'kps_16' has shape"):
        YuNet(made(tmp_path / "n.onnx", values))
    values = outputs()
    values["obj_32"][0] = 4
    with YuNet(made(tmp_path / "o.onnx", values)) as model, pytest.raises(UnsupportedModelError, match="obj_32.* 4 "):
        model(IMAGE)
    values = outputs()
    values = {name: value if name.endswith("_8") else np.vstack([value, value]) for name, value in values.items()}
    with YuNet(made(tmp_path / "p.onnx", values)) as model, pytest.raises(UnsupportedModelError, match="cells"):
        model(IMAGE)


@pytest.mark.assets
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_faces_of_the_test_data(assets: Path, backend: str) -> None:
    pytest.importorskip(backend)
    images = [assets / "images" / name for name in ("bus.jpg", "zidane.jpg")]
    with load(assets / "face" / "yunet_n_dynamic.onnx", backend=backend) as model:
        assert type(model) is YuNet
        bus, zidane = model(images)
        # The figures of the test data's own notes: score > 0.6.
        assert bus.scores == pytest.approx([0.92, 0.90], abs=0.01)
        assert zidane.scores == pytest.approx([0.91, 0.89, 0.68], abs=0.01)
        for face in (*bus, *zidane[:2]):
            points = face.columns["keypoints"]
            x1, y1, x2, y2 = face.xyxy
            assert ((points > (x1, y1)) & (points < (x2, y2))).all()
            assert points[:2, 1].mean() < points[2, 1] < points[3:, 1].mean(), "eyes, nose, mouth"
        again = list(model.map(images))
        np.testing.assert_allclose(again[1].xyxy, zidane.xyxy, atol=0.05)
    with pytest.raises(ConfigError, match="multiples of 32"):
        YuNet(assets / "face" / "yunet_n_dynamic.onnx", size=(100, 64))


@pytest.mark.assets
def test_landmarks_are_found_again_where_alignment_has_put_them(assets: Path) -> None:
    pixels = read_image(assets / "images" / "zidane.jpg")
    with YuNet(assets / "face" / "yunet_n_dynamic.onnx", size=640) as model:
        faces = model(pixels)[:2]
        bgr = np.ascontiguousarray(pixels.pixels[..., ::-1]) if pixels.format == "rgb" else pixels.pixels
        crops = aligned_crops(bgr, faces.columns["keypoints"], 224)
    assert crops.shape == (2, 224, 224, 3)
    with YuNet(assets / "face" / "yunet_n_dynamic.onnx", size=224) as model:
        for face, found in zip(faces, model(list(crops)), strict=True):
            points = face.columns["keypoints"]
            matrix = similarity(points, 2 * np.asarray(FIVE_POINTS))
            off = found.columns["keypoints"][0] - (points @ matrix[:, :2].T + matrix[:, 2])
            assert np.abs(off).max() < 12, "a sixth of the distance of the eyes"
