"""Poolings of one value, one behind the other: the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk.graph.files import model_bytes, read_model
from infersdk.graph.passes import ChainPoolings
from infersdk.graph.shapes import infer_shapes

onnx = pytest.importorskip("onnx")
models = pytest.importorskip("onnx_models")
pytest.importorskip("onnxruntime")

node, value, run = models.node, models.value, models.run


def around(*window: int, **attributes: Any) -> dict[str, Any]:
    """The attributes of a pooling of this window around each position."""
    return {"kernel_shape": list(window), "pads": [side // 2 for side in window] * 2, **attributes}


def pyramid(path: Path, poolings: list[dict[str, Any]], outputs: str = "y") -> Path:
    """Poolings of the input, its largest first, and their concatenation with it."""
    rank = len(poolings[0]["kernel_shape"])
    nodes = [node("MaxPool", "x", f"p{i}", **each) for i, each in enumerate(poolings)]
    nodes.append(node("Concat", " ".join(["x", *(f"p{i}" for i in range(len(poolings)))]), "y", axis=1))
    shape = ["n", 2, *[7, 9, 6][:rank]]
    return Path(models.save(path, nodes, [value("x", shape)], [value(name, None) for name in outputs.split()]))


def chained(path: Path) -> tuple[dict[str, tuple[str, list[int]]], bytes, bool]:
    """What each pooling reads and its window; the file; whether it changed."""
    model = read_model(path)
    infer_shapes(model)
    changed = ChainPoolings().apply(model)
    content = model_bytes(model)
    graph = onnx.load_from_string(content).graph
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    found = {}
    for each in graph.node:
        if each.op_type == "MaxPool":
            attributes = {one.name: list(one.ints) for one in each.attribute}
            found[each.output[0]] = (each.input[0], attributes["kernel_shape"])
    return found, content, changed


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("outputs", ["y", "y p0"])
def test_a_pyramid(tmp_path: Path, rank: int, outputs: str) -> None:
    path = pyramid(tmp_path / "m.onnx", [around(*[side] * rank) for side in (13, 5, 9)], outputs)
    reads, content, changed = chained(path)
    assert changed
    assert reads == {"p0": ("p2", [5] * rank), "p1": ("x", [5] * rank), "p2": ("p1", [5] * rank)}
    # Below 0 throughout: padding does not count as 0.
    x = np.random.default_rng(1).normal(-5, 1, (2, 2, *[7, 9, 6][:rank])).astype(np.float32)
    for new, old in zip(run(content, x), run(path, x), strict=True):
        np.testing.assert_array_equal(new, old)
    (tmp_path / "chained.onnx").write_bytes(content)
    assert chained(tmp_path / "chained.onnx")[2] is False


def test_windows_that_grow_in_one_direction(tmp_path: Path) -> None:
    path = pyramid(tmp_path / "m.onnx", [around(3, 5), around(3, 3), around(3, 5), around(1, 9)])
    reads, content, _ = chained(path)
    # Equal windows both read what the smaller one gives; of one row and nine columns none can be made of the others.
    assert reads["p1"] == ("x", [3, 3])
    assert reads["p3"] == ("x", [1, 9])
    assert reads["p0"] == reads["p2"] == ("p1", [1, 3])
    x = np.random.default_rng(1).normal(size=(1, 2, 7, 9)).astype(np.float32)
    np.testing.assert_array_equal(run(content, x)[0], run(path, x)[0])


@pytest.mark.parametrize(
    "other",
    [
        around(4, 4, pads=[1, 1, 2, 2]), around(5, 5, pads=[4, 4, 0, 0]),
        around(5, 5, auto_pad="SAME_UPPER", pads=None), around(3, 3, dilations=[2, 2], pads=[2, 2, 2, 2]),
    ],
)  # fmt: skip
def test_others_stay(tmp_path: Path, other: dict[str, Any]) -> None:
    poolings = [{key: item for key, item in each.items() if item is not None} for each in (other, around(3, 3))]
    assert chained(pyramid(tmp_path / "m.onnx", poolings))[2] is False
