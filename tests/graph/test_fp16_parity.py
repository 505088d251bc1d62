"""Nodes that float16 does not suit are found by running them, and stay FP32 from there on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk.errors import ConfigError, InputError, UnsupportedModelError
from infersdk.graph import onnx_info
from infersdk.graph.files import model_bytes, read_model
from infersdk.graph.fp16_parity import find_fp16_loss
from infersdk.graph.passes import ToFloat16
from infersdk.loading.samples import read_samples

onnx = pytest.importorskip("onnx")
models = pytest.importorskip("onnx_models")
pytest.importorskip("onnxruntime")


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    """A softmax without the care that it takes: exp(40 a) / sum(exp(40 a)); and a square next to it."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.normal(size=(64, 64)) / 8, "u": rng.normal(size=(64, 4)), "v": np.eye(4),
        "big": 40.0, "two": 2.0, "axes": [1],
    }  # fmt: skip
    nodes = [
        models.node("MatMul", "x w", "a", name="first"), models.node("Relu", "a", "b"),
        models.node("Mul", "b big", "c", name="scale"), models.node("Exp", "c", "e", name="exp"),
        models.node("ReduceSum", "e axes", "s", name="sum", keepdims=1), models.node("Div", "e s", "d", name="div"),
        models.node("MatMul", "d u", "f", name="middle"), models.node("Pow", "c two", "z", name="square"),
        models.node("MatMul", "f v", "y", name="last"),
    ]  # fmt: skip
    arrays = {n: np.asarray(v, np.int64 if n == "axes" else np.float32) for n, v in weights.items()}
    return models.save(tmp_path / "m.onnx", nodes, "float[n,64] x", "float[n,4] y, float[n,64] z", arrays)


@pytest.fixture
def samples() -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.random((n, 64), dtype=np.float32)} for n in (3, 1)]


def test_overflow_is_found(growing: Path, samples: list[dict[str, Any]]) -> None:
    report = find_fp16_loss(growing, samples)
    assert [(loss.node, loss.operator, loss.reason) for loss in report.losses] == [
        ("exp", "Exp", "overflow"), ("sum", "ReduceSum", "overflow"), ("div", "Div", "input overflow"),
    ]  # fmt: skip
    assert report.keep == ("exp", "sum", "div")
    assert (report.samples, report.nodes) == (2, 9)
    assert report.losses[0].largest > 1e10
    assert all(loss.error == float("inf") for loss in report.losses)
    y, z = report.outputs
    assert (y.name, y.error_before) == ("y", float("inf"))
    assert 0 < y.error_after < 0.02
    assert z.error_before == z.error_after < 0.01


def test_larger_samples_make_more_overflow(growing: Path, samples: list[dict[str, Any]]) -> None:
    """It is the data that decides."""
    assert find_fp16_loss(growing, [{"x": 0.01 * sample["x"]} for sample in samples]).keep == ()
    assert "square" in find_fp16_loss(growing, [{"x": 10 * sample["x"][:, :]} for sample in samples[1:]]).keep


def to_fp16(path: Path, keep_nodes: Sequence[str] = ()) -> Any:
    model = read_model(path)
    assert ToFloat16(keep_nodes=tuple(keep_nodes)).apply(model)
    return onnx.load_model_from_string(model_bytes(model))


def casts(model: Any) -> list[tuple[str, str]]:
    return [(node.input[0], node.output[0]) for node in model.graph.node if node.op_type == "Cast"]


def run(model: Any, x: Any, name: str = "y") -> Any:
    content = model if isinstance(model, str) else model.SerializeToString()
    return models.run(content, x, optimized=False)["yz".index(name)]


def test_what_is_kept_is_fp32_all_the_way(growing: Path, samples: list[dict[str, Any]]) -> None:
    """Between two nodes that stay FP32 nothing is rounded, or the value would overflow there."""
    model = to_fp16(growing, keep_nodes=["exp", "sum", "div"])
    onnx.checker.check_model(model, full_check=True)
    types = {v.name: v.type.tensor_type.elem_type for v in onnx.shape_inference.infer_shapes(model).graph.value_info}
    makers = {node.name: node for node in model.graph.node}
    for name in ("exp", "sum", "div"):
        assert types[makers[name].output[0]] == onnx.TensorProto.FLOAT
    assert types[makers["scale"].output[0]] == onnx.TensorProto.FLOAT16
    assert makers["sum"].input[0] == makers["div"].input[0] == makers["exp"].output[0]
    assert makers["div"].input[1] == makers["sum"].output[0]
    assert len(casts(model)) == 5  # the input, two outputs, and into and out of the three
    x = samples[0]["x"]
    np.testing.assert_allclose(run(model, x), run(str(growing), x), atol=0.02)


def test_all_that_is_kept_computes_as_before(growing: Path, samples: list[dict[str, Any]]) -> None:
    """From an FP32 input to an FP32 output through kept nodes alone: the very bits."""
    keep = ["first", "Relu_1", "scale", "square"]
    model = to_fp16(growing, keep_nodes=keep)
    x = samples[0]["x"]
    assert np.array_equal(run(model, x, "z"), run(str(growing), x, "z"))
    with pytest.raises(ConfigError, match=r"has no node 'Relu_2' to keep in fp32; did you mean 'Relu_1'\?"):
        to_fp16(growing, keep_nodes=["Relu_2"])


def test_loss_of_precision_is_found(tmp_path: Path) -> None:
    """A difference of two large numbers: nothing overflows, and nothing is left of it."""
    nodes = [
        models.node("Add", "x base", "a", name="raise"), models.node("Sub", "a base", "y", name="lower"),
        models.node("Mul", "x tiny", "b", name="shrink"), models.node("Mul", "b large", "z", name="grow"),
    ]  # fmt: skip
    weights = {"base": np.float32(4096), "tiny": np.float32(1e-9), "large": np.float32(1e9)}
    path = models.save(tmp_path / "m.onnx", nodes, "float[n,64] x", "float[n,64] y, float[n,64] z", weights)
    x = np.random.default_rng(0).random((2, 64), dtype=np.float32)
    report = find_fp16_loss(path, [{"x": x}])
    found = {loss.node: loss for loss in report.losses}
    assert set(found) == {"lower", "shrink", "grow"}
    assert {loss.reason for loss in report.losses} == {"precision"}
    assert 0.1 < found["lower"].error < float("inf")
    assert found["shrink"].error > 0.5, "what is below the smallest float16 becomes nothing, or too much"
    assert report.outputs[1].error_after < 1e-3 < report.outputs[1].error_before
    assert find_fp16_loss(path, [{"x": x}], tolerance=1e9).losses == ()


def test_an_output_of_another_shape(tmp_path: Path) -> None:
    """1.0001 is above 1, and is 1 in float16: fewer rows are selected, as by an NMS."""
    nodes = [
        models.node("Greater", "x one", "above", name="compare"),
        models.node("Compress", "x above", "y", name="select", axis=0),
    ]
    path = models.save(tmp_path / "m.onnx", nodes, "float[3] x", "float[rows] y", {"one": np.float32(1)})
    (y,) = find_fp16_loss(path, [{"x": np.array([0.5, 1.0001, 3], np.float32)}]).outputs
    assert y.error_before == float("inf")


def test_a_branch_is_one_node(tmp_path: Path) -> None:
    inner = onnx.helper.make_graph([models.node("Exp", "x", "o")], "branch", [], [models.value("o", ("n",))])
    nodes = [models.node("If", "c", "h", name="branch", then_branch=inner, else_branch=inner),
             models.node("Relu", "h", "y", name="after")]  # fmt: skip
    path = models.save(tmp_path / "m.onnx", nodes, "float[n] x", "float[n] y", {"c": np.asarray(True)})
    report = find_fp16_loss(path, [{"x": np.asarray([1.0, 20.0], np.float32)}])
    assert [(loss.node, loss.reason) for loss in report.losses] == [("branch", "overflow"), ("after", "overflow")]


def test_wrong_use(growing: Path, samples: list[dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there are no samples"):
        find_fp16_loss(growing, [])
    with pytest.raises(InputError, match=r"a sample has \['q'\], and the inputs of .* are \['x'\]: check 'q'"):
        find_fp16_loss(growing, [{"q": samples[0]["x"]}])
    with pytest.raises(UnsupportedModelError, match=r"node 'first' \(MatMul\) cannot be run by itself"):
        find_fp16_loss(growing, [{"x": np.zeros((1, 9), np.float32)}])
    for tolerance in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="tolerance must be a number above 0"):
            find_fp16_loss(growing, samples, tolerance=tolerance)
    onnx.save(to_fp16(growing), str(tmp_path / "half.onnx"))
    with pytest.raises(UnsupportedModelError, match="is fp16 already"):
        find_fp16_loss(tmp_path / "half.onnx", samples)
    with pytest.raises(UnsupportedModelError, match="returns a list, no tensor"):
        find_fp16_loss(
            models.sequence(tmp_path / "s.onnx"), [{"a": np.ones(1, np.float32), "b": np.ones(2, np.float32)}]
        )


@pytest.mark.slow
@pytest.mark.assets
def test_a_real_detector_needs_nothing_kept(assets: Path) -> None:
    path = assets / "models" / "yolov5n.onnx"
    shapes = {"images": (1, 3, 640, 640)}
    report = find_fp16_loss(path, read_samples(assets / "images" / "bus.jpg", onnx_info(path).inputs, shapes=shapes))
    assert report.keep == ()
    assert report.nodes > 200
    (output,) = report.outputs
    assert 1e-4 < output.error_before < 2e-3
