"""Concatenations of codes whose scales differ."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_models import node, numbered, operators, run, save, value

from infersdk import quant
from infersdk.quant.joins import aligned_ranges
from infersdk.quant.ranges import scale_and_zero_point
from infersdk.quant.table import TensorRange

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

_SHARED = dataclasses.replace(quant.SCHEMES["onnxruntime"], joins=False)


def branches(
    path: Path, reader: str = "Conv", functions: tuple[str, str] = ("LeakyRelu", "LeakyRelu"), factor: float = 100.0
) -> Path:
    """Two convolutions with functions, whose results differ by a factor, concatenated for another convolution.

    The second one's channels have weights that make both count alike.
    """
    rng = np.random.default_rng(1)
    arrays = {
        "w0": rng.normal(size=(24, 3, 3, 3)), "w1": rng.normal(size=(8, 24, 3, 3)),
        "w2": rng.normal(size=(24, 24, 3, 3)) * factor, "w3": rng.normal(size=(8, 32, 3, 3)) / 16,
        "w4": rng.normal(size=(8, 8, 3, 3)),
    }  # fmt: skip
    arrays["w3"][:, 8:] /= factor
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", "x w0", "c0", **pads), node("Relu", "c0", "r0"),
        node("Conv", "r0 w1", "c1", **pads), node(functions[0], "c1", "r1"),
        node("Conv", "r0 w2", "c2", **pads), node(functions[1], "c2", "r2"),
        node("Concat", "r1 r2", "joined", axis=1),
    ]  # fmt: skip
    source = "joined"
    if reader != "Conv":
        nodes.append(node(reader, "joined", "read", **({"kernel_shape": [1, 1]} if reader == "MaxPool" else {})))
        source = "read"
    nodes += [
        node("Conv", f"{source} w3", "c3", **pads), node("Relu", "c3", "r3"), node("Conv", "r3 w4", "y", **pads),
    ]  # fmt: skip
    weights = {name: array.astype(np.float32) for name, array in arrays.items()}
    return save(path, numbered(nodes), [value("x", ["n", 3, 12, 12])], [value("y", None)], weights)


@pytest.fixture(scope="module")
def samples() -> list[dict[str, Any]]:
    rng = np.random.default_rng(2)
    return [{"x": rng.normal(size=(2, 3, 12, 12)).astype(np.float32)} for _ in range(8)]


def error(model: Path, made: Path, samples: list[dict[str, Any]]) -> float:
    pairs = [(run(model, feeds)[0], run(made, feeds)[0]) for feeds in samples]
    return sum(((a - b) ** 2).sum() for a, b in pairs) / sum((a**2).sum() for a, _ in pairs)


@pytest.mark.parametrize("function", ["LeakyRelu", "Relu"])
@pytest.mark.parametrize("bias_correction", [True, False])
def test_codes_of_several_scales_are_joined(
    tmp_path: Path, samples: list[dict[str, Any]], bias_correction: bool, function: str
) -> None:
    model = branches(tmp_path / "m.onnx", functions=(function, function))
    table = quant.calibrate(model, samples, target="onnxruntime", method="minmax")
    planned = quant.plan(model, "onnxruntime")
    assert planned.joins == ("Concat_6",)
    assert "joined" not in planned.points
    made = quant.quantize(planned, tmp_path / "q.onnx", table, bias_correction=bias_correction).path
    shared = quant.quantize(model, tmp_path / "s.onnx", table, target=_SHARED, bias_correction=bias_correction).path
    onnx.checker.check_model(onnx.load(str(made)), full_check=True)
    # With one scale the small values, which count as much, have three codes.
    assert error(model, made, samples) < 0.001
    assert error(model, shared, samples) > 0.05
    run(made, samples[0], optimized=tmp_path / "optimized.onnx")
    kinds = operators(tmp_path / "optimized.onnx")
    assert (kinds["Concat"], kinds["QLinearConcat"], kinds["QLinearConv"]) == (1, 0, 3)
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(str(made)).graph.initializer}
    assert arrays["r1_zero_point"] == arrays["r2_zero_point"]
    assert arrays["r1_scale"] < arrays["r2_scale"] / 50


def test_the_error_of_a_layer_is_that_of_joined_codes(tmp_path: Path, samples: list[dict[str, Any]]) -> None:
    model = branches(tmp_path / "m.onnx")
    table = quant.calibrate(model, samples, target="onnxruntime", method="minmax")
    joined = quant.layer_errors(quant.plan(model, "onnxruntime"), table, samples)
    shared = quant.layer_errors(quant.plan(model, _SHARED), table, samples)
    assert joined["Conv_7"] < 0.001
    assert shared["Conv_7"] > 0.05
    assert joined["Conv_2"] == pytest.approx(shared["Conv_2"], rel=0.5)


@pytest.mark.parametrize("reader", ["MaxPool", "Sigmoid"])
def test_codes_are_not_joined_for_another_reader(tmp_path: Path, reader: str) -> None:
    planned = quant.plan(branches(tmp_path / "m.onnx", reader), "onnxruntime")
    assert planned.joins == ()
    assert "joined" in planned.points


def test_values_that_a_layer_gives_without_its_relu_are_not_joined_with_others(tmp_path: Path) -> None:
    model = branches(tmp_path / "m.onnx", functions=("LeakyRelu", "Relu"))
    assert quant.plan(model, "onnxruntime").joins == ()


def test_codes_are_not_joined_for_a_layer_in_floating_point(tmp_path: Path) -> None:
    model = branches(tmp_path / "m.onnx")
    assert quant.plan(model, "onnxruntime", exclude=["Conv_7"]).joins == ()
    assert quant.plan(model, "portable").joins == quant.plan(model, "openvino").joins == ()


def found(low: float, high: float) -> TensorRange:
    return TensorRange(min=low, max=high, low=low, high=high, threshold=max(-low, high))


_ENDS = st.tuples(st.floats(-1e3, 0, width=32), st.floats(2**-6, 1e3, width=32))


@settings(max_examples=30, deadline=None)
@given(st.lists(_ENDS, min_size=4, max_size=6))
def test_ranges_of_a_group_share_the_code_of_zero(ends: list[tuple[float, float]]) -> None:
    before = {str(index): found(*pair) for index, pair in enumerate(ends)}
    result = aligned_ranges([["0", "1"], ["2", "1"]], before)
    parameters = [scale_and_zero_point(result[name].low, result[name].high, signed=False) for name in "012"]
    assert len({zero for _, zero in parameters}) == 1
    for name in "012":
        slack = 1e-5 * (before[name].high - before[name].low)
        assert result[name].low <= before[name].low + slack
        assert result[name].high >= before[name].high - slack
        assert (result[name].mean, result[name].threshold) == (before[name].mean, before[name].threshold)
    assert all(result[name] is before[name] for name in before if name not in "012")
