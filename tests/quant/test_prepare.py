"""The form of a model that is quantised."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import node, numbered, operators, run, save, value
from quantised_models import quantised

from infersdk.quant.prepare import prepare

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def backbone(path: Path) -> Path:
    """The begin and the end of a YOLOX backbone: positions of each 2x2 as channels, and a pyramid of poolings."""
    rng = np.random.default_rng(1)
    weights: dict[str, np.ndarray[Any, Any]] = {
        "w": rng.normal(size=(24, 12, 3, 3)).astype(np.float32) / 6, "m": rng.normal(size=(24, 24, 3, 3)) / 12,
        "v": rng.normal(size=(24, 96, 1, 1)) / 10, "end": np.asarray([2**31 - 1]), "two": np.asarray([2]),
        "rows": np.asarray([2]), "columns": np.asarray([3]), "s0": np.asarray([0]), "s1": np.asarray([1]),
    }  # fmt: skip
    weights |= {name: weights[name].astype(np.float32) for name in "wmv"}
    nodes = []
    for number, (y, x) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1)]):
        nodes.append(node("Slice", f"x s{y} end rows two", f"r{number}"))
        nodes.append(node("Slice", f"r{number} s{x} end columns two", f"p{number}"))
    nodes += [
        node("Concat", "p0 p1 p2 p3", "focus", axis=1),
        node("Conv", "focus w", "a", kernel_shape=[3, 3], pads=[1] * 4), node("Relu", "a", "b"),
        node("Conv", "b m", "c", kernel_shape=[3, 3], pads=[1] * 4), node("Relu", "c", "d"),
    ]  # fmt: skip
    nodes += [
        node("MaxPool", "d", f"d{side}", kernel_shape=[side] * 2, pads=[side // 2] * 4) for side in (5, 9, 13)
    ]  # fmt: skip
    nodes += [node("Concat", "d d5 d9 d13", "spp", axis=1), node("Conv", "spp v", "y", kernel_shape=[1, 1])]
    return save(path, numbered(nodes), [value("x", [1, 3, 32, 24])], [value("y", None)], weights)


def test_slices_are_folded_into_the_convolution(tmp_path: Path) -> None:
    model = prepare(backbone(tmp_path / "m.onnx"))
    assert Counter(each.op_type for each in model.graph) == {"Conv": 3, "Relu": 2, "MaxPool": 3, "Concat": 1}


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "tensorrt", "portable"])
def test_files_of_it_give_what_the_model_gives(target: str, tmp_path: Path) -> None:
    model = backbone(tmp_path / "m.onnx")
    made, samples = quantised(model, target, (1, 3, 32, 24))
    assert operators(made)["Slice"] == 0
    for feeds in samples:
        new, old = (run(path, feeds, optimized=False)[0] for path in (made, model))
        assert np.linalg.norm(new - old) < 0.05 * np.linalg.norm(old)


def test_operators_of_other_standard_domains_keep_their_import(tmp_path: Path) -> None:
    """`ai.onnx.ml` is another domain than `ai.onnx`."""
    rng = np.random.default_rng(1)
    nodes = [
        node("Conv", "x w", "a"), node("Flatten", "a", "f"),
        node("Scaler", "f", "y", domain="ai.onnx.ml", offset=[0.5] * 8, scale=[2.0] * 8),
    ]  # fmt: skip
    weights = {"w": rng.normal(size=(8, 3, 4, 4)).astype(np.float32)}
    model = save(
        tmp_path / "m.onnx", numbered(nodes), "float[1,3,4,4] x", "float[1,8] y", weights, domains={"ai.onnx.ml": 1}
    )
    assert set(prepare(model).graph.opset_imports) == {"", "ai.onnx.ml"}
    made, _ = quantised(model, "portable", (1, 3, 4, 4))
    onnx.checker.check_model(str(made))


def test_a_model_whose_weights_are_in_a_separate_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infersdk.graph.files._LARGE", 0)  # the limit is 1 GiB
    made, samples = quantised(backbone(tmp_path / "m.onnx"), "portable", (1, 3, 32, 24))
    assert np.isfinite(run(made, samples[0])[0]).all()
