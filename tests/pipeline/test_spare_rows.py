"""Rows of a batch without a request: the results of other rows do not depend on earlier requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
import pytest
from onnx_models import node, value

import infersdk
from infersdk import Pipeline, models

pytest.importorskip("onnxruntime")

BATCH, SIDE = 4, 8
DARK, BRIGHT = (np.full((SIDE, SIDE, 3), shade, np.uint8) for shade in (3, 255))
DARK[0, 0] = 2


@pytest.fixture
def quantised(tmp_path: Path) -> Path:
    """A network of a fixed batch that is quantised at run time: one scale for all rows."""
    shape = [BATCH, 3, SIDE, SIDE]
    nodes = [
        node("DynamicQuantizeLinear", "images", "bytes scale zero"),
        node("DequantizeLinear", "bytes scale zero", "again"),
        node("Flatten", "again", "vectors", axis=1),
    ]
    outputs = [value("vectors", [BATCH, 3 * SIDE * SIDE], "float32")]
    return onnx_models.save(tmp_path / "q.onnx", nodes, [value("images", shape, "float32")], outputs, opset=13)


def test_requests_of_tensors(quantised: Path) -> None:
    dark, bright = (np.full((3, SIDE, SIDE), value, np.float32) for value in (0.01, 1.0))
    dark[0, 0, 0] = 0.007
    with infersdk.load(quantised, threads=1) as infer:
        alone = np.zeros((BATCH, *dark.shape), np.float32)
        alone[0] = dark
        expected = infer(alone)["vectors"][0]
        mixed = infer(np.stack([dark, bright, bright, bright]))["vectors"][0]
        assert not np.array_equal(mixed, expected)  # so the rows share a scale
        with Pipeline(infer, instances=1, max_delay=1) as pipeline:
            for future in pipeline.submit_many([bright] * 2 * pipeline.slots):  # all rows of all buffers
                future.result(30)
            for _ in range(pipeline.slots):
                np.testing.assert_array_equal(pipeline.submit(dark).result(30)["vectors"], expected)


@pytest.mark.parametrize("requests", ["call", "list", "stream", "map"])
def test_images(quantised: Path, requests: str) -> None:
    def results(model: Any, images: list[Any]) -> list[Any]:
        if requests == "call":
            return [model(image) for image in images]
        return list(model(images) if requests == "list" else getattr(model, requests)(images))

    with models.Embedder(quantised, threads=1) as model:
        expected = np.asarray(model(DARK).vector)
        assert len(np.unique(expected.round(6))) > 1
    with models.Embedder(quantised, threads=1) as model:
        model.configure_pipeline(instances=1, max_delay=0.2)
        results(model, [BRIGHT] * 8 * BATCH)
        for _ in range(2 * BATCH):
            (found,) = results(model, [DARK])
            np.testing.assert_array_equal(np.asarray(found.vector), expected)
