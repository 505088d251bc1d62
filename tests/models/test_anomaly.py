"""Anomaly maps with a score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_models import head_model
from onnx_models import node, save, value

from infersdk.errors import InputError, ShapeError, UnsupportedModelError
from infersdk.image import Geometry
from infersdk.models import AnomalyDetection, AnomalyMap, load
from infersdk.ops import resize_map

pytest.importorskip("onnxruntime")

IMAGE = np.full((40, 80, 3), 255, np.uint8)


def anomalib(path: Path) -> Path:
    """As anomalib exports it: the map is the mean of the channels of the image, thresholds are 0.5."""
    nodes = [
        node("ReduceMean", "input", "anomaly_map", axes=[1], keepdims=1),
        node("ReduceMax", "anomaly_map", "pred_score", axes=[1, 2, 3], keepdims=0),
        node("Greater", "pred_score half", "pred_label"),
        node("Greater", "anomaly_map half", "pred_mask"),
    ]
    outputs = [
        value("pred_score", ("b",)),
        value("pred_label", ("b",), "bool"),
        value("anomaly_map", ("b", 1, 64, 64)),
        value("pred_mask", ("b", 1, 64, 64), "bool"),
    ]
    return save(path, nodes, [value("input", ("b", 3, 64, 64))], outputs, {"half": np.float32(0.5)})


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_anomalies_come_back_to_the_image(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    image = IMAGE.copy()
    image[:, :40] = 51
    with load(anomalib(tmp_path / "m.onnx"), backend=backend, max_batch=4) as model:
        assert type(model) is AnomalyDetection
        for found in (model(image), model.submit(image).result(30), *model.map([image] * 5), *model.stream([image])):
            assert found.size == (80, 40)
            assert found.score == pytest.approx(1.0, abs=1e-6)
            assert found.is_anomalous is True
            np.testing.assert_allclose(found.values[:, :38], 0.2, atol=1e-3)
            np.testing.assert_allclose(found.values[:, 42:], 1, atol=1e-3)
            assert not found.mask[:, :39].any()
            assert found.mask[:, 41:].all()
        normal = model(np.zeros_like(image))
        assert (normal.score, normal.is_anomalous, normal.mask.any()) == (0.0, False, False)


def test_an_export_without_thresholds_says_neither(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((1, 64, 64)).astype(np.float32)
    path = head_model(tmp_path / "m.onnx", [np.array([7.5]), values], {}, names=["pred_score", "anomaly_map"])
    with load(path) as model:
        found = model(IMAGE)
    assert (found.score, found.is_anomalous, found.pixels) == (7.5, None, None)
    np.testing.assert_allclose(found.values, resize_map(values[0], Geometry.stretch((80, 40), (64, 64))), atol=1e-6)
    with pytest.raises(InputError, match="no output of anomalous pixels"):
        _ = found.mask


@pytest.mark.parametrize(
    ("outputs", "why"),
    [
        ({"pred_score": np.zeros(1), "map": np.zeros((1, 64, 64))}, "no output 'anomaly_map'"),
        ({"anomaly_map": np.zeros((1, 64, 64))}, "no output 'pred_score'"),
        ({"pred_score": np.zeros(1), "anomaly_map": np.zeros((2, 64, 64))}, "not one map for each image"),
        (
            {"pred_score": np.full(1, np.nan), "anomaly_map": np.zeros((1, 64, 64))},
            "'pred_score' has values that are not",
        ),
    ],
)
def test_other_files_are_refused(tmp_path: Path, outputs: dict[str, np.ndarray[Any, Any]], why: str) -> None:
    path = head_model(tmp_path / "m.onnx", list(outputs.values()), {}, names=list(outputs))
    with pytest.raises(UnsupportedModelError, match=why), load(path, type="anomaly") as model:
        model(IMAGE)


@pytest.mark.parametrize(
    ("pixels", "words"),
    [
        (np.ones((2, 2), np.uint8), r"pixels are uint8 of shape \(2, 2\); use bool \(height, width\)"),
        (np.ones((2, 2, 1), np.bool_), r"pixels are bool of shape \(2, 2, 1\)"),
        (np.ones((2, 3), np.bool_), r"pixels have shape \(2, 3\), and values \(2, 2\)"),
    ],
)
def test_anomalous_pixels_are_bool_of_the_size_of_the_map(pixels: np.ndarray[Any, Any], words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        AnomalyMap(np.zeros((2, 2), np.float32), 0.5, True, pixels)
    with pytest.raises(ShapeError, match="values are float64"):
        AnomalyMap(np.zeros((2, 2)), 0.5)  # type: ignore[arg-type]


def test_all_forms_of_an_anomaly_map() -> None:
    values = np.array([[0, 0.25], [0.75, 1]], np.float32)
    image = np.full((2, 2, 3), 100, np.uint8)
    found = AnomalyMap(values, 0.9, True, values > 0.5).with_image(image)
    assert found.to_dicts() == [{"score": 0.9, "is_anomalous": True, "maximum": 1.0, "area": 0.5}]
    assert {name: array.shape for name, array in found.to_tensors().items()} == {
        "anomaly_score": (), "anomaly_map": (2, 2), "is_anomalous": (), "anomaly_mask": (2, 2),
    }  # fmt: skip
    drawn = np.asarray(found.draw())
    assert (drawn[0, 0] == 100).all(), "a pixel without anomalies stays as it is"
    assert (drawn[1] == 255).all(), "the outline"
    agreement = found.agreement(AnomalyMap(values, 0.7))
    assert (agreement.percent, agreement.score_shift) == (pytest.approx(100), pytest.approx(-0.2))
    assert "anomalous" in repr(found)
