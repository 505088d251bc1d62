"""The YOLO wrappers, on real models and images where the test data is there, and on small made-up graphs."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_models import head_model
from PIL import Image

from infersdk import errors
from infersdk.infer import Scheduling
from infersdk.models import YOLOX, Detections, YOLOv5, YOLOv8, load

pytest.importorskip("onnxruntime")


IMAGE = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)


NAMES = {"names": "{0: 'cat', 1: 'dog'}"}


def constant_model(path: Path, output: np.ndarray[Any, Any], metadata: dict[str, str] = NAMES, **options: Any) -> Path:
    """A network that gives `output` for each image, whatever it shows."""
    return head_model(path, [output], metadata, **options)


@pytest.fixture
def two_boxes(tmp_path: Path) -> Path:
    """A YOLOv5 head of 64 x 64 that always sees a dog at (16..48, 24..40) and a weak cat."""
    output = np.zeros((12, 7), np.float32)
    output[3] = [32, 32, 32, 16, 0.9, 0.1, 0.8]
    output[7] = [8, 32, 8, 8, 0.5, 0.6, 0.0]
    return constant_model(tmp_path / "two.onnx", output)


def test_boxes_come_back_to_the_image(two_boxes: Path) -> None:
    with YOLOv5(two_boxes) as model:
        found = model(np.zeros((100, 200, 3), np.uint8))  # scale 0.32: 200 x 100 -> 64 x 32, 16 rows of padding above
    assert [box.label for box in found] == ["dog", "cat"]
    assert found[0].xyxy == pytest.approx((50, 25, 150, 75), abs=1e-4)
    assert found[0].score == pytest.approx(0.72)
    assert found.size == (200, 100)
    assert found.xyxy.shape == (2, 4)
    assert found.class_ids.tolist() == [1, 0]


def test_list_gives_list_and_mixed_sources_agree(two_boxes: Path, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (60, 90, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "p.png")
    encoded = (tmp_path / "p.png").read_bytes()
    with YOLOv5(two_boxes, max_batch=2) as model:
        single = model(tmp_path / "p.png")
        many = model([tmp_path / "p.png", encoded, Image.fromarray(pixels), pixels[..., ::-1], str(tmp_path / "p.png")])
        assert model([]) == []
        assert [len(r) for r in model.stream(iter([pixels] * 5))] == [2] * 5
    assert isinstance(single, Detections)
    assert isinstance(many, list)
    for other in many:
        np.testing.assert_array_equal(other.data, single.data)


def test_chosen_classes(two_boxes: Path) -> None:
    image = np.zeros((64, 64, 3), np.uint8)
    with YOLOv5(two_boxes, classes="cat") as model:
        found = model(image)
        assert (found.labels, found.stats.candidates) == (["cat"], 1)
    with YOLOv5(two_boxes, max_det=1, max_batch=4) as model:
        for classes in ("cat", ["cat"], 0, [0], {0}, ("0",)):
            found = model(image, classes=classes)
            assert (found.labels, found.stats.dropped_detections) == (["cat"], 0)
        assert model(image).labels == ["dog"]
        for classes, words in (
            (["cot"], "no class 'cot'; did you mean 'cat'"),
            ([2], "no class number 2; use those that it has, from 0 to 1"),
            ([-1], "number -1"),
            ([], "classes is empty; give one or more"),
            (np.array([0]), r"array\(\[0\]\), not an int"),
            ([0.5], r"0.5, not an int \| str"),
            ([True], r"True, not an int \| str"),
        ):
            with pytest.raises(errors.ConfigError, match=words):
                model(image, classes=classes)
        with pytest.raises(errors.ConfigError, match="conf is True, not a float"):
            model(image, conf=True)
    with pytest.raises(errors.ConfigError, match="no class 'horse'"):
        YOLOv5(two_boxes, classes="horse")


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ({"conf": math.nan}, errors.InferSDKError),
        ({"conf": 1.5}, errors.ConfigError),
        ({"iou": -0.1}, errors.ConfigError),
        ({"conf": "high"}, errors.ConfigError),
        ({"max_det": 0}, errors.ConfigError),
        ({"max_det": 2**31}, errors.ConfigError),
        ({"max_candidates": 2**31}, errors.ConfigError),
        ({"threds": 2}, errors.ConfigError),
        ({"names": "/no/such/file.txt"}, errors.ConfigError),
        ({"names": 5}, errors.ConfigError),
        ({"channel_order": "gbr"}, errors.ConfigError),
        ({"size": 320}, errors.ConfigError),
        ({"backend": "none"}, errors.BackendNotFoundError),
    ],
)
def test_bad_settings_name_value(two_boxes: Path, setting: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error) as caught, YOLOv5(two_boxes, **setting) as model:
        model(np.zeros((64, 64, 3), np.uint8))
    value = next(iter(setting.values()))
    assert str(value) in str(caught.value) or next(iter(setting)) in str(caught.value)


def test_a_setting_does_not_change_afterwards(two_boxes: Path) -> None:
    with YOLOv5(two_boxes) as detector:
        for name, value, way in (
            ("conf", 0.9, "give conf=0.9 to a call"),
            ("names", ("a",), "another one with names="),
        ):
            with pytest.raises(AttributeError, match=f"{name} is a setting of this YOLOv5.*{way}"):
                setattr(detector, name, value)
        assert detector.conf == detector.settings.conf != 0.9
        detector.note = "one of the user's own"  # type: ignore[attr-defined]


def test_a_setting_whose_type_msgspec_does_not_support(two_boxes: Path) -> None:
    class Own(YOLOv5):
        colour: bytes | object = b""

    with pytest.raises(errors.ConfigError, match=r"^Own.colour: .*`bytes \| object` is not supported.*UNCHECKED"):
        Own(two_boxes)


def test_wrong_head_is_refused(tmp_path: Path, two_boxes: Path) -> None:
    channel_first = constant_model(tmp_path / "v8.onnx", np.zeros((6, 12)))
    with pytest.raises(errors.UnsupportedModelError, match="channel-first, as YOLOv8 writes it"):
        YOLOv5(channel_first)
    with pytest.raises(errors.UnsupportedModelError, match="anchor-first, as YOLOv5 writes it"):
        YOLOv8(two_boxes)
    with pytest.raises(errors.UnsupportedModelError, match="grids"):
        YOLOX(two_boxes)(np.zeros((64, 64, 3), np.uint8))
    assert isinstance(load(channel_first), YOLOv8)
    assert isinstance(load(two_boxes), YOLOv5)


def test_wrong_head_is_refused_where_the_model_leaves_its_shape_open(tmp_path: Path, two_boxes: Path) -> None:
    image = np.zeros((64, 64, 3), np.uint8)
    anchor_first = constant_model(tmp_path / "v5.onnx", np.zeros((252, 7)), declared=("boxes", "values"))
    channel_first = constant_model(tmp_path / "v8.onnx", np.zeros((6, 84)), declared=("values", "boxes"))
    with (
        YOLOv8(anchor_first) as model,
        pytest.raises(errors.UnsupportedModelError, match="anchor-first, as YOLOv5 writes it"),
    ):
        model(image)
    with (
        YOLOv5(channel_first) as model,
        pytest.raises(errors.UnsupportedModelError, match="channel-first, as YOLOv8 writes it"),
    ):
        model(image)
    named = constant_model(tmp_path / "v8-boxes.onnx", np.zeros((6, 84)), declared=(6, "boxes"))
    assert isinstance(load(named), YOLOv8)  # as Ultralytics exports it with dynamic=True
    assert isinstance(load(constant_model(tmp_path / "v5-boxes.onnx", np.zeros((252, 7)), declared=("n", 7))), YOLOv5)


def test_a_single_class_is_not_taken_for_nms(tmp_path: Path) -> None:
    """Its boxes have six values: as many as those of a model with NMS built in."""
    output = np.zeros((252, 6), np.float32)  # three boxes for each cell of 8 x 8, 4 x 4 and 2 x 2
    output[3] = [32, 32, 32, 16, 0.9, 0.8]
    for declared in (None, ("boxes", "values")):
        with YOLOv5(constant_model(tmp_path / "one.onnx", output, declared=declared, metadata={})) as model:
            found = model(np.zeros((64, 64, 3), np.uint8))
        assert found.class_ids.tolist() == [0]
        assert found.scores == pytest.approx([0.72])
    with pytest.raises(errors.UnsupportedModelError, match="NMS"):
        YOLOv5(constant_model(tmp_path / "nms.onnx", np.zeros((300, 6))))
    unsaid = constant_model(tmp_path / "nms.onnx", np.zeros((300, 6)), declared=("boxes", "values"))
    with YOLOv5(unsaid) as model, pytest.raises(errors.UnsupportedModelError, match="NMS"):
        model(np.zeros((64, 64, 3), np.uint8))


def test_a_yolox_is_not_taken_for_a_yolov5(tmp_path: Path) -> None:
    one_a_cell = constant_model(tmp_path / "x.onnx", np.zeros((84, 7)))
    with pytest.raises(errors.UnsupportedModelError, match=r'84 boxes.*type="yolov5" or type="yolox"'):
        load(one_a_cell)
    assert isinstance(load(one_a_cell, type="yolox", legacy=False), YOLOX)
    assert isinstance(load(one_a_cell, type="yolov5"), YOLOv5)


def test_the_way_of_preprocessing_is_the_wrapper_s(two_boxes: Path) -> None:
    with load(two_boxes, preprocess="host") as model:
        assert len(model(IMAGE)) == 2
    with pytest.raises(errors.ConfigError, match="preprocess"):
        load(two_boxes, preprocess="elsewhere")


def test_network_inputs_are_of_the_images_alone(two_boxes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with YOLOv5(two_boxes) as model:
        want = [next(iter(one.values())) for one in model.details.network_inputs([IMAGE] * 3, batch=2)]
        monkeypatch.setattr(model.network, "scheduling", Scheduling(bucket_batch=lambda n: n + 3))
        found = [next(iter(one.values())) for one in model.details.network_inputs([IMAGE] * 3, batch=2)]
        assert [array.shape[0] for array in found] == [2, 1]
        for array, expected in zip(found, want, strict=True):
            np.testing.assert_array_equal(array, expected)


def test_an_unknown_argument(two_boxes: Path) -> None:
    for name, message in (
        ("confidence", r"^YOLOv5 has no setting 'confidence'; did you mean 'conf'\?$"),
        ("treads", r"^YOLOv5 has no setting 'treads'; did you mean 'threads'\?$"),
        ("frobnicate", "YOLOv5 has no setting 'frobnicate'; its settings are .*conf.*iou.*'onnxruntime' are .*threads"),
    ):
        with pytest.raises(errors.ConfigError, match=message):
            YOLOv5(two_boxes, **{name: 2})
    with YOLOv5(two_boxes) as model:
        with pytest.raises(errors.ConfigError, match=r"'confidence' cannot be given.*; did you mean 'conf'\?$"):
            model(np.zeros((64, 64, 3), np.uint8), confidence=0.3)
        with pytest.raises(errors.ConfigError, match="YOLOv5 has no setting 'threads'"):
            YOLOv5(model.network, threads=2)


def test_more_names_than_classes_are_refused_where_the_model_leaves_its_shape_open(tmp_path: Path) -> None:
    unsaid = constant_model(tmp_path / "open.onnx", np.zeros((252, 7), np.float32), declared=("n", "v"))
    with (
        YOLOv5(unsaid, names=["a", "b", "c"]) as model,
        pytest.raises(errors.UnsupportedModelError, match="2 classes.* 3 names"),
    ):
        model(np.zeros((64, 64, 3), np.uint8))


def test_bad_images_are_typed_and_leave_the_model_usable(two_boxes: Path, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8)).save(buffer, "JPEG")
    truncated = buffer.getvalue()[:-300]
    (tmp_path / "text.jpg").write_text("no image")
    with YOLOv5(two_boxes) as model:
        for bad, words in [
            (tmp_path / "missing.jpg", "missing.jpg"),
            (tmp_path / "text.jpg", "text.jpg"),
            (truncated, "truncated"),
            (b"", "0 bytes"),
            (np.zeros((4, 4, 3), np.float32), "float32"),
            (np.zeros((4, 4, 2), np.uint8), r"\(4, 4, 2\)"),
            (np.zeros((0, 4, 3), np.uint8), r"\(0, 4, 3\)"),
            (5, "int"),
        ]:
            with pytest.raises(errors.ImageError, match=words):
                model(bad)  # type: ignore[call-overload]
        assert len(model(np.zeros((64, 64, 3), np.uint8))) == 2
    with pytest.raises(errors.ClosedError):
        model(np.zeros((64, 64, 3), np.uint8))


# ---- real models ----


@pytest.mark.assets
def test_bus(assets: Path) -> None:
    names = assets / "models" / "coco80.txt"
    with YOLOv5(assets / "models" / "yolov5n.onnx", names=names) as model:
        found = model(assets / "images" / "bus.jpg")
        assert sorted(found.labels) == ["bus", *["person"] * 4]
        alone = [model(p) for p in sorted((assets / "coco" / "val").glob("*.jpg"))[:3]]
        together = model(sorted((assets / "coco" / "val").glob("*.jpg"))[:3])
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a.class_ids, b.class_ids)
        np.testing.assert_allclose(a.xyxy, b.xyxy, atol=0.05)


@pytest.mark.assets
def test_yolov8_and_yolox(assets: Path) -> None:
    with load(assets / "models" / "yolov8n.onnx") as model:
        assert isinstance(model, YOLOv8)
        assert model.class_names[:2] == ("person", "bicycle")  # out of the model's own metadata
        assert sorted(model(assets / "images" / "bus.jpg").labels).count("person") == 4
    with YOLOX(assets / "models" / "yolox_nano.onnx", names=assets / "models" / "coco80.txt", legacy=True) as model:
        labels = model(assets / "images" / "bus.jpg").labels
        assert labels[0] == "bus"
        assert labels.count("person") == 3
