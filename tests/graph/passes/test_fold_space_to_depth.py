"""Convolutions of strided Slices as convolutions of the image: the same numbers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk.graph.files import model_bytes, read_model
from infersdk.graph.passes import FoldSpaceToDepth
from infersdk.graph.shapes import infer_shapes

onnx = pytest.importorskip("onnx")
models = pytest.importorskip("onnx_models")
pytest.importorskip("onnxruntime")

node, value, run = models.node, models.value, models.run

END = np.iinfo(np.int64).max
#: As YOLOv5 and YOLOX take the positions of each 2x2: rows and columns of the four sets.
FOCUS = [(0, 0), (1, 0), (0, 1), (1, 1)]


def focus(
    path: Path, shape: list[Any], offsets: list[tuple[int, int]], steps: tuple[int, int] = (2, 2), *, end: int = END,
    kernel: tuple[int, int] = (3, 3), outputs: str = "", **attributes: Any,
) -> Path:  # fmt: skip
    """Slices along the rows, Slices of these along the columns, a Concat, and a convolution of 5 results."""
    rng = np.random.default_rng(1)
    channels = shape[1] * len(offsets)
    weights = {
        "w": rng.normal(size=(5, channels // attributes.get("group", 1), *kernel)).astype(np.float32),
        "b": rng.normal(size=5).astype(np.float32), "end": np.asarray([end]), "down": np.asarray([steps[0]]),
        "right": np.asarray([steps[1]]), "rows": np.asarray([2]), "columns": np.asarray([-1]),
    }  # fmt: skip
    nodes = []
    for number, (y, x) in enumerate(offsets):
        weights |= {f"y{number}": np.asarray([y]), f"x{number}": np.asarray([x])}
        nodes.append(node("Slice", f"x y{number} end rows down", f"r{number}"))
        nodes.append(node("Slice", f"r{number} x{number} end columns right", f"s{number}"))
    nodes.append(node("Concat", " ".join(f"s{number}" for number in range(len(offsets))), "c", axis=1))
    nodes.append(node("Conv", "c w b", "y", kernel_shape=list(kernel), **attributes))
    also = [value(name, None) for name in outputs.split()]
    return Path(models.save(path, nodes, [value("x", shape)], [value("y", None), *also], weights))


def folded(path: Path) -> tuple[Any, bytes, bool]:
    model = read_model(path)
    infer_shapes(model)
    changed = FoldSpaceToDepth().apply(model)
    content = model_bytes(model)
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    return Counter(each.op_type for each in model.graph), content, changed


@pytest.mark.parametrize(
    ("shape", "offsets", "steps", "attributes"),
    [
        ([1, 3, 12, 8], FOCUS, (2, 2), {"pads": [1, 1, 1, 1]}),
        ([2, 3, 12, 8], FOCUS, (2, 2), {"pads": [0, 1, 1, 0], "strides": [2, 1]}),
        (["n", 3, "h", "w"], FOCUS, (2, 2), {"pads": [1, 1, 1, 1]}),
        ([1, 2, 12, 9], [(2, 0), (0, 2), (1, 1)], (3, 3), {"kernel": (1, 2)}),
        ([1, 2, 12, 5], [(1, 0), (0, 0), (1, 0)], (2, 1), {"kernel": (2, 3)}),  # one set twice
        ([1, 2, 12, 8], [(1, 1)], (2, 2), {"end": 12}),
    ],
)  # fmt: skip
def test_slices(tmp_path: Path, shape: list[Any], offsets: Any, steps: Any, attributes: dict[str, Any]) -> None:
    path = focus(tmp_path / "m.onnx", shape, offsets, steps, **attributes)
    kinds, content, changed = folded(path)
    assert changed
    assert kinds == {"Conv": 1}
    sides = [side if isinstance(side, int) else {"n": 2, "h": 6, "w": 10}[side] for side in shape]
    x = np.random.default_rng(2).random(sides, np.float32)
    np.testing.assert_allclose(run(content, x)[0], run(path, x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "offsets", "steps", "attributes"),
    [
        ([1, 3, 12, 8], FOCUS, (2, 2), {"dilations": [2, 2]}),
        ([1, 5, 12, 8], FOCUS, (2, 2), {"group": 5}),
        ([1, 3, 12, 8], FOCUS, (2, 2), {"auto_pad": "SAME_UPPER"}),
        ([1, 3, 12, 8], [(2, 0), (3, 0)], (2, 2), {"kernel": (1, 1), "end": 12}),  # the first rows are left out
        ([1, 3, 12, 8], FOCUS, (2, 2), {"end": 6}),  # the last rows are left out
        ([1, 3, 11, 8], [(0, 0)], (2, 2), {}),  # a wider filter could end behind the image
        ([1, 3, "h", "w"], [(0, 0), (0, 1)], (2, 2), {}),  # the height may be odd
        ([1, 3, 12, 8], [(0, 0), (0, 0)], (1, 1), {}),
        ([1, 3, 12, 8], FOCUS, (2, 2), {"outputs": "c"}),
    ],
)  # fmt: skip
def test_others_stay(tmp_path: Path, shape: list[Any], offsets: Any, steps: Any, attributes: dict[str, Any]) -> None:
    path = focus(tmp_path / "m.onnx", shape, offsets, steps, **attributes)
    before = Counter(each.op_type for each in onnx.load(str(path)).graph.node)
    assert folded(path)[::2] == (before, False)


def test_sets_of_different_values_stay(tmp_path: Path) -> None:
    weights = {"w": np.ones((1, 2, 1, 1), np.float32), "start": np.asarray([0]), "end": np.asarray([END]),
               "axes": np.asarray([3]), "steps": np.asarray([2])}  # fmt: skip
    nodes = [
        node("Relu", "x", "r"), node("Slice", "x start end axes steps", "a"),
        node("Slice", "r start end axes steps", "b"), node("Concat", "a b", "c", axis=1),
        node("Conv", "c w", "y", kernel_shape=[1, 1]),
    ]  # fmt: skip
    path = models.save(tmp_path / "m.onnx", nodes, [value("x", [1, 1, 4, 4])], [value("y", None)], weights)
    assert folded(path)[2] is False
    (graph,) = [onnx.load(str(path)).graph]
    graph.node[2].input[0] = "x"
    again = models.save(tmp_path / "n.onnx", graph.node, graph.input, graph.output, weights)
    assert folded(again)[2] is True  # of one value they do not


def test_what_else_reads_a_slice_keeps_it(tmp_path: Path) -> None:
    path = focus(tmp_path / "m.onnx", [1, 3, 12, 8], FOCUS, pads=[1, 1, 1, 1], outputs="s3")
    kinds, content, changed = folded(path)
    assert changed
    assert kinds == {"Conv": 1, "Slice": 2}
    x = np.random.default_rng(5).random((1, 3, 12, 8), np.float32)
    for new, old in zip(run(content, x), run(path, x), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-5)
