"""Clips before quantisers to 16 bits: the same numbers on OpenVINO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
import pytest
from onnx_models import node, save, value

import infersdk
from infersdk.errors import UnsupportedModelError
from infersdk.graph.passes import SaturatedQuantizers, prepared_model

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def graph(path: Path, zero: Any, scale: Any = 0.01, *, opset: int = 21, domain: str = "") -> Path:
    """x quantised and back."""
    nodes = [node("QuantizeLinear", "x s z", "q", domain=domain), node("DequantizeLinear", "q s z", "y", domain=domain)]
    weights = {"s": np.asarray(scale, np.float32), "z": zero}
    ends = [value("x", [2, 3])], [value("y", [2, 3])]
    return save(path, nodes, *ends, weights, opset=opset, domains={"com.microsoft": 1})


@pytest.mark.parametrize(("opset", "domain"), [(21, ""), (17, "com.microsoft")])
@pytest.mark.parametrize("zero", [np.int16(-32768), np.int16(7), np.uint16(0), np.uint16(65535)])
def test_openvino_clips(zero: Any, opset: int, domain: str, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    path = graph(tmp_path / "m.onnx", np.asarray(zero), opset=opset, domain=domain)
    content = prepared_model(path, [SaturatedQuantizers()])
    assert content is not None
    x = np.array([[-5, 5, 0.014], [-1000, 1000, -0.006]], np.float32)
    expected = onnx_models.run(path, x, optimized=False)[0]
    np.testing.assert_array_equal(onnx_models.run(content, x, optimized=False)[0], expected)
    with infersdk.load(path, "openvino") as infer:
        np.testing.assert_allclose(infer(x)["y"], expected, atol=0.0051)  # it does not round to codes, 0.01 apart


def test_8_bits_and_weights_stay(tmp_path: Path) -> None:
    path = graph(tmp_path / "m.onnx", np.uint8(3), opset=13)
    assert prepared_model(path, [SaturatedQuantizers()]) is None
    nodes = [node("QuantizeLinear", "w s z", "q"), node("DequantizeLinear", "q s z", "d"), node("MatMul", "x d", "y")]
    weights = {"w": np.eye(3, dtype=np.float32), "s": np.float32(0.01), "z": np.int16(0)}
    path = save(tmp_path / "w.onnx", nodes, [value("x", [2, 3])], [value("y", [2, 3])], weights, opset=21)
    assert prepared_model(path, [SaturatedQuantizers()]) is None


@pytest.mark.parametrize("empty", [[], [""]])
def test_the_type_without_a_zero_point(empty: list[str], tmp_path: Path) -> None:
    kind = onnx.TensorProto.INT16
    nodes = [node("QuantizeLinear", "x s", "q", output_dtype=kind), node("DequantizeLinear", "q s", "y")]
    nodes[0].input.extend(empty)
    ends = [value("x", [2])], [value("y", [2])]
    path = save(tmp_path / "m.onnx", nodes, *ends, {"s": np.float32(0.01)}, opset=21)
    content = prepared_model(path, [SaturatedQuantizers()])
    assert onnx.load_from_string(content).graph.node[0].op_type == "Clip"


def test_what_openvino_clips_itself_stays(tmp_path: Path) -> None:
    weights = {"s": np.float32(0.01), "z": np.int16(0)}
    ends = [value("x", [2, 3])], [value("q", [2, 3], "int16")]
    path = save(tmp_path / "m.onnx", [node("QuantizeLinear", "x s z", "q")], *ends, weights, opset=21)
    assert prepared_model(path, [SaturatedQuantizers()]) is None
    nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "y")]
    inputs = [value("x", [2, 3]), value("s", [])]
    path = save(tmp_path / "s.onnx", nodes, inputs, [value("y", [2, 3])], {"z": np.int16(0)}, opset=21)
    assert prepared_model(path, [SaturatedQuantizers()]) is None


def test_a_scale_for_each_channel_is_refused(tmp_path: Path) -> None:
    path = graph(tmp_path / "m.onnx", np.zeros(3, np.int16), [0.01] * 3)
    with pytest.raises(UnsupportedModelError, match="16 bits with a scale or a zero point for each channel"):
        prepared_model(path, [SaturatedQuantizers()])
