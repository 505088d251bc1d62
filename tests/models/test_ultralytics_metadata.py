"""Every task of Ultralytics' exporters is loaded by what they write into a file, without `type`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_models import head_model

from infersdk import models
from infersdk.models import load

pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (48, 80, 3), np.uint8)
NAMES = "{0: 'a', 1: 'b', 2: 'c'}"
CELLS = 64 + 16 + 4


def raw(*extra: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[4 + classes + extra, boxes]: a head without NMS."""
    boxes = [RNG.uniform(5, 60, (2, CELLS)), RNG.uniform(2, 20, (2, CELLS)), RNG.uniform(0, 1, (3, CELLS))]
    return np.vstack([*boxes, *extra]).astype(np.float32)


def chosen(extra: int = 0, low: float = 0.0, high: float = 1.0, oriented: bool = False) -> np.ndarray[Any, Any]:
    """[300, 6 + extra]: rows of corners (or centre and size), score and class."""
    first = RNG.uniform(5, 40, (300, 2))
    second = RNG.uniform(2, 20, (300, 2)) if oriented else first + RNG.uniform(2, 20, (300, 2))
    rest = [RNG.uniform(0, 1, (300, 1)), RNG.integers(0, 3, (300, 1)), RNG.uniform(low, high, (300, extra))]
    return np.hstack([first, second, *rest]).astype(np.float32)


MASKS = RNG.normal(0, 1, (32, 16, 16)).astype(np.float32)
#: 17 points of x, y and score.
POSES = np.tile([30.0, 40.0, 0.5], (300, 17)).astype(np.float32)
POINTS = {"kpt_shape": "[17, 3]"}
INSIDE = {"end2end": "True"}
SIZE = {"imgsz": "[64, 64]"}
BOXES = "Detections"


@pytest.mark.parametrize(
    ("families", "outputs", "metadata", "kind", "result"),
    [
        ("YOLOv3u to YOLO12", [raw()], {"task": "detect"}, "YOLOv8", BOXES),
        ("YOLOv5u to YOLO12", [raw(RNG.normal(0, 1, (32, CELLS))), MASKS], {"task": "segment"}, "YOLOv8Seg", BOXES),
        ("YOLOv8, YOLO11", [raw(POSES.T[:, :CELLS])], {"task": "pose"} | POINTS, "YOLOv8Pose", BOXES),
        ("YOLOv8, YOLO11", [raw(RNG.uniform(-0.7, 2.3, (1, CELLS)))], {"task": "obb"}, "YOLOv8OBB", BOXES),
        ("YOLOv10, YOLO26", [chosen()], {"task": "detect"} | INSIDE, "EndToEnd", BOXES),
        ("YOLO26", [chosen(32, -1), MASKS], {"task": "segment"} | INSIDE, "EndToEndSeg", BOXES),
        ("YOLO26", [np.hstack([chosen(), POSES])], {"task": "pose"} | POINTS | INSIDE, "EndToEndPose", BOXES),
        ("YOLO26", [chosen(1, -0.7, 2.3, oriented=True)], {"task": "obb"} | INSIDE, "EndToEndOBB", BOXES),
        ("RT-DETR", [RNG.uniform(0.1, 0.6, (300, 7))], {"task": "detect"}, "UltralyticsRTDETR", BOXES),
        ("with NMS", [chosen()], {"task": "detect"}, "EndToEnd", BOXES),
        ("with NMS", [chosen(1, -0.7, 2.3, oriented=True)], {"task": "obb"}, "EndToEndOBB", BOXES),
        ("YOLOv8 to YOLO26", [np.array([0.2, 0.5, 0.3])], {"task": "classify"} | SIZE, "Classifier", "Classifications"),
        ("YOLO26", [RNG.normal(0, 1, (3, 16, 16))], {"task": "semantic"}, "SemanticSegmentation", "ClassMap"),
        ("YOLO26", [RNG.uniform(1, 9, (1, 64, 64))], {"task": "depth"}, "DepthEstimation", "DepthMap"),
    ],
)  # fmt: skip
def test_a_file_says_its_wrapper(
    tmp_path: Path, families: str, outputs: Any, metadata: dict[str, str], kind: str, result: str
) -> None:
    known = {"author": "Ultralytics", "stride": "32", "names": NAMES} | metadata
    with load(head_model(tmp_path / "m.onnx", outputs, known)) as model:
        assert type(model).__name__ == kind, families
        found = model(IMAGE)
        assert type(found) is getattr(models, result)
        assert found.to_dicts()


def test_a_single_class_of_the_task_semantic_is_a_logit(tmp_path: Path) -> None:
    values = np.full((1, 16, 16), -1.0, np.float32)
    values[:, :8] = 1
    path = head_model(tmp_path / "m.onnx", [values], {"task": "semantic", "names": "{0: 'road', 1: 'rest'}"})
    with load(path) as model:
        found = model(np.zeros((32, 64, 3), np.uint8))
    # The letterbox shows the image in rows 16 to 47 of 64: the logits are above 0 in its upper half.
    assert found.class_ids[:15].all()
    assert not found.class_ids[17:].any()
