"""Detectors with queries: against the formulas in NumPy, and, where it is installed, against transformers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from head_models import head_model

from infersdk import models
from infersdk.errors import ConfigError, UnsupportedModelError
from infersdk.image import Geometry
from infersdk.models import DETR, RFDETR, RTDETR, Detections, RFDETRSeg, load
from infersdk.ops import resize_map

pytest.importorskip("onnxruntime")

IMAGE = np.zeros((100, 200, 3), np.uint8)
KINDS = {"detr": DETR, "rt-detr": RTDETR, "rf-detr": RFDETR}
NAMES = ("logits", "pred_boxes")


def raw(
    rng: np.random.Generator, rows: int, classes: int, batch: int = 1, last: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Logits [batch, rows, classes], with `last` added to the last class of every other row, and boxes [batch, rows, 4]
    that lie in the image.
    """
    boxes = rng.uniform(0.1, 0.9, (batch, rows, 4))
    boxes[..., 2:] = rng.uniform(0.02, 0.2, (batch, rows, 2))
    logits = rng.normal(-1, 2, (batch, rows, classes))
    logits[:, ::2, -1] += last
    return logits.astype(np.float32), boxes.astype(np.float32)


def reference(logits: np.ndarray, boxes: np.ndarray, conf: float, size: tuple[int, int], *, softmax: bool) -> Any:
    """Scores, classes and edges of one image, best first, in float64 and without a shortcut."""
    pairs = []
    for row, values in zip(logits.astype(np.float64), boxes.astype(np.float64), strict=True):
        if softmax:
            probabilities = np.exp(row) / np.exp(row).sum()
            best = int(np.argmax(probabilities[:-1]))
            scored = [(probabilities[best], best)]
        else:
            scored = [(1 / (1 + np.exp(-value)), i) for i, value in enumerate(row)]
        x, y, w, h = values * np.tile(size, 2)
        pairs += [(score, i, (x - w / 2, y - h / 2, x + w / 2, y + h / 2)) for score, i in scored]
    pairs = sorted(pairs, key=lambda pair: -pair[0])[: len(logits)]
    return [pair for pair in pairs if pair[0] > conf]


def check(found: Detections, expected: Any) -> None:
    assert len(found) == len(expected) > 0
    np.testing.assert_allclose(found.scores, [pair[0] for pair in expected], rtol=1e-5)
    assert found.class_ids.tolist() == [pair[1] for pair in expected]
    np.testing.assert_allclose(found.xyxy, [pair[2] for pair in expected], atol=1e-3)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_boxes_equal_the_formulas(tmp_path: Path, rng: np.random.Generator, name: str, backend: str) -> None:
    pytest.importorskip(backend)
    logits, boxes = raw(rng, 50, 7, last=6 if name == "detr" else 0)
    logits[0, [1, 3, 5], [2, 2, 4]] = [9.0, 8.0, 10.0]  # at least three boxes are above each threshold
    path = head_model(tmp_path / "m.onnx", [logits[0], boxes[0]], {}, names=NAMES)
    expected = reference(logits[0], boxes[0], 0.5, (200, 100), softmax=name == "detr")
    with load(path, backend=backend, type=name, max_batch=4) as model:
        assert type(model) is KINDS[name]
        assert model.details.class_count == (6 if name == "detr" else 7)
        for found in (model(IMAGE), model.submit(IMAGE).result(30), *model.map([IMAGE] * 5), *model.stream([IMAGE])):
            check(found, expected)
        more = reference(logits[0], boxes[0], 0.3, (200, 100), softmax=name == "detr")
        check(model(IMAGE, conf=0.3), more)
        limited = model(IMAGE, max_det=2)
        check(limited, expected[:2])
        assert limited.stats.dropped_detections == limited.stats.candidates - 2
        sure = reference(logits[0], boxes[0], 0.85, (200, 100), softmax=name == "detr")
        wanted = sure[0][1]
        assert len(sure) < 50
        check(model(IMAGE, classes=wanted, conf=0.85), [pair for pair in sure if pair[1] == wanted])
        with pytest.raises(ConfigError, match="no class number 99"):
            model(IMAGE, classes=99)
    table = {"type": name, "path": str(path), "backend": backend, "conf": 0.3}
    with models.create({"models": {"detector": table}})["detector"] as model:
        check(model(IMAGE), more)


def test_boxes_and_scores_in_one_output(tmp_path: Path) -> None:
    rows = np.full((300, 7), 0.01, np.float32)
    rows[:, :4] = (0.5, 0.5, 0.1, 0.1)
    rows[7], rows[3] = (0.25, 0.5, 0.1, 0.4, 0.1, 0.6, 0.7), (0.75, 0.5, 0.2, 0.2, 0.1, 0.9, 0.8)
    path = head_model(tmp_path / "m.onnx", [rows], {"task": "detect", "names": "['a', 'b', 'c']"})
    with load(path) as model:
        found = model(IMAGE)
        assert found.labels == ["b", "c"]
        np.testing.assert_allclose(found.scores, [0.9, 0.7])
        np.testing.assert_allclose(found.xyxy, [[130, 40, 170, 60], [40, 30, 60, 70]], atol=1e-3)
        found = model(IMAGE, classes="c")
        assert found.labels == ["c", "c"]
        np.testing.assert_allclose(found.scores, [0.8, 0.7])
    rows[:, :4] *= 64
    path = head_model(tmp_path / "m.onnx", [rows], {"task": "detect", "names": "['a', 'b', 'c']"})
    with load(path) as model, pytest.raises(UnsupportedModelError, match="fractions of the input lie"):
        model(IMAGE)


def test_each_query_takes_its_best_class_of_those_that_count(tmp_path: Path) -> None:
    logits = np.full((10, 4), -5, np.float32)  # the last class is "no object"
    logits[:, 3] = 5
    logits[0] = np.log([0.45, 0.35, 0.05, 0.15])
    boxes = np.full((10, 4), 0.25, np.float32)
    boxes[:, 0] = np.linspace(0.2, 0.8, 10)
    names = ["dog", "cat", "cow"]
    with DETR(head_model(tmp_path / "d.onnx", [logits, boxes], {}, names=NAMES), names=names, conf=0.3) as model:
        assert model(IMAGE).labels == ["dog"]
        (cat,) = model(IMAGE, classes=["cow", "cat"])
        assert (cat.label, cat.score) == ("cat", pytest.approx(0.35))
        assert len(model(IMAGE, classes="cow")) == 0


def test_extreme_logits(tmp_path: Path) -> None:
    logits = np.full((60, 3), -500, np.float32)
    logits[3, 1] = 500
    boxes = np.full((60, 4), 0.5, np.float32)
    for kind, last in ((RTDETR, -500), (DETR, -400)):
        logits[:, 2] = last
        with kind(head_model(tmp_path / "m.onnx", [logits, boxes], {}, names=NAMES)) as model:
            (box,) = model(IMAGE)
            assert (box.score, box.class_id) == (1.0, 1)


@pytest.mark.parametrize(
    ("classes", "metadata", "outputs", "kind"),
    [
        (3, {"names": "{0: 'cat', 1: 'dog'}"}, NAMES, DETR),
        (2, {"names": "{0: 'cat', 1: 'dog'}"}, ("labels", "dets"), RFDETR),
        (3, {}, ("labels", "dets"), RFDETR),
        (3, {"model_type": "detr"}, NAMES, DETR),
        (3, {"model_type": "rt_detr"}, NAMES, RTDETR),
        (3, {"model_type": "rt_detr_v2"}, NAMES, RTDETR),
        (3, {"model_type": "d_fine"}, NAMES, RTDETR),
        (3, {"model_type": "rf_detr"}, NAMES, RFDETR),
        (3, {"model_type": "deformable_detr"}, NAMES, RFDETR),
    ],
)
def test_metadata_first_then_shapes(
    tmp_path: Path, classes: int, metadata: dict[str, str], outputs: tuple[str, str], kind: type
) -> None:
    values = [array[0] for array in raw(np.random.default_rng(1), 100, classes, last=6 if kind is DETR else 0)]
    path = head_model(tmp_path / "m.onnx", values, metadata, names=outputs)
    with load(path) as model:
        assert type(model) is kind
        assert isinstance(model(IMAGE), Detections)
    # The order of the outputs does not matter.
    with load(head_model(tmp_path / "n.onnx", values[::-1], metadata, names=outputs[::-1])) as model:
        assert type(model) is kind
        assert isinstance(model(IMAGE), Detections)


def test_both_readings_are_named(tmp_path: Path) -> None:
    values = [array[0] for array in raw(np.random.default_rng(1), 100, 3, last=6)]
    path = head_model(tmp_path / "m.onnx", values, {})
    with pytest.raises(UnsupportedModelError, match='type="detr" or type="rt-detr" or type="rf-detr"'):
        load(path)
    names = {"names": "{0: 'a', 1: 'b', 2: 'c'}"}
    with pytest.raises(UnsupportedModelError, match='Name it: type="rt-detr" or type="rf-detr"'):
        load(head_model(tmp_path / "n.onnx", values, names))
    with pytest.raises(UnsupportedModelError, match='Name it: type="rt-detr" or type="rf-detr"$'):
        load(path, names=["a", "b", "c"])
    with load(path, names=["a", "b"]) as model:
        assert type(model) is DETR
    with pytest.raises(UnsupportedModelError, match="3 classes, but names has 4 names"):
        load(path, names=list("abcd"))
    four = [np.zeros((100, 4), np.float32)] * 2  # which of them are the boxes?
    with pytest.raises(UnsupportedModelError, match="no two outputs of queries"):
        RTDETR(head_model(tmp_path / "four.onnx", four, {}))
    with RTDETR(head_model(tmp_path / "named.onnx", four, {}, names=NAMES)) as model:
        assert model.details.class_count == 4


def test_other_files_are_refused(tmp_path: Path) -> None:
    logits, boxes = (array[0] for array in raw(np.random.default_rng(1), 100, 3))
    with pytest.raises(UnsupportedModelError, match="maps as well"):
        RFDETR(head_model(tmp_path / "m.onnx", [logits, boxes, np.zeros((100, 8, 8), np.float32)], {}))
    with pytest.raises(UnsupportedModelError, match=r"3 classes, but.* has 2 names"):
        RTDETR(head_model(tmp_path / "n.onnx", [logits, boxes], {}), names=["a", "b"])
    pixels = head_model(tmp_path / "p.onnx", [logits, boxes + 320], {})
    with RTDETR(pixels) as model, pytest.raises(UnsupportedModelError, match=r"from 320[.0-9]* to 320\.[0-9]"):
        model(IMAGE)
    boxes[:10] = [0.5, 0.5, 1.4, 1.2]  # larger than the image: RF-DETR has such boxes, the others have not
    large = head_model(tmp_path / "l.onnx", [logits, boxes], {})
    with RFDETR(large) as model:
        assert isinstance(model(IMAGE), Detections)
    with RTDETR(large) as model, pytest.raises(UnsupportedModelError, match=r"to 1\.4"):
        model(IMAGE)
    with RFDETR(pixels) as model, pytest.raises(UnsupportedModelError, match=r"from 320[.0-9]* to 320\.[0-9]"):
        model(IMAGE)
    with pytest.raises(UnsupportedModelError, match="has no classes"):
        DETR(head_model(tmp_path / "one.onnx", [logits[:, :1], boxes], {}))
    with pytest.raises(ConfigError, match="preset"):
        RTDETR(pixels, preset="caffe")


@pytest.mark.parametrize(
    ("kind", "preset", "value"), [(DETR, None, 1.99204), (RTDETR, None, 0.94118), (RTDETR, "imagenet", 1.99204)]
)
def test_pixels(tmp_path: Path, kind: Any, preset: Any, value: float) -> None:
    path = head_model(tmp_path / "m.onnx", [np.zeros((100, 3), np.float32), np.zeros((100, 4), np.float32)], {})
    with kind(path, preset=preset) as model:
        (inputs,) = model.details.network_inputs([np.full((10, 20, 3), 240, np.uint8)])
        array = inputs["images"]
        assert array.shape == (1, 3, 64, 64)
        np.testing.assert_allclose(array[0, 0], value, atol=1e-4)  # red: (240 / 255 - 0.485) / 0.229


def transformers_processor(name: str) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    processors = {"detr": "DetrImageProcessor", "rt-detr": "RTDetrImageProcessor", "rf-detr": "RfDetrImageProcessor"}
    kind = getattr(transformers, processors[name], None)
    if kind is None:
        pytest.skip(f"transformers {transformers.__version__} has no {processors[name]}")
    try:
        return kind()
    except ImportError as error:  # it wants torchvision, perhaps
        pytest.skip(str(error).strip().splitlines()[0])


@pytest.mark.parametrize("name", KINDS)
def test_equals_transformers_on_the_same_outputs(tmp_path: Path, rng: np.random.Generator, name: str) -> None:
    processor = transformers_processor(name)
    import torch

    path = head_model(tmp_path / "m.onnx", [array[0] for array in raw(rng, 50, 7)], {}, names=NAMES)
    with KINDS[name](path, conf=0.4) as model:
        for batch in range(1, 9):
            logits, boxes = raw(rng, 50, 7, batch)
            sizes = [tuple(map(int, rng.integers(50, 900, 2))) for _ in range(batch)]
            geometries = [Geometry.stretch(size, model.input_size) for size in sizes]
            ours = model.postprocess({"logits": logits, "pred_boxes": boxes}, geometries)
            outputs = SimpleNamespace(logits=torch.from_numpy(logits), pred_boxes=torch.from_numpy(boxes))
            theirs = processor.post_process_object_detection(
                outputs, threshold=0.4, target_sizes=[(height, width) for width, height in sizes]
            )
            assert len(ours) == len(theirs) == batch
            for found, one in zip(ours, theirs, strict=True):
                order = np.argsort(-one["scores"].numpy(), kind="stable")
                width, height = found.size
                edges = np.clip(one["boxes"].numpy()[order], 0, [width, height, width, height])
                assert len(found) == len(order) > 0
                np.testing.assert_allclose(found.scores, one["scores"].numpy()[order], rtol=1e-5)
                np.testing.assert_array_equal(found.class_ids, one["labels"].numpy()[order])
                np.testing.assert_allclose(found.xyxy, edges, atol=2e-3)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_masks_of_rf_detr(tmp_path: Path, rng: np.random.Generator, backend: str) -> None:
    pytest.importorskip(backend)
    boxes = np.hstack([rng.uniform(0.2, 0.8, (50, 2)), rng.uniform(0.05, 0.3, (50, 2))]).astype(np.float32)
    logits = np.minimum(rng.normal(-4, 2, (50, 5)), 3)  # one alone has a score above 0.99
    masks = rng.normal(0, 3, (50, 16, 16)).astype(np.float32)
    masks[7] = -1  # a query without a pixel
    logits[7] = -6
    logits[7, 2] = 6
    path = head_model(tmp_path / "m.onnx", [boxes, logits, masks], {}, names=["dets", "labels", "masks"])
    with load(path, backend=backend, max_batch=4) as model:
        assert type(model) is RFDETRSeg
        for found in (model(IMAGE), model.submit(IMAGE).result(30), *model.map([IMAGE] * 5), *model.stream([IMAGE])):
            queries = np.argwhere(1 / (1 + np.exp(-logits)) > 0.5)
            scores = logits[queries[:, 0], queries[:, 1]]
            queries = queries[np.argsort(-scores, kind="stable")]
            assert found.class_ids.tolist() == queries[:, 1].tolist()
            planes = [resize_map(masks[query], Geometry.stretch((200, 100), (64, 64))) > 0 for query, _ in queries]
            assert np.array_equal(found.masks.numpy(), planes)
            assert found[0].class_id == 2
            assert found.masks[0].area == 0
        assert len(model(IMAGE, conf=0.99)) == 1


def test_masks_that_are_not_those_of_rf_detr_are_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    boxes = np.hstack([rng.uniform(0.2, 0.8, (50, 2)), rng.uniform(0.05, 0.3, (50, 2))])
    logits, masks = rng.normal(-4, 2, (50, 5)), rng.normal(0, 3, (50, 16, 16))
    path = head_model(tmp_path / "a.onnx", [logits, boxes, masks], {}, names=["logits", "pred_boxes", "pred_masks"])
    with pytest.raises(UnsupportedModelError, match=r'not called .labels. and .dets..*type="rf-detr-seg"'):
        load(path)
    names = ["dets", "labels", "masks"]
    path = head_model(tmp_path / "b.onnx", [boxes, logits, masks[:20]], {}, names=names)
    with pytest.raises(UnsupportedModelError, match="has 20 masks for 50 queries"):
        load(path, type="rf-detr-seg")
    path = head_model(tmp_path / "c.onnx", [boxes, logits, np.abs(masks) / 100], {}, names=names)
    with pytest.raises(UnsupportedModelError, match="as probabilities do"), load(path, type="rf-detr-seg") as model:
        model(IMAGE)
