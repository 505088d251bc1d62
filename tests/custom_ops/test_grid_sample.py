"""GridSample3D closes a gap: OpenVINO samples images, and not volumes. The reference is ONNX Runtime's own operator."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import node, save, save_text, value

import infersdk
from infersdk.custom_ops.packaged.grid_sample import replace_grid_samples
from infersdk.errors import UnsupportedModelError
from infersdk.graph.files import read_model, write_model

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def volume_model(path: Path, **attributes: Any) -> Path:
    sample = node("GridSample", "a grid", "b", name="sample", **attributes)
    ends = [value("x", ("n", 2, 4, 6, 7)), value("grid", ("n", 3, 4, 5, 3))], [value("y", ("n", 2, 3, 4, 5))]
    return save(path, [node("Relu", "x", "a"), sample, node("Neg", "b", "y")], *ends, opset=20, ir_version=9)


def inputs(rng: np.random.Generator, batch: int) -> dict[str, Any]:
    x = rng.standard_normal((batch, 2, 4, 6, 7), dtype="float32")
    return {"x": x, "grid": (rng.random((batch, 3, 4, 5, 3), dtype="float32") * 3.2 - 1.6).astype("float32")}


def test_the_gap_is_there(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    with pytest.raises(UnsupportedModelError, match="GridSample"):
        infersdk.load(volume_model(tmp_path / "m.onnx"), "openvino")


@pytest.mark.parametrize(
    ("mode", "padding", "align"),
    list(itertools.product(["linear", "nearest"], ["zeros", "border", "reflection"], [0, 1])),
)
def test_it_is_closed(tmp_path: Path, mode: str, padding: str, align: int, rng: np.random.Generator) -> None:
    path = volume_model(tmp_path / "m.onnx", mode=mode, padding_mode=padding, align_corners=align)
    model = read_model(path)
    assert replace_grid_samples(model) == 1
    replaced = write_model(model, tmp_path / "replaced.onnx")
    for backend in ("openvino", "onnxruntime"):
        pytest.importorskip(backend)
        with infersdk.load(path, "onnxruntime") as plain, infersdk.load(replaced, backend) as infer:
            for batch in (2, 1):
                x = inputs(rng, batch)
                np.testing.assert_allclose(infer(x)["y"], plain(x)["y"], atol=1e-5)


def test_images_and_cubic_sampling_stay(tmp_path: Path) -> None:
    graph = "(float[n,2,6,7] x, float[n,4,5,2] grid) => (float[n,2,4,5] y) { y = GridSample(x, grid) }"
    image = save_text(tmp_path / "m.onnx", graph, opset=20, ir_version=9)
    assert replace_grid_samples(read_model(image)) == 0
    assert replace_grid_samples(read_model(volume_model(tmp_path / "c.onnx", mode="cubic"))) == 0


@pytest.mark.parametrize("dtype", ["float16", "double"])
def test_nodes_of_other_types_stay(tmp_path: Path, dtype: str) -> None:
    graph = f"({dtype}[1,2,4,6,7] x, {dtype}[1,3,4,5,3] grid) => ({dtype}[1,2,3,4,5] y) {{ y = GridSample(x, grid) }}"
    path = save_text(tmp_path / "m.onnx", graph, opset=20, ir_version=9)
    assert replace_grid_samples(read_model(path)) == 0
