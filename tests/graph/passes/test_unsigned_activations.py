"""Signed activations made unsigned: the same numbers, and only where it is safe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
import pytest
from onnx_models import node, save, value

from infersdk.errors import ModelError
from infersdk.graph.files import model_bytes, read_model
from infersdk.graph.passes import UnsignedActivations, prepared_model

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


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


def prepared(path: Path) -> bytes | None:
    return prepared_model(path, [UnsignedActivations()])


def run(model: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(onnx_models.run(model, x, optimized=False)[0])


@pytest.mark.parametrize("zero", [0, -128, -22, 3, 127])
def test_the_numbers_are_the_same(tmp_path: Path, zero: int) -> None:
    """Ties, both ends, and what is clipped."""
    path = graph(tmp_path / "m.onnx", zero=zero)
    content = prepared(path)
    assert content is not None
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load_from_string(content).graph.initializer}
    assert sorted(array.dtype.name for array in tensors.values()) == ["float32", "uint8"]
    assert next(int(array) for array in tensors.values() if array.dtype == np.uint8) == zero + 128
    x = np.concatenate([np.arange(-140, 140, 0.25) * 0.05, np.random.default_rng(0).normal(size=9999) * 4])
    x = x.astype(np.float32)
    np.testing.assert_array_equal(run(content, x), run(str(path), x))


@pytest.mark.parametrize("options", [{"dtype": "uint8"}, {"consumer": "Identity"}], ids=["unsigned", "given out"])
def test_other_graphs_stay(options: dict[str, Any], tmp_path: Path) -> None:
    assert prepared(graph(tmp_path / "m.onnx", **options)) is None


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
    model = read_model(path)
    assert UnsignedActivations().apply(model)
    assert [node.inputs[2].name == "z" for node in list(model.graph)[:3]] == [False, False, True]
    x = np.random.default_rng(1).normal(size=(9, 4)).astype(np.float32) * 9
    np.testing.assert_array_equal(run(model_bytes(model), x), run(str(path), x))


def test_an_activation_that_a_branch_takes_as_it_is_stays(tmp_path: Path) -> None:
    inner = onnx.helper.make_graph([node("Identity", "q", "o")], "branch", [], [value("o", ["n"], "int8")])
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "y"),
        node("If", "c", "r", then_branch=inner, else_branch=inner),
    ]
    weights = {"s": np.float32(0.05), "z": np.int8(0).reshape(()), "c": np.asarray(True)}
    path = save(tmp_path / "m.onnx", nodes, "float[n] x", "float[n] y, int8[n] r", weights)
    assert prepared(path) is None


@pytest.mark.parametrize("attributes", [{}, {"output_dtype": onnx.TensorProto.INT8}], ids=["plain", "output_dtype"])
def test_a_branch_with_a_zero_point_of_its_own(attributes: dict[str, int], tmp_path: Path) -> None:
    zero = onnx.numpy_helper.from_array(np.array(7, np.int8), "z2")
    branch = onnx.helper.make_graph(
        [node("DequantizeLinear", "q s z2", "o")], "branch", [], [value("o", ["n"])], [zero]
    )
    nodes = [
        node("QuantizeLinear", "x s z", "q", **attributes),
        node("If", "c", "y", then_branch=branch, else_branch=branch),
    ]
    weights = {"s": np.float32(0.05), "z": np.array(7, np.int8), "c": np.asarray(True)}
    path = save(tmp_path / "m.onnx", nodes, [value("x", ["n"])], [value("y", ["n"])], weights, opset=21)
    content = prepared(path)
    assert content is not None
    x = np.arange(-9, 9, 0.3, np.float32)
    np.testing.assert_array_equal(run(content, x), run(str(path), x))


def test_a_zero_point_in_a_constant_node(tmp_path: Path) -> None:
    constant = node("Constant", "", "z", value=onnx.numpy_helper.from_array(np.array(7, np.int8)))
    nodes = [constant, node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "y")]
    path = save(tmp_path / "m.onnx", nodes, [value("x", ["n"])], [value("y", ["n"])], {"s": np.float32(0.05)}, opset=13)
    content = prepared(path)
    assert content is not None
    x = np.arange(-9, 9, 0.3, np.float32)
    np.testing.assert_array_equal(run(content, x), run(str(path), x))


def test_files_that_it_does_not_concern(tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(b"not a model")
    (tmp_path / "junk.onnx").write_bytes(b"QuantizeLinear, but no model")  # the runtime says what is wrong with it
    (tmp_path / "model.xml").write_bytes(b"QuantizeLinear")
    for name in ("other.onnx", "junk.onnx", "model.xml"):
        assert prepared(tmp_path / name) is None
    (tmp_path / "empty.onnx").write_bytes(b"")
    for name in ("empty.onnx", "none.onnx"):
        with pytest.raises(ModelError, match=name):
            prepared(tmp_path / name)
    whole = graph(tmp_path / "m.onnx").read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[: len(whole) * 3 // 4])
    assert prepared(tmp_path / "cut.onnx") is None  # so does this one
