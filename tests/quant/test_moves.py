"""Quantisers that stand in front of poolings and concatenations: the same numbers, and nothing in between computes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from int8_processors import IS_EXACT
from onnx_models import node, numbered, operators, run, save, value

import infersdk
from infersdk import quant

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore:.*it was quantised for")

_STAYING = dataclasses.replace(quant.SCHEMES["openvino"], moves=False)


def network(path: Path, middle: list[Any], outputs: tuple[str, ...] = ("y",)) -> Path:
    """A convolution with a ReLU, `r1`; what is between, up to `joined` of 12 channels; and a convolution of that."""
    rng = np.random.default_rng(3)
    weights = {
        "w1": rng.normal(size=(4, 3, 3, 3)).astype(np.float32) / 5,
        "w2": rng.normal(size=(5, 12, 1, 1)).astype(np.float32) / 3,
        "scales": np.array([1, 1, 2, 2], np.float32),
    }
    nodes = [
        node("Conv", "x w1", "c1", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Relu", "c1", "r1"),
        *middle,
        node("Conv", "joined w2", "y", kernel_shape=[1, 1]),
    ]
    return save(path, numbered(nodes), [value("x", [1, 3, 16, 16])], [value(name, None) for name in outputs], weights)


def as_written(path: Path, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What a file computes step by step in floating point, with nothing fused."""
    return np.asarray(run(path, array, optimized=False)[0])


def resize(mode: str) -> Any:
    return onnx.helper.make_node("Resize", ["j", "", "scales"], ["joined"], mode=mode)


def pool(source: str, result: str) -> Any:
    return node("MaxPool", source, result, kernel_shape=[3, 3], pads=[1, 1, 1, 1])


POOLS = [pool("r1", "p1"), node("Concat", "p1 p1 p1", "joined", axis=1)]


@pytest.fixture(scope="module")
def data() -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(5)
    return [rng.random((1, 3, 16, 16), np.float32) for _ in range(8)]


def test_a_quantiser_moves_before_a_pooling_and_a_concatenation(tmp_path: Path, data: list[Any]) -> None:
    model = network(tmp_path / "pools.onnx", POOLS)
    planned = quant.plan(model, "openvino")
    assert dict(planned.points) == {"x": "x", "r1": "joined"}
    sources = {**planned.moved, **planned.points}
    assert {sources[name] for name in ("r1", "p1", "joined")} == {"joined"}
    assert "y" not in sources
    table = quant.calibrate(model, data)
    made = quant.quantize(planned, tmp_path / "moved.onnx", table)
    assert operators(made.path)["QuantizeLinear"] == 2
    staying = quant.quantize(model, tmp_path / "staying.onnx", table, target=_STAYING)
    for array in data:
        np.testing.assert_array_equal(as_written(made.path, array), as_written(staying.path, array))
    for backend in ("onnxruntime", "openvino") if IS_EXACT else ():
        pytest.importorskip(backend)
        with infersdk.load(made.path, backend) as infer:
            for array in data:  # a runtime that computes in whole numbers may round to the next code
                np.testing.assert_allclose(infer(array)["y"], as_written(made.path, array), atol=0.02)
    assert quant.layer_errors(planned, table, data) == pytest.approx(
        quant.layer_errors(quant.plan(model, _STAYING), table, data)
    )


@pytest.mark.parametrize(
    ("middle", "outputs", "points"),
    [
        # One part is an output of the model: it would be stored in both forms.
        (POOLS, ("y", "p1"), {"x": "x", "joined": "joined"}),
        # One part is read in floating point.
        (
            [POOLS[0], node("Sigmoid", "p1", "s"), node("Concat", "p1 p1 s", "joined", axis=1)],
            ("y",),
            {"x": "x", "joined": "joined"},
        ),
        # One part is read by several nodes.
        (
            [POOLS[0], pool("p1", "p2"), node("Concat", "r1 p1 p2", "joined", axis=1)],
            ("y",),
            {"x": "x", "joined": "joined"},
        ),
        # The scale of what is between new pixels is another one.
        (
            [node("Concat", "r1 r1 r1", "j", axis=1), resize("linear")],
            ("y",),
            {"x": "x", "joined": "joined"},
        ),
        (
            [node("Concat", "r1 r1 r1", "j", axis=1), resize("nearest")],
            ("y",),
            {"x": "x", "r1": "joined"},
        ),
    ],
)
def test_what_does_not_move(tmp_path: Path, middle: list[Any], outputs: tuple[str, ...], points: Any) -> None:
    planned = quant.plan(network(tmp_path / "net.onnx", middle, outputs), "openvino")
    assert dict(planned.points) == points
    assert set(quant.plan(tmp_path / "net.onnx", _STAYING).points) == {"x", "joined"}


def test_for_onnx_runtime_the_mean_of_a_last_layer_reads_8_bits(tmp_path: Path, data: list[Any]) -> None:
    rng = np.random.default_rng(3)
    weights = {"w": rng.normal(size=(6, 3, 3, 3)).astype(np.float32)}
    nodes = [node("Conv", "x w", "c"), node("Relu", "c", "r"), node("GlobalAveragePool", "r", "m")]
    nodes.append(node("Softmax", "m", "y", axis=1))
    model = save(tmp_path / "m.onnx", nodes, [value("x", [1, 3, 16, 16])], [value("y", None)], weights)
    table = quant.calibrate(model, data)  # holds for each target
    for target, points in (("openvino", {"x"}), ("onnxruntime", {"x", "r"})):
        planned = quant.plan(model, target)
        assert set(planned.points) == points
        made = quant.quantize(planned, tmp_path / "q.onnx", table)
        with infersdk.load(model) as first, infersdk.load(made.path) as second:
            for array in data:
                np.testing.assert_allclose(first(array)["y"], second(array)["y"], atol=0.02)
