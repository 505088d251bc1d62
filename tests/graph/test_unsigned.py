"""Signed activations made unsigned: the same numbers, and only where it is safe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import node, save, value

from infersdk.graph.unsigned import to_unsigned, unsigned_model

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")


def graph(path: Path, *, zero: Any = 0, dtype: str = "int8", consumer: str = "DequantizeLinear") -> Path:
    """x quantised and back; or quantised and given out."""
    weights = {"s": np.float32(0.05), "z": np.array(zero, dtype)}
    nodes = [node("QuantizeLinear", "x s z", "q")]
    if consumer == "DequantizeLinear":
        nodes.append(node("DequantizeLinear", "q s z", "y"))
    else:
        nodes.append(node("Identity", "q", "y"))
    kind = "float32" if consumer == "DequantizeLinear" else dtype
    return save(path, nodes, [value("x", ["n"])], [value("y", ["n"], kind)], weights, opset=13)


def run(model: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def test_the_numbers_are_the_same(tmp_path: Path) -> None:
    """Ties, both ends, and what is clipped."""
    path = graph(tmp_path / "m.onnx")
    content = unsigned_model(path)
    assert content is not None
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load_from_string(content).graph.initializer}
    assert sorted(array.dtype.name for array in tensors.values()) == ["float32", "uint8"]
    x = np.concatenate([np.arange(-140, 140, 0.25) * 0.05, np.random.default_rng(0).normal(size=9999) * 4])
    x = x.astype(np.float32)
    np.testing.assert_array_equal(run(content, x), run(str(path), x))


@pytest.mark.parametrize(
    "options", [{"zero": 3}, {"dtype": "uint8"}, {"consumer": "Identity"}], ids=["zero point", "unsigned", "given out"]
)
def test_other_graphs_stay(options: dict[str, Any], tmp_path: Path) -> None:
    assert unsigned_model(graph(tmp_path / "m.onnx", **options)) is None


def test_weights_stay_signed(tmp_path: Path) -> None:
    """One zero point for activations and weights: the weights keep it."""
    weights = {"s": np.float32(0.1), "z": np.int8(0).reshape(()), "w": np.eye(4, dtype=np.int8)}
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("DequantizeLinear", "w s z", "e"),
        node("MatMul", "d e", "y"),
    ]
    path = save(tmp_path / "m.onnx", nodes, [value("x", ["n", 4])], [value("y", ["n", 4])], weights, opset=13)
    model = onnx.load(str(path))
    assert to_unsigned(model) == 1
    assert [n.input[2] == "z" for n in model.graph.node[:3]] == [False, False, True]
    x = np.random.default_rng(1).normal(size=(9, 4)).astype(np.float32) * 9
    np.testing.assert_array_equal(run(model.SerializeToString(), x), run(str(path), x))


def test_what_is_no_such_file_is_left_to_the_runtime(tmp_path: Path) -> None:
    (tmp_path / "junk.onnx").write_bytes(b"QuantizeLinear, but no model")
    (tmp_path / "empty.onnx").write_bytes(b"")
    for name in ("junk.onnx", "empty.onnx", "none.onnx", "model.xml"):
        assert unsigned_model(tmp_path / name) is None
