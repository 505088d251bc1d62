"""The description of an ONNX file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_models as models
import pytest

from infersdk.graph import onnx_info

onnx = pytest.importorskip("onnx")


def test_parameters_are_weights_and_constants(tmp_path: Path) -> None:
    """PaddlePaddle's exports have all weights in Constant nodes. A weight may be an input, too."""
    weight = onnx.numpy_helper.from_array(np.ones((2, 3), np.float32))
    five = models.node("Constant", "", "five", value_floats=[5.0] * 5)
    total = models.node("ReduceSum", "five", "sum", keepdims=0)
    inner = onnx.helper.make_graph([five, total], "inner", [], [models.value("sum", ())])
    nodes = [
        models.node("Constant", "", "constant", value=weight),
        models.node("Add", "x constant", "a"),
        models.node("Add", "a weight", "b"),
        models.node("If", "flag", "c", then_branch=inner, else_branch=inner),
        models.node("Add", "b c", "y"),
    ]
    inputs = [models.value("x", (2, 3)), models.value("flag", (), "bool"), models.value("weight", (3,))]
    weights = {"weight": np.ones(3, np.float32)}
    path = models.save(tmp_path / "m.onnx", nodes, inputs, [models.value("y", (2, 3))], weights)
    assert onnx_info(path).parameters == 2 * 3 + 3 + 5 + 5


def test_a_constant_that_is_not_valid_has_no_parameters(tmp_path: Path) -> None:
    nodes = [models.node("Constant", "", "constant", value=1), models.node("Add", "x constant", "y")]
    path = models.save(tmp_path / "m.onnx", nodes, [models.value("x", (2,))], [models.value("y", (2,))])
    assert onnx_info(path).parameters == 0
