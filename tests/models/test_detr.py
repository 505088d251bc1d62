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
from infersdk.models import DETR, RFDETR, RTDETR, Detections, load

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

IMAGE = np.zeros((100, 200, 3), np.uint8)
KINDS = {"detr": DETR, "rt-detr": RTDETR, "rf-detr": RFDETR}
NAMES = ("logits", "pred_boxes")


def raw(rng: np.random.Generator, rows: int, classes: int, batch: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Logits [batch, rows, classes] and boxes [batch, rows, 4] that lie in the image."""
    boxes = rng.uniform(0.1, 0.9, (batch, rows, 4))
    boxes[..., 2:] = rng.uniform(0.02, 0.2, (batch, rows, 2))
    return rng.normal(-1, 2, (batch, rows, classes)).astype(np.float32), boxes.astype(np.float32)


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
    logits, boxes = raw(rng, 50, 7)
    path = head_model(tmp_path / "m.onnx", [logits[0], boxes[0]], {}, names=NAMES)
    expected = reference(logits[0], boxes[0], 0.5, (200, 100), softmax=name == "detr")
    with load(path, backend=backend, type=name, max_batch=4) as model:
        assert type(model) is KINDS[name]
        assert model.class_count == (6 if name == "detr" else 7)
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
    values = [array[0] for array in raw(np.random.default_rng(1), 100, classes)]
    path = head_model(tmp_path / "m.onnx", values, metadata, names=outputs)
    with load(path) as model:
        assert type(model) is kind
        assert isinstance(model(IMAGE), Detections)
    # The order of the outputs does not matter.
    with load(head_model(tmp_path / "n.onnx", values[::-1], metadata, names=outputs[::-1])) as model:
        assert type(model) is kind
        assert isinstance(model(IMAGE), Detections)


def test_both_readings_are_named(tmp_path: Path) -> None:
    values = [array[0] for array in raw(np.random.default_rng(1), 100, 3)]
    path = head_model(tmp_path / "m.onnx", values, {})
    with pytest.raises(UnsupportedModelError, match='type="detr" or type="rt-detr" or type="rf-detr"'):
        load(path)
    names = {"names": "{0: 'a', 1: 'b', 2: 'c'}"}
    with pytest.raises(UnsupportedModelError, match='Name it: type="rt-detr" or type="rf-detr"'):
        load(head_model(tmp_path / "n.onnx", values, names))
    four = [np.zeros((100, 4), np.float32)] * 2  # which of them are the boxes?
    with pytest.raises(UnsupportedModelError, match="no two outputs of queries"):
        RTDETR(head_model(tmp_path / "four.onnx", four, {}))
    with RTDETR(head_model(tmp_path / "named.onnx", four, {}, names=NAMES)) as model:
        assert model.class_count == 4


def test_other_files_are_refused(tmp_path: Path) -> None:
    logits, boxes = (array[0] for array in raw(np.random.default_rng(1), 100, 3))
    with pytest.raises(UnsupportedModelError, match="maps as well"):
        RFDETR(head_model(tmp_path / "m.onnx", [logits, boxes, np.zeros((100, 8, 8), np.float32)], {}))
    with pytest.raises(UnsupportedModelError, match=r"3 classes apart.* has 2 names"):
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
        (inputs,) = model.network_inputs([np.full((10, 20, 3), 240, np.uint8)])
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
