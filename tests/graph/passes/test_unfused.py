"""Nodes that OpenVINO fuses wrongly in quantised graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import node, numbered, run, save, value
from quantised_models import quantised, quantised_by_onnxruntime

import infersdk
from infersdk.graph.passes import Unfused, prepared_model

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

SHAPE = (1, 3, 16, 16)


def network(path: Path, nodes: list[Any], outputs: str) -> Path:
    """A graph of these nodes and the convolutions that they need."""
    rng = np.random.default_rng(3)
    weights = {
        "w": rng.normal(size=(8, 3, 3, 3)) / 12, "v": rng.normal(size=(8, 8, 3, 3)) / 16,
        "factors": rng.normal(size=(1, 8, 1, 1)), "above": np.full((1, 8, 1, 1), 2),
    }  # fmt: skip
    used = {name for each in nodes for name in each.input}
    arrays = {name: array.astype(np.float32) for name, array in weights.items() if name in used}
    ends = [value(name, None) for name in outputs.split()]
    return save(path, numbered(nodes), [value("x", list(SHAPE))], ends, arrays, opset=13)


def conv(inputs: str, output: str) -> Any:
    return node("Conv", inputs, output, pads=[1] * 4)


def check(made: Path, x: Any) -> None:
    """OpenVINO gives about the results of the model."""
    expected = run(made.with_name("m.onnx"), x, optimized=False)
    with infersdk.load(made, "openvino") as infer:
        found = list(infer(x).values())
    for one, other in zip(expected, found, strict=True):
        # A processor without VNNI saturates.
        assert np.linalg.norm(np.asarray(other) - one) < 0.25 * np.linalg.norm(one)


@pytest.mark.parametrize("padding", [{"pads": [1] * 4}, {"auto_pad": "SAME_UPPER"}], ids=["pads", "auto_pad"])
@pytest.mark.parametrize("activations", ["QInt8", "QUInt8"])
def test_a_pooling_that_counts_its_padding(padding: dict[str, Any], activations: str, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    nodes = [
        conv("x w", "a"), conv("a v", "b"), node("Add", "a b", "sum"),
        node("AveragePool", "sum", "p", kernel_shape=[3, 3], count_include_pad=1, **padding), conv("p v", "c"),
        conv("sum v", "d"), node("Add", "c d", "e"), conv("e v", "y"),
    ]  # fmt: skip
    source = network(tmp_path / "m.onnx", nodes, "y")
    kinds = pytest.importorskip("onnxruntime.quantization").QuantType
    data = [np.random.default_rng(i).normal(size=SHAPE).astype(np.float32) + 1 for i in range(8)]
    made = quantised_by_onnxruntime(
        source, data, per_channel=True, reduce_range=True, weight_type=kinds.QInt8,
        activation_type=getattr(kinds, activations), extra_options={"ActivationSymmetric": activations == "QInt8"},
    )  # fmt: skip
    check(made, data[0])


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("operator", ["Mul", "Div"])
def test_a_factor_for_each_channel_with_both_signs(operator: str, relu: bool, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    nodes = [
        conv("x w", "a"), node("Tanh", "a", "t"), conv("t v", "y"), node(operator, "t factors", "f"),
        node("Relu" if relu else "Identity", "f", "r"), conv("r v", "z"),
    ]  # fmt: skip
    made, samples = quantised(network(tmp_path / "m.onnx", nodes, "y z"), "openvino", SHAPE)
    check(made, samples[0]["x"])


def test_other_nodes_stay(tmp_path: Path) -> None:
    nodes = [
        conv("x w", "a"), node("AveragePool", "a", "b", kernel_shape=[3, 3], count_include_pad=1),
        node("AveragePool", "b", "c", kernel_shape=[3, 3], pads=[1] * 4), node("Mul", "c above", "d"),
        node("Mul", "d factors", "e"), node("Add", "e above", "f"), conv("f v", "y"),
    ]  # fmt: skip
    made, _ = quantised(network(tmp_path / "m.onnx", nodes, "y"), "openvino", SHAPE)
    assert prepared_model(made, [Unfused()]) is None


def test_a_file_of_qlinear_operators_alone(tmp_path: Path) -> None:
    """Another pass makes the quantisers that this one looks for."""
    pytest.importorskip("openvino")
    pool = node(
        "QLinearAveragePool", "x s z s z", "y", domain="com.microsoft", kernel_shape=[3, 3], pads=[1] * 4,
        count_include_pad=1,
    )  # fmt: skip
    shape, weights = [1, 2, 8, 8], {"s": np.array(0.1, np.float32), "z": np.array(128, np.uint8)}
    ends = [[value(name, shape, "uint8")] for name in "xy"]
    path = save(tmp_path / "m.onnx", [pool], *ends, weights, domains={"com.microsoft": 1})
    x = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    (expected,) = run(path, x, optimized=False)
    with infersdk.load(path, "openvino") as infer:
        assert np.abs(infer(x)["y"].astype(int) - expected).max() <= 1
