"""The levels of a detector, joined with the channels last: the same numbers."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import node, numbered, run, save, value
from quantised_models import quantised

from infersdk import quant

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

_TRANSPOSED = dataclasses.replace(quant.SCHEMES["onnxruntime"], levels=False)
SHAPE = (1, 3, 16, 24)


def detector(
    path: Path, target: list[int], batch: Any = 1, perm: tuple[int, ...] = (0, 2, 1), also: str = "",
) -> Path:  # fmt: skip
    """Two levels, each with boxes, an objectness and classes, as YOLOX's head gives them.

    Args:
        target: of the Reshape of each level.
        also: a value that is an output as well.
    """
    rng = np.random.default_rng(1)
    weights: dict[str, np.ndarray[Any, Any]] = {"stem": rng.normal(size=(32, 3, 3, 3)) / 4, "t": np.asarray(target)}
    nodes = [node("Conv", "x stem", "s", kernel_shape=[3, 3], pads=[1] * 4), node("Relu", "s", "f0")]
    for level in (0, 1):
        source = f"f{level}"
        if level:
            weights["down"] = rng.normal(size=(32, 32, 3, 3)) / 12
            nodes += [
                node("Conv", "f0 down", "d", kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2]),
                node("Relu", "d", source),
            ]
        for tower in ("reg", "cls"):
            weights[f"{tower}{level}"] = rng.normal(size=(32, 32, 3, 3)) / 12
            nodes += [
                node("Conv", f"{source} {tower}{level}", f"c{tower}{level}", kernel_shape=[3, 3], pads=[1] * 4),
                node("Relu", f"c{tower}{level}", f"{tower}_{level}"),
            ]
        for name, tower, count in (("box", "reg", 4), ("obj", "reg", 1), ("class", "cls", 7)):
            weights[f"w{name}{level}"] = rng.normal(size=(count, 32, 1, 1)) / 6
            nodes.append(node("Conv", f"{tower}_{level} w{name}{level}", f"{name}{level}", kernel_shape=[1, 1]))
            if name != "box":
                nodes.append(node("Sigmoid", f"{name}{level}", f"p{name}{level}"))
        nodes.append(node("Concat", f"box{level} pobj{level} pclass{level}", f"j{level}", axis=1))
        nodes.append(node("Reshape", f"j{level} t", f"r{level}"))
    nodes += [node("Concat", "r0 r1", "all", axis=2), node("Transpose", "all", "y", perm=perm)]
    arrays = {name: array if name == "t" else array.astype(np.float32) for name, array in weights.items()}
    outputs = [value("y", None), *([value(also, None)] if also else [])]
    return save(path, numbered(nodes), [value("x", [batch, *SHAPE[1:]])], outputs, arrays)


def made_of(model: Path, target: Any, name: str) -> Path:
    return quantised(model, target, SHAPE, name)[0]


def perms(path: Path) -> Counter[tuple[int, ...]]:
    """How often each order of axes stands in the Transposes of a file."""
    nodes = [each for each in onnx.load(str(path)).graph.node if each.op_type == "Transpose"]
    return Counter(tuple(each.attribute[0].ints) for each in nodes)


@pytest.mark.parametrize(("batch", "target"), [(1, [1, 12, -1]), (1, [0, 0, -1]), ("n", [0, 12, -1]), (1, [0, 12, -1])])
def test_levels_are_not_transposed(tmp_path: Path, batch: Any, target: list[int]) -> None:
    model = detector(tmp_path / "m.onnx", target, batch)
    made, plain = made_of(model, "onnxruntime", "q.onnx"), made_of(model, _TRANSPOSED, "t.onnx")
    onnx.checker.check_model(onnx.load(str(made)), full_check=True)
    assert perms(plain)[0, 2, 1] == 1
    assert perms(made)[0, 2, 1] == 0
    for count in (1, 2) if batch == "n" else (1,):
        x = np.random.default_rng(7).random((count, *SHAPE[1:]), np.float32)
        (new,), (old,) = run(made, x), run(plain, x)
        assert new.shape == (count, 16 * 24 + 8 * 12, 12)
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize(
    ("settings", "perm"),
    [({"also": "all"}, (0, 2, 1)), ({"also": "r1"}, (0, 2, 1)), ({}, (2, 1, 0))],
)  # fmt: skip
def test_others_stay(tmp_path: Path, settings: dict[str, Any], perm: tuple[int, ...]) -> None:
    model = detector(tmp_path / "m.onnx", [1, 12, -1], perm=perm, **settings)
    made = made_of(model, "onnxruntime", "q.onnx")
    assert perms(made)[perm] == 1
    x = np.random.default_rng(7).random(SHAPE, np.float32)
    for new, old in zip(run(made, x), run(made_of(model, _TRANSPOSED, "t.onnx"), x), strict=True):
        np.testing.assert_array_equal(new, old)


def test_a_level_that_is_an_output_is_transposed_as_a_whole(tmp_path: Path) -> None:
    model = detector(tmp_path / "m.onnx", [1, 12, -1], also="j0")
    made, plain = made_of(model, "onnxruntime", "q.onnx"), made_of(model, _TRANSPOSED, "t.onnx")
    assert perms(made)[0, 2, 1] == 0
    x = np.random.default_rng(7).random(SHAPE, np.float32)
    for new, old in zip(run(made, x), run(plain, x), strict=True):
        np.testing.assert_array_equal(new, old)


def test_a_reshape_of_other_axes_stays(tmp_path: Path) -> None:
    made = made_of(detector(tmp_path / "m.onnx", [1, 24, -1]), "onnxruntime", "q.onnx")
    assert perms(made)[0, 2, 1] == 1


def test_other_targets_keep_the_transpose(tmp_path: Path) -> None:
    model = detector(tmp_path / "m.onnx", [1, 12, -1])
    for target in ("portable", "openvino"):
        assert perms(made_of(model, target, "q.onnx"))[0, 2, 1] == 1
