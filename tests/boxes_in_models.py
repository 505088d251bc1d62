"""Outputs of detection heads, and models that give them, for tests of boxes that are found inside a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from infersdk.image import Geometry
from infersdk.ops import DetectionDecoder

SIZE = (640, 480)


def head_output(rng: np.random.Generator, head: str, batch: int, anchors: int = 1000, classes: int = 4) -> Any:
    """A random output with many boxes above the threshold that overlap."""
    boxes = rng.random((batch, anchors, 4), dtype="float32") * [SIZE[0], SIZE[1], 200, 200]
    if head == "yolox":
        boxes = rng.standard_normal((batch, anchors, 4), dtype="float32")
    scores = rng.random((batch, anchors, classes + (head != "yolov8")), dtype="float32") ** 2
    rows = np.concatenate([boxes, scores], axis=2).astype("float32")
    return np.ascontiguousarray(rows.transpose(0, 2, 1)) if head == "yolov8" else rows


def decoded(output: Any, head: str, classes: int = 4, size: tuple[int, int] = SIZE, **settings: Any) -> list[Any]:
    """What the decoder makes of each image."""
    geometry = Geometry.stretch(size, size)
    anchors = output.shape[2] if head == "yolov8" else output.shape[1]
    with DetectionDecoder(head, classes, anchors, dtype=str(output.dtype), **settings) as decoder:
        results = []
        for image in output:
            boxes, stats = decoder(image, geometry)
            results.append((boxes.copy(), stats))
        return results


def check_rows(got: tuple[Any, Any, Any], want: list[Any]) -> None:
    for rows, count, stats, (boxes, expected) in zip(*got, want, strict=True):
        assert count == len(boxes)
        np.testing.assert_array_equal(rows[:count, :4], boxes["xyxy"])
        np.testing.assert_array_equal(rows[:count, 4], boxes["score"])
        np.testing.assert_array_equal(rows[:count, 5], boxes["class_id"])
        assert not rows[count:].any()
        assert tuple(stats) == tuple(expected)


def detector(path: Path, head: str = "yolov5", classes: int = 4, anchors: int = 300) -> Path:
    """A 'detector': its input, cut and reshaped to a head's output."""
    from onnx_models import node, save

    values = classes + (4 if head == "yolov8" else 5)
    sides = [values, anchors] if head == "yolov8" else [anchors, values]
    nodes = [node("Relu", "images", "a"), node("Reshape", "a to", "output0")]
    inputs, outputs = f"float[batch,1,{values},{anchors}] images", f"float[batch,{sides[0]},{sides[1]}] output0"
    return save(path, nodes, inputs, outputs, {"to": np.array([-1, *sides])})
