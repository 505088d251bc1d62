"""Resizes that repeat each code, with the channels last."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import node, numbered, operators, run, save, value
from quantised_models import quantised

from infersdk import quant

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

_RESIZED = dataclasses.replace(quant.SCHEMES["onnxruntime"], repeats=False)
CHANNELS = 24


def upsampler(path: Path, shape: list[Any], factors: list[float], also: str = "", **attributes: Any) -> Path:
    """Two convolutions with a Resize between them; `also`: the value in front of it or behind it is an output."""
    rank = len(shape) - 2
    rng = np.random.default_rng(3)
    conv = {"kernel_shape": [3] * rank, "pads": [1] * 2 * rank}
    weights = {
        "w": rng.normal(size=(CHANNELS, 3, *[3] * rank)), "m": rng.normal(size=(CHANNELS, CHANNELS, *[3] * rank)) / 9,
        "v": rng.normal(size=(CHANNELS, CHANNELS, *[3] * rank)) / CHANNELS, "scales": np.asarray(factors),
    }  # fmt: skip
    given = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"} | attributes
    nodes = [
        node("Conv", "x w", "c", **conv), node("Relu", "c", "r"), node("Conv", "r m", "d", **conv),
        node("LeakyRelu", "d", "l"), onnx.helper.make_node("Resize", ["l", "", "scales"], ["s"], **given),
        node("Conv", "s v", "e", **conv), node("Relu", "e", "f"), node("Conv", "f v", "y", **conv),
    ]  # fmt: skip
    arrays = {name: array.astype(np.float32) for name, array in weights.items()}
    outputs = [value("y", None), *([value(also, None)] if also else [])]
    return save(path, numbered(nodes), [value("x", shape)], outputs, arrays)


@pytest.mark.parametrize("batch", [2, "n"])
@pytest.mark.parametrize(
    ("factors", "attributes"),
    [
        ([1, 1, 2, 2], {}), ([1, 1, 3, 2], {}),
        ([1, 1, 4, 3], {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_floor"}),
        ([1, 1, 2, 4], {"coordinate_transformation_mode": "pytorch_half_pixel", "nearest_mode": "round_prefer_ceil"}),
    ],
)  # fmt: skip
def test_codes_are_repeated(tmp_path: Path, batch: Any, factors: list[float], attributes: dict[str, Any]) -> None:
    model = upsampler(tmp_path / "m.onnx", [batch, 3, 6, 5], factors, **attributes)
    made, samples = quantised(model, "onnxruntime", (2, 3, 6, 5), "q.onnx")
    resized, _ = quantised(model, _RESIZED, (2, 3, 6, 5), "r.onnx")
    onnx.checker.check_model(onnx.load(str(made)), full_check=True)
    for feeds in samples:
        (y,) = run(made, feeds, optimized=tmp_path / "optimized.onnx")
        np.testing.assert_array_equal(y, run(resized, feeds)[0])
        np.testing.assert_allclose(y, run(model, feeds)[0], atol=0.1 * np.abs(y).max())
    kinds = operators(tmp_path / "optimized.onnx")
    assert (kinds["Resize"], kinds["Expand"], kinds["DequantizeLinear"]) == (0, 1, 1)  # that of the result is left
    # Between the first layer and the last one nothing is transposed.
    assert kinds["Transpose"] == 2
    assert (operators(resized)["Resize"], operators(resized)["Expand"]) == (1, 0)


@pytest.mark.parametrize(
    ("factors", "attributes"),
    [
        ([1, 1, 2, 2], {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}),
        ([1, 1, 2, 2], {"nearest_mode": "round_prefer_ceil"}), ([1, 1, 1.5, 2], {}), ([1, 1, 0.5, 0.5], {}),
        ([1, 1, 2, 2], {"coordinate_transformation_mode": "align_corners"}),
    ],
)  # fmt: skip
def test_other_resizes_stay(tmp_path: Path, factors: list[float], attributes: dict[str, Any]) -> None:
    model = upsampler(tmp_path / "m.onnx", [1, 3, 6, 6], factors, **attributes)
    made, samples = quantised(model, "onnxruntime", (1, 3, 6, 6), "q.onnx")
    kinds = operators(made)
    assert (kinds["Resize"], kinds["Expand"]) == (1, 0)
    resized, _ = quantised(model, _RESIZED, (1, 3, 6, 6), "r.onnx")
    np.testing.assert_array_equal(run(made, samples[0])[0], run(resized, samples[0])[0])


@pytest.mark.parametrize("also", ["l", "s"])
def test_a_value_that_is_an_output_is_given_as_before(tmp_path: Path, also: str) -> None:
    model = upsampler(tmp_path / "m.onnx", [1, 3, 6, 6], [1, 1, 2, 2], also)
    made, samples = quantised(model, "onnxruntime", (1, 3, 6, 6), "q.onnx")
    resized, _ = quantised(model, _RESIZED, (1, 3, 6, 6), "r.onnx")
    for first, second in zip(run(made, samples[0]), run(resized, samples[0]), strict=True):
        np.testing.assert_array_equal(first, second)


def test_other_targets_keep_their_resizes(tmp_path: Path) -> None:
    model = upsampler(tmp_path / "m.onnx", [1, 3, 6, 6], [1, 1, 2, 2])
    for target in ("portable", "openvino"):
        assert operators(quantised(model, target, (1, 3, 6, 6), "q.onnx")[0])["Resize"] == 1
