"""Boxes with masks."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_models import head_model
from onnx_models import onnx, value

from infersdk.accuracy import Contender, SegmentTask
from infersdk.errors import ConfigError, UnsupportedModelError
from infersdk.models import (
    Detections,
    EndToEnd,
    EndToEndSeg,
    YOLOv5,
    YOLOv5Seg,
    YOLOv8,
    YOLOv8Pose,
    YOLOv8Seg,
    create,
    load,
)

pytest.importorskip("onnxruntime")

IMAGE = np.zeros((100, 200, 3), np.uint8)  # scale 0.32 onto 64 x 64: 16 rows of padding above
NAMES = {"names": "{0: 'cat', 1: 'dog'}"}
#: The column of the image at which the prototype changes its sign: the middle of its canvas.
MIDDLE = 100
#: By box: xyxy on the canvas, the score, the class, and its coefficients.
BOXES = (
    ((16, 24, 48, 40), 0.9, 1, (1, 0, 0)),
    ((0, 16, 64, 48), 0.8, 0, (0, 1, 0)),
    ((1, 20, 9, 40), 0.1, 0, (0, 1, 0)),
)


def prototypes() -> np.ndarray[Any, Any]:
    """A step from the left to the right half, one everywhere, and noise that no box uses."""
    maps = np.ones((3, 16, 16), np.float32) * 9
    maps[0, :, 8:] = -9
    maps[2] = np.random.default_rng(0).normal(0, 5, (16, 16))
    return maps


def head(family: str) -> np.ndarray[Any, Any]:
    """The boxes as the head of a family gives them."""
    rows = np.zeros((300 if family == "end-to-end" else 252, 10 if family == "yolov5" else 9), np.float32)
    for i, ((x1, y1, x2, y2), score, class_id, coefficients) in enumerate(BOXES):
        row = rows[7 * i + 3]
        if family == "end-to-end":
            row[:6] = x1, y1, x2, y2, score, class_id
        else:
            row[:4] = (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1
            row[-5 + class_id] = score
            if family == "yolov5":
                row[4] = 1
        row[-3:] = coefficients
    return rows[:84].T.copy() if family == "yolov8" else rows


KINDS = {"yolov5": YOLOv5Seg, "yolov8": YOLOv8Seg, "end-to-end": EndToEndSeg}


def model_file(folder: Path, family: str, **more: Any) -> Path:
    return head_model(folder / f"{family}.onnx", [head(family), prototypes()], NAMES, **more)


def check(found: Detections) -> None:
    dog, cat = found
    assert (dog.label, cat.label) == ("dog", "cat")
    np.testing.assert_allclose(dog.xyxy, (50, 25, 150, 75), atol=1e-3)
    masks = found.masks.numpy()
    assert masks.shape == (2, 100, 200)
    expected = np.zeros((100, 200), bool)
    expected[25:75, 50:MIDDLE] = True
    np.testing.assert_array_equal(masks[0], expected)
    assert masks[1].all()


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("family", KINDS)
def test_masks_follow_their_boxes(tmp_path: Path, family: str, backend: str) -> None:
    pytest.importorskip(backend)
    with load(model_file(tmp_path, family), backend=backend, max_batch=4) as model:
        assert type(model) is KINDS[family]
        check(model(IMAGE))
        for found in (
            model.submit(IMAGE).result(30), *model.map([IMAGE] * 5), *model.stream([IMAGE] * 5), *model([IMAGE] * 3),
            asyncio.run(model.infer(IMAGE)), pickle.loads(pickle.dumps(model(IMAGE))),
        ):  # fmt: skip
            check(found)
        check(model(IMAGE, conf=0.05)[[0, 1]])
        assert len(model(IMAGE, conf=0.05)) == 3
        assert len(model(IMAGE, conf=0.95).masks) == 0
        assert model(IMAGE, conf=0.95).masks.numpy().shape == (0, 100, 200)
        wide = model.submit(IMAGE, mask_threshold=0.0).result(30)
        assert wide.masks.areas.tolist() == [5000, 20000], "all of each box"
        with pytest.raises(ConfigError, match="mask_threshold"):
            model(IMAGE, mask_threshold=1)


def test_a_file_that_leaves_its_shapes_open(tmp_path: Path) -> None:
    with YOLOv8Seg(model_file(tmp_path, "yolov8", open_shapes=True)) as model:
        variant = model(IMAGE, conf=0.3)
        check(variant)
        check(model(IMAGE))
        assert model.details.class_count == 2
    with load(model_file(tmp_path, "yolov5", open_shapes=True)) as model:
        assert type(model) is YOLOv5Seg
    with load(model_file(tmp_path, "yolov8", open_shapes=True)) as model:
        check(model.details.run_once(IMAGE, {})[2]())


def test_masks_of_queries_are_no_prototypes(tmp_path: Path) -> None:
    """As MaskFormer gives them: classes and a map for each of 10 queries."""
    logits, maps = np.zeros((10, 6), np.float32), np.zeros((10, 16, 16), np.float32)
    names = ["class_queries_logits", "masks_queries_logits"]
    path = head_model(tmp_path / "m.onnx", [logits, maps], {}, names=names, open_shapes=True)
    proto = onnx.load(path)
    proto.graph.output[0].CopyFrom(value(names[0], ["batch", "queries", 6]))
    onnx.save(proto, path)
    with load(path) as model, pytest.raises(UnsupportedModelError, match="6 values, which leaves no classes"):
        model(IMAGE)


def test_from_a_configuration(tmp_path: Path) -> None:
    path = model_file(tmp_path, "yolov8")
    for name in ("yolov8-seg", "yolo11-seg"):
        (model,) = create({"models": {"m": {"type": name, "path": str(path), "mask_threshold": 0.5}}}).values()
        with model:
            check(model(IMAGE))


def test_what_is_not_instance_segmentation(tmp_path: Path) -> None:
    path = model_file(tmp_path, "yolov8")
    for kind in (YOLOv8, YOLOv5, YOLOv8Pose, EndToEnd, EndToEndSeg, YOLOv5Seg):
        with pytest.raises(UnsupportedModelError, match="an instance segmentation model"):
            kind(path)
    plain = head_model(tmp_path / "plain.onnx", [np.zeros((6, 84), np.float32)], NAMES)
    with pytest.raises(UnsupportedModelError, match=r"gives no mask prototypes.*looks like a YOLOv8"):
        YOLOv8Seg(plain)
    end = head_model(tmp_path / "end.onnx", [np.zeros((300, 10), np.float32), prototypes()], NAMES)
    with pytest.raises(UnsupportedModelError, match="10 values, not the 6 of a box, a score and a class and 3 more"):
        EndToEndSeg(end)
    with pytest.raises(UnsupportedModelError, match="gives mask prototypes"):
        EndToEnd(head_model(tmp_path / "six.onnx", [np.zeros((300, 6), np.float32), prototypes()], NAMES))
    few = head_model(tmp_path / "few.onnx", [np.zeros((7, 84), np.float32), prototypes()], {})
    with pytest.raises(UnsupportedModelError, match="no classes"):
        YOLOv8Seg(few)


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["yolov5", "yolov8"])
def test_masks_on_a_device_are_those_of_the_host(tmp_path: Path, family: str) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    path = model_file(tmp_path, family)
    large = np.zeros((3000, 6000, 3), np.uint8)  # its masks need more than a batch's first capacity
    with load(path, max_batch=4) as host, load(path, backend="tensorrt-rtx", max_batch=4) as device:
        for images in ([IMAGE] * 3, [IMAGE, large], [large] * 4, [large, IMAGE]):
            for ours, theirs in zip(device(images), host(images), strict=True):
                np.testing.assert_array_equal(ours.xyxy, theirs.xyxy)
                assert ours.to_json() == theirs.to_json()
        assert device(IMAGE, mask_threshold=0.0).masks.areas.tolist() == [5000, 20000]
        limits = [0.05 + 0.9 * i / 60 for i in range(60)]  # more variants than are kept, several in each batch
        futures = [device.submit(IMAGE, conf=conf) for conf in limits]
        for conf, future in zip(limits, futures, strict=True):
            assert future.result(60).to_json() == host(IMAGE, conf=conf).to_json()
        for found in device.map([IMAGE] * 9):
            check(found)


@pytest.mark.gpu
@pytest.mark.assets
def test_a_real_model_on_a_device(assets: Path) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    files = sorted((assets / "coco" / "val").glob("*.jpg"))[:12]
    path = assets / "models" / "yolov8n-seg.onnx"
    with load(path) as host, load(path, backend="tensorrt-rtx", precision="fp32", max_batch=4) as device:
        for ours, theirs in zip(device(files), host(files), strict=True):
            sure = ours[ours.scores > 0.3], theirs[theirs.scores > 0.3]
            assert [len(found) for found in sure] == [len(sure[1])] * 2
            for mine, other in zip(*(found.masks for found in sure), strict=True):
                assert (mine.numpy() != other.numpy()).sum() <= 0.02 * max(other.area, 100)


@pytest.mark.slow
@pytest.mark.assets
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_box_and_mask_map(assets: Path, backend: str) -> None:
    pytest.importorskip(backend)
    pytest.importorskip("pycocotools")
    task = SegmentTask(assets / "coco" / "instances_val.json", assets / "coco" / "val")
    figures = task.measure(Contender(assets / "models" / "yolov8n-seg.onnx", backend)).figures
    expected = {"mask_mAP": 0.248, "mask_mAP50": 0.411, "mAP": 0.319, "mAP50": 0.442}
    assert figures == pytest.approx(expected, abs=0.003)
