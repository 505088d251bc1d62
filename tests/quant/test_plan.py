"""Which layers of a network each backend computes faster in floating point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import node, numbered, run, save, value

from infersdk import quant
from infersdk.errors import CalibrationError, ConfigError

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def chain(path: Path, shapes: list[tuple[int, ...]], pooled: bool = False, silu: bool = False) -> Path:
    """Convolutions of these shapes, each with a ReLU or SiLU, perhaps a pooling after the first; then a sigmoid."""
    rng = np.random.default_rng(1)
    weights, nodes, source = {}, list[Any](), "x"
    for index, shape in enumerate(shapes):
        weights[f"w{index}"] = rng.normal(size=shape).astype(np.float32)
        side = shape[-1]
        group = shapes[index - 1][0] if index and shape[1] == 1 else 1
        pads = [side // 2] * 4
        nodes.append(node("Conv", f"{source} w{index}", f"c{index}", kernel_shape=[side, side], pads=pads, group=group))
        if silu:
            nodes += [node("Sigmoid", f"c{index}", f"s{index}"), node("Mul", f"c{index} s{index}", f"r{index}")]
        else:
            nodes.append(node("Relu", f"c{index}", f"r{index}"))
        source = f"r{index}"
        if pooled and not index:
            nodes.append(node("MaxPool", source, "p", kernel_shape=[2, 2], strides=[2, 2]))
            source = "p"
    nodes.append(node("Sigmoid", source, "y"))
    for each in nodes:
        each.name = f"{each.op_type}_{each.output[0]}"
    return save(path, nodes, [value("x", [1, 3, 16, 16])], [value("y", None)], weights)


# 27 products for each value, 9, 24, 216, 8, 216, and the last one, which gives floating point.
SHAPES = [
    (24, 3, 3, 3), (24, 1, 3, 3), (24, 24, 1, 1), (8, 24, 3, 3), (24, 8, 1, 1), (24, 24, 3, 3), (4, 24, 3, 3),
]  # fmt: skip


def test_from_the_image_on_layers_of_few_products_stay_in_floating_point(tmp_path: Path) -> None:
    model = chain(tmp_path / "m.onnx", SHAPES)
    planned = quant.plan(model, "onnxruntime")
    # Conv_c4 has few as well, but stands between 8 bits.
    assert planned.layers == ("Conv_c3", "Conv_c4", "Conv_c5")
    assert planned.left["Conv_c0"] == "onnxruntime computes 27 products per value faster in floating point"
    assert list(planned.left)[:3] == ["Conv_c0", "Conv_c1", "Conv_c2"]
    assert quant.plan(model, "portable").layers == tuple(f"Conv_c{i}" for i in range(7))
    assert quant.plan(model, "openvino").layers == tuple(f"Conv_c{i}" for i in (0, 2, 3, 4, 5, 6))
    # What is excluded ends nothing: behind it there are no 8 bits.
    assert quant.plan(model, "onnxruntime", exclude=["Conv_c0"]).layers == ("Conv_c3", "Conv_c4", "Conv_c5")
    # The rule would leave none beside those that are excluded, so it does not apply.
    others = ["Conv_c3", "Conv_c4", "Conv_c5", "Relu_r0"]
    assert planned.without(others).layers == ("Conv_c0", "Conv_c1", "Conv_c2")


def test_a_layer_before_a_pooling_is_quantised(tmp_path: Path) -> None:
    planned = quant.plan(chain(tmp_path / "m.onnx", SHAPES, pooled=True), "onnxruntime")
    assert planned.layers == tuple(f"Conv_c{i}" for i in range(6))


def test_up_to_the_end_layers_behind_a_depthwise_one_stay_in_floating_point(tmp_path: Path) -> None:
    # 27 products, 216, 9 that an INT8 layer follows, 216, 24, 9, 24, 24.
    start = [(24, 3, 3, 3), (24, 24, 3, 3), (24, 1, 3, 3), (24, 24, 3, 3)]
    whole = [*start, (24, 24, 1, 1), (24, 1, 3, 3), (24, 24, 1, 1), (4, 24, 1, 1)]
    # With a ReLU, which costs nothing in 8 bits, only the last one does.
    planned = quant.plan(chain(tmp_path / "m.onnx", whole), "onnxruntime")
    assert planned.layers == tuple(f"Conv_c{index}" for index in range(1, 7))
    planned = quant.plan(chain(tmp_path / "m.onnx", whole, silu=True), "onnxruntime")
    assert planned.layers == ("Conv_c1", "Conv_c2", "Conv_c3")
    assert planned.left["Conv_c5"] == "onnxruntime computes it and the layers after it faster in floating point"
    assert sorted(planned.left) == ["Conv_c0", *(f"Conv_c{index}" for index in range(4, 8))]
    # One of 64 products does not begin it, and stays in floating point behind one of fewer.
    model = chain(tmp_path / "m.onnx", [(64, 3, 3, 3), (64, 64, 3, 3), (64, 64, 1, 1), (4, 64, 1, 1)], silu=True)
    assert quant.plan(model, "onnxruntime").layers == ("Conv_c1", "Conv_c2")
    shapes = [(64, 3, 3, 3), (64, 64, 3, 3), (64, 1, 3, 3), (64, 64, 1, 1), (4, 64, 1, 1)]
    model = chain(tmp_path / "m.onnx", shapes, silu=True)
    assert quant.plan(model, "onnxruntime").layers == ("Conv_c1",)
    assert len(quant.plan(model, "portable").layers) == 5


def test_where_no_layer_is_worth_it_all_are_quantised(tmp_path: Path) -> None:
    planned = quant.plan(chain(tmp_path / "m.onnx", SHAPES[:3]), "onnxruntime")
    assert planned.layers == ("Conv_c0", "Conv_c1")  # the result of the last one stays in floating point


def network(path: Path, nodes: list[Any], weights: dict[str, Any], inputs: dict[str, list[Any]]) -> Path:
    arrays = {name: np.asarray(array, np.float32) for name, array in weights.items()}
    return save(
        path, numbered(nodes), [value(name, shape) for name, shape in inputs.items()], [value("y", None)], arrays
    )


def quantised(model: Path, inputs: dict[str, tuple[int, ...]], target: str) -> quant.Plan:
    """The plan; the file made by it gives about the results of the model."""
    rng = np.random.default_rng(2)
    samples = [{name: rng.normal(size=shape).astype(np.float32) for name, shape in inputs.items()} for _ in range(9)]
    planned = quant.plan(model, target)
    made = quant.quantize(planned, model.with_suffix(".int8.onnx"), quant.calibrate(model, samples[1:], target=target))
    expected, found = (run(path, samples[0], optimized=False)[0] for path in (model, made.path))
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.1 * np.abs(expected).max())
    return planned


def _but_last(target: str, *layers: str) -> tuple[str, ...]:
    """ONNX Runtime computes a layer in floating point whose result stays so."""
    return layers[:-1] if target == "onnxruntime" else layers


TARGETS = ["onnxruntime", "openvino", "tensorrt", "portable"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("weights", [(6,), (3, 6, 5)])
def test_products_that_are_not_with_a_matrix_stay_in_floating_point(
    target: str, weights: tuple[int, ...], tmp_path: Path
) -> None:
    """A vector of weights has no columns, and ONNX Runtime refuses a stack of matrices with a scale for each column."""
    rng = np.random.default_rng(1)
    nodes = [
        node("MatMul", "x u", "d"), node("Relu", "d", "e"), node("MatMul", "e v", "a"), node("Relu", "a", "b"),
        node("MatMul", "b w", "y"),
    ]  # fmt: skip
    arrays = {"u": rng.normal(size=(40, 40)), "v": rng.normal(size=(40, 6)), "w": rng.normal(size=weights)}
    model = network(tmp_path / "m.onnx", nodes, arrays, {"x": ["n", 3, 7, 40]})
    assert quantised(model, {"x": (1, 3, 7, 40)}, target).layers == _but_last(target, "MatMul_0", "MatMul_2")


@pytest.mark.parametrize("target", TARGETS)
def test_a_gemm_that_transposes_its_data_stays_in_floating_point(target: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    nodes = [
        node("Gemm", "x u", "d"), node("Relu", "d", "e"), node("Gemm", "e v", "a"), node("Relu", "a", "b"),
        node("Gemm", "b w", "y", transA=1),
    ]  # fmt: skip
    arrays = {"u": rng.normal(size=(40, 40)), "v": rng.normal(size=(40, 6)), "w": rng.normal(size=(8, 5))}
    model = network(tmp_path / "m.onnx", nodes, arrays, {"x": [8, 40]})
    assert quantised(model, {"x": (8, 40)}, target).layers == _but_last(target, "Gemm_0", "Gemm_2")


@pytest.mark.parametrize("target", TARGETS)
def test_readers_in_branches_of_an_if(target: str, tmp_path: Path) -> None:
    import onnx

    rng = np.random.default_rng(1)
    branches = []
    for name in ("then", "else"):
        inner = node("Relu", "a", name)
        inner.name = f"Relu_{name}"
        branches.append(onnx.helper.make_graph([inner], name, [], [value(name, None)]))
    nodes = [
        node("Conv", "x w", "a"), node("ReduceMean", "x", "mean", keepdims=0), node("Greater", "mean zero", "yes"),
        node("If", "yes", "b", then_branch=branches[0], else_branch=branches[1]), node("Conv", "b v", "c"),
        node("Relu", "c", "d"), node("Conv", "d v", "y"),
    ]  # fmt: skip
    arrays = {"w": rng.normal(size=(8, 8, 3, 3)), "v": rng.normal(size=(8, 8, 3, 3)), "zero": 0}
    model = network(tmp_path / "m.onnx", nodes, arrays, {"x": [1, 8, 9, 9]})
    assert "Conv_4" in quantised(model, {"x": (1, 8, 9, 9)}, target).layers


def test_a_portable_table_has_the_values_of_every_target(tmp_path: Path) -> None:
    """LRN, which stays in floating point, reads a result that is quantised before its ReLU, or after it."""
    rng = np.random.default_rng(1)
    nodes = [
        node("Conv", "x w", "a"), node("Relu", "a", "r"), node("LRN", "r", "b", size=3), node("Conv", "b v", "c"),
        node("Relu", "c", "d"), node("Conv", "d v", "y"),
    ]  # fmt: skip
    arrays = {"w": rng.normal(size=(8, 8, 3, 3)), "v": rng.normal(size=(8, 8, 3, 3))}
    model = network(tmp_path / "m.onnx", nodes, arrays, {"x": [1, 8, 9, 9]})
    found = {target: set(quant.plan(model, target).activations) for target in TARGETS}
    assert found["portable"] == {"x", "a", "r", "b", "c", "d"}
    assert found["onnxruntime"] == {"x", "r", "b", "d"}
    assert found["openvino"] == found["tensorrt"] == {"x", "b", "d"}


def test_a_transposed_convolution_of_one_column_is_not_a_mean(tmp_path: Path) -> None:
    weights = np.random.default_rng(1).normal(size=(3, 4, 1, 1))
    nodes = [node("Softmax", "x", "s", axis=1), node("ConvTranspose", "s w", "y")]
    model = network(tmp_path / "m.onnx", nodes, {"w": weights}, {"x": [1, 3, 9, 9]})
    assert quant.plan(model, "portable").layers == ("ConvTranspose_1",)


@pytest.mark.parametrize(
    ("attributes", "source"),
    [
        ({"mode": "nearest"}, "a"),
        ({"mode": "linear"}, "a"),
        ({"mode": "cubic"}, "b"),
        ({"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}, "b"),
    ],
)
def test_a_resize_whose_results_exceed_its_input_has_its_own_range(
    attributes: dict[str, Any], source: str, tmp_path: Path
) -> None:
    import onnx

    same = np.eye(4)[:, :, None, None]
    resize = onnx.helper.make_node("Resize", ["a", "roi", "scales"], ["b"], **attributes)
    nodes = [node("Conv", "x w", "a"), resize, node("Conv", "b v", "c"), node("Conv", "c u", "y")]
    settings = {"roi": [0, 0, 0, 0, 1, 1, 1.5, 1.5], "scales": [1, 1, 2, 2]}
    model = network(tmp_path / "m.onnx", nodes, {"w": same, "v": same, "u": same, **settings}, {"x": ["n", 4, 8, 8]})
    samples = [np.sign(np.random.default_rng(i).normal(size=(1, 4, 8, 8))).astype(np.float32) for i in range(8)]
    planned = quant.plan(model, "portable")
    assert planned.points["b"] == source
    made = quant.quantize(planned, tmp_path / "q.onnx", quant.calibrate(model, samples, method="minmax"))
    expected, found = (run(path, samples[0], optimized=False)[0] for path in (model, made.path))
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("limit", [{"max_drop": 120}, {"max_drop": -1}, {"max_drop": "a"}, {"max_score_shift": -0.1}])
def test_limits_are_checked_before_anything_runs(limit: dict[str, Any], tmp_path: Path) -> None:
    def open_wrapper(path: Path) -> Any:
        raise AssertionError(f"{path} is opened")

    model = chain(tmp_path / "m.onnx", SHAPES)
    (name, number), *_ = limit.items()
    with pytest.raises(ConfigError, match=rf"{name} must be a (percentage|number) .*, not {number!r}"):
        quant.Workflow(model, [np.zeros((16, 16, 3), np.uint8)] * 8, open_wrapper, **limit)


def test_images_in_an_array_and_a_table_of_another_type(tmp_path: Path) -> None:
    def open_wrapper(path: Path) -> Any:
        raise AssertionError(f"{path} is opened")

    model, images = chain(tmp_path / "m.onnx", SHAPES), np.zeros((8, 16, 16, 3), np.uint8)
    for several in (images, iter(images)):
        assert len(quant.Workflow(model, several, open_wrapper, max_score_shift=0.1).images) == 8  # type: ignore[arg-type]
    with pytest.raises(CalibrationError, match=r"the table is a str; give that of calibrate\(\)"):
        quant.Workflow(model, images, open_wrapper, table="x.json")  # type: ignore[arg-type]


def test_a_bias_that_the_caller_may_replace_is_not_corrected(tmp_path: Path) -> None:
    import onnx

    rng = np.random.default_rng(1)
    nodes = [node("Conv", "x w b", "a"), node("Relu", "a", "c"), node("Conv", "c v", "y")]
    arrays = {"w": rng.normal(size=(8, 8, 3, 3)), "b": rng.normal(size=8), "v": rng.normal(size=(8, 8, 3, 3))}
    model = network(tmp_path / "m.onnx", nodes, arrays, {"x": [1, 8, 9, 9], "b": [8]})
    samples = [{"x": rng.normal(size=(1, 8, 9, 9)).astype(np.float32)} for _ in range(8)]
    made = quant.quantize(
        model, tmp_path / "q.onnx", quant.calibrate(model, samples, target="openvino"), target="openvino"
    )
    assert "b" in {name for each in onnx.load(str(made.path)).graph.node for name in each.input}
    feeds = {**samples[0], "b": rng.normal(size=8).astype(np.float32)}
    expected, found = (run(path, feeds)[0] for path in (model, made.path))
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.1 * np.abs(expected).max())
