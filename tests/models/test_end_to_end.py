"""Detectors whose boxes are chosen inside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from head_models import head_model

from infersdk.errors import ConfigError, UnsupportedModelError
from infersdk.image import Geometry
from infersdk.models import EndToEnd, YOLOv8, load

pytest.importorskip("onnxruntime")

IMAGE = np.zeros((100, 200, 3), np.uint8)  # scale 0.32 onto 64 x 64: 16 rows of padding above


def rows(*boxes: tuple[float, ...]) -> np.ndarray:
    output = np.zeros((300, 6), np.float32)
    output[: len(boxes)] = boxes
    return output


def test_boxes_come_back_to_the_image(tmp_path: Path) -> None:
    output = rows((16, 24, 48, 40, 0.6, 1), (0, 16, 8, 24, 0.9, 0), (1, 1, 2, 2, 0.2, 0))
    with load(head_model(tmp_path / "m.onnx", [output], {"names": "{0: 'cat', 1: 'dog'}"}), max_batch=4) as model:
        assert type(model) is EndToEnd
        found = model(IMAGE)
        assert found.labels == ["cat", "dog"], "the best first"
        np.testing.assert_allclose(found.xyxy, [[0, 0, 25, 25], [50, 25, 150, 75]], atol=1e-4)
        assert found.stats.candidates == 2
        assert len(model(IMAGE, conf=0.1)) == 3
        limited = model(IMAGE, max_det=1)
        assert (len(limited), limited.stats.dropped_detections) == (1, 1)
        assert [len(one) for one in model.map([IMAGE] * 5)] == [2] * 5
        with pytest.raises(ConfigError, match="iou"):
            model(IMAGE, iou=0.5)
        dogs = model(IMAGE, classes=["dog"], max_det=1)
        assert (dogs.labels, dogs.stats.candidates, dogs.stats.dropped_detections) == (["dog"], 1, 0)
        assert [one.labels for one in model.map([IMAGE] * 3, classes=0)] == [["cat"]] * 3
        with pytest.raises(ConfigError, match=r"number 2.*0 to 1"):
            model(IMAGE, classes=[2])


def test_yolo26_is_recognized(tmp_path: Path) -> None:
    """By `end2end` in the metadata, or by its 300 rows of 6 values."""
    names = {"names": "{0: 'cat', 1: 'dog'}"}
    output = rows((16, 24, 48, 40, 0.6, 1))
    for metadata in ({"task": "detect", "end2end": "True", "stride": "32", **names}, names, {}):
        with load(head_model(tmp_path / "m.onnx", [output], metadata)) as model:
            assert type(model) is EndToEnd
            np.testing.assert_allclose(model(IMAGE).xyxy, [[50, 25, 150, 75]], atol=1e-4)
    with load(head_model(tmp_path / "m.onnx", [output], {}), type="yolo26") as model:
        assert type(model) is EndToEnd
    # A raw head of a YOLO26 that was exported without its end-to-end branch.
    raw = head_model(tmp_path / "raw.onnx", [np.zeros((6, 84), np.float32)], {"end2end": "False", **names})
    with load(raw) as model:
        assert type(model) is YOLOv8


def test_a_class_without_a_name_is_refused(tmp_path: Path) -> None:
    path = head_model(tmp_path / "m.onnx", [rows((1, 2, 3, 4, 0.5, 7))], {"names": "{0: 'cat', 1: 'dog'}"})
    with EndToEnd(path) as model, pytest.raises(UnsupportedModelError, match=r"class 7 .* 2 names"):
        model(IMAGE)


@pytest.mark.parametrize("kind", ["yolo26", "yolo26-pose", "yolo26-obb"])
def test_a_first_image_without_boxes(tmp_path: Path, kind: str) -> None:
    """Networks with NMS in the graph give as many rows as there are boxes; others fill up with class -1."""
    values = {"yolo26": 6, "yolo26-pose": 9, "yolo26-obb": 7}[kind]
    found = np.zeros((1, 2, values), np.float32)
    found[0, :, 5], found[0, 0, :5] = -1, (16, 24, 48, 40, 0.6)
    found[0, 0, 5] = 0
    settings = {"keypoints": (1, 3)} if kind == "yolo26-pose" else {}
    path = head_model(tmp_path / "m.onnx", [np.zeros((300, values), np.float32)], {})
    for first in (found[:, :0], found[:, 1:]):
        with load(path, type=kind, **settings) as model:
            geometry = [Geometry.letterbox((200, 100), (64, 64))]
            model.verify({"output0": first})
            assert [len(model.postprocess({"output0": one}, geometry)[0]) for one in (first, found)] == [0, 1]


def test_other_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="38 values"):
        EndToEnd(head_model(tmp_path / "m.onnx", [np.zeros((300, 38), np.float32)], {}))
    with pytest.raises(UnsupportedModelError, match="not boxes that are chosen"):
        EndToEnd(head_model(tmp_path / "m.onnx", [np.zeros((252, 7), np.float32)], {}))


@pytest.mark.slow
@pytest.mark.assets
def test_map_of_yolov10(assets: Path) -> None:
    pytest.importorskip("pycocotools")
    from accuracy import coco_map

    with load(assets / "models" / "yolov10n.onnx", conf=0.001) as model:
        assert type(model) is EndToEnd
        assert coco_map(model, assets / "coco") == (pytest.approx(0.392, abs=0.002), pytest.approx(0.555, abs=0.002))
