"""Runs of one model side by side on the cores of a processor."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squares import LONG

import infersdk
from infersdk import Pipeline, errors
from infersdk.data import DETECTOR
from infersdk.image import HostImage
from infersdk.models import YOLOv5

models = pytest.importorskip("onnx_models")

CORES = 2


@pytest.fixture(params=["onnxruntime", "openvino"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On two cores, however many there are."""
    pytest.importorskip(request.param)
    monkeypatch.setattr(f"infersdk.backends.{request.param}.available_processors", lambda: CORES)
    return str(request.param)


def weighted(path: Path, seed: int = 5, outputs: str = "batch") -> Path:
    """y = x @ w, z = the sum of each row of y."""
    w = np.random.default_rng(seed).normal(size=(16, 8)).astype(np.float32)
    return models.save(
        path,
        [models.node("MatMul", "x w", "y"), models.node("ReduceSum", "y axes", "z", keepdims=1)],
        [models.value("x", ("batch", 16))],
        [models.value("y", ("batch", 8)), models.value("z", (outputs, None if outputs == "n" else 1))],
        {"w": w, "axes": np.array([1], np.int64)},
    )


def load(path: Path, backend: str, **options: Any) -> Any:
    infer = infersdk.load(path, backend, **options)
    if not options and not infer.scheduling.one_core_clones:
        infer.close()
        pytest.skip("the machine has one core")
    return infer


@pytest.mark.parametrize("outputs", ["batch", "n"])
def test_a_clone_on_one_core_gives_the_same(tmp_path: Path, backend: str, outputs: str) -> None:
    rng = np.random.default_rng(0)
    with load(weighted(tmp_path / "m.onnx", outputs=outputs), backend) as infer:
        assert infer.scheduling.one_core_clones == CORES
        clones = [infer.clone(one_core=True) for _ in range(3)]

        def work(clone: Any) -> None:
            for x in inputs:
                for name, array in clone(x).items():
                    np.testing.assert_allclose(array, expected[len(x)][name], rtol=1e-5, atol=1e-5)

        inputs = [rng.normal(size=(batch, 16)).astype(np.float32) for batch in (3, 1, 8)]
        expected = {len(x): infer(x) for x in inputs}
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(work, clones))
        assert all(clone.scheduling.one_core_clones == 0 for clone in clones)
        for clone in clones:
            clone.close()
        with infer.clone(one_core=True) as again:
            work(again)


def test_threads_of_the_user_are_kept(tmp_path: Path, backend: str) -> None:
    path = weighted(tmp_path / "m.onnx")
    fixed = models.double(tmp_path / "fixed.onnx", (4, 4))
    for file, options in ((path, {"threads": 2}), (path, {"profiling": True}), (fixed, {})):
        with infersdk.load(file, backend, **options) as infer:
            assert infer.scheduling.one_core_clones == 0
    with infersdk.load(path, backend, threads=2) as infer, Pipeline(infer) as pipeline:
        assert pipeline.submit(np.ones(16, np.float32)).result(LONG)["y"].shape == (8,)


def test_requests_of_arrays(tmp_path: Path, backend: str) -> None:
    rows = np.random.default_rng(1).normal(size=(40, 16)).astype(np.float32)
    with load(weighted(tmp_path / "m.onnx"), backend) as infer, Pipeline(infer) as pipeline:
        pipeline.warm_up()
        expected = infer(rows)["y"]
        for result, y in zip(pipeline.map(rows), expected, strict=True):
            np.testing.assert_allclose(result["y"], y, rtol=1e-5, atol=1e-5)


def test_an_error_of_one_image_ends_the_list(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    image = HostImage(np.zeros((64, 64, 3), np.uint8), "bgr")
    with YOLOv5(DETECTOR, backend) as model:
        if not model.network.scheduling.one_core_clones:
            pytest.skip("the machine has one core")
        forward, runs = type(model.network).forward, list[None]()

        def failing(network: Any) -> Any:
            runs.append(None)
            if len(runs) == 3:
                raise errors.InferenceError("the third run")
            return forward(network)

        expected = model(image)
        monkeypatch.setattr(type(model.network), "forward", failing)
        with pytest.raises(errors.InferenceError, match="the third run"):
            model([image] * 8)
        for result in model([image] * 8):
            np.testing.assert_array_equal(result.data, expected.data)


def test_another_file_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("infersdk.backends.onnxruntime.available_processors", lambda: CORES)
    path = weighted(tmp_path / "m.onnx")
    with infersdk.load(path, "onnxruntime") as infer:
        weighted(path, seed=6)
        with pytest.raises(errors.UnsupportedModelError, match="has changed since it was loaded; load it again"):
            infer.clone(one_core=True)
