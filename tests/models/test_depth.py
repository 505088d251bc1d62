"""Depth maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_models import head_model

from infersdk import models
from infersdk.errors import InputError, ShapeError, UnsupportedModelError
from infersdk.image import Geometry
from infersdk.models import DepthEstimation, DepthMap, load
from infersdk.ops import resize_map

pytest.importorskip("onnxruntime")

IMAGE = np.zeros((40, 80, 3), np.uint8)
VALUES = np.random.default_rng(0).uniform(1, 5, (64, 64)).astype(np.float32)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_depth_comes_back_to_the_image(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    path = head_model(tmp_path / "m.onnx", [VALUES], {"model_type": "depth_anything"}, names=["predicted_depth"])
    expected = resize_map(VALUES, Geometry.stretch((80, 40), (64, 64)), filter="bicubic")
    with load(path, backend=backend, max_batch=4) as model:
        assert type(model) is DepthEstimation
        for found in (model(IMAGE), model.submit(IMAGE).result(30), *model.map([IMAGE] * 5), *model.stream([IMAGE])):
            assert found.size == (80, 40)
            assert found.kind == "disparity"
            np.testing.assert_allclose(found.values, expected, atol=1e-5)
    table = {"type": "midas", "path": str(path), "backend": backend, "filter": "bilinear"}
    with models.create({"models": {"depth": table}})["depth"] as model:
        bilinear = resize_map(VALUES, Geometry.stretch((80, 40), (64, 64)))
        np.testing.assert_allclose(model(IMAGE).values, bilinear, atol=1e-5)


def test_the_metadata_of_ultralytics_says_all(tmp_path: Path) -> None:
    path = head_model(tmp_path / "m.onnx", [VALUES[None]], {"task": "depth", "author": "Ultralytics"})
    with load(path) as model:
        found = model(IMAGE)
    assert found.kind == "distance"
    expected = resize_map(VALUES, Geometry.letterbox((80, 40), (64, 64)), filter="bicubic")
    np.testing.assert_allclose(found.values, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "kind"),
    [("glpn", "distance"), ("zoedepth", "distance"), ("dpt", "disparity"), ("depth_anything", "disparity")],
)
def test_the_family_says_the_kind(tmp_path: Path, family: str, kind: str) -> None:
    path = head_model(tmp_path / "m.onnx", [VALUES], {"model_type": family})
    with load(path, preset="unit") as model:
        assert model(IMAGE).kind == kind
    with load(path, preset="unit", kind="disparity") as model:
        assert model(IMAGE).kind == "disparity"


def test_a_map_that_does_not_say_what_it_is_has_to_be_named(tmp_path: Path) -> None:
    path = head_model(tmp_path / "m.onnx", [VALUES[None]], {})
    with pytest.raises(UnsupportedModelError, match=r'nothing in the file says .* depth.*type="depth"'):
        load(path)
    with pytest.raises(UnsupportedModelError, match="nothing in the file says how it wants its pixels"):
        load(path, type="depth")
    with load(path, type="depth", preset="imagenet", kind="distance") as model:
        assert model(IMAGE).kind == "distance"


@pytest.mark.parametrize(
    ("outputs", "why"),
    [
        ([np.full((64, 64), 3.0)], "is 3 everywhere in its first run"),
        ([np.where(VALUES > 3, np.inf, VALUES)], "not finite in its first run"),
        ([VALUES, VALUES], "2 outputs, and DepthEstimation reads 1"),
        ([VALUES[:32]], "not one number for each point of its input"),
        ([np.ones((2, 64, 64))], "not one number for each point of its input"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, outputs: list[np.ndarray[Any, Any]], why: str) -> None:
    path = head_model(tmp_path / "m.onnx", outputs, {})
    with pytest.raises(UnsupportedModelError, match=why), load(path, type="depth", preset="unit") as model:
        model(IMAGE)


def test_all_forms_of_a_depth_map() -> None:
    values = np.array([[1, 2, 3], [4, np.nan, 5]], np.float32)
    found = DepthMap(values, "disparity").with_image(np.zeros((2, 3, 3), np.uint8))
    assert found.to_dicts() == [{"kind": "disparity", "minimum": 1.0, "maximum": 5.0, "mean": 3.0}]
    np.testing.assert_allclose(found.nearness, [[0, 0.25, 0.5], [0.75, 0, 1]])
    np.testing.assert_allclose(DepthMap(values, "distance").nearness, [[1, 0.75, 0.5], [0.25, 0, 0]])
    for least, most in ((0, 1e-44), (2e-23, 1e-20), (-3e38, 3e38)):
        np.testing.assert_allclose(DepthMap(np.array([[most, least]], np.float32), "distance").nearness, [[0, 1]])
    assert np.array_equal(found.to_tensors()["depth"], values, equal_nan=True)
    (spec,) = found.tensor_specs()
    assert (spec.name, spec.dtype, spec.shape) == ("depth", np.float32, (-1, -1))
    brightness = np.asarray(found.to_pil()).sum(axis=2)
    assert brightness[1, 2] > brightness[1, 0] > brightness[0, 2] > brightness[0, 0] == 0
    assert found.agreement(DepthMap(values * 3 + 1)).percent == pytest.approx(100), "scale and offset do not count"
    assert found.agreement(DepthMap(-values)).percent == 0
    assert "minimum 1" in found.summary()
    with pytest.raises(ShapeError, match=r"float64 of shape \(2, 3\); use float32"):
        DepthMap(values.astype(np.float64))
    with pytest.raises(ShapeError, match="values are a list; use an array of float32"):
        DepthMap(values.tolist())
    with pytest.raises(InputError, match="kind is 'x'; use 'disparity' or 'distance'"):
        DepthMap(values, "x")  # type: ignore[arg-type]
