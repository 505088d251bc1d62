"""Convolutions of one position that give floating point, as matrix products in 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
import pytest
from onnx_models import node, numbered, operators, save, value
from quantised_models import quantised

from infersdk import quant

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

CHANNELS = 16


def head(path: Path, *, shape: list[Any], split: list[int] | None = None, bias: Any = None, last: int = 12) -> Path:
    """A convolution of 3x3 with a ReLU, then one of 1x1 that a detector's decoding reads, and its Shape."""
    rng = np.random.default_rng(3)
    rank = len(shape) - 2
    weights = {
        "w": rng.normal(size=(CHANNELS, 3, *[3] * rank)), "b": rng.normal(size=CHANNELS),
        "v": rng.normal(size=(last, CHANNELS, *[1] * rank)) / CHANNELS,
    }  # fmt: skip
    if bias is not None:
        weights["d"] = bias
    nodes = [
        node("Conv", "x w b", "c", kernel_shape=[3] * rank, pads=[1] * 2 * rank), node("Relu", "c", "r"),
        node("Conv", "r v" + (" d" if bias is not None else ""), "h"), node("Shape", "h", "sizes"),
    ]  # fmt: skip
    arrays = {name: np.asarray(array, np.float32) for name, array in weights.items()}
    if split is None:
        nodes.append(node("Sigmoid", "h", "y"))
    else:
        arrays["target"] = np.asarray(split, np.int64)
        order = [0, 1, *range(3, rank + 3), 2]
        nodes += [node("Reshape", "h target", "g"), node("Transpose", "g", "t", perm=order), node("Sigmoid", "t", "y")]
    return save(path, numbered(nodes), [value("x", shape)], [value("y", None), value("sizes", None, "int64")], arrays)


def run(path: Path, feeds: dict[str, Any], optimized: Path | None = None) -> list[Any]:
    return onnx_models.run(path, feeds, optimized=optimized or False)


@pytest.mark.parametrize(
    ("shape", "split"),
    [
        (["n", 3, 8, 10], None), (["n", 3, "h", "w"], None), ([2, 3, 8, 10], [2, 3, 4, 8, 10]),
        (["n", 3, 8, 10], [-1, 3, 4, 8, 10]), (["n", 3, 8, 10], [0, 3, 4, 8, 10]), (["n", 3, 12], [0, 2, 6, 12]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_last_layer_of_one_position_is_computed_in_8_bits(
    tmp_path: Path, shape: list[Any], split: list[int] | None, with_bias: bool
) -> None:
    bias = np.linspace(-3, 3, 12) if with_bias else None
    model = head(tmp_path / "m.onnx", shape=shape, split=split, bias=bias)
    sizes = tuple({"n": 2, "h": 8, "w": 10}.get(side, side) for side in shape)
    planned = quant.plan(model, "onnxruntime")
    made, samples = quantised(model, "onnxruntime", sizes)
    assert planned.products == ("Conv_2",)
    assert planned.layers == ("Conv_0", "Conv_2")
    onnx.checker.check_model(onnx.load(str(made)), full_check=True)
    plain = [run(model, feeds) for feeds in samples]
    written = [run(made, feeds) for feeds in samples]
    fused = [run(made, feeds, tmp_path / "optimized.onnx") for feeds in samples]
    for (y, size), (y_written, size_written), (y_fused, size_fused) in zip(plain, written, fused, strict=True):
        np.testing.assert_array_equal(size, size_written)
        np.testing.assert_array_equal(size, size_fused)
        np.testing.assert_allclose(y_written, y, atol=0.02)
        np.testing.assert_allclose(y_fused, y_written, atol=0.02)  # a code of the layer before may be the next one
    names = operators(tmp_path / "optimized.onnx")
    assert names["QGemm"] == 1
    assert names["Conv"] == 0
    assert names["DequantizeLinear"] == 0  # nothing reads the codes in floating point
    # Behind the split, the Transpose of the model is the only one.
    behind = operators(made)["Transpose"] - 1  # of the codes
    assert behind == 1
    assert ("channels_first" in str(onnx.load(str(made)).graph.node)) == (split is None)


def test_a_bias_without_weights_is_kept(tmp_path: Path) -> None:
    model = head(tmp_path / "m.onnx", shape=[1, 3, 6, 6], bias=np.full(12, 7.5))
    whole = onnx.load(str(model))
    for one in whole.graph.initializer:
        if one.name == "v":
            array = onnx.numpy_helper.to_array(one).copy()
            array[3] = 0
            array[5] = 1e-30
            one.CopyFrom(onnx.numpy_helper.from_array(array, "v"))
    onnx.save(whole, model)
    made, samples = quantised(model, "onnxruntime", (1, 3, 6, 6))
    y, _ = run(made, samples[0])
    np.testing.assert_allclose(y[:, [3, 5]], 1 / (1 + np.exp(-7.5)), rtol=1e-6)


@pytest.mark.parametrize("changed", [{"strides": [2, 2]}, {"pads": [1, 1, 1, 1]}, {"group": 2}])
def test_other_convolutions_stay_in_floating_point(tmp_path: Path, changed: dict[str, Any]) -> None:
    model = head(tmp_path / "m.onnx", shape=[1, 3, 6, 6])
    whole = onnx.load(str(model))
    last = whole.graph.node[2]
    last.attribute.extend(onnx.helper.make_attribute(key, item) for key, item in changed.items())
    if "group" in changed:
        for one in whole.graph.initializer:
            if one.name == "v":
                one.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(one)[:, :8], "v"))
    onnx.save(whole, model)
    planned = quant.plan(model, "onnxruntime")
    assert planned.products == ()
    assert (
        planned.left["Conv_2"]
        == "its result stays in floating point, and onnxruntime then computes the layer in floating point"
    )


@pytest.mark.parametrize("function", ["SiLU", "LeakyRelu", "Relu"])
def test_before_layers_in_floating_point_a_layer_gives_floating_point(tmp_path: Path, function: str) -> None:
    rng = np.random.default_rng(3)
    shapes = {"w": (32, 3, 3, 3), "m": (96, 32, 3, 3), "v": (24, 96, 1, 1), "d": (24, 1, 3, 3), "e": (8, 24, 1, 1)}
    weights = {
        name: (rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        for name, shape in shapes.items()
    }
    padded = {"kernel_shape": [3, 3], "pads": [1] * 4}
    nodes = [
        node("Conv", "x w", "a", **padded), node("Relu", "a", "b"), node("Conv", "b m", "c", **padded),
        node("LeakyRelu", "c", "p"), node("Conv", "p v", "q"),
        *([node("Sigmoid", "q", "s"), node("Mul", "q s", "r")] if function == "SiLU" else [node(function, "q", "r")]),
        node("Conv", "r d", "f", group=24, **padded), node("LeakyRelu", "f", "g"), node("Conv", "g e", "h"),
        node("Tanh", "h", "y"),
    ]  # fmt: skip
    for each in nodes:
        each.name = f"{each.op_type}_{each.output[0]}"
    model = save(tmp_path / "m.onnx", nodes, [value("x", ["n", 3, 8, 10])], [value("y", None)], weights)
    planned = quant.plan(model, "onnxruntime")
    made, samples = quantised(model, "onnxruntime", (2, 3, 8, 10))
    # The first layer, the depthwise one and the last one are faster in floating point.
    assert planned.layers == ("Conv_c", "Conv_q")
    # A ReLU is part of the codes of the layer before it.
    assert planned.products == (() if function == "Relu" else ("Conv_q",))
    onnx.checker.check_model(onnx.load(str(made)), full_check=True)
    for feeds in samples:
        (plain,), (written,) = run(model, feeds), run(made, feeds)
        np.testing.assert_allclose(written, plain, atol=0.05)
        np.testing.assert_allclose(run(made, feeds, tmp_path / "optimized.onnx")[0], written, atol=0.02)
    names = operators(tmp_path / "optimized.onnx")
    assert names["QGemm"] == len(planned.products)
    assert names["DequantizeLinear"] == (0 if planned.products else 1)
