"""Boxes that the network selects, with an output each for boxes, scores and classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import node, save, value

import infersdk
from infersdk.errors import UnsupportedModelError
from infersdk.image import Geometry
from infersdk.models import SelectedBoxes, load

pytest.importorskip("onnxruntime")

IMAGE = np.zeros((32, 128, 3), np.uint8)
#: Left, top, right and bottom as fractions; the scores are not sorted.
BOXES = np.array([[0.25, 0.25, 0.5, 0.5], [0.5, 0.5, 1, 1], [0, 0, 0.5, 0.25], [0.1, 0.1, 0.2, 0.2]], np.float32)
SCORES, CLASSES = np.array([0.7, 0.9, 0.8, 0.1], np.float32), np.array([1, 17, 1, 3])
#: Of the image, best first.
EXPECTED = [[64, 16, 128, 32], [0, 0, 64, 8], [32, 8, 64, 16]]
BACKENDS = ("onnxruntime", "openvino")

PREFIX = [node("Cast", "image", "floats", to=1), node("ReduceMean", "floats", "mean", keepdims=0)]


def given(name: str, dtype: int = 1) -> list[Any]:
    """The output `name`, of the weight of that name and what does not count of the image."""
    return [
        node("Mul", "mean zero", f"zero_{name}"),
        node("Add", f"w_{name} zero_{name}", f"f_{name}"),
        node("Cast", f"f_{name}", name, to=dtype),
    ]


def tensorflow(path: Path) -> Path:
    """As the ONNX zoo has SSD-MobileNet."""
    names = ("detection_boxes:0", "detection_scores:0", "detection_classes:0", "num_detections:0")
    arrays = BOXES[None, :, [1, 0, 3, 2]], SCORES[None], CLASSES[None].astype(np.float32), np.array([3], np.float32)
    weights = {"zero": np.float32(0)} | {f"w_{name}": array for name, array in zip(names, arrays, strict=True)}
    outputs = [value(name, array.shape) for name, array in zip(names, arrays, strict=True)]
    nodes = PREFIX + [one for name in names for one in given(name)]
    return save(path, nodes, [value("image", (1, None, None, 3), "uint8")], outputs, weights)


def torchvision(path: Path) -> Path:
    nodes = PREFIX + given("boxes") + given("scores") + given("labels", 7)
    weights = {"zero": np.float32(0), "w_boxes": BOXES * 64, "w_scores": SCORES, "w_labels": CLASSES.astype(np.float32)}
    outputs = [value("boxes", (None, 4)), value("scores", (None,)), value("labels", (None,), "int64")]
    return save(path, nodes, [value("image", (1, 3, 64, 64))], outputs, weights)


def d_fine(path: Path, size_type: str = "int64", batch: Any = "N") -> Path:
    """As the exporters of D-FINE and RT-DETR have it: boxes are scaled by a second input."""
    nodes = [
        *PREFIX,
        node("Cast", "orig_target_sizes", "sizes", to=1),
        node("Concat", "sizes sizes", "sides", axis=1),
        node("Unsqueeze", "sides one", "factors"),
        node("Mul", "fractions factors", "boxes"),
        node("Slice", "sides zeros one one", "column"),
        node("Mul", "column zero", "nothing"),
        node("Add", "nothing w_scores", "scores"),
        node("Add", "nothing w_labels", "numbers"),
        node("Cast", "numbers", "labels", to=7),
    ]
    weights = {
        "fractions": BOXES[None], "w_scores": SCORES[None], "w_labels": CLASSES[None].astype(np.float32),
        "zero": np.float32(0), "one": np.array([1]), "zeros": np.array([0]),
    }  # fmt: skip
    inputs = [value("image", (batch, 3, 64, 64)), value("orig_target_sizes", (batch, 2), size_type)]
    outputs = [value("labels", (batch, 4), "int64"), value("boxes", (batch, 4, 4)), value("scores", (batch, 4))]
    return save(path, nodes, inputs, outputs, weights)


def yolo_nas(path: Path) -> Path:
    """With a border: 128 x 32 at 60 / 128 on 64 x 64 lies at (2, 24) to (62, 39)."""
    names = {"num_predictions": 6, "pred_boxes": 1, "pred_scores": 1, "pred_classes": 7}
    boxes = BOXES * (60, 15, 60, 15) + (2, 24, 2, 24)
    arrays = {"num_predictions": np.array([[3]]), "pred_boxes": boxes[None], "pred_scores": SCORES[None]}
    arrays["pred_classes"] = CLASSES[None]
    weights = {f"w_graph2_{name}": array.astype(np.float32) for name, array in arrays.items()}
    weights["zero"] = np.float32(0)
    nodes = PREFIX + [one for name, dtype in names.items() for one in given(f"graph2_{name}", dtype)]
    dtypes = {1: "float32", 6: "int32", 7: "int64"}
    outputs = [value(f"graph2_{name}", arrays[name].shape, dtypes[dtype]) for name, dtype in names.items()]
    return save(path, nodes, [value("image", (1, 3, 64, 64), "uint8")], outputs, weights)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [tensorflow, torchvision, d_fine, yolo_nas])
def test_boxes_come_back_to_the_image(tmp_path: Path, backend: str, make: Any) -> None:
    pytest.importorskip(backend)
    with load(make(tmp_path / "m.onnx"), backend=backend) as model:
        assert type(model) is SelectedBoxes
        results = [model(IMAGE), model.submit(IMAGE).result(30), *model.map([IMAGE] * 5), *model([IMAGE] * 3)]
        for found in results:
            np.testing.assert_allclose(found.xyxy, EXPECTED, atol=1e-3)
            np.testing.assert_allclose(found.scores, [0.9, 0.8, 0.7], rtol=1e-6)
            assert found.class_ids.tolist() == [17, 1, 1]
        assert len(model(IMAGE, conf=0.75)) == len(model.submit(IMAGE, conf=0.75).result(30)) == 2
        assert [len(found) for found in model.map([IMAGE] * 3, classes=17)] == [1] * 3
        limited = model(IMAGE, max_det=1)
        assert (limited.class_ids.tolist(), limited.stats.dropped_detections) == ([17], 2)
        # TensorFlow's and YOLO-NAS's fourth box is behind the number of boxes.
        assert len(model(IMAGE, conf=0.0)) == (3 if make in (tensorflow, yolo_nas) else 4)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("count", "found"), [(-1, 0), (np.nan, 0), (2, 2), (9, 4), (np.inf, 4)])
def test_any_number_of_boxes(tmp_path: Path, count: float, found: int) -> None:
    with load(tensorflow(tmp_path / "m.onnx"), conf=0.0) as model:
        model(IMAGE)
        arrays = BOXES[None], SCORES[None], CLASSES[None].astype(np.float32), np.array([count], np.float32)
        outputs = {spec.name: array for spec, array in zip(model.network.output_specs, arrays, strict=True)}
        (boxes,) = model.postprocess(outputs, [Geometry.stretch((128, 32), (64, 64))])
    assert len(boxes) == found


@pytest.mark.parametrize("size_type", ["int64", "float32"])
def test_the_size_of_the_image_gives_the_boxes_of_the_image(tmp_path: Path, size_type: str) -> None:
    """D-FINE's own inference gives the network the size of the image."""
    path = d_fine(tmp_path / "m.onnx", size_type)
    with infersdk.load(path) as network, load(path, conf=0.5) as model:
        rng = np.random.default_rng(0)
        for _ in range(100):
            height, width = (int(side) for side in rng.integers(20, 3000, 2))
            (inputs,) = model.details.network_inputs([np.zeros((height, width, 3), np.uint8)])
            assert inputs["orig_target_sizes"].tolist() == [[64, 64]]
            its = network(inputs | {"orig_target_sizes": np.array([[width, height]], size_type)})
            mine = model(np.zeros((height, width, 3), np.uint8))
            np.testing.assert_allclose(mine.xyxy, its["boxes"][0, [1, 2, 0]], atol=1e-3)
    with load(d_fine(tmp_path / "n.onnx", size_type, batch=1)) as model:
        assert len(model([IMAGE] * 3)) == 3


def test_other_files_are_refused(tmp_path: Path) -> None:
    nodes = [*PREFIX, node("Identity", "mean", "y")]
    path = save(tmp_path / "a.onnx", nodes, [value("image", (1, 3, 64, 64))], [value("y", ())])
    with pytest.raises(UnsupportedModelError, match="no outputs of boxes, scores and classes"):
        SelectedBoxes(path)
    nodes = PREFIX + given("boxes") + given("scores") + given("labels", 7)
    weights = {"zero": np.float32(0), "w_labels": CLASSES[None].astype(np.float32)}
    outputs = [value("boxes", (1, 4, 4)), value("scores", (1, 4)), value("labels", (1, 4), "int64")]
    inputs = [value("image", (1, 3, 64, 64))]
    path = save(
        tmp_path / "b.onnx", nodes, inputs, outputs, weights | {"w_boxes": BOXES[None] * 64, "w_scores": SCORES[None]}
    )
    with pytest.raises(UnsupportedModelError, match=r"no input 'orig_target_sizes'.*type=\"selected-boxes\""):
        load(path)
    with load(path, type="selected-boxes") as model:
        assert len(model(IMAGE)) == 3
    path = save(
        tmp_path / "c.onnx", nodes, inputs, outputs, weights | {"w_boxes": BOXES[None], "w_scores": SCORES[None]}
    )
    with (
        load(path, type="selected-boxes") as model,
        pytest.raises(UnsupportedModelError, match="they may be fractions"),
    ):
        model(IMAGE)
    path = save(
        tmp_path / "d.onnx",
        nodes,
        inputs,
        outputs,
        weights | {"w_boxes": BOXES[None] * 64, "w_scores": SCORES[None] * 9},
    )
    with load(path, type="selected-boxes") as model, pytest.raises(UnsupportedModelError, match="scores lie in 0 to 1"):
        model(IMAGE)
