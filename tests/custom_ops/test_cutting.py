"""Models that are cut at their custom nodes: the same results as whole, in as few segments as can be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from custom_operators import Everything, HardSwishInC, HSwish, choice_of, node, save_model, swish, swish_model
from onnx_models import node as plain
from waiting import together

import infersdk
from infersdk import Tensor
from infersdk.backends._trt.options import Options
from infersdk.core.device import Device
from infersdk.core.model_source import ModelSource
from infersdk.custom_ops import CFunction, CustomOp
from infersdk.custom_ops.cut_infer import CutInfer
from infersdk.custom_ops.cutting import KernelCall, Segment
from infersdk.errors import (
    CustomKernelError,
    CustomOpError,
    ModelFormatError,
    PrecisionUnavailableError,
    ShapeError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

onnx = pytest.importorskip("onnx")

OPS = [HSwish, HardSwishInC, Everything]


def load(path: Path, backend: str = "onnxruntime", **options: Any) -> Any:
    return infersdk.load(path, backend, custom_ops=OPS, cut_custom_ops=True, **options)


def steps(infer: Any) -> list[str]:
    """The plan in short: the number of nodes of each segment, and the names of the custom nodes."""
    return [str(step.nodes) if isinstance(step, Segment) else step.name for step in infer.plan.steps]


def random_model(path: Path, rng: np.random.Generator) -> Path:
    """Values of [n, 8] that go through plain and custom nodes and join again, with sizes that are computed."""
    made, values = [], ["x", "z"]
    names = iter(f"v{i}" for i in range(1000))

    def add(builder: Any, *inputs: str) -> str:
        output = next(names)
        made.extend(builder(list(inputs), output))
        return output

    def reshape(inputs: list[str], output: str) -> list[Any]:
        """There and back by a shape that is computed of the value's own."""
        shape, flat, flipped = next(names), next(names), next(names)
        return [
            plain("Shape", inputs[0], shape),
            plain("Gather", f"{shape} order", flipped),
            plain("Reshape", f"{inputs[0]} {flipped}", flat),
            plain("Reshape", f"{flat} {shape}", output),
        ]

    builders: list[tuple[Any, int]] = [
        (lambda i, o: [plain("Relu", i[0], o)], 1),
        (lambda i, o: [plain("Add", f"{i[0]} {i[1]}", o)], 2),
        (lambda i, o: [plain("Mul", f"{i[0]} weight", o)], 1),
        (lambda i, o: [plain("Constant", "", f"{o}c", value_float=0.5), plain("Sub", f"{i[0]} {o}c", o)], 1),
        (reshape, 1),
        (lambda i, o: [node(HSwish, i[:1], [o], f"swish {o}")], 1),
        (lambda i, o: [node(HardSwishInC, i[:1], [o], f"swish {o}", alpha=0.3)], 1),
    ]
    for _ in range(int(rng.integers(4, 25))):
        builder, count = builders[rng.integers(len(builders))]
        picked = [values[-1 - int(rng.integers(min(4, len(values))))] for _ in range(count)]
        values.append(add(builder, *picked))
    outputs = {name: ("float32", ["n", 8]) for name in {values[-1], values[int(rng.integers(2, len(values)))]}}
    weights = {"weight": np.linspace(-1, 1, 8, dtype="float32"), "order": np.array([1, 0])}
    inputs = {"x": ("float32", ["n", 8]), "z": ("float32", ["n", 8])}
    return save_model(path, made, inputs, outputs, weights)


@pytest.mark.parametrize("seed", range(12))
def test_any_graph_gives_what_it_gives_whole(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    path = random_model(tmp_path / "m.onnx", rng)
    with infersdk.load(path, "onnxruntime", custom_ops=OPS) as whole:
        inputs = [spec.name for spec in whole.input_specs]
        cut = None
        for rows in (2, 5, 1):
            x = {name: rng.standard_normal((rows, 8), dtype="float32") for name in inputs}
            want = whole(x)
            if whole.custom_ops is None:
                pytest.skip("no custom node came up")
            cut = cut or load(path)
            assert cut(x).keys() == want.keys()
            for name, array in cut(x).items():
                np.testing.assert_allclose(array, want[name], atol=1e-6)
        cut.close()


def test_a_branch_goes_around_the_cut(tmp_path: Path, backend: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "infersdk.custom_ops")
    path = save_model(
        tmp_path / "m.onnx",
        [
            plain("Relu", "x", "a"), plain("Neg", "a", "around"), node(HSwish, ["a"], ["b"], "one"),
            node(HardSwishInC, ["around"], ["c"], "two"), plain("Add", "b c", "d"), plain("Add", "d around", "y"),
        ],
        {"x": ("float32", ["n", 8])},
        {"y": ("float32", ["n", 8]), "b": ("float32", ["n", 8])},
    )  # fmt: skip
    with load(path, backend) as infer:
        assert steps(infer) == ["2", "one", "two", "2"]
        assert infer.plan.segments[1].inputs == ("around", "b", "c")
        x = np.random.default_rng(0).standard_normal((3, 8), dtype="float32")
        a = np.maximum(x, 0)
        one, two = a * np.clip(a / 6 + 0.5, 0, 1), -a * np.clip(-a / 6 + 0.5, 0, 1)
        got = infer(x)
        np.testing.assert_allclose(got["b"], one, atol=1e-6)
        np.testing.assert_allclose(got["y"], one + two - a, atol=1e-6)
        assert infer.describe() == (
            f"m.onnx is divided at 2 custom nodes into 2 segments on {backend}, cpu:\n"
            f"  segment 0 on {backend}, 2 nodes: x -> a, around\n"
            "  kernel of tests.custom::HSwish, node one: a -> b\n"
            "  kernel of tests.custom::HardSwishInC, node two: around -> c\n"
            f"  segment 1 on {backend}, 2 nodes: around, b, c -> y"
        )
        assert [one.getMessage() for one in caplog.records if one.name == "infersdk.custom_ops"] == (
            infer.describe().splitlines()
        )


def test_nothing_but_a_custom_node(tmp_path: Path, backend: str) -> None:
    nodes = [node(HSwish, ["x"], ["y"], "one")]
    path = save_model(tmp_path / "m.onnx", nodes, {"x": ("float32", ["n"])}, {"y": ("float32", ["n"])})
    with load(path, backend) as infer:
        assert steps(infer) == ["one"]
        np.testing.assert_allclose(infer(np.full(3, 9, "float32"))["y"], np.full(3, 9))


def test_what_is_handed_through(tmp_path: Path) -> None:
    """An output that is an input, and a weight that goes into a kernel."""
    nodes = [node(Everything, ["x", "w"], ["y", "n"], "all", whole=2), plain("Relu", "y", "z")]
    path = save_model(
        tmp_path / "m.onnx",
        nodes,
        {"x": ("float32", ["b", 3])},
        {"z": ("float32", ["b", 6]), "n": ("int32", [4]), "x": ("float32", ["b", 3])},
        {"w": np.arange(4)},
    )
    x = np.random.default_rng(0).standard_normal((2, 3), dtype="float32")
    with load(path) as infer, infersdk.load(path, "onnxruntime", custom_ops=OPS) as whole:
        for name, array in whole(x).items():
            np.testing.assert_allclose(infer(x)[name], array, atol=1e-6)


def test_sizes_are_worked_out_where_they_are_needed(tmp_path: Path) -> None:
    """No size goes over a cut: runtimes that need shapes when they build could not take it."""
    nodes = [
        plain("Shape", "x", "s"), plain("Relu", "x", "a"), node(HSwish, ["a"], ["b"], "one"),
        plain("Constant", "", "m", value_ints=[-1]), plain("Reshape", "b m", "flat"), plain("Reshape", "flat s", "y"),
    ]  # fmt: skip
    path = save_model(tmp_path / "m.onnx", nodes, {"x": ("float32", ["n", 8])}, {"y": ("float32", ["n", 8])})
    with load(path) as infer:
        assert steps(infer) == ["1", "one", "4"]
        assert infer.plan.segments[1].inputs == ("x", "b")
        x = np.ones((2, 8), "float32")
        np.testing.assert_allclose(infer(x)["y"], swish(x), atol=1e-6)


def test_a_value_of_which_only_the_size_is_needed_after_the_cut(tmp_path: Path) -> None:
    nodes = [
        plain("Relu", "x", "a"), plain("ReduceSum", "a", "sum", keepdims=1), node(HSwish, ["sum"], ["b"], "one"),
        plain("Shape", "a", "s"), plain("Expand", "b s", "y"),
    ]  # fmt: skip
    path = save_model(tmp_path / "m.onnx", nodes, {"x": ("float32", ["n", 8])}, {"y": ("float32", ["n", 8])})
    x = np.ones((2, 8), "float32")
    with load(path) as infer:
        assert infer.plan.segments[1].inputs == ("a", "b")
        np.testing.assert_array_equal(infer(x)["y"], np.full((2, 8), 16))


def test_weights_that_are_inputs_and_outputs_too(tmp_path: Path) -> None:
    """As files of IR version 3 have them. A kernel reads one, and a segment the other."""
    nodes = [node(Everything, ["x", "w"], ["b", "count"], "all", whole=1), plain("Add", "b v", "y")]
    weights = {"w": np.arange(4), "v": np.ones(3, "float32")}
    path = save_model(
        tmp_path / "m.onnx",
        nodes,
        {"x": ("float32", ["n", 3]), "w": ("int64", [4]), "v": ("float32", [3])},
        {"y": ("float32", ["n", 3]), "count": ("int32", [4]), "v": ("float32", [3])},
        weights,
    )
    x = np.random.default_rng(0).standard_normal((2, 3), dtype="float32")
    with load(path) as infer, infersdk.load(path, "onnxruntime", custom_ops=OPS) as whole:
        assert [spec.name for spec in infer.input_specs] == ["x"]
        for name, array in whole(x).items():
            np.testing.assert_allclose(infer(x)[name], array, atol=1e-6)


class Flat(CustomOp):
    """All values in one row; so its first dimension is not the batch."""

    domain = "tests.custom"
    inputs = {"x": "float32"}
    outputs = {"y": "float32"}

    def shape(self, x: Any) -> Any:
        return (x.size,)

    def cpu(self, x: Any, y: Any) -> None:
        y[...] = x.ravel()


class Sum(CustomOp):
    """The sum over the batch, of shape (1, columns)."""

    domain = "tests.custom"
    inputs = {"x": "float32"}
    outputs = {"y": "float32"}

    def shape(self, x: Any) -> Any:
        return 1, x[1]

    def cpu(self, x: Any, y: Any) -> None:
        y[...] = x.sum(0)


@pytest.mark.parametrize(("op", "shape"), [(Flat, ["k"]), (Sum, [1, 4])])
def test_values_at_a_cut_without_the_batch(
    tmp_path: Path, backend: str, op: type[CustomOp], shape: list[int | str]
) -> None:
    nodes = [node(op, ["x"], ["a"], "one"), plain("Neg", "a", "y")]
    path = save_model(tmp_path / "m.onnx", nodes, {"x": ("float32", ["n", 4])}, {"y": ("float32", shape)})
    with infersdk.load(path, backend, custom_ops=[op], cut_custom_ops=True, max_batch=2) as infer:
        assert infer.max_batch == 2
        x = np.arange(8, dtype="float32").reshape(2, 4)
        np.testing.assert_array_equal(infer(x)["y"], -x.ravel() if op is Flat else -x.sum(0, keepdims=True))
        with pytest.raises(ShapeError, match="a batch of 3 for input 'x' is more than max_batch=2"):
            infer(np.ones((3, 4), "float32"))


def test_functions_of_the_model_are_put_in_place(tmp_path: Path) -> None:
    """The attribute of a node in a function may be that of the call."""
    from onnx import helper

    inner = node(HSwish, ["a"], ["b"], "inner")
    inner.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT))
    function = helper.make_function(
        "tests.functions", "Twice", ["a"], ["c"], [inner, helper.make_node("Add", ["b", "b"], ["c"])],
        [helper.make_opsetid("", 17), helper.make_opsetid("tests.custom", 1)], ["alpha"],
    )  # fmt: skip
    path = tmp_path / "m.onnx"
    save_model(
        path,
        [helper.make_node("Twice", ["x"], ["y"], domain="tests.functions", alpha=0.25)],
        {"x": ("float32", ["n"])},
        {"y": ("float32", ["n"])},
    )
    model = onnx.load(path)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("tests.functions", 1))
    onnx.save(model, path)
    x = np.array([0.25, 0.5, 9], "float32")
    with load(path) as infer:
        assert [type(step) for step in infer.plan.steps] == [KernelCall, Segment]
        np.testing.assert_allclose(infer(x)["y"], 2 * swish(x, 0.25), rtol=1e-6)
    with infersdk.load(path, "onnxruntime", custom_ops=OPS) as whole:
        np.testing.assert_allclose(whole(x)["y"], 2 * swish(x, 0.25), rtol=1e-6)


@pytest.mark.parametrize("cut", [True, False])
def test_a_declared_operator_is_used_instead_of_a_function_of_its_name(cut: bool, tmp_path: Path) -> None:
    from onnx import helper

    path = save_model(
        tmp_path / "m.onnx", [node(HSwish, ["x"], ["y"])], {"x": ("float32", ["n"])}, {"y": ("float32", ["n"])}
    )
    model = onnx.load(path)
    model.functions.append(
        helper.make_function(
            HSwish.domain, HSwish.name, ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])],
            [helper.make_opsetid("", 17)],
        )
    )  # fmt: skip
    onnx.save(model, path)
    x = np.array([0.25, 0.5, 9], "float32")
    with infersdk.load(path, "onnxruntime", custom_ops=OPS, cut_custom_ops=cut) as infer:
        np.testing.assert_allclose(infer(x)["y"], swish(x), rtol=1e-6)


def model_with_branch(path: Path) -> Path:
    """A custom node, `inner`, in a branch of an If."""
    choice = choice_of([node(HSwish, ["x"], ["b"], "inner")])
    return save_model(path, [choice], {"x": ("float32", ["n"]), "c": ("bool", [])}, {"y": ("float32", ["n"])})


def test_within_a_branch_it_cannot_be_cut(tmp_path: Path) -> None:
    with pytest.raises(CustomOpError, match="node 'inner': it is in a subgraph .* cannot be divided; use a"):
        load(model_with_branch(tmp_path / "m.onnx"))


def test_a_branch_that_takes_values_from_outside(tmp_path: Path) -> None:
    """The graph within an If uses a value that a kernel makes."""
    path = save_model(
        tmp_path / "m.onnx",
        [node(HSwish, ["x"], ["made"], "one"), choice_of([plain("Relu", "made", "b")])],
        {"x": ("float32", ["n"]), "c": ("bool", [])},
        {"y": ("float32", ["n"])},
    )
    x = np.array([-9, 9], "float32")
    with load(path) as infer:
        assert steps(infer) == ["one", "1"]
        np.testing.assert_allclose(infer({"x": x, "c": np.array(True)})["y"], [0, 9])
        np.testing.assert_allclose(infer({"x": x, "c": np.array(False)})["y"], [9, -9])


def test_clones_threads_and_the_users_own_tensors(tmp_path: Path, backend: str) -> None:
    path = swish_model(tmp_path / "m.onnx", HardSwishInC)

    def work(infer: Any, seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal((seed + 1, 8), dtype="float32")
        for _ in range(30):
            np.testing.assert_allclose(infer(x)["y"], swish(x), atol=1e-6)

    with load(path, backend, max_batch=4) as infer:
        clones = [infer.clone() for _ in range(3)]
        together(work, zip(clones, range(3), strict=True))
        for clone in clones:
            clone.close()
        x, y = np.full((4, 8), 9, "float32"), np.zeros((4, 8), "float32")
        infer.bind("x", Tensor.wrap(x))
        infer.bind("y", Tensor.wrap(y))
        infer.forward()
        np.testing.assert_array_equal(y, x)
        x[:] = 12
        infer.forward()
        np.testing.assert_array_equal(y, x)


def test_a_kernel_that_fails(tmp_path: Path) -> None:
    def cpu(self: Any, x: Any, y: Any) -> None:
        raise ValueError("boom")

    broken: type[CustomOp] = type("HSwish", (HSwish,), {"cpu": cpu})
    infer = infersdk.load(swish_model(tmp_path / "m.onnx"), "onnxruntime", custom_ops=[broken], cut_custom_ops=True)
    with infer, pytest.raises(CustomKernelError, match="tests.custom::HSwish, node swish: .* ValueError: boom"):
        infer(np.ones((1, 8), "float32"))


def weighted_model(path: Path) -> Path:
    """Two products with a custom node between them."""
    weights = dict.fromkeys(("w1", "w2"), np.eye(8, dtype="float32")[::-1].copy())
    nodes = [plain("MatMul", "x w1", "a"), node(HSwish, ["a"], ["b"], "one"), plain("MatMul", "b w2", "y")]
    return save_model(path, nodes, {"x": ("float32", ["n", 8])}, {"y": ("float32", ["n", 8])}, weights)


def test_precision_is_that_of_all_segments(tmp_path: Path) -> None:
    path = weighted_model(tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((2, 8), dtype="float32")
    with load(path) as infer:
        assert infer.precision == "fp32"
        assert dict(infer.layer_precisions) == {"fp32": 2}
    with load(path, precision="fp32") as infer:
        np.testing.assert_allclose(infer(x)["y"], x * np.clip(x / 6 + 0.5, 0, 1), atol=1e-6)
    with pytest.raises(PrecisionUnavailableError, match="'int8': onnxruntime would run the segments of m.onnx in fp32"):
        load(path, precision="int8")


def test_in_fp16_the_values_at_the_cuts_are_float16(tmp_path: Path) -> None:
    """Where the operator takes float16; its kernel gets that."""
    from infersdk.custom_ops.cutting import cut
    from infersdk.custom_ops.onnx_schema import registered
    from infersdk.custom_ops.operator_set import OperatorSet
    from infersdk.graph.files import read_model
    from infersdk.graph.passes import ToFloat16

    class Full(HSwish):
        name = "HSwish"
        types = {"T": ("float32",)}

    for op, dtype in ((HSwish, "float16"), (Full, "float32")):
        model = read_model(weighted_model(tmp_path / "m.onnx"))
        with registered(op):
            ToFloat16().apply(model)
        (call,) = cut(model, OperatorSet({(op.domain, op.name): op}), "m.onnx").kernels
        assert call.signature.inputs == (dtype,)


def test_large_segments_keep_their_weights_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infersdk.graph.files._LARGE", 10)
    x = np.full((2, 8), 9, "float32")
    with load(weighted_model(tmp_path / "m.onnx")) as infer:
        np.testing.assert_allclose(infer(x)["y"], x)


def test_operators_with_while_building(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    path = swish_model(tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((2, 8), dtype="float32")
    for cut in (False, True):
        infer = infersdk.load(path, "openvino", custom_ops=OPS, cut_custom_ops=cut, while_building="onnxruntime")
        with infer:
            np.testing.assert_allclose(infer(x)["y"], swish(x), atol=1e-6)
            assert infer.wait_ready(60)  # type: ignore[attr-defined]
            np.testing.assert_allclose(infer(x)["y"], swish(x), atol=1e-6)
            assert infer.active_backend == "openvino"


def test_segments_carry_the_versions(tmp_path: Path) -> None:
    """So that prepared segments in caches have other keys for another version."""
    pytest.importorskip("onnxruntime")
    with load(swish_model(tmp_path / "m.onnx")) as infer:
        for segment in infer.plan.segments:
            assert segment.model.metadata_props["infersdk.custom_ops"] == "tests.custom::HSwish@1"


# ---- TensorRT, which needs no GPU up to the first segment ----


class OnGpu(HSwish):
    """With a launcher that is never loaded."""

    name = "HSwish"
    cuda = CFunction("libops.so", "hard_swish")


@pytest.fixture(params=["TensorRtInfer", "TensorRtRtxInfer"])
def on_tensorrt(request: pytest.FixtureRequest) -> Callable[[Path], Any]:
    """Loads a file with `OnGpu` on TensorRT, whose runtime need not be installed."""
    from infersdk.backends._trt import infer
    from infersdk.custom_ops.loading import with_custom_ops

    kind, device = getattr(infer, request.param), Device.parse("cuda:0")

    def load_on(path: Path) -> Any:
        source = ModelSource.of(path)
        make = with_custom_ops(kind, source, device, [OnGpu], cut=False)
        return make(source, device=device, precision=None, max_batch=4, options=Options())

    return load_on


def test_tensorrt_cuts(tmp_path: Path, on_tensorrt: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    class PlannedError(Exception):
        pass

    def stop(infer: CutInfer, *_: object) -> None:
        raise PlannedError(steps(infer))

    monkeypatch.setattr(CutInfer, "_load_segment", stop)
    with pytest.raises(PlannedError) as planned:
        on_tensorrt(swish_model(tmp_path / "m.onnx", OnGpu))
    assert planned.value.args[0] == ["1", "swish", "1"]


def test_tensorrt_cannot_cut_within_a_branch(tmp_path: Path, on_tensorrt: Callable[[Path], Any]) -> None:
    with pytest.raises(CustomOpError, match="node 'inner': it is in a subgraph .* cannot be divided; use a"):
        on_tensorrt(model_with_branch(tmp_path / "m.onnx"))


@pytest.mark.parametrize("magic", [b"vtrt", b"ftrt"])
def test_an_engine_file_cannot_be_cut(tmp_path: Path, on_tensorrt: Callable[[Path], Any], magic: bytes) -> None:
    (path := tmp_path / "m.engine").write_bytes(magic + bytes(60))
    with pytest.raises(ModelFormatError, match=r"engine, and only an ONNX model can be divided .* load the ONNX model"):
        on_tensorrt(path)


def test_no_engine_file_of_a_model_with_custom_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT's parser ignores domains: it would take an operator of the same name."""
    pytest.importorskip("tensorrt_rtx_bindings")
    from infersdk.backends.tensorrt import build

    path = swish_model(tmp_path / "m.onnx")
    monkeypatch.setattr("infersdk.custom_ops.operator_set._installed", lambda: [(HSwish, "a package")])
    with pytest.raises(CustomOpError, match=r"custom operators \(tests.custom::HSwish\), which an engine file cannot"):
        build(path, tmp_path / "m.engine", backend="tensorrt-rtx")
