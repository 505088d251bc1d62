"""Decoding and NMS inside the model, held against our own exact ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk.errors import ConfigError, UnsupportedModelError
from infersdk.graph import Graph
from infersdk.graph import open as open_graph
from infersdk.graph.passes import AddNms
from infersdk.image import Geometry
from infersdk.ops.detection import DetectionDecoder

models = pytest.importorskip("onnx_models")
pytest.importorskip("onnxruntime")

CLASSES, SIZE = 5, 256
ROWS = sum((SIZE // stride) ** 2 for stride in (8, 16, 32))


def head(kind: str, images: int, seed: int = 0) -> Any:
    """The output of a head: many boxes in clusters, so that NMS suppresses some."""
    rng = np.random.default_rng(seed)
    rows = np.empty((images, ROWS, 5 + CLASSES), np.float32)
    centres = rng.integers(0, 8, (images, ROWS, 2)) * 32 + rng.normal(0, 3, (images, ROWS, 2))
    rows[..., :2], rows[..., 2:4] = centres, rng.uniform(20, 60, (images, ROWS, 2))
    rows[..., 4:] = rng.uniform(0, 1, (images, ROWS, 1 + CLASSES)) ** 3
    if kind == "yolox":
        rows[..., :2], rows[..., 2:4] = rng.normal(0, 1, (images, ROWS, 2)), rng.normal(1, 0.5, (images, ROWS, 2))
    if kind == "yolov8":
        return np.ascontiguousarray(np.delete(rows, 4, axis=2).transpose(0, 2, 1))
    return rows


def model(path: Path, kind: str, dtype: str = "float32") -> Graph:
    """A detector for images of SIZE, whose output is its second input."""
    shape = ["batch", 4 + CLASSES, ROWS] if kind == "yolov8" else ["batch", ROWS, 5 + CLASSES]
    nodes = [models.node("Identity", "given", "head"), models.node("Shape", "images", "s"),
             models.node("Identity", "head", "output")]  # fmt: skip
    return open_graph(
        models.save(
            path,
            nodes,
            [models.value("images", [1, 3, SIZE, SIZE]), models.value("given", shape, dtype)],
            [models.value("output", shape, dtype)],
        )
    )


def run(graph: Graph, given: Any) -> dict[str, Any]:
    feeds = {"given": given, "images": np.zeros((1, 3, SIZE, SIZE), np.float32)}
    return dict(zip([output.name for output in graph.outputs], models.run(graph, feeds), strict=True))


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("kind", ["yolov5", "yolov8", "yolox"])
def test_the_boxes_are_those_of_our_exact_nms(tmp_path: Path, kind: str, multi_label: bool) -> None:
    given = head(kind, 2)
    graph = model(tmp_path / "m.onnx", kind)
    graph.apply(AddNms(kind, conf=0.3, iou=0.5, multi_label=multi_label, limit=ROWS))
    found = run(graph, given)
    assert list(found) == ["boxes", "scores", "classes", "batch_indices"]
    decoder = DetectionDecoder(
        kind, CLASSES, ROWS, conf=0.3, iou=0.5, multi_label=multi_label, max_det=ROWS * CLASSES,
        strides=(8, 16, 32) if kind == "yolox" else (),
    )  # fmt: skip
    geometry = Geometry.stretch((SIZE, SIZE), (SIZE, SIZE))
    for index, output in enumerate(given):
        want, _ = decoder(output, geometry)
        mine = found["batch_indices"] == index
        order = np.argsort(-found["scores"][mine], kind="stable")
        boxes, scores, classes = (found[name][mine][order] for name in ("boxes", "scores", "classes"))
        assert len(want) > 20
        np.testing.assert_allclose(scores, want["score"], rtol=1e-6)
        np.testing.assert_array_equal(classes, want["class_id"])
        corners = want["xyxy"]
        np.testing.assert_allclose(np.clip(boxes, 0, SIZE), corners, atol=2e-4 * SIZE if kind == "yolox" else 1e-3)


def test_at_most_so_many_of_a_class(tmp_path: Path) -> None:
    graph = model(tmp_path / "m.onnx", "yolov5")
    graph.apply(AddNms("yolov5", limit=3))
    found = run(graph, head("yolov5", 2))
    pairs = found["batch_indices"] * CLASSES + found["classes"]
    assert np.bincount(pairs).tolist() == [3] * (2 * CLASSES)


def test_a_head_in_float16(tmp_path: Path) -> None:
    graph = model(tmp_path / "m.onnx", "yolov5", "float16")
    graph.apply(AddNms("yolov5"))
    found = run(graph, head("yolov5", 1).astype(np.float16))
    assert found["boxes"].dtype == np.float32
    assert len(found["boxes"]) > 20


def test_wrong_use(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with pytest.raises(ConfigError, match="unknown head 'ssd'; use one of yolov5, yolov8, yolox"):
        model(path, "yolov5").apply(AddNms("ssd"))
    with pytest.raises(ConfigError, match="iou must be from 0 to 1, not 45"):
        model(path, "yolov5").apply(AddNms("yolov5", iou=45))
    for limit in (0, 1.5):
        with pytest.raises(ConfigError, match=f"limit must be a whole number from 1, not {limit}"):
            model(path, "yolov5").apply(AddNms("yolov5", limit=limit))  # type: ignore[arg-type]
    assert model(path, "yolov5").apply(AddNms("yolov5", limit=np.int64(5)))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="conf must be from 0 to 1, not 'low'"):
        model(path, "yolov5").apply(AddNms("yolov5", conf="low"))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModelError, match="does not have the shape of a yolov8 head"):
        model(path, "yolov5").apply(AddNms("yolov8"))
    with pytest.raises(UnsupportedModelError, match="does not have the shape of a yolov5 head"):
        model(path, "yolov8").apply(AddNms("yolov5"))
    graph = model(path, "yolov8")
    graph.metadata["task"] = "pose"
    with pytest.raises(UnsupportedModelError, match="gives the task 'pose'"):
        graph.apply(AddNms("yolov8"))
    graph = model(path, "yolov5")
    graph.add_output("head")
    with pytest.raises(UnsupportedModelError, match="the model must have one output with three axes"):
        graph.apply(AddNms("yolov5"))
    graph = model(path, "yolov5")
    graph.weights["boxes"] = np.zeros(1, np.float32)
    with pytest.raises(UnsupportedModelError, match="the model has a value 'boxes', which is the name of a new output"):
        graph.apply(AddNms("yolov5"))
    graph = model(path, "yolox")
    graph.inputs[0].shape = type(graph.inputs[0].shape)([1, 3, 512, 512])
    with pytest.raises(UnsupportedModelError, match=f"has 5376 cells of strides 8, 16 and 32, and this output {ROWS}"):
        graph.apply(AddNms("yolox"))
