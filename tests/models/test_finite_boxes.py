"""Boxes whose coordinates or scores are not finite are no candidates, in all detectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_models import head_model

from infersdk import models
from infersdk.image import Geometry

pytest.importorskip("onnxruntime")

IMAGE = np.zeros((64, 64, 3), np.uint8)
ROWS = 84


def yolov5() -> Any:
    output = np.zeros((ROWS, 7), np.float32)
    output[:, 5:] = 0.5
    output[:2] = [[16, 16, 8, 8, 0.9, 1, 0], [48, 48, 8, 8, 0.9, 1, 0]]
    return {"output0": output}, ("output0", (0, 0)), ("output0", (0, 4))


def yolov8() -> Any:
    output = np.zeros((6, ROWS), np.float32)
    output[:, 0], output[:, 1] = [16, 16, 8, 8, 0.9, 0], [48, 48, 8, 8, 0.8, 0]
    return {"output0": output}, ("output0", (0, 0)), ("output0", (4, 0))


def end_to_end(columns: int = 6) -> Any:
    output = np.zeros((300, columns), np.float32)
    sizes = ([24, 24], [60, 60]) if columns == 6 else ([4, 6], [8, 6])
    output[0, :6], output[1, :6] = [8, 8, *sizes[0], 0.9, 1], [40, 40, *sizes[1], 0.8, 0]
    return {"output0": output}, ("output0", (0, 0)), ("output0", (0, 4)), ("output0", (0, columns - 1))


def detr(classes: int = 3) -> Any:
    logits, boxes = np.full((20, classes), -9, np.float32), np.full((20, 4), 0.1, np.float32)
    logits[:, -1], logits[0], logits[1] = 9 if classes == 3 else -9, -9, -9
    logits[0, 0] = logits[1, 1] = 9
    boxes[:2] = [[0.25, 0.25, 0.2, 0.2], [0.75, 0.75, 0.2, 0.2]]
    return {"logits": logits, "pred_boxes": boxes}, ("pred_boxes", (0, 2)), ("logits", (0, 0))


def ssd() -> Any:
    scores, boxes = np.zeros((100, 3), np.float32), np.full((100, 4), 0.1, np.float32)
    scores[:, 0], boxes[:, 2:] = 1, 0.3
    scores[:2] = [[0.1, 0.9, 0], [0.2, 0, 0.8]]
    boxes[1] = [0.5, 0.5, 0.9, 0.9]
    return {"scores": scores, "boxes": boxes}, ("boxes", (0, 3)), ("scores", (0, 1))


def yunet() -> Any:
    values = {"cls": 1, "obj": 1, "bbox": 4, "kps": 10}
    outputs = {
        f"{kind}_{stride}": np.zeros(((64 // stride) ** 2, count), np.float32)
        for kind, count in values.items() for stride in (8, 16, 32)
    }  # fmt: skip
    for name in ("cls_8", "obj_8"):
        outputs[name][[0, 45]] = 0.9
    return outputs, ("bbox_8", (0, 0)), ("cls_8", (0, 0))


def selected() -> Any:
    boxes = np.array([[0.1, 0.1, 0.4, 0.4], [0.5, 0.5, 0.9, 0.9]], np.float32)
    outputs = {
        "detection_boxes": boxes, "detection_scores": np.array([0.9, 0.8], np.float32),
        "detection_classes": np.ones(2, np.float32), "num_detections": np.array([2], np.float32),
    }  # fmt: skip
    return outputs, ("detection_boxes", (0, 1)), ("detection_scores", (0,)), ("detection_classes", (0,))


def obb() -> Any:
    outputs, *places = yolov8()
    outputs["output0"] = np.vstack([outputs["output0"], np.zeros((1, ROWS), np.float32)])
    return outputs, *places, ("output0", (6, 0))


NAMES = {"names": "{0: 'cat', 1: 'dog'}"}
KINDS: dict[str, tuple[Any, dict[str, str]]] = {
    "yolov5": (yolov5(), NAMES), "yolov8": (yolov8(), NAMES), "end-to-end": (end_to_end(), NAMES), "detr": (detr(), {}),
    "rt-detr": (detr(2), {}), "ssd": (ssd(), {}), "yunet": (yunet(), {}), "selected-boxes": (selected(), {}),
    "yolov8-obb": (obb(), NAMES | {"task": "obb"}), "end-to-end-obb": (end_to_end(7), NAMES | {"task": "obb"}),
}  # fmt: skip
CASES = [(name, place) for name, ((_, *places), _) in KINDS.items() for place in range(len(places))]


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("name", "place"), CASES)
def test_such_boxes_are_left_out(tmp_path: Path, name: str, place: int, number: float) -> None:
    (outputs, *places), metadata = KINDS[name]
    path = head_model(tmp_path / "m.onnx", list(outputs.values()), metadata, names=list(outputs))
    with models.load(path, type=name, conf=0.5) as model:
        good = model(IMAGE)
        assert len(good) == 2
        key, index = places[place]
        broken = {kind: array[None].copy() for kind, array in outputs.items()}
        broken[key][(0, *index)] = number
        (found,) = model.postprocess(broken, [Geometry.letterbox((64, 64), (64, 64))])
    limited = number == np.inf and (name, key) in (("rt-detr", "logits"), ("yunet", "cls_8"))  # its score is 1
    assert len(found) == found.stats.kept == (2 if limited else 1)
    np.testing.assert_allclose(found.xyxy[-1:], good.xyxy[good.xyxy[:, 0] > 30], atol=1e-4)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("name", [name for name in KINDS if not name.endswith("obb")])
def test_large_coordinates_are_clipped_to_the_image(tmp_path: Path, name: str) -> None:
    """They are finite on the canvas, and would be infinite in an image that is larger. Boxes that are infinite on the
    canvas are left out.
    """
    (outputs, (key, index), *_), metadata = KINDS[name]
    path = head_model(tmp_path / "m.onnx", list(outputs.values()), metadata, names=list(outputs))
    with models.load(path, type=name, conf=0.5) as model:
        model(IMAGE)
        large = {kind: array[None].copy() for kind, array in outputs.items()}
        large[key][(0, *index)] = 3e38
        (found,) = model.postprocess(large, [Geometry.letterbox((256, 256), (64, 64))])
    assert len(found) == (1 if name in ("ssd", "yunet") else 2)
    assert ((found.xyxy >= 0) & (found.xyxy <= 256)).all()
