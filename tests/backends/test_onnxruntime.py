"""ONNX Runtime: what is its own beyond the contract that all backends pass (test_contract.py)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantised_models import quantised_by_onnxruntime

import infersdk
from infersdk import Infer, Tensor
from infersdk.errors import (
    ClosedError,
    ConfigError,
    DeviceUnavailableError,
    DTypeError,
    InferenceError,
    InferSDKError,
    InputError,
    InputNameError,
    ModelFormatError,
    ModelNotFoundError,
    OutOfMemoryError,
    PrecisionUnavailableError,
    ShapeError,
    UnsupportedModelError,
)

ort = pytest.importorskip("onnxruntime")
models = pytest.importorskip("onnx_models")

DTYPES = [
    "float32", "float16", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
]  # fmt: skip


def load(path: Path, **options: Any) -> Infer:
    return infersdk.load(path, backend="onnxruntime", **options)


# ---- without copies ----


def test_the_session_reads_and_writes_the_tensors_where_they_lie(tmp_path: Path) -> None:
    infer = load(models.double(tmp_path / "m.onnx"))
    # Bytes that are changed there without a call are what the session reads, and it writes there.
    array = np.full((3, 4), 21, np.float32)
    infer.bind("x", Tensor.wrap(array))
    out = np.zeros((3, 4), np.float32)
    infer.bind("y", Tensor.wrap(out))
    infer.forward()
    array[:] = 50
    infer.forward()
    assert (out == 100).all()


# ---- types and shapes ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (3, 1, 2)], ids=str)
def test_all_types_scalars_and_empty_tensors(dtype: str, shape: tuple[int, ...], tmp_path: Path, rng: Any) -> None:
    infer = load(models.identity(tmp_path / "m.onnx", shape, dtype))
    x = rng.integers(0, 2, shape).astype(dtype)
    for _ in range(2):
        y = infer(x)["y"]
        assert (y.shape, y.dtype) == (shape, np.dtype(dtype))
        np.testing.assert_array_equal(y, x)


def test_a_model_without_inputs(tmp_path: Path) -> None:
    weights = {"w": np.arange(3, dtype=np.float32)}
    path = models.save_text(tmp_path / "m.onnx", "() => (float[3] y) { y = Neg(w) }", weights)
    infer = load(path)
    np.testing.assert_array_equal(infer({})["y"], [0, -1, -2])
    with pytest.raises(InputNameError, match=r"0 inputs, \[\]: pass a dict"):
        infer(np.zeros(3))


@pytest.mark.parametrize("named", ["batch", "other", ""])
def test_an_output_that_is_not_as_its_dimensions_are_named(named: str, tmp_path: Path) -> None:
    # y has twice the rows that its name says, another name, or none: a caller gets the same result.
    infer = load(models.twice_as_many(tmp_path / "m.onnx", named))
    for rows in (3, 1, 5, 5, 2, 0):
        x = np.random.default_rng(rows).random((rows, 2), np.float32)
        got = infer(x)
        np.testing.assert_array_equal(got["y"], np.concatenate([x, x]))
        np.testing.assert_array_equal(got["z"], x)


def test_an_output_smaller_than_it_was_declared(tmp_path: Path) -> None:
    weights = {"start": np.array([0]), "stop": np.array([1])}
    graph = "(float[batch,2] x) => (float[batch,2] y) { y = Slice(x, start, stop) }"
    path = models.save_text(tmp_path / "m.onnx", graph, weights)
    infer = load(path, graph_optimization="disabled")
    for rows in (3, 1, 4):
        x = np.random.default_rng(rows).random((rows, 2), np.float32)
        np.testing.assert_array_equal(infer(x)["y"], x[:1])


def test_an_input_without_a_rank_is_refused_and_a_scalar_is_not(tmp_path: Path) -> None:
    for kind in ("float", "float[]"):
        path = models.save_text(tmp_path / "m.onnx", f"(float x, {kind} y) => (float[] z) {{ z = Add(x, y) }}")
        if kind == "float[]":
            with pytest.raises(UnsupportedModelError, match=r"input 'y' of m\.onnx does not say how many dimensions"):
                load(path)
        else:
            assert load(path)({"x": np.float32(1), "y": np.float32(2)})["z"] == 3


# ---- what no tensor holds ----


def test_strings_in_and_out(tmp_path: Path) -> None:
    graph = """(string[n] x) => (string[m] y)
        { y = StringNormalizer<case_change_action="UPPER", locale="C", stopwords=["monday"]>(x) }"""
    path = models.save_text(tmp_path / "m.onnx", graph, metadata={"made": "here"})
    infer = load(path, precision="fp32")
    assert [str(spec) for spec in (*infer.input_specs, *infer.output_specs)] == [
        "x: tensor(string) (n,)", "y: tensor(string) (m,)",
    ]  # fmt: skip
    assert infer.input_specs[0].dtype == object
    assert (infer.precision, infer.metadata["made"]) == ("fp32", "here")
    twin = infer.clone()
    for x in (["monday", "tuesday", "two words"], np.array(["a", "b"]), np.array(["c"], object), ["monday", "d"]):
        want = [word.upper() for word in x if word != "monday"]
        for mine in (infer, twin):
            assert mine(x)["y"].tolist() == mine({"x": x})["y"].tolist() == want
    for wrong, kind in (([b"a"], r"\|S1"), ([1], "int64"), (["a", None], "object")):
        with pytest.raises(DTypeError, match=f"input 'x' takes strings, not {kind}; decode bytes"):
            infer(wrong)
    with pytest.raises(InputError, match="input 'x' is not an array: .*; give rows of equal length"):
        infer([["a"], ["b", "c"]])
    with pytest.raises(InputNameError, match=r"no input 'z'; the model's inputs are \['x'\]"):
        infer({"z": ["a"]})
    with pytest.raises(InferenceError, match=r"failed to run m\.onnx: .*rank"):
        infer([[["a"]]])
    assert infer(["a"])["y"].tolist() == ["A"]
    infer.close()
    assert twin(["b"])["y"].tolist() == ["B"]
    with pytest.raises(ClosedError):
        infer(["a"])


USES: dict[str, Callable[[Infer], Any]] = {
    "inputs": lambda infer: infer.inputs,
    "outputs": lambda infer: infer.outputs,
    "bind": lambda infer: infer.bind("a", Tensor((1,))),
    "forward": lambda infer: infer.forward(),
    "enqueue": lambda infer: infer.enqueue(),
}


@pytest.mark.parametrize("use", USES)
def test_what_no_tensor_holds_is_called_and_never_bound(use: str, tmp_path: Path) -> None:
    infer = load(models.sequence(tmp_path / "m.onnx"), max_batch=4)
    for mine in (infer, infer.clone()):
        with pytest.raises(
            UnsupportedModelError,
            match=r"output 's' of m\.onnx is of type seq\(tensor\(float\)\), which no tensor holds; .*infer\(\{name",
        ):
            USES[use](mine)


def test_sequences_out_and_in(tmp_path: Path) -> None:
    infer = load(models.sequence(tmp_path / "m.onnx"), max_batch=4)
    assert str(infer.output_specs[0]) == "s: seq(tensor(float))"
    a, b = np.arange(2, dtype=np.float32), np.ones(3, np.float32)
    got = infer({"b": b, "a": a})
    assert [part.tolist() for part in got["s"]] == [[0, 1], [1, 1, 1]]
    # Its tensors are checked as they are elsewhere.
    with pytest.raises(DTypeError, match="input 'a' takes float32, not float64"):
        infer({"a": a.astype(float), "b": b})
    with pytest.raises(ShapeError, match=r"input 'a' takes shape \(n,\), not \(1, 2\)"):
        infer({"a": a[None], "b": b})
    with pytest.raises(ShapeError, match="a batch of 5 for input 'a' is more than max_batch=4"):
        infer({"a": np.ones(5, np.float32), "b": b})
    graph = "(seq(float[]) s) => (float[n] y) { y = ConcatFromSequence<axis=0>(s) }"
    infer = load(models.save_text(tmp_path / "joined.onnx", graph))
    for s in (got["s"], got, tuple(got["s"]), iter(got["s"])):
        assert infer(s)["y"].tolist() == [0, 1, 1, 1, 1]
    for wrong in (">f4", "float64"):
        with pytest.raises(DTypeError, match=f"input 's' takes float32, not {wrong}; convert it with"):
            infer([a, a.astype(wrong)])
    for no_list in (a, 5, "ab"):
        with pytest.raises(InferenceError, match="failed to run"):
            infer({"s": no_list})


def test_a_sequence_of_strings(tmp_path: Path) -> None:
    graph = "(seq(string[]) s) => (string[n] y) { y = SequenceAt(s, i) }"
    infer = load(models.save_text(tmp_path / "m.onnx", graph, {"i": np.array(0)}))
    assert infer([["a", "b"]])["y"].tolist() == ["a", "b"]
    with pytest.raises(DTypeError, match="input 's' takes strings, not object; decode bytes"):
        infer([np.array(["a", b"b"], object)])


@pytest.mark.parametrize(
    ("kind", "name", "bits"),
    [
        ("bfloat16", "bfloat16", "uint16"),
        ("float8e4m3fn", "float8_e4m3fn", "uint8"),
        ("float8e5m2", "float8_e5m2", "uint8"),
    ],
)
def test_floats_that_numpy_has_not(kind: str, name: str, bits: str, tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    graph = f"({kind}[] x) => (float[] y) {{ y = Cast<to=1>(x) }}"
    infer = load(models.save_text(tmp_path / "m.onnx", graph, opset=19))
    x = np.array([[1, 2.5, -3], [0.25, 0, 4]], getattr(ml_dtypes, name))
    for given in (x, x.view(bits), x.T, x[0, 1]):
        want = np.asarray(given).view(x.dtype).astype(np.float32)
        np.testing.assert_array_equal(infer(given)["y"], want, strict=True)
    with pytest.raises(DTypeError, match=f"input 'x' takes {name.replace('_', '')}, not float32; .*bits as {bits}"):
        infer(x.astype(np.float32))


def test_bfloat16_does_not_come_out(tmp_path: Path) -> None:
    path = models.save_text(tmp_path / "m.onnx", "(bfloat16[2] x) => (bfloat16[2] y) { y = Identity(x) }")
    with pytest.raises(UnsupportedModelError, match=r"output 'y' of m\.onnx is a tensor\(bfloat16\).*Cast before it"):
        load(path)


# ---- options ----


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"provider_options": {"arena": 1}}, "provider_options=.* is for other devices than 'cpu'"),
        ({"provider_library": "x.so"}, "provider_library='x.so' is for other devices than 'cpu'"),
        ({"inter_op_threads": 2}, "inter_op_threads is for execution_mode='parallel'"),
    ],
)
def test_options_without_an_effect_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(models.double(tmp_path / "m.onnx"), **options)


def test_options_reach_the_session(tmp_path: Path) -> None:
    infer = load(
        models.double(tmp_path / "m.onnx"),
        threads=1,
        inter_op_threads=2,
        execution_mode="parallel",
        graph_optimization="basic",
        allow_spinning=False,
        session_config={"session.disable_prepacking": "1"},
    )
    set_ = infer._session.get_session_options()
    assert set_.intra_op_num_threads == 1
    assert set_.inter_op_num_threads == 2
    assert set_.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert set_.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert set_.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert set_.get_session_config_entry("session.disable_prepacking") == "1"
    assert (infer(np.ones((2, 4), np.float32))["y"] == 2).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"treads": 2}, r"options of backend 'onnxruntime': .*unknown field `treads`.*Known are: threads, inter_op_"),
        ({"threads": "2"}, "threads is '2', not an int"),
        ({"threads": -1}, "threads is -1, not an int >= 0"),
        ({"threads": True}, "threads is True, not an int"),
        ({"execution_mode": "side by side"}, r"Invalid enum value 'side by side' - at `\$.execution_mode`"),
        ({"graph_optimization": None}, "graph_optimization is None, not a str"),
        ({"session_config": {"a": 1}}, r"session_config\[...\] in {'a': 1} is not a str"),
        ({"session_config": {"": "1"}}, "session_config: ONNX Runtime does not take the entry '': .*; correct it"),
        ({"session_config": {"k" * 2000: "1"}}, "session_config: ONNX Runtime does not take the entry 'k{80}': "),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load(models.double(tmp_path / "m.onnx"), **options)


def test_metadata_of_the_file(tmp_path: Path) -> None:
    infer = load(models.double(tmp_path / "m.onnx", metadata={"names": "{0: 'cat'}", "stride": "32"}))
    assert dict(infer.metadata) == {"names": "{0: 'cat'}", "stride": "32"}
    with pytest.raises(TypeError):
        infer.metadata["stride"] = "64"  # type: ignore[index]


def network(path: Path, dtype: str = "float32", *, convolutions: int = 2) -> Path:
    """Convolutions with a Relu after each, [n, 3, 12, 12] to the same."""
    rng = np.random.default_rng(0)
    weights = {f"w{i}": (rng.normal(size=(3, 3, 3, 3)) / 4).astype(dtype) for i in range(convolutions)}
    nodes, at = [], "x"
    for i in range(convolutions):
        nodes += [models.node("Conv", f"{at} w{i}", f"c{i}", pads=[1] * 4), models.node("Relu", f"c{i}", f"r{i}")]
        at = f"r{i}"
    nodes[-1].output[0] = "y"
    shape = ("n", 3, 12, 12)
    return models.save(path, nodes, [models.value("x", shape, dtype)], [models.value("y", shape, dtype)], weights)


def quantise(path: Path, activations: str) -> Path:
    """The same in INT8, by Q/DQ."""
    from onnxruntime.quantization import QuantType

    samples = np.random.default_rng(0).standard_normal((4, 1, 3, 12, 12), dtype=np.float32)
    kinds = {"activation_type": QuantType[activations], "weight_type": QuantType.QInt8}
    return quantised_by_onnxruntime(path, samples, f"{activations}.onnx", per_channel=True, **kinds)


def test_precision_is_read_back_from_what_runs(tmp_path: Path) -> None:
    path = network(tmp_path / "m.onnx")
    with load(path) as infer, load(path, precision="fp32") as asked:
        assert infer.precision == asked.precision == "fp32"
        assert infer.layer_precisions == {"fp32": 2}
        assert infer.clone().layer_precisions == {"fp32": 2}
    with pytest.raises(PrecisionUnavailableError, match=r"'int8': ONNX Runtime would run m\.onnx in fp32.*2 layers in"):
        load(path, precision="int8")
    with pytest.raises(PrecisionUnavailableError, match=r"'bf16'.*\(2 layers in fp32\); it has no bf16 layers"):
        load(path, precision="bf16")
    with pytest.raises(ConfigError, match="fp16_keep is for precision='fp16', not for None"):
        load(path, fp16_keep=["Conv_0"])


@pytest.mark.parametrize("written", ["float32", "float16"])
def test_fp16_is_given_or_refused(written: str, tmp_path: Path) -> None:
    """x86 processors run an FP16 graph in FP32 by casts: then it must not be called FP16."""
    path = network(tmp_path / "m.onnx", written)
    x = np.random.default_rng(1).random((1, 3, 12, 12)).astype(written)
    with load(network(tmp_path / "full.onnx")) as full:
        want = full(x.astype(np.float32))["y"]
    try:
        infer = load(path, precision="fp16")
    except PrecisionUnavailableError as error:
        assert "would run m.onnx in fp32 on cpu (2 layers in fp32)" in str(error)  # noqa: PT017
        infer = load(path)
        assert infer.precision == "fp32"
    else:
        assert infer.precision == "fp16"
        assert "fp16" in infer.layer_precisions
    with infer:
        np.testing.assert_allclose(infer(x)["y"], want, atol=1e-2)


def test_a_quantised_model_whose_layers_fell_back_is_not_int8(tmp_path: Path) -> None:
    path = network(tmp_path / "m.onnx", convolutions=3)
    with load(quantise(path, "QUInt8"), precision="int8") as infer:
        assert infer.precision == "int8"
        assert infer.layer_precisions == {"int8": 3}
    written = quantise(path, "QUInt8")
    with pytest.raises(
        PrecisionUnavailableError, match=r"in int8 on cpu \(3 layers in int8\); load the model that it was"
    ):
        load(written, precision="fp32")
    # Without its optimisations the runtime dequantises, and computes in FP32.
    with load(written, graph_optimization="disabled") as infer:
        assert infer.precision == "fp32"
        assert infer.layer_precisions == {"fp32": 3}
    with pytest.raises(PrecisionUnavailableError, match=r"'int8'.*in fp32 on cpu \(3 layers in fp32\); quantise the"):
        load(written, precision="int8", graph_optimization="disabled")


def test_a_model_partly_int8(tmp_path: Path) -> None:
    """What most layers run in; FP32 is promised only where nothing runs in less."""
    path = quantise(network(tmp_path / "m.onnx", convolutions=3), "QUInt8")
    model = models.onnx.load(str(path))
    float_weights = np.random.default_rng(3).normal(size=(3, 3, 3, 3)).astype(np.float32)
    for i in range(4):
        at = "y" if i == 0 else f"more{i - 1}"
        name = f"more{i}" if i < 3 else "z"
        model.graph.initializer.append(models.onnx.numpy_helper.from_array(float_weights, f"v{i}"))
        model.graph.node.append(models.node("Conv", f"{at} v{i}", name, pads=[1] * 4))
    model.graph.output[0].name = "z"
    models.onnx.save(model, str(tmp_path / "part.onnx"))
    with load(tmp_path / "part.onnx") as infer:
        assert infer.precision == "fp32"
        assert infer.layer_precisions == {"int8": 3, "fp32": 4}
    for precision in ("fp32", "int8"):
        with pytest.raises(PrecisionUnavailableError, match=r"\(4 layers in fp32, 3 in int8\)"):
            load(tmp_path / "part.onnx", precision=precision)


def test_what_cannot_be_read_back_is_not_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, half = network(tmp_path / "m.onnx"), network(tmp_path / "half.onnx", "float16")
    quantised = quantise(full, "QUInt8")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with load(full, precision="fp32") as infer:
        assert infer.layer_precisions == {"fp32": 2}
    for path, precision in ((half, "fp16"), (quantised, "int8")):
        with load(path) as infer:
            assert infer.input_specs
        with pytest.raises(PrecisionUnavailableError, match=rf"{precision!r} cannot be verified.*free .*none'"):
            load(path, precision=precision)


def test_nothing_is_left_of_the_graph_that_was_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with load(network(tmp_path / "m.onnx")) as infer:
        assert not list((tmp_path / "temporary").iterdir())
        assert infer.layer_precisions == {"fp32": 2}


# ---- errors ----


def broken(folder: Path) -> dict[str, tuple[Path, type[InferSDKError], str]]:
    """Files that do not load, each with the error and its message."""
    whole = models.double(folder / "whole.onnx").read_bytes()

    def file(name: str, content: bytes) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    (folder / "folder.onnx").mkdir()

    def of(name: str, y: str, *weights: Any, x: str = "float", **options: Any) -> Any:
        return models.save_text(folder / name, f"({x}[n] x) => (float[n] y) {{ y = {y} }}", *weights, **options)

    unknown, dangling = of("unknown.onnx", "NoSuchOperator(x)"), of("dangling.onnx", "Add(x, nowhere)")
    future, newer = of("future.onnx", "Neg(x)", opset=999), of("newer.onnx", "Neg(x)", ir_version=99)
    nibbles = of("nibbles.onnx", "Cast<to=1>(x)", x="int4", opset=21)
    weights = of("external.onnx", "Add(x, w)", {"w": np.ones((2000,), np.float32)})
    model = models.onnx.load(str(weights))
    models.onnx.save(model, str(weights), save_as_external_data=True, location="gone.bin", size_threshold=0)
    (folder / "gone.bin").unlink()
    no_graph = "none.onnx' is not a valid ONNX model: (No gr|ModelProto does not have a gr)"  # newer and older releases
    return {
        "missing": (folder / "missing.onnx", ModelNotFoundError, "no model at .*missing.onnx.*No such file"),
        "folder": (folder / "folder.onnx", ModelFormatError, "is a folder; give the model file in it"),
        "empty": (file("empty.onnx", b""), ModelFormatError, "is empty; was the download cut off"),
        "text": (file("text.onnx", b"hello\n" * 50), ModelFormatError, "text.onnx' is not an ONNX model, or is"),
        "zeros": (file("zeros.onnx", bytes(500)), ModelFormatError, "zeros.onnx' is not an ONNX model, or is corrupt"),
        "cut off": (file("cut.onnx", whole[: len(whole) // 2]), ModelFormatError, "cut.onnx' is not an ONNX model, or"),
        "no graph": (file("none.onnx", b"\x08\x09"), ModelFormatError, no_graph),
        "unknown operator": (unknown, ModelFormatError, "graph of .*unknown.onnx' is not valid.*NoSuchOperator"),
        "dangling": (dangling, ModelFormatError, "dangling.onnx' is not a valid ONNX model: .*nowhere"),
        "opset": (future, UnsupportedModelError, "cannot load .*future.onnx.*[Oo]pset 999"),
        "ir version": (newer, UnsupportedModelError, "cannot load .*newer.onnx.*IR version: 99"),
        "four bits": (nibbles, UnsupportedModelError, r"input 'x' of nibbles.onnx is a tensor\(int4\), which ONNX Ru"),
        "no weights": (weights, InferSDKError, "external.onnx.*gone.bin"),
    }  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [
        "missing", "folder", "empty", "text", "zeros", "cut off", "no graph", "unknown operator", "dangling", "opset",
        "ir version", "four bits", "no weights",
    ],
)  # fmt: skip
def test_what_does_not_load_says_why_and_prints_nothing(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, error, message = broken(tmp_path)[case]
    capfd.readouterr()
    with pytest.raises(error, match=message) as caught:
        load(path)
    assert tuple(capfd.readouterr()) == ("", "")
    assert caught.value.__cause__ is None  # the runtime's own traceback would only be in the way
    assert "\n" not in str(caught.value)
    assert not re.search(r"\[ONNXRuntimeError\]|/onnxruntime_src/", str(caught.value))


def test_failing_runs_say_why_print_nothing_and_do_no_harm(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    infer = load(models.reshape(tmp_path / "m.onnx"))
    capfd.readouterr()
    for _ in range(3):
        with pytest.raises(
            InferenceError, match=r"ONNX Runtime failed to run m.onnx: .*cannot be reshaped.*\{3\}.*\{2,2\}"
        ) as caught:
            infer({"x": np.ones(3, np.float32), "shape": np.array([2, 2])})
        assert not re.search(r"\[ONNXRuntimeError\]|/onnxruntime_src/", str(caught.value))
        got = infer({"x": np.arange(4, dtype=np.float32), "shape": np.array([2, 2])})["y"]
        np.testing.assert_array_equal(got, [[0, 1], [2, 3]])
    assert tuple(capfd.readouterr()) == ("", "")


def test_the_exception_of_a_signal_handler_passes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class LateError(Exception):
        pass

    def interrupt(*given: Any, **more: Any) -> None:
        raise LateError

    path = models.double(tmp_path / "m.onnx")
    strings = models.save_text(tmp_path / "s.onnx", "(string[n] x) => (string[n] y) { y = Identity(x) }")
    bound, called = load(path), load(strings)
    monkeypatch.setattr(ort.InferenceSession, "run_with_iobinding", interrupt)
    monkeypatch.setattr(ort.InferenceSession, "run", interrupt)
    for infer, x in ((bound, np.ones((3, 4), np.float32)), (called, ["a"])):
        with pytest.raises(LateError):
            infer(x)
    monkeypatch.undo()
    np.testing.assert_array_equal(bound(np.ones((3, 4), np.float32))["y"], np.full((3, 4), 2))
    for precision in (None, "fp32"):
        starts = [interrupt, ort.InferenceSession]  # a second session would start
        monkeypatch.setattr(ort, "InferenceSession", lambda *a, starts=starts, **b: starts.pop(0)(*a, **b))
        with pytest.raises(LateError):
            load(path, precision=precision)
        monkeypatch.undo()


@pytest.mark.parametrize("precision", [None, "fp32"])
def test_exhausted_memory_is_no_fault_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str | None
) -> None:
    def full(*given: Any, **more: Any) -> None:
        raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : std::bad_alloc")

    path = models.double(tmp_path / "m.onnx")
    infer = load(path, precision=precision)
    monkeypatch.setattr(ort, "InferenceSession", full)
    with pytest.raises(OutOfMemoryError, match="bad_alloc; release"):
        load(path, precision=precision)
    monkeypatch.undo()
    monkeypatch.setattr(ort.InferenceSession, "run_with_iobinding", full)
    with pytest.raises(OutOfMemoryError, match="bad_alloc; release"):
        infer(np.ones((3, 4), np.float32))


def test_devices_that_are_not_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = models.double(tmp_path / "m.onnx")
    capfd.readouterr()
    for device in ("npu", "cpu:1"):
        message = f"device '{device}' is not supported; the installed ONNX Runtime {ort.__version__} runs on: cpu"
        with pytest.raises(DeviceUnavailableError, match=message):
            load(path, device=device)
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        with pytest.raises(DeviceUnavailableError, match=r"device 'cuda:0' .*for cuda: pip install .infersdk\[gpu\]"):
            load(path, device="cuda")
    assert tuple(capfd.readouterr()) == ("", "")


def test_loading_prints_nothing_in_a_fresh_process(tmp_path: Path) -> None:
    path = models.double(tmp_path / "m.onnx")
    code = f"import infersdk, numpy; infersdk.load({str(path)!r})(numpy.ones((1, 4), 'float32'))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_an_output_that_is_an_input(tmp_path: Path) -> None:
    model = models.save_text(tmp_path / "m.onnx", "(float[b,3] x) => (float[b,3] y, float[b,3] x) { y = Relu(x) }")
    with infersdk.load(model, "onnxruntime") as infer:
        for rows in (2, 3):
            x = np.full((rows, 3), -rows, "float32")
            np.testing.assert_array_equal(infer(x)["x"], x)
            np.testing.assert_array_equal(infer(x)["y"], 0 * x)


def test_the_precision_of_a_changed_file_is_not_read(tmp_path: Path) -> None:
    """Without a requested precision, the executed graph is written on first use."""
    path = models.double(tmp_path / "m.onnx")
    with load(path) as infer:
        path.write_bytes(models.double(tmp_path / "other.onnx", (4, 4)).read_bytes())
        assert "on cpu" in repr(infer)
        with pytest.raises(UnsupportedModelError, match="has changed since it was loaded"):
            infer.precision


def test_weights_in_a_file_of_their_own(tmp_path: Path) -> None:
    """After release() the session starts from memory; a second session does not take weights that have changed."""
    path, x = tmp_path / "m.onnx", np.ones((2, 64), np.float32)
    weights = {"w": np.eye(64, dtype=np.float32)}
    models.save_text(path, "(float[n,64] x) => (float[n,64] y) { y = MatMul(x, w) }", weights)
    models.onnx.save(models.onnx.load(str(path)), str(path), save_as_external_data=True, location="w.bin")
    with load(path) as infer:
        infer.release()
        np.testing.assert_array_equal(infer(x)["y"], x)
        (tmp_path / "w.bin").write_bytes((2 * weights["w"]).tobytes())
        with pytest.raises(UnsupportedModelError, match="has changed since it was loaded"):
            infer.clone(one_core=True)
    for file, content in (("w.bin", b"cut off"), ("m.onnx", b"\0")):
        with load(path) as infer:
            (tmp_path / file).write_bytes(content)
            for use in (infer.release, lambda infer=infer: infer.precision):
                with pytest.raises(UnsupportedModelError, match="has changed since it was loaded; load it again"):
                    use()
            np.testing.assert_array_equal(infer(x)["y"], 2 * x)
        (tmp_path / "w.bin").write_bytes((2 * weights["w"]).tobytes())


@pytest.mark.skipif(sys.platform != "linux", reason="where its telemetry has files")
def test_no_telemetry_of_the_runtime(tmp_path: Path) -> None:
    """Its device number and the events that it has not sent are files below the user's cache."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "ORT_DISABLE_TELEMETRY")}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "INFERSDK_CACHE": str(tmp_path / "ours")}
    code = "from infersdk import data, load; load(data.DETECTOR).close()"
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=tmp_path)
    assert not [path for path in tmp_path.rglob("*") if "onnxruntime" in path.name]
