"""Constant factors and offsets in convolutions: the same numbers on random graphs, and only where it is safe."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from onnx_models import node, run, save, value
from random_graphs import Graph, graphs

from infersdk.graph.factors import fold_factors
from infersdk.graph.files import model_bytes, read_model
from infersdk.graph.passes import HardSwish

if TYPE_CHECKING:
    from pathlib import Path

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")
RNG = np.random.default_rng(7)
PROPERTY = settings(max_examples=60, suppress_health_check=list(HealthCheck), derandomize=True)


def equal(before: bytes, after: bytes, x: Any) -> None:
    expected, found = run(before, x, optimized=False), run(after, x, optimized=False)
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=5e-5 * (1 + np.abs(one).max()))


def folded(path: Path, x: Any) -> Counter[str]:
    """The operators that are left behind the folding, which changes no result."""
    model = read_model(path.read_bytes())
    fold_factors(model.graph)
    content = model_bytes(model)
    equal(path.read_bytes(), content, x)
    return Counter(one.op_type for one in onnx.load_from_string(content).graph.node)


@PROPERTY
@given(graphs())
def test_random_graphs(graph: Graph) -> None:
    x = np.random.default_rng(1).normal(size=graph.input_shape).astype(np.float32)
    model = read_model(graph.content)
    fold_factors(model.graph)
    equal(graph.content, model_bytes(model), x)


@PROPERTY
@given(graphs(kinds=("conv", "factor", "offset", "swish", "swish", "relu", "if")))
def test_random_graphs_with_hard_swish(graph: Graph) -> None:
    x = (np.random.default_rng(1).normal(size=graph.input_shape) * 3).astype(np.float32)
    model = read_model(graph.content)
    HardSwish().apply(model)
    equal(graph.content, model_bytes(model), x)


def kernel(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("form", ["factor", "offset"])
def test_a_constant_that_gives_an_axis_stays(form: str, tmp_path: Path) -> None:
    """[3, 5, 4] times [1, 1, 1, 1] has four axes, which the convolution needs."""
    lines = {
        "factor": [node("Mul", "x s", "a")],
        "offset": [node("Add", "x t", "a")],
    }
    weights = {
        "s": np.full((1, 1, 1, 1), 2, np.float32), "t": np.full((1, 1, 1, 1), 3, np.float32),
        "w": kernel(2, 3, 3, 3),
    }  # fmt: skip
    nodes = [*lines[form], node("Conv", "a w", "y")]
    path = save(tmp_path / "m.onnx", nodes, [value("x", [3, 5, 4])], [value("y", None)], weights)
    left = folded(path, kernel(3, 5, 4))
    assert left == Counter(one.op_type for one in nodes)


def test_convolutions_of_inner_graphs_stay(tmp_path: Path) -> None:
    """A branch has a weight of the name that a new one would get, and would take its own."""
    weight = onnx.numpy_helper.from_array(kernel(3, 3, 1, 1), "z_weight")
    then = onnx.helper.make_graph([node("Conv", "a z_weight", "z")], "then", [], [value("z", None)], [weight])
    other = onnx.helper.make_graph([node("Relu", "x", "r")], "else", [], [value("r", None)])
    nodes = [node("Mul", "x s", "a"), node("If", "yes", "y", then_branch=then, else_branch=other)]
    path = save(tmp_path / "m.onnx", nodes, [value("x", [1, 3, 5, 4])], [value("y", None)],
                {"s": np.float32(2), "yes": np.asarray(True)})  # fmt: skip
    left = folded(path, kernel(1, 3, 5, 4))
    assert left == {"Mul": 1, "If": 1}


def test_operators_of_other_domains_stay(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "c"), node("Mul", "c s", "m", domain="my.domain"), node("Relu", "m", "y")]
    weights = {"s": np.float32(2), "w": kernel(2, 3, 3, 3)}
    path = save(tmp_path / "m.onnx", nodes, [value("x", [1, 3, 5, 4])], [value("y", None)], weights)
    model = onnx.load(path)
    model.opset_import.append(onnx.helper.make_opsetid("my.domain", 1))
    assert fold_factors(read_model(model.SerializeToString()).graph) == 0
