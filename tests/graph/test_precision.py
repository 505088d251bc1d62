"""What a graph computes in, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk.core.target import describe_layers, keeps_precision
from infersdk.graph.files import read_model
from infersdk.graph.precision import is_quantized, layer_precisions, main_precision, precision_of

onnx = pytest.importorskip("onnx")
models = pytest.importorskip("onnx_models")


def graph(tmp_path: Path, nodes: list[Any], weights: dict[str, Any], dtype: str = "float32") -> Any:
    arrays = {name: np.asarray(array) for name, array in weights.items()}
    path = models.save(
        tmp_path / "m.onnx", nodes, [models.value("x", ("n", 4), dtype)], [models.value("y", ("n", 4), dtype)], arrays
    )
    return read_model(path)


W = np.eye(4, dtype=np.float32)


@pytest.mark.parametrize(("dtype", "name"), [("float32", "fp32"), ("float16", "fp16"), ("float64", "fp32")])
def test_types(tmp_path: Path, dtype: str, name: str) -> None:
    nodes = [models.node("MatMul", "x w", "a"), models.node("Relu", "a", "b"), models.node("MatMul", "b b", "y")]
    model = graph(tmp_path, nodes, {"w": W.astype(dtype)}, dtype)
    for executed in (True, False):
        assert layer_precisions(model, executed=executed) == {name: 2}
    assert precision_of(model) == name


def test_without_layers_what_computes_counts(tmp_path: Path) -> None:
    assert layer_precisions(graph(tmp_path, [models.node("Add", "x x", "y")], {}), executed=True) == {"fp32": 1}
    moving = graph(tmp_path, [models.node("Identity", "x", "y")], {}, "float16")
    assert not layer_precisions(moving, executed=True)
    assert precision_of(moving) == "fp16"
    assert precision_of(graph(tmp_path, [models.node("Identity", "x", "y")], {}, "uint8")) == "fp32"


def test_quantised(tmp_path: Path) -> None:
    weights = {"w": W.astype(np.int8), "s": np.float32(0.1), "z": np.int8(0)}
    q = [models.node("QuantizeLinear", "x s z", "q"), models.node("DequantizeLinear", "q s z", "dx")]
    d = [models.node("DequantizeLinear", "w s z", "dw"), models.node("Transpose", "dw", "t", perm=[1, 0])]
    both = graph(tmp_path, [*q, *d, models.node("MatMul", "dx t", "y")], weights)
    # As it is written it asks for INT8; a runtime that left it so computes in FP32.
    assert layer_precisions(both, executed=False) == {"int8": 1}
    assert layer_precisions(both, executed=True) == {"fp32": 1}
    assert precision_of(both) == "int8"
    weights_only = graph(tmp_path, [*d, models.node("MatMul", "x t", "y")], weights)
    assert precision_of(weights_only) == "fp32"
    assert is_quantized(weights_only)
    nodes = [models.node("QuantizeLinear", "x s z", "q"), models.node("QLinearMatMul", "q s z w s z s z", "r")]
    fused = graph(tmp_path, [*nodes, models.node("DequantizeLinear", "r s z", "y")], weights)
    assert layer_precisions(fused, executed=True) == {"int8": 1}


def test_layers_within_branches(tmp_path: Path) -> None:
    inner = onnx.helper.make_graph([models.node("MatMul", "x w", "o")], "branch", [], [models.value("o", ("n", 4))])
    nodes = [models.node("If", "c", "y", then_branch=inner, else_branch=inner)]
    assert layer_precisions(graph(tmp_path, nodes, {"w": W, "c": np.True_}), executed=True) == {"fp32": 2}


def test_what_most_layers_run_in() -> None:
    assert main_precision({"int8": 3, "fp32": 2}) == "int8"
    assert main_precision({"int8": 2, "fp32": 2}) == "fp32"
    assert main_precision({}) == "fp32"
    assert describe_layers({"int8": 2, "fp32": 24}) == "24 layers in fp32, 2 in int8"
    assert describe_layers({"fp16": 1}) == "1 layer in fp16"
    assert keeps_precision("fp16", "fp16", {"fp16": 5, "fp32": 2}), "some that stay wider are all right"
    assert not keeps_precision("fp32", "fp32", {"fp32": 5, "int8": 1}), "nothing may run in less"
    assert keeps_precision("int8", "int8", {"int8": 5, "fp32": 1})
    assert not keeps_precision("int8", "fp32", {"int8": 1, "fp32": 5})
