"""Comparing backends: how far apart, within which tolerance, and from which layer on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx_models import double, node, save, value

from infersdk import load
from infersdk.accuracy.compare import Tolerance, compare, difference
from infersdk.errors import (
    BackendNotFoundError,
    ConfigError,
    DTypeError,
    InputError,
    InputNameError,
    ModelFormatError,
    ShapeError,
)
from infersdk.loading.samples import random_inputs, read_samples

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
helper, numpy_helper = onnx.helper, onnx.numpy_helper


# ---- the numbers ----


def test_the_measures_of_a_difference() -> None:
    found = difference([[1.0, 2.0, -4.0], [0.0, 0.001, 2.0]], [[1.0, 2.5, -4.0], [0.002, 0.0, 2.0]], name="y")
    assert found.name == "y"
    assert found.max_abs == 0.5
    assert found.max_rel == pytest.approx(0.5)  # 0.002 against a peak of 4, so a scale of 0.004
    assert found.outside == 2  # 0.5 > 0.001 + 0.002, 0.002 > 0.001; 0.001 is just inside
    assert found.elements == 6
    assert found.argmax == 1
    assert found.cosine == pytest.approx(1 - 26 / math.sqrt(25.000001 * 27.250004), abs=1e-5)
    assert not found.within


@pytest.mark.parametrize("kind", [str, bytes, object, complex, "M8[s]", "m8[s]", "V2", [("x", "f4")]])
def test_real_numbers_alone_are_compared(kind: Any) -> None:
    other = np.zeros(2, kind)
    with pytest.raises(DTypeError, match="output 'y' has elements of .*: only real numbers are compared"):
        difference(other, other, name="y")


def test_numbers_of_all_widths_are_compared() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float16, np.longdouble, bool, np.uint64):
        assert difference(np.array([0, 1], kind), np.ones(2, kind)).max_abs == 1


def test_integers_are_compared_exactly() -> None:
    a = np.array([2**62, -(2**63), 7])
    assert difference(a, a + np.array([1, 0, 0])).max_abs == 1
    assert difference(a, np.array([2**62, 2**63 - 1, 7])).max_abs == 2.0**64  # 2^64 - 1, rounded
    assert difference(a.astype(np.uint8), np.array([0, 255, 7], np.uint8)).max_abs == 255
    assert difference(np.array([True, False]), np.array([True, True])).outside == 1


@pytest.mark.parametrize(
    ("a", "b", "apart"),
    [
        (math.nan, math.nan, 0.0), (math.nan, 1.0, math.inf), (1.0, math.nan, math.inf), (math.inf, math.inf, 0.0),
        (math.inf, -math.inf, math.inf), (1.0, math.inf, math.inf), (math.inf, 1.0, math.inf),
        (math.nan, math.inf, math.inf), (1e308, -1e308, math.inf),
    ],
)  # fmt: skip
def test_what_is_no_number(a: float, b: float, apart: float) -> None:
    found = difference([a, 5.0], [b, 5.0], Tolerance(atol=1e30, rtol=0.5))
    assert found.max_abs == apart
    assert found.max_rel == apart
    assert found.outside == (apart > 0)
    assert found.within == (apart == 0)


def test_cosine() -> None:
    assert difference([1.0, 0.0], [0.0, 1.0]).cosine == pytest.approx(1)
    assert difference([1.0, 2.0], [-1.0, -2.0]).cosine == pytest.approx(2)
    assert difference([1.0, 2.0], [3.0, 6.0]).cosine == pytest.approx(0, abs=1e-15)
    assert difference([1e300, 2e300], [1e-300, 2e-300]).cosine == pytest.approx(0, abs=1e-15)
    assert difference([0.0, 0.0], [0.0, 0.0]).cosine == 0
    assert difference([0.0, 0.0], [0.0, 1.0]).cosine == 1
    assert not difference([1e-5, 0.0], [0.0, 1e-5]).within, "each element is inside, the direction is not"


def test_argmax_agreement() -> None:
    assert difference([[1, 2], [3, 4]], [[1, 2], [4, 3]]).argmax == 0.5
    assert difference([[1.0, 1.0]], [[1.0, 1.0]]).argmax == 1
    assert difference([[1.0, 0.9]], [[1.0, 1.0]]).argmax == 1, "a tie contains the place"
    assert difference([[1.0, 2.0], [3.0, 4.0]], [[math.nan, math.nan], [3.0, 4.0]]).argmax == 0.5
    assert difference([[1.0, 2.0]], [[math.nan, 2.0]]).argmax == 0
    assert difference([[math.nan, 2.0]], [[3.0, 2.0]]).argmax == 0
    assert difference([[1.0, math.nan]], [[2.0, math.nan]]).argmax == 1
    assert difference([1.0], [1.0]).argmax is None
    assert difference(1.0, 1.0).argmax is None


def test_what_cannot_be_compared() -> None:
    found = difference(np.zeros((2, 3)), np.zeros((3, 2)))
    assert not found.within
    assert "(3, 2)" in found.note
    assert found.max_abs == math.inf
    assert difference(np.zeros((0, 3)), np.zeros((0, 3))).within
    with pytest.raises(ConfigError, match="atol"):
        Tolerance(atol=-1)
    with pytest.raises(ConfigError, match="rtol"):
        Tolerance(rtol=math.nan)


# Without subnormals: some runtimes leave the processor flushing them to zero in the thread that called them.
elements = st.floats(width=32, allow_subnormal=False)
floats = hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=5), elements=elements)


@given(st.data(), floats)
def test_as_numpy_has_it(data: st.DataObject, a: Any) -> None:
    """`within`, without the cosine, is `numpy.allclose`; the largest difference is NumPy's where all are numbers."""
    b = data.draw(hnp.arrays(np.float32, a.shape, elements=elements) | st.just(a))
    found = difference(a, b, Tolerance(1e-3, 1e-2, cosine=2))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        assert found.within == np.allclose(wide_b, wide_a, atol=1e-3, rtol=1e-2, equal_nan=True)
        if np.isfinite(a).all() and np.isfinite(b).all():
            assert found.max_abs == np.abs(wide_b - wide_a).max()
    assert difference(a, a).max_abs == difference(a, a).max_rel == difference(a, a).cosine == 0
    assert 0 <= found.cosine <= 2


# ---- models ----


def small_model(file: Path) -> Path:
    """Two branches of layers and two outputs, with named nodes."""
    rng = np.random.default_rng(1)
    shapes = {"w0": (4, 3, 3, 3), "w1": (4, 4, 1, 1), "w2": (4, 4, 1, 1), "w3": (4, 5)}
    nodes = [
        node("Conv", "x w0", "c0", name="stem", pads=[1, 1, 1, 1]), node("Relu", "c0", "r0", name="stem/act"),
        node("Conv", "r0 w1", "c1", name="left"), node("Sigmoid", "r0", "s", name="right"),
        node("Conv", "s w2", "c2", name="right/conv"), node("Add", "c1 c2", "sum", name="join"),
        node("GlobalAveragePool", "sum", "pool", name="pool"), node("Flatten", "pool", "features", name="flat"),
        node("Gemm", "features w3", "scores", name="head"),
    ]  # fmt: skip
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    outputs = [value("scores", ["batch", 5]), value("sum", ["batch", 4, 8, 8])]
    return save(file, nodes, [value("x", ["batch", 3, 8, 8])], outputs, weights)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return small_model(tmp_path / "small.onnx")


def perturbed(node_name: str, shift: float = 0.25) -> Callable[[Path], Any]:
    """Loads a model in which one layer adds something to its result."""

    def loader(path: Path) -> Any:
        model = onnx.load(str(path))
        index, node = next((i, n) for i, n in enumerate(model.graph.node) if n.name == node_name)
        after = node.output[0]
        node.output[0] = f"{after}/before"
        model.graph.initializer.append(numpy_helper.from_array(np.float32(shift), "shift"))
        model.graph.node.insert(index + 1, helper.make_node("Add", [node.output[0], "shift"], [after], "fault"))
        changed = path.with_name("changed.onnx")
        onnx.save(model, str(changed))
        return load(changed)

    return loader


NODES = ["stem", "stem/act", "left", "right", "right/conv", "join", "pool", "flat", "head"]


def test_a_backend_agrees_with_itself(small: Path) -> None:
    report = compare(small, {"a": "onnxruntime", "b": "onnxruntime", "c": load}, layers=True)
    assert report.agrees
    assert report.reference == "a"
    assert [side.name for side in report.sides] == ["b", "c"]
    for side in report.sides:
        assert [output.name for output in side.outputs] == ["scores", "sum"]
        assert all(output.max_abs == 0 and output.argmax == 1 for output in side.outputs)
        assert not side.layers


@pytest.mark.parametrize("node", NODES)
def test_the_first_layer_at_fault_is_named(small: Path, node: str) -> None:
    report = compare(small, {"right": "onnxruntime", "wrong": perturbed(node)}, layers=True)
    (side,) = report.sides
    assert not report.agrees
    assert not side.agrees
    assert side.first_layer.node == node
    assert side.first_layer.difference.max_abs == pytest.approx(0.25, abs=1e-5)
    assert [layer.node for layer in side.layers] == NODES[: NODES.index(node) + 1]
    assert side.unseen == 0


def test_a_difference_that_no_layer_has(small: Path) -> None:
    """As when a runtime goes wrong in fusing layers: once they are exposed, nothing is fused."""

    def loader(path: Path) -> Any:
        infer = load(path)
        whole = [spec.name for spec in infer.output_specs] == ["scores", "sum"]

        def run(sample: Mapping[str, Any]) -> dict[str, Any]:
            return {name: array + 1 if whole else array for name, array in infer(sample).items()}

        return run

    (side,) = compare(small, {"right": "onnxruntime", "wrong": loader}, layers=True).sides
    assert not side.agrees
    assert side.first_layer is None
    assert len(side.layers) == len(NODES)


def test_only_the_layers_of_sides_that_differ_are_looked_at(small: Path) -> None:
    sides = {"right": "onnxruntime", "same": "onnxruntime", "wrong": perturbed("join")}
    same, wrong = compare(small, sides, layers=True).sides
    assert same.agrees
    assert not same.layers
    assert wrong.first_layer is not None
    assert not compare(small, sides).sides[1].layers


def test_the_worst_of_several_inputs_counts(small: Path) -> None:
    specs = load(small).input_specs
    inputs = [random_inputs(specs, batch=2, seed=seed) for seed in range(3)]
    seen = []

    def second_is_wrong(path: Path) -> Any:
        infer = load(path)

        def run(sample: Mapping[str, Any]) -> dict[str, Any]:
            wrong = np.array_equal(sample["x"], inputs[1]["x"])
            seen.append(wrong)
            return {name: array + wrong for name, array in infer(sample).items()}

        return run

    report = compare(small, {"right": "onnxruntime", "wrong": second_is_wrong}, iter(inputs), layers=True)
    (side,) = report.sides
    assert report.samples == 3
    assert side.outputs[0].elements == 3 * 2 * 5
    assert side.outputs[0].outside == 2 * 5
    assert side.outputs[0].max_abs == pytest.approx(1, abs=1e-5)
    assert seen == [False, True, False, True], "the layers are run on the input that made the difference"
    assert side.first_layer.node == "stem"


def test_outputs_that_do_not_match(small: Path) -> None:
    infer = load(small)

    def returns(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Path], Any]:
        return lambda path: lambda sample: change(infer(sample))

    report = compare(
        small,
        {
            "right": "onnxruntime",
            "renamed": returns(lambda found: {name.upper(): array for name, array in found.items()}),
            "one renamed": returns(lambda found: {"sum": found["sum"], "scores_1": found["scores"]}),
            "reversed": returns(lambda found: dict(reversed(found.items()))),
            "fewer": returns(lambda found: {"sum": found["sum"]}),
            "flat": returns(lambda found: {name: array.ravel() for name, array in found.items()}),
        },
    )
    renamed, partly, backwards, fewer, flat = report.sides
    assert renamed.agrees
    assert partly.agrees
    assert backwards.agrees
    assert [output.note for output in fewer.outputs] == ["is missing", ""]
    assert all("has shape" in output.note for output in flat.outputs)
    assert not fewer.agrees
    assert not flat.agrees


def test_wrong_use(small: Path, tmp_path: Path) -> None:
    both = {"a": "onnxruntime", "b": "onnxruntime"}
    for sides in (["onnxruntime"], "onnxruntime", [], ["onnxruntime", "onnxruntime"]):
        with pytest.raises(ConfigError, match="two or more different"):
            compare(small, sides)
    with pytest.raises(ConfigError, match="the sides are a list of backends, .*, not None"):
        compare(small, None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a side is a backend by name, .*, not 5"):
        compare(small, {"a": "onnxruntime", "b": 5})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="tolerance is a Tolerance, .*, not 0.001"):
        compare(small, both, tolerance=1e-3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tolerance is a Tolerance, .*, not 0"):
        difference([1.0], [1.0], 0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="atol is a number from 0, not '1'"):
        Tolerance(atol="1")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="does not name a backend"):
        compare(small, ["onnxruntime", "onnxruntime@"])
    with pytest.raises(BackendNotFoundError):
        compare(small, ["onnxruntime", "nonesuch"])
    with pytest.raises(InputError, match="no input to compare"):
        compare(small, both, [])
    with pytest.raises(InputNameError, match="'y'"):
        compare(small, both, [{"x": np.zeros((1, 3, 8, 8), np.float32), "y": np.zeros(1)}])
    with pytest.raises(InputError, match="dicts of arrays by input name, one for each run, not of str"):
        compare(small, both, {"x": np.zeros((1, 3, 8, 8), np.float32)})  # type: ignore[arg-type]
    with pytest.raises(InputNameError, match="nothing was given"):
        compare(small, both, [{}])
    with pytest.raises(ShapeError):
        compare(small, both, [{"x": np.zeros((1, 3, 9, 8), np.float32)}])
    with pytest.raises(InputError, match="takes the path of a model file"):
        compare(small.read_bytes(), both)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the reference 'a' returns no outputs"):
        compare(small, dict.fromkeys("ab", lambda _: lambda _: {}))
    with pytest.raises(InputError, match="side 'a' returns NoneType, not a dict of arrays"):
        compare(small, dict.fromkeys("ab", lambda _: lambda _: None))
    assert compare(small, dict.fromkeys("ab", lambda _: lambda _: {"y": [1.0, 2.0]})).agrees
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    with pytest.raises(ModelFormatError):
        compare(tmp_path / "bad.onnx", both)


def test_infers_are_closed(small: Path) -> None:
    made: list[Any] = []

    def loader(path: Path) -> Any:
        made.append(load(path))
        return made[-1]

    with pytest.raises(InputError):
        compare(small, {"a": loader, "b": loader}, [])
    assert len(made) == 2
    assert all("closed" in repr(infer) for infer in made)

    def failing(path: Path) -> Any:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        compare(small, {"a": loader, "b": failing})
    assert "closed" in repr(made[-1])


# ---- real ones ----


def test_onnxruntime_and_openvino_on_a_detector(assets: Path) -> None:
    pytest.importorskip("openvino")
    report = compare(
        assets / "models" / "yolov5n.onnx",
        ["onnxruntime", "openvino"],
        lambda specs: read_samples(assets / "images" / "bus.jpg", specs, shapes={"images": (1, 3, 640, 640)}),
        tolerance=Tolerance(atol=5e-3),
    )
    (output,) = report.sides[0].outputs
    assert report.agrees, output
    assert output.name == "output0"
    assert output.elements == 25200 * 85
    assert 0 < output.max_abs < 5e-3
    assert output.argmax > 0.999


def test_another_file_may_call_its_only_input_something_else(tmp_path: Path) -> None:
    first = double(tmp_path / "first.onnx")
    nodes = [node("Add", "in0 in0", "out0")]
    other = save(tmp_path / "other.onnx", nodes, [value("in0", ("batch", 4))], [value("out0", ("batch", 4))])
    report = compare(first, {"first": "onnxruntime", "other": lambda file: load(other)})
    assert report.agrees
    assert report.sides[0].outputs[0].name == "y"


@pytest.mark.parametrize("kinds", [("float32", "float16"), ("float16", "float32")])
def test_an_export_in_fp16_has_inputs_in_fp16(kinds: tuple[str, str], tmp_path: Path) -> None:
    paths = [
        save(tmp_path / f"{kind}.onnx", [node("Relu", "x", "y")], [value("x", [4], kind)], [value("y", [4], kind)], {})
        for kind in kinds
    ]
    assert compare(paths[0], {"first": "onnxruntime", "other": lambda file: load(paths[1])}).agrees


def test_several_inputs_are_matched_by_name(tmp_path: Path) -> None:
    def made(name: str, *inputs: str) -> Path:
        return save(
            tmp_path / name, [node("Sub", " ".join(inputs), "y")], [value(one, (2, 3)) for one in inputs],
            [value("y", (2, 3))],
        )  # fmt: skip

    first, swapped, other = made("a.onnx", "p", "q"), made("b.onnx", "q", "p"), made("c.onnx", "p", "r")
    assert not compare(first, {"first": "onnxruntime", "swapped": lambda file: load(swapped)}).agrees
    with pytest.raises(InputNameError, match=r"other has no input .* for its 'r': .*\['p', 'r'\], .*\['p', 'q'\]"):
        compare(first, {"first": "onnxruntime", "other": lambda file: load(other)})
