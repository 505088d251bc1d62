"""QLinear operators as Q/DQ: quantised files of other tools run right on every backend."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from int8_processors import needs_exact_int8
from onnx_models import node, numbered, run, save, value
from quantised_models import quantised_by_onnxruntime

import infersdk
from infersdk.errors import UnsupportedModelError
from infersdk.graph.passes import QuantizedOperators, prepared_model

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def network(path: Path) -> Path:
    """Each operator that ONNX Runtime has an 8-bit form of; nothing in it is near a step of its results."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.normal(size=(8, 3, 3, 3)).astype(np.float32) / 5,
        "b1": rng.normal(size=8).astype(np.float32) / 5,
        "w2": rng.normal(size=(8, 1, 3, 3)).astype(np.float32) / 3,
        "w3": rng.normal(size=(16, 5)).astype(np.float32) / 3,
        "b3": rng.normal(size=5).astype(np.float32),
        "w4": rng.normal(size=(5, 5)).astype(np.float32) / 3,
    }
    conv = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", "x w1 b1", "c1", **conv), node("Sigmoid", "c1", "s1"), node("Mul", "c1 s1", "a1"),
        node("Conv", "a1 w2", "c2", group=8, **conv), node("LeakyRelu", "c2", "r2", alpha=0.1),
        node("Add", "a1 r2", "sum"), node("Concat", "sum r2", "both", axis=1),
        node("GlobalAveragePool", "both", "mean"), node("Flatten", "mean", "flat"), node("Gemm", "flat w3 b3", "g"),
        node("MatMul", "g w4", "y"),
    ]  # fmt: skip
    return save(path, numbered(nodes), [value("x", ["n", 3, 12, 12])], [value("y", ["n", 5])], weights, opset=13)


@pytest.fixture(scope="module")
def data() -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(5)
    return [rng.normal(size=(2, 3, 12, 12)).astype(np.float32) for _ in range(4)]


def plain(model: Path | bytes, data: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """One node after another."""
    return np.concatenate([run(model, x, optimized=False)[0] for x in data])


def quantised(path: Path, data: list[np.ndarray[Any, Any]], **settings: Any) -> Path:
    """By ONNX Runtime's own quantiser."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    symmetric = settings.pop("symmetric", False)
    kinds = {name: getattr(quantization.QuantType, settings.pop(name)) for name in ("activation_type", "weight_type")}
    form = getattr(quantization.QuantFormat, settings.pop("form"))
    extra = {"ActivationSymmetric": symmetric}
    return quantised_by_onnxruntime(path, data, quant_format=form, extra_options=extra, **kinds, **settings)


@needs_exact_int8
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("form", ["QOperator", "QDQ"])
@pytest.mark.parametrize(
    ("kinds", "per_channel", "symmetric"),
    list(
        itertools.product([("QInt8", "QInt8"), ("QUInt8", "QInt8"), ("QUInt8", "QUInt8")], [False, True], [False, True])
    ),
)
def test_files_of_onnx_runtime(
    tmp_path: Path, data: list[np.ndarray[Any, Any]], backend: str, form: str, kinds: Any, per_channel: bool,
    symmetric: bool,
) -> None:  # fmt: skip
    pytest.importorskip(backend)
    source = network(tmp_path / "net.onnx")
    made = quantised(
        source, data, form=form, activation_type=kinds[0], weight_type=kinds[1], per_channel=per_channel,
        symmetric=symmetric,
    )  # fmt: skip
    expected = plain(made, data)
    with infersdk.load(made, backend) as infer:
        found = np.concatenate([infer(x)["y"] for x in data])
    step = (expected.max() - expected.min()) / 100  # a result may fall on either side of a step
    assert np.abs(found - expected).max() < 6 * step
    assert np.abs(found - expected).mean() < step
    assert np.abs(found - plain(source, data)).mean() < 10 * step


@needs_exact_int8
def test_each_operator_is_rewritten(tmp_path: Path, data: list[np.ndarray[Any, Any]]) -> None:
    made = quantised(
        network(tmp_path / "net.onnx"), data, form="QOperator", activation_type="QUInt8", weight_type="QInt8",
        per_channel=True,
    )  # fmt: skip
    operators = {each.op_type for each in onnx.load(str(made)).graph.node}
    assert {"QLinearConv", "QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearConcat", "QGemm"} <= operators
    content = prepared_model(made, [QuantizedOperators()])
    assert content is not None
    whole = onnx.load_from_string(content)
    onnx.checker.check_model(whole, full_check=True)
    assert not {each.op_type for each in whole.graph.node if each.op_type.startswith("Q")} - {"QuantizeLinear"}
    np.testing.assert_allclose(plain(content, data), plain(made, data), atol=0.05)


def test_an_operator_that_is_not_known_is_refused(tmp_path: Path) -> None:
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("QLinearSoftmax", "q s z s z", "p", domain="com.microsoft", axis=-1, opset=13),
        node("DequantizeLinear", "p s z", "y"),
    ]
    nodes[1].name = "softmax"
    weights = {"s": np.float32(0.05), "z": np.uint8(0).reshape(())}
    path = save(tmp_path / "m.onnx", nodes, [value("x", ["n", 4])], [value("y", ["n", 4])], weights, opset=13)
    with pytest.raises(UnsupportedModelError, match="'softmax' is a QLinearSoftmax.*Q/DQ"):
        prepared_model(path, [QuantizedOperators()])


@needs_exact_int8
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("preset", ["PERFORMANCE", "MIXED"])
def test_files_of_nncf(tmp_path: Path, data: list[np.ndarray[Any, Any]], backend: str, preset: str) -> None:
    nncf = pytest.importorskip("nncf")
    pytest.importorskip(backend)
    source = onnx.load(str(network(tmp_path / "net.onnx")))
    made = nncf.quantize(
        source, nncf.Dataset(data, lambda x: {"x": x}), preset=nncf.QuantizationPreset[preset], subset_size=4
    )
    onnx.save(made, str(tmp_path / "nncf.onnx"))
    expected = plain(tmp_path / "nncf.onnx", data)
    with infersdk.load(tmp_path / "nncf.onnx", backend) as infer:
        found = np.concatenate([infer(x)["y"] for x in data])
    step = (expected.max() - expected.min()) / 100
    assert np.abs(found - expected).max() < 6 * step
    assert np.abs(found - expected).mean() < step


@needs_exact_int8
@pytest.mark.parametrize("bias", [False, True])
def test_scales_in_constant_nodes(bias: bool, tmp_path: Path) -> None:
    """One scale for each channel, and as many inputs as outputs: along another axis they would fit, too."""
    rng = np.random.default_rng(4)
    arrays: dict[str, Any] = {
        "xs": np.float32(0.05), "xz": np.uint8(128), "w": rng.integers(-127, 128, (4, 4, 3, 3)).astype(np.int8),
        "ws": np.geomspace(0.001, 0.03, 4).astype(np.float32), "wz": np.zeros(4, np.int8), "ys": np.float32(0.2),
        "yz": np.uint8(100), "b": np.full(4, 999, np.int32),
    }  # fmt: skip
    constants = [node("Constant", "", name, value=onnx.numpy_helper.from_array(one)) for name, one in arrays.items()]
    nodes = [
        *constants, node("QuantizeLinear", "x xs xz", "q"),
        node("QLinearConv", f"q xs xz w ws wz ys yz{' b' * bias}", "c"), node("DequantizeLinear", "c ys yz", "y"),
    ]  # fmt: skip
    path = save(tmp_path / "m.onnx", nodes, [value("x", [1, 4, 8, 8])], [value("y", [1, 4, 6, 6])], {}, opset=13)
    content = prepared_model(path, [QuantizedOperators()])
    assert content is not None
    x = rng.normal(size=(1, 4, 8, 8)).astype(np.float32) * 3
    np.testing.assert_allclose(plain(content, [x]), plain(path, [x]), atol=0.21)


def test_the_alpha_of_a_gemm_scales_the_bias(tmp_path: Path) -> None:
    weights = {
        "xs": np.float32(0.1), "xz": np.uint8(0), "w": np.array([[10], [20]], np.int8), "wz": np.int8(0),
        "b": np.array([1000], np.int32),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", "x xs xz", "q"),
        node("QGemm", "q xs xz w xs wz b", "y", domain="com.microsoft", alpha=0.5),
    ]
    path = save(tmp_path / "m.onnx", nodes, [value("x", [1, 2])], [value("y", [1, 1])], weights, opset=13)
    content = prepared_model(path, [QuantizedOperators()])
    assert content is not None
    x = np.array([[10, 5]], np.float32)
    np.testing.assert_allclose(plain(path, [x]), [[15]], rtol=1e-5)
    np.testing.assert_allclose(plain(content, [x]), [[15]], rtol=1e-5)


@pytest.mark.parametrize("opset", [10, 11, 12])
def test_scales_per_channel_in_an_opset_that_lacks_them(
    opset: int, tmp_path: Path, data: list[np.ndarray[Any, Any]]
) -> None:
    pytest.importorskip("openvino")
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.normal(size=(4, 3, 3, 3)).astype(np.float32), "v": rng.normal(size=(4, 4, 3, 3)).astype(np.float32)
    }  # fmt: skip
    nodes = [
        node("Conv", "x w", "a"), node("Relu", "a", "r"), node("Conv", "r v", "b"), node("Add", "b b", "c"),
        node("Squeeze", "c", "y", axes=[0]),
    ]  # fmt: skip
    source = save(tmp_path / "m.onnx", numbered(nodes), "float[1,3,12,12] x", "float[4,8,8] y", weights, opset=opset)
    x = data[0][:1]
    made = quantised(
        source, [x], form="QOperator", activation_type="QUInt8", weight_type="QInt8", per_channel=True,
        reduce_range=True,
    )  # fmt: skip
    expected = plain(made, [x])
    with infersdk.load(made, "openvino") as infer:
        np.testing.assert_allclose(infer(x)["y"], expected, atol=np.ptp(expected) / 100)
