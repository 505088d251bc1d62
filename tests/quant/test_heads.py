"""Heads of detectors that take channels apart and join them again, as matrix products of the parts."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import node, save, value

from infersdk import quant
from infersdk.graph.files import read_model, write_model
from infersdk.graph.passes import FreeBatch, ResizeInput
from infersdk.quant import heads, products

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

CHANNELS, ANCHORS = 16, 3
#: The sizes of the parts, and whether a Sigmoid stands before the Split or behind each part, as in YOLOv5's own heads
#: of boxes, and in those of masks.
FORMS = {
    "boxes": ((2, 2, 9), True), "masks": ((2, 2, 9, 4), False), "first": ((9, 2), True), "all_sigmoid": ((1, 8), True),
    "more_than_a_block": ((2, 2, 19), True), "more_masks": ((2, 2, 18, 4), False),
}  # fmt: skip


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "_LEAST_BYTES", 0)


def level(index: int, source: str, form: str, sizes: tuple[int, int], anchors: int) -> tuple[list[Any], dict[str, Any]]:
    """The head of a feature map: its boxes are computed as YOLOv5's are."""
    parts, before = FORMS[form]
    count, p = sum(parts), f"l{index}_"
    rng = np.random.default_rng(10 + index)
    grid = np.stack(np.meshgrid(np.arange(sizes[1]), np.arange(sizes[0])), axis=-1) - 0.5
    weights = {
        f"{p}w": rng.normal(size=(anchors * count, CHANNELS, 1, 1)) / CHANNELS,
        f"{p}b": rng.normal(size=anchors * count),
        f"{p}grid": np.broadcast_to(grid, (1, anchors, *sizes, 2)), f"{p}two": np.asarray(2.0),
    }  # fmt: skip
    arrays: dict[str, Any] = {name: array.astype(np.float32) for name, array in weights.items()}
    arrays[f"{p}target"] = np.asarray([0, anchors, count, *sizes], np.int64)
    arrays[f"{p}parts"] = np.asarray(parts, np.int64)
    arrays[f"{p}flat"] = np.asarray([0, anchors * sizes[0] * sizes[1], count], np.int64)
    nodes = [
        node("Conv", f"{source} {p}w {p}b", f"{p}h"), node("Reshape", f"{p}h {p}target", f"{p}g"),
        node("Transpose", f"{p}g", f"{p}t", perm=[0, 1, 3, 4, 2]),
    ]  # fmt: skip
    names = [f"{p}p{number}" for number in range(len(parts))]
    nodes += [node("Sigmoid", f"{p}t", f"{p}s")] if before else []
    nodes.append(node("Split", f"{p}{'s' if before else 't'} {p}parts", " ".join(names), axis=-1))
    if not before:
        nodes += [node("Sigmoid", name, f"{name}s") for name in names[:-1]]
        names = [*(f"{name}s" for name in names[:-1]), names[-1]]
    for number, (name, part) in enumerate(zip(names, parts, strict=True)):
        if part == 2:
            nodes += [node("Mul", f"{name} {p}two", f"{name}m"), node("Add", f"{name}m {p}grid", f"{name}a")]
            names[number] = f"{name}a"
    nodes += [node("Concat", " ".join(names), f"{p}j", axis=4), node("Reshape", f"{p}j {p}flat", f"{p}y")]
    return nodes, arrays


def detector(
    path: Path,
    form: str = "boxes",
    batch: Any = "n",
    levels: int = 2,
    anchors: int = ANCHORS,
    sizes: tuple[int, int] = (8, 12),
) -> Path:
    rng = np.random.default_rng(3)
    arrays: dict[str, Any] = {
        "w": rng.normal(size=(CHANNELS, 3, 3, 3)), "v": rng.normal(size=(CHANNELS, CHANNELS, 3, 3)) / CHANNELS
    }  # fmt: skip
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    nodes = [
        node("Conv", "x w", "c0", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), node("Relu", "c0", "f0"),
        node("Conv", "f0 v", "c1", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), node("Relu", "c1", "f1"),
    ]  # fmt: skip
    for index in range(levels):
        made, more = level(index, f"f{index}", form, (sizes[0] >> index, sizes[1] >> index), anchors)
        nodes, arrays = nodes + made, arrays | more
    nodes.append(node("Concat", " ".join(f"l{index}_y" for index in range(levels)), "y", axis=1))
    for index, each in enumerate(nodes):
        each.name = f"{each.op_type}_{index}"
    return save(path, nodes, [value("x", [batch, 3, *sizes])], [value("y", None)], arrays)


def quantised(model: Path, name: str = "q.onnx", shape: tuple[int, ...] = (2, 3, 8, 12)) -> tuple[Path, list[Any]]:
    rng = np.random.default_rng(4)
    samples = [{"x": rng.random(shape, np.float32)} for _ in range(8)]
    table = quant.calibrate(model, samples, target="onnxruntime", method="minmax")
    return quant.quantize(model, model.with_name(name), table, target="onnxruntime").path, samples


def whole(model: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...] = (2, 3, 8, 12)) -> Path:
    """The reference: one product for each convolution, and the head as it is."""
    with monkeypatch.context() as patch:
        patch.setattr(products, "find_head", lambda split: None)
        return quantised(model, "whole.onnx", shape)[0]


def run(path: Path, feeds: dict[str, Any], optimized: Path | None = None) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if optimized is None:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    else:
        options.optimized_model_filepath = str(optimized)
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def operators(path: Path) -> Counter[str]:
    return Counter(each.op_type for each in onnx.load(str(path)).graph.node)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", ["n", 2])
def test_products_of_the_parts_give_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, batch: Any
) -> None:
    model = detector(tmp_path / "m.onnx", form, batch)
    made, samples = quantised(model)
    reference = whole(model, monkeypatch)
    onnx.checker.check_model(onnx.load(str(made)), full_check=True)
    for feeds in samples:
        expected = run(reference, feeds, tmp_path / "whole_optimized.onnx")
        y = run(made, feeds, tmp_path / "optimized.onnx")
        # ONNX Runtime rounds the Sigmoid of the last values of an array in another way.
        np.testing.assert_allclose(y, expected, rtol=1e-6)
        if "masks" in form:
            np.testing.assert_array_equal(y[..., -4:], expected[..., -4:])
        np.testing.assert_allclose(run(made, feeds), run(reference, feeds), rtol=1e-6)
        np.testing.assert_allclose(expected, run(model, feeds), atol=0.05)
    assert operators(tmp_path / "whole_optimized.onnx")["QGemm"] == 2
    kinds = operators(tmp_path / "optimized.onnx")
    assert (kinds["QGemm"], kinds["Conv"]) == (2 * 2 * ANCHORS, 0)
    # Nothing of all channels is transposed, or taken apart.
    count = sum(FORMS[form][0])
    shapes = onnx.shape_inference.infer_shapes(onnx.load(str(made)), data_prop=True)
    sides = {one.name: [side.dim_value for side in one.type.tensor_type.shape.dim] for one in shapes.graph.value_info}
    moved = [each for each in shapes.graph.node if each.op_type in ("Transpose", "Split")]
    assert moved
    assert not any(sides.get(each.input[0], [0])[-1] == count for each in moved)


@pytest.mark.parametrize("form", ["boxes", "masks"])
def test_the_file_is_resized_as_its_model_is(tmp_path: Path, form: str) -> None:
    model = detector(tmp_path / "m.onnx", form, 1)
    made, _ = quantised(model, shape=(1, 3, 8, 12))
    x = np.random.default_rng(6).random((1, 3, 16, 8), np.float32)
    results = []
    for path in (model, made):
        graph = read_model(path)
        ResizeInput(width=8, height=16).apply(graph)
        results.append(run(write_model(graph, tmp_path / "resized.onnx"), {"x": x}))
        FreeBatch().apply(graph)
        freed = run(write_model(graph, tmp_path / "freed.onnx"), {"x": np.concatenate([x, x, x])})
        np.testing.assert_array_equal(freed[1:2], results[-1])
    np.testing.assert_allclose(results[1], results[0], atol=0.05)


@pytest.mark.parametrize("change", ["read", "part", "alone", "shared", "order"])
def test_heads_of_another_form_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    model = detector(tmp_path / "m.onnx")
    loaded = onnx.load(str(model))
    graph = loaded.graph
    if change == "read":  # another node reads what is kept
        graph.node.append(node("ReduceMax", "l0_p2", "z"))
        graph.output.append(value("z", None))
    elif change == "part":  # a part of the box is an output, too
        graph.output.append(value("l0_p0", None))
    elif change == "alone":  # no concatenation of levels
        graph.node.remove(next(each for each in graph.node if list(each.output) == ["y"]))
        graph.output[0].name = "l0_y"
        graph.output.append(value("l1_y", None))
    elif change == "shared":  # the level is an output, too
        graph.output.append(value("l0_y", None))
        graph.output.append(value("l1_j", None))
        graph.output.append(value("l0_s", None))
    else:  # the levels are joined along another axis
        graph.node.remove(next(each for each in graph.node if list(each.output) == ["y"]))
        graph.node.append(node("Concat", "l0_y l0_y", "y", axis=2))
        graph.output.append(value("l1_y", None))
    for index, each in enumerate(graph.node):
        each.name = f"{each.op_type}_{index}"
    onnx.save(loaded, model)
    made, samples = quantised(model)
    reference = whole(model, monkeypatch)
    assert operators(made)["Gemm"] == operators(reference)["Gemm"] + (
        2 * ANCHORS - 1 if change in ("read", "part") else 0
    )
    np.testing.assert_array_equal(run(made, samples[0]), run(reference, samples[0]))


def test_the_largest_products_are_of_whole_blocks(tmp_path: Path) -> None:
    made, _ = quantised(detector(tmp_path / "m.onnx", "more_than_a_block"))
    weights = [one for one in onnx.load(str(made)).graph.initializer if re.search(r"_weight(_\d+)?$", one.name)]
    assert sorted(one.dims[1] for one in weights if len(one.dims) == 2) == [7] * 6 + [16] * 6


def test_one_anchor_is_one_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = detector(tmp_path / "m.onnx", anchors=1)
    made, samples = quantised(model)
    reference = whole(model, monkeypatch)
    assert operators(made)["Gemm"] == operators(reference)["Gemm"] == 2
    np.testing.assert_array_equal(run(made, samples[0]), run(reference, samples[0]))


def test_results_that_a_cache_holds_are_one_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = detector(tmp_path / "m.onnx")
    first = 4 * ANCHORS * sum(FORMS["boxes"][0]) * 8 * 12
    for least, products_of_levels in ((first, 2 * ANCHORS + 1), (first + 1, 2)):
        monkeypatch.setattr(heads, "_LEAST_BYTES", least)
        assert operators(quantised(model)[0])["Gemm"] == products_of_levels
