"""FP32 graphs made FP16: what changes, what stays, and that the numbers stay close."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk.errors import ConfigError, UnsupportedModelError
from infersdk.graph.files import model_bytes, read_model
from infersdk.graph.fp16_parity import find_fp16_loss
from infersdk.graph.passes import ToFloat16
from infersdk.graph.passes.to_float16 import FP16_MAX, round_to_float16, stays_fp32
from infersdk.graph.precision import precision_of

onnx = pytest.importorskip("onnx")
ir = pytest.importorskip("onnx_ir")
models = pytest.importorskip("onnx_models")
pytest.importorskip("onnxruntime")
run = models.run

FLOAT, HALF = 1, 10


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    nodes = [models.node("MatMul", "x w", "a"), models.node("Relu", "a", "b"), models.node("MatMul", "b v", "y")]
    weights = {name: (rng.normal(size=(64, n)) / 8).astype(np.float32) for name, n in (("w", 64), ("v", 4))}
    return models.save(tmp_path / "net.onnx", nodes, "float[n,64] x", "float[n,4] y", weights)


def convert(path: Path, **settings: Any) -> Any:
    """The converted model, as ONNX's own checker accepts it: sorted, and each type what the operators give."""
    model = read_model(path)
    assert ToFloat16(**settings).apply(model)
    proto = onnx.load_model_from_string(model_bytes(model))
    onnx.checker.check_model(proto, full_check=True)
    return proto


def types_of(proto: Any) -> dict[str, int]:
    graph = onnx.shape_inference.infer_shapes(proto, strict_mode=True).graph
    values = (*graph.value_info, *graph.input, *graph.output)
    return {value.name: value.type.tensor_type.elem_type for value in values} | {
        tensor.name: tensor.data_type for tensor in graph.initializer
    }


def casts(proto: Any) -> int:
    return sum(node.op_type == "Cast" for node in proto.graph.node)


def test_it_computes_the_same(path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32)
    (want,) = run(str(path), {"x": x})
    proto = convert(path)
    assert precision_of(read_model(proto.SerializeToString())) == "fp16"
    assert {types_of(proto)[name] for name in "abwv"} == {HALF}
    assert casts(proto) == 2
    (got,) = run(proto.SerializeToString(), {"x": x})
    assert got.dtype == np.float32
    assert 0 < np.abs(got - want).max() < 1e-2 * np.abs(want).max()


def test_when_nothing_can_change_it_says_so(path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="most layers of the model stay in fp32"):
        ToFloat16(keep_ops=("MatMul",)).apply(read_model(path))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"keep_ops": ("Reul",)}, "the model has no operator 'Reul' to keep in fp32; did you mean 'Relu'?"),
        ({"keep_ops": "Relu"}, "the operators to keep in fp32 are a tuple of names, as ('Relu',), not a string"),
        ({"keep_nodes": "a"}, "the nodes to keep in fp32 are a tuple of names, as ('a',), not a string"),
    ],
)
def test_names_that_the_model_does_not_have(path: Path, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        ToFloat16(**given).apply(read_model(path))


def test_a_model_that_is_not_fp32(path: Path, tmp_path: Path) -> None:
    half = read_model(convert(path).SerializeToString())
    before = ir.to_proto(half).SerializeToString()
    assert not ToFloat16().apply(half)
    assert ir.to_proto(half).SerializeToString() == before
    with pytest.raises(ConfigError, match="fp16_keep applies to fp32 models, and this model is fp16"):
        ToFloat16(keep_nodes=("MatMul_0",)).apply(half)
    weights = {"w": np.eye(4, dtype=np.int8), "s": np.float32(0.1), "z": np.int8(0)}
    nodes = [models.node("DequantizeLinear", "w s z", "dw"), models.node("MatMul", "x dw", "y")]
    quantized = models.save(tmp_path / "q.onnx", nodes, "float[n,4] x", "float[n,4] y", weights)
    with pytest.raises(UnsupportedModelError, match="convert the original fp32 model"):
        ToFloat16().apply(read_model(quantized))


def test_a_weight_that_both_sides_take_is_there_in_both_types(tmp_path: Path) -> None:
    nodes = [models.node("MatMul", "x w", "a", name="half"), models.node("MatMul", "a w", "b", name="full"),
             models.node("MatMul", "b w", "y")]  # fmt: skip
    path = models.save(tmp_path / "m.onnx", nodes, "float[n,4] x", "float[n,4] y", {"w": np.eye(4, dtype=np.float32)})
    proto = convert(path, keep_nodes=("full",))
    types = types_of(proto)
    assert types["w"] == FLOAT
    by_name = {node.name: node for node in proto.graph.node}
    assert by_name["full"].input[1] == "w"
    assert types[by_name["half"].input[1]] == HALF
    np.testing.assert_array_equal(run(proto.SerializeToString(), {"x": np.eye(4, dtype=np.float32)})[0], np.eye(4))


def test_constants_of_a_kept_node_are_not_rounded(tmp_path: Path) -> None:
    """1 / 3 in float16 is off by 1e-4; a Constant node is a weight like another."""
    third = onnx.numpy_helper.from_array(np.asarray([1 / 3], np.float32))
    nodes = [models.node("Constant", "", "c", value=third), models.node("Mul", "x c", "z", name="exact"),
             models.node("MatMul", "x w", "a"), models.node("Mul", "a c", "y")]  # fmt: skip
    weights = {"w": np.eye(4, dtype=np.float32)}
    path = models.save(tmp_path / "m.onnx", nodes, "float[n,4] x", "float[n,4] y, float[n,4] z", weights)
    x = np.random.default_rng(0).random((2, 4), dtype=np.float32)
    y, z = run(convert(path, keep_nodes=("exact",)).SerializeToString(), {"x": x}, optimized=False)
    np.testing.assert_array_equal(z, x * np.float32(1 / 3))
    np.testing.assert_allclose(y, x / 3, rtol=2e-3)


def test_sizes_and_indices_stay_exact(tmp_path: Path) -> None:
    """A size out of a shape, and the class out of the position of the best score: both beyond 2048."""
    nodes = [
        models.node("MatMul", "x w", "a"),
        models.node("Shape", "a", "s"), models.node("Cast", "s", "sf", to=FLOAT), models.node("Mul", "sf one", "sm"),
        models.node("Cast", "sm", "size", to=7), models.node("Expand", "half size", "filled"),
        models.node("ArgMax", "a", "best", axis=1, keepdims=1), models.node("Cast", "best", "bf", to=FLOAT),
        models.node("Div", "bf one", "index"), models.node("Add", "a filled", "y"),
        models.node("CastLike", "s a", "like"), models.node("Mul", "like one", "sizes"),
    ]  # fmt: skip
    size = 2 * 2048 + 3
    path = models.save(
        tmp_path / "m.onnx", nodes, [models.value("x", ("n", 4))],
        [models.value("y", (None, None)), models.value("index", (None, 1)), models.value("sizes", (2,))],
        {"w": np.arange(4 * size, dtype=np.float32).reshape(4, size) / (4 * size), "one": np.float32(1),
         "half": np.float32(0.5)},
    )  # fmt: skip
    feeds = {"x": np.ones((1, 4), np.float32)}
    y, index, sizes = run(convert(path).SerializeToString(), feeds, optimized=False)
    assert sizes.tolist() == [1, size]
    assert y.shape == (1, size)
    want = run(str(path), feeds)[1]
    assert index[0, 0] > 2048
    assert abs(index[0, 0] - want[0, 0]) < 3, "the scores are rounded, the index is not"
    assert index[0, 0] % 1 == 0


def test_branches_are_converted_within(tmp_path: Path) -> None:
    """Inside a branch nodes compute in float16; what goes in and out keeps its type."""

    def branch(factor: str) -> Any:
        inner = [models.node("MatMul", f"h {factor}", "p"), models.node("Relu", "p", "o")]
        return onnx.helper.make_graph(inner, "branch", [], [models.value("o", ("n", 4))])

    nodes = [models.node("MatMul", "x w", "h"),
             models.node("If", "c", "b", name="if", then_branch=branch("w"), else_branch=branch("u")),
             models.node("MatMul", "b u", "m"), models.node("MatMul", "m w", "y")]  # fmt: skip
    weights = {"w": np.eye(4, dtype=np.float32), "u": 2 * np.eye(4, dtype=np.float32)}
    path = models.save(tmp_path / "m.onnx", nodes, "float[n,4] x, bool c", "float[n,4] y", weights)
    x = np.random.default_rng(0).random((2, 4), dtype=np.float32)
    proto = convert(path)
    inner = next(node for node in proto.graph.node if node.op_type == "If").attribute[0].g
    assert [node.op_type for node in inner.node] == ["MatMul", "Relu", "Cast"]
    kept = convert(path, keep_nodes=("if",))
    inner = next(node for node in kept.graph.node if node.op_type == "If").attribute[0].g
    assert [node.op_type for node in inner.node] == ["MatMul", "Relu"]
    for model in (proto, kept):
        for condition, factor in ((True, 2), (False, 4)):
            (y,) = run(model.SerializeToString(), {"x": x, "c": np.asarray(condition)})
            np.testing.assert_allclose(y, factor * x, rtol=2e-3)


def test_an_input_that_is_an_output_as_well(tmp_path: Path) -> None:
    nodes = [models.node("MatMul", "x w", "y")]
    weights = {"w": np.eye(4, dtype=np.float32)}
    path = models.save(tmp_path / "m.onnx", nodes, "float[n,4] x", "float[n,4] y, float[n,4] x", weights)
    x = np.random.default_rng(0).random((2, 4), dtype=np.float32)
    np.testing.assert_array_equal(run(convert(path).SerializeToString(), {"x": x})[1], x)
    assert run(convert(path, keep_io=False).SerializeToString(), {"x": x.astype(np.float16)})[1].dtype == np.float16


def test_operators_that_stay(tmp_path: Path) -> None:
    nodes = [models.node("MatMul", "x w", "a"), models.node("TopK", "a k", "values places", name="top"),
             models.node("Resize", "values4  scales", "r", name="resize"),
             models.node("Reshape", "values shape", "values4")]  # fmt: skip
    nodes = [nodes[0], nodes[1], nodes[3], onnx.helper.make_node("Resize", ["values4", "", "scales"], ["y"], "resize")]
    path = models.save(
        tmp_path / "m.onnx", nodes, [models.value("x", (1, 4))], [models.value("y", (None,) * 4)],
        {"w": np.eye(4, dtype=np.float32), "k": np.asarray([2]), "shape": np.asarray([1, 1, 1, 2]),
         "scales": np.asarray([1, 1, 2, 2], np.float32)},
    )  # fmt: skip
    proto = convert(path)
    types = types_of(proto)
    assert types["values"] == FLOAT
    assert types["scales"] == FLOAT, "the standard has no float16 form of it"
    assert types["values4"] == HALF
    assert {node.op_type for node in stays_fp32(read_model(path))} == {"TopK"}


def test_rounding_of_weights() -> None:
    given = np.asarray([0, 1e-12, -1e-12, 1e6, -1e6, np.inf, -np.inf, np.nan, 1 / 3], np.float32)
    half = round_to_float16(given)
    assert half.dtype == np.float16
    tiny = np.float16(2**-24)
    np.testing.assert_array_equal(
        half, np.asarray([0, tiny, -tiny, FP16_MAX, -FP16_MAX, np.inf, -np.inf, np.nan, 1 / 3], np.float16)
    )


@pytest.mark.slow
@pytest.mark.assets
@pytest.mark.parametrize("name", ["osnet_x0_25_msmt17", "yolov8n-seg", "yolov10n"])
def test_real_models_are_valid_and_small(assets: Path, name: str) -> None:
    file = assets / "models" / f"{name}.onnx"
    proto = convert(file)
    assert proto.ByteSize() < 0.6 * file.stat().st_size
    assert casts(proto) <= 2 + len(proto.graph.output) + (10 if name == "yolov10n" else 0)


def test_sequences_stay_in_float32(tmp_path: Path) -> None:
    """SplitToSequence has a float16 form, but the types of sequences and of their elements are not inferred."""
    rng = np.random.default_rng(0)
    weights = {name: rng.random((4, 4), dtype=np.float32) for name in ("a", "b", "c", "d")} | {"i": np.asarray(1)}
    nodes = [
        models.node("MatMul", "x a", "l0"), models.node("MatMul", "l0 b", "l1"), models.node("MatMul", "l1 c", "l2"),
        models.node("SplitToSequence", "l2", "s", axis=1), models.node("SequenceAt", "s i", "e"),
        models.node("MatMul", "e d", "y"),
    ]  # fmt: skip
    outputs = [models.value("y", None), onnx.helper.make_tensor_sequence_value_info("s", 1, None)]
    path = models.save(tmp_path / "m.onnx", nodes, [models.value("x", (1, 4, 4))], outputs, weights)
    model = read_model(path)
    assert ToFloat16().apply(model)
    types = {name: value.const_value.dtype.numpy() for name, value in model.graph.initializers.items()}
    assert types["a"] == types["c"] == np.float16
    assert types["d"] == np.float32
    x = rng.random((1, 4, 4), dtype=np.float32)
    (got, parts), (want, wanted) = _outputs(model_bytes(model), x), _outputs(path.read_bytes(), x)
    np.testing.assert_allclose(got, want, rtol=5e-3)
    for part, expected in zip(parts, wanted, strict=True):
        np.testing.assert_allclose(part, expected, rtol=5e-3)


def _outputs(model: bytes, x: Any) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})


def with_function(opset: int = 17) -> bytes:
    """exp(x) in a function that adds 11 before, so that float16 overflows for x from 0.1."""
    text = f"""
        <ir_version: 8, opset_import: ["": {opset}, "d": 1]>
        g (float[n,4] x) => (float[n,4] y) {{ [call] h = d.f(x)  [log] l = Log(h)  m = Neg(l)  y = Neg(m) }}
        <domain: "d", opset_import: ["": 17]>
        f (a) => (b) {{ [eleven] k = Constant<value = float {{11.0}}>()  [add] s = Add(a, k)  [exp] b = Exp(s) }}
    """
    content: bytes = onnx.parser.parse_model(text).SerializeToString()
    return content


def test_nodes_of_functions_are_kept_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(with_function())
    x = np.asarray([[0.5, 1, 2, 3]], np.float32)
    report = find_fp16_loss(tmp_path / "m.onnx", [{"x": x}])
    assert [loss.reason for loss in report.losses] == ["overflow", "input overflow"]
    (y,) = run(convert(tmp_path / "m.onnx", keep_nodes=report.keep).SerializeToString(), {"x": x})
    np.testing.assert_allclose(y, x + 11, rtol=0.002)
    with pytest.raises(ConfigError, match="the model has no node 'call' to keep in fp32"):
        convert(tmp_path / "m.onnx", keep_nodes=("call",))


def test_functions_of_another_opset() -> None:
    with pytest.raises(UnsupportedModelError, match="functions of the model cannot be inlined: .* version 17"):
        ToFloat16().apply(read_model(with_function(18)))


@pytest.mark.parametrize("taken", ["w_fp16", "x_fp16", "y_fp32", "y_fp16", "h_fp32"])
def test_new_names_differ_from_those_of_the_model(taken: str) -> None:
    model = read_model(
        onnx.parser.parse_model(f"""
            <ir_version: 8, opset_import: ["": 17]>
            g (float[n,4] x) => (float[n,4] y, float[n,4] z) <float[4] w = {{1, 2, 3, 4}}> {{
                h = Mul(x, w)  {taken} = Relu(h)  k = Neg({taken})  y = Abs(k)  [kept] z = Add(h, w)
            }}
        """).SerializeToString()
    )
    assert ToFloat16(keep_nodes=("kept",)).apply(model)
    content = model_bytes(model)
    onnx.checker.check_model(content, full_check=True)
    y, z = run(content, {"x": np.full((1, 4), 2, np.float32)})
    assert (y.tolist(), z.tolist()) == ([[2, 4, 6, 8]], [[3, 6, 9, 12]])
