"""Networks that take gray images, channels last, or images of any size: each wrapper reads these from the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_models import head_model
from onnx_models import node, save, value

from infersdk.errors import UnsupportedModelError
from infersdk.models import TYPES, ImageInput, Preprocessor, VisionModel, load

pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(7)
IMAGE = RNG.integers(0, 256, (48, 64, 3), np.uint8)
BOXES = np.concatenate([
    np.stack([x.ravel() * s, y.ravel() * s, x.ravel() * 0 + s, x.ravel() * 0 + s], 1)
    for s in (8, 16, 32)
    for x, y in [np.meshgrid(np.arange(64 // s) + 0.5, np.arange(64 // s) + 0.5)]
]).astype(np.float32)  # fmt: skip
SCORES = np.full((84, 2), 0.3, np.float32)
POINTS = np.tile(np.float32([32, 32, 0.5]), (84, 2))
ROWS = np.tile(np.float32([8, 8, 24, 24, 0.6, 1]), (100, 1))
LOGITS = RNG.normal(-3, 2, (100, 5)).astype(np.float32)
LAST = np.float32([0, 0, 0, 0, 12]) * (np.arange(100) >= 9)[:, None] + np.float32([9, 0, 0, 0, 0])
QUERIES = np.hstack([RNG.uniform(0.1, 0.9, (100, 2)), RNG.uniform(0.02, 0.2, (100, 2))]).astype(np.float32)
MAPS = RNG.normal(0, 1, (2, 32, 32)).astype(np.float32)
PROTOTYPES = RNG.normal(0, 1, (2, 16, 16)).astype(np.float32)
CORNERS = np.hstack([BOXES[:, :2] - BOXES[:, 2:] / 2, BOXES[:, :2] + BOXES[:, 2:] / 2])
FACES = np.where(np.arange(235)[:, None] < 120, np.float32([0.9, 0.1]), np.float32([0.2, 0.8]))
FRACTIONS = np.clip(np.hstack([QUERIES[:, :2] - QUERIES[:, 2:] / 2, QUERIES[:, :2] + QUERIES[:, 2:] / 2]), 0, 1)
SELECTED = ("detection_boxes", "detection_scores", "detection_classes", "num_detections")

#: The outputs of a network for each type, their names, and the settings that the file does not say.
NETWORKS: dict[str, tuple[Sequence[np.ndarray], Sequence[str], dict[str, Any]]] = {
    "yolov5": ([np.hstack([np.tile(BOXES, (3, 1)), np.full((252, 3), 0.6)])], (), {}),
    "yolov8": ([np.hstack([BOXES, SCORES]).T], (), {}),
    "yolox": ([np.hstack([np.zeros((84, 4)), np.full((84, 3), 0.6)])], (), {"legacy": False}),
    "end-to-end": ([ROWS], (), {}),
    "yolov5-seg": ([np.hstack([np.tile(BOXES, (3, 1)), np.full((252, 5), 0.6)]), PROTOTYPES], (), {}),
    "yolov8-seg": ([np.hstack([BOXES, SCORES, SCORES]).T, PROTOTYPES], (), {}),
    "end-to-end-seg": ([np.hstack([ROWS, np.ones((100, 2))]), PROTOTYPES], (), {}),
    "yolov8-pose": ([np.hstack([BOXES, SCORES, POINTS]).T], (), {"keypoints": (2, 3)}),
    "end-to-end-pose": ([np.hstack([ROWS, np.tile([8, 8, 0.5], (100, 2))])], (), {"keypoints": (2, 3)}),
    "yolov8-obb": ([np.hstack([BOXES, SCORES, SCORES[:, :1] - 0.5]).T], (), {}),
    "end-to-end-obb": ([np.tile(np.float32([24, 24, 8, 8, 0.6, 1, 0.3]), (100, 1))], (), {}),
    "yolo-nas": ([CORNERS, SCORES], ("boxes", "scores"), {}),
    "ssd": ([FACES[60:160], FRACTIONS], ("scores", "boxes"), {}),
    "ultraface": ([FACES, np.resize(FRACTIONS, (235, 4))], ("scores", "boxes"), {}),
    "selected-boxes": ([FRACTIONS, np.full(100, 0.8), np.ones(100), np.array([100])], SELECTED, {}),
    "rf-detr-seg": ([QUERIES, LOGITS, RNG.normal(0, 1, (100, 8, 8))], ("dets", "labels", "masks"), {"preset": "unit"}),
    "depth": ([MAPS[0]], ("predicted_depth",), {"preset": "unit"}),
    "anomaly": ([np.array([0.5]), MAPS[:1]], ("pred_score", "anomaly_map"), {}),
    "image-to-image": ([RNG.random((3, 64, 64))], (), {}),
    "background-removal": ([RNG.random((1, 32, 32))], (), {"preset": "unit"}),
    "detr": (
        [np.where(np.arange(100)[:, None] < 9, 4 * LOGITS, LOGITS + LAST), QUERIES],
        ("logits", "pred_boxes"),
        {"preset": "unit"},
    ),
    "rt-detr": ([LOGITS, QUERIES], ("logits", "pred_boxes"), {}),
    "rt-detr-ultralytics": ([np.hstack([QUERIES, np.full((len(QUERIES), 3), 0.6, np.float32)])], (), {}),
    "rf-detr": ([LOGITS, QUERIES], ("logits", "pred_boxes"), {"preset": "unit"}),
    "yunet": (
        [np.full(((64 // s) ** 2, n), 0.5, np.float32) for s in (8, 16, 32) for n in (1, 1, 4, 10)],
        [f"{kind}_{s}" for s in (8, 16, 32) for kind in ("cls", "obj", "bbox", "kps")],
        {"conf": 0.4},
    ),
    "segmentation": ([MAPS], (), {"preset": "unit"}),
    "twinlitenet": ([MAPS, MAPS], (), {}),
    "classifier": ([np.float32([-1, 2, 3])], (), {"preset": "unit"}),
    "embedding": ([np.float32([-1, 2, 3])], (), {"preset": "unit"}),
}


@pytest.mark.parametrize("name", TYPES)
def test_each_wrapper_takes_gray_images_and_channels_last(tmp_path: Path, name: str) -> None:
    outputs, names, settings = NETWORKS[name]
    results = []
    for shape in ((3, 64, 64), (1, 64, 64), (64, 64, 1), (64, 64, 3)):
        path = head_model(tmp_path / f"{len(results)}.onnx", outputs, {}, names=names, input=shape)
        with load(path, type=name, **settings) as model:
            results.append([model(IMAGE), model([IMAGE, IMAGE[..., 0]])[1], model.submit(IMAGE).result(30)])
    for size in ({"crop": 64} if name == "classifier" else {"size": 64},):
        path = head_model(tmp_path / "open.onnx", outputs, {}, names=names, input=(1, "h", "w"), open_shapes=True)
        with load(path, type=name, **settings, **size) as model:
            assert model.input_size == (64, 64)
            results.append([model(IMAGE)])
    assert len({type(result) for each in results for result in each}) == 1
    if hasattr(results[0][0], "xyxy"):
        assert len({len(result) for each in results for result in each}) == 1
        assert len(results[0][0]) > 0


class Pixels(VisionModel[Any]):
    """Gives the network's input."""

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        return Preprocessor.stretch(input, order="gray", scale=1.0)

    def postprocess(self, outputs: Mapping[str, Any], geometries: Sequence[Any]) -> list[Any]:
        return list(outputs["same"][: len(geometries)].copy())


def same(path: Path, *shape: int | str) -> Path:
    nodes = [node("Identity", "images", "same")]
    return save(path, nodes, [value("images", ("batch", *shape))], [value("same", ("batch", *shape))], {})


@pytest.mark.parametrize("shape", [(1, 28, 28), (28, 28, 1), (1, "height", "width")])
def test_gray_pixels_are_those_of_opencv(tmp_path: Path, shape: tuple[int | str, ...]) -> None:
    cv2 = pytest.importorskip("cv2")

    class Small(Pixels):
        fallback_size = 28

    with Small(same(tmp_path / "m.onnx", *shape)) as model:
        for image in (IMAGE, IMAGE[..., 0]):
            gray = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) if image.ndim == 3 else image
            expected = cv2.resize(gray, (28, 28), interpolation=cv2.INTER_LINEAR)
            np.testing.assert_array_equal(model(image).reshape(28, 28), expected)


def test_the_order_of_arrays_is_a_setting_of_each_wrapper(tmp_path: Path) -> None:
    class Colours(Pixels):
        def preprocessing(self, input: ImageInput) -> Preprocessor:
            return Preprocessor.stretch(input, scale=1.0)

    path = same(tmp_path / "m.onnx", 3, 28, 28)
    with Colours(path) as model, Colours(path, channel_order="rgb") as other:
        np.testing.assert_array_equal(model(IMAGE), other(np.ascontiguousarray(IMAGE[..., ::-1])))


def test_order_gray_is_refused_by_networks_of_three_channels(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="m.onnx is not a model for Pixels: .*order='gray'"):
        Pixels(same(tmp_path / "m.onnx", 3, 28, 28))


@pytest.mark.parametrize("shape", [(2, 28, 28), (4, 28, 28), (28, 28, 4), (1, 28, 1)])
def test_other_numbers_of_channels_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedModelError, match="neither three channels nor one"):
        Pixels(same(tmp_path / "m.onnx", *shape))
    with pytest.raises(UnsupportedModelError, match="no wrapper is for m.onnx"):
        load(head_model(tmp_path / "m.onnx", [np.float32([1, 2, 3])], {}, input=shape))


@pytest.mark.parametrize("name", ["classifier", "embedding", "segmentation", "detr"])
def test_numbers_of_three_channels_are_refused_for_one(tmp_path: Path, name: str) -> None:
    outputs, names, _ = NETWORKS[name]
    path = head_model(tmp_path / "m.onnx", outputs, {}, names=names, input=(1, 64, 64))
    with pytest.raises(UnsupportedModelError, match='m.onnx is not a model for .*one channel.*"unit"'):
        load(path, type=name, preset="imagenet")


def test_a_classifier_of_gray_images_takes_one_mean(tmp_path: Path) -> None:
    path = head_model(tmp_path / "m.onnx", [np.float32([1, 2, 3])], {}, input=(28, 28, 1))
    with load(path, mean=0.1307, std=0.3081) as model:
        assert model(IMAGE)[0].class_id == 2
    path = head_model(
        tmp_path / "m.onnx", [np.float32([1, 2, 3])], {"mean": "0.1307", "std": "0.3081"}, input=(1, 28, 28)
    )
    with load(path) as model:
        assert model(IMAGE)[0].class_id == 2
