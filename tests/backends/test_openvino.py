"""What OpenVINO does beyond the contract: IR, the cache, hints, precision, metadata, devices."""

from __future__ import annotations

import importlib.metadata
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantised_models import quantised_by_onnxruntime

import infersdk
from infersdk import Infer
from infersdk.core.cache import Cache, Manifest
from infersdk.errors import (
    ConfigError,
    DeviceUnavailableError,
    DTypeError,
    InferenceError,
    ModelFormatError,
    OutOfMemoryError,
    OutputError,
    PrecisionUnavailableError,
    ShapeError,
    UnsupportedModelError,
)
from infersdk.testing import contract_model

onnx = pytest.importorskip("onnx")
ov = pytest.importorskip("openvino")
ort = pytest.importorskip("onnxruntime")
models = pytest.importorskip("onnx_models")

CAPABLE = ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@pytest.fixture
def x() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal((2, 3, 12, 10), dtype=np.float32)


def load(path: Path, **options: Any) -> Infer:
    return infersdk.load(path, "openvino", **options)


def compiled(infer: Infer, name: str) -> Any:
    """What the compiled model itself says of a property."""
    return infer._compiled.get_property(name)  # type: ignore[attr-defined]


def test_weights_that_are_links_to_another_folder(tmp_path: Path) -> None:
    weights = {"w": np.float32([1, 2])}
    path = models.save_text(tmp_path / "m.onnx", "(float[2] x) => (float[2] y) { y = Add(x, w) }", weights)
    stored, shown = tmp_path / "stored", tmp_path / "shown"
    stored.mkdir()
    shown.mkdir()
    onnx.save(onnx.load(str(path)), str(stored / "m"), save_as_external_data=True, location="w.bin", size_threshold=0)
    for name, file in (("m.onnx", "m"), ("w.bin", "w.bin")):
        (shown / name).symlink_to(stored / file)
    assert load(shown / "m.onnx")(np.float32([0, 1]))["y"].tolist() == [1, 3]
    (stored / "w.bin").unlink()
    with pytest.raises(ModelFormatError, match=r"w\.bin"):
        load(shown / "m.onnx")


def test_exhausted_memory_is_no_fault_of_the_model(net: Path, x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **more: Any) -> None:
        raise RuntimeError("Exception from src/core.cpp:99: std::bad_alloc")

    with load(net, cache=False) as infer:
        for name in ("read_model", "compile_model"):
            monkeypatch.setattr(ov.Core, name, full)
            with pytest.raises(OutOfMemoryError, match="std::bad_alloc; release"):
                load(net, cache=False)
            monkeypatch.undo()
        monkeypatch.setattr(type(infer), "_infer", full)
        with pytest.raises(OutOfMemoryError, match="std::bad_alloc; release"):
            infer(x)
        monkeypatch.undo()
        assert infer(x)


def test_exhausted_memory_keeps_the_cache(net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **more: Any) -> None:
        raise RuntimeError("std::bad_alloc")

    load(net, cache_dir=str(tmp_path / "cache"))
    monkeypatch.setattr(ov.Core, "import_model", full)
    with pytest.raises(OutOfMemoryError):
        load(net, cache_dir=str(tmp_path / "cache"))
    assert len(Cache(tmp_path / "cache").entries()) == 1


# ---- IR ----


@pytest.mark.parametrize("compress", [False, True])
def test_ir_gives_what_onnx_gives(net: Path, x: Any, compress: bool, tmp_path: Path) -> None:
    ov.save_model(ov.Core().read_model(str(net)), str(tmp_path / "net.xml"), compress_to_fp16=compress)
    with load(net) as infer, load(tmp_path / "net.xml") as ir:
        assert ir.input_specs == infer.input_specs
        assert ir.output_specs == infer.output_specs
        # Weights stored in FP16 are widened before use: the arithmetic is FP32 either way.
        assert ir.precision == "fp32"
        np.testing.assert_allclose(ir(x)["y"], infer(x)["y"], atol=5e-4 if compress else 1e-6)


@pytest.mark.parametrize("weights", [None, b"123"])
def test_ir_without_its_weights(net: Path, weights: bytes | None, tmp_path: Path) -> None:
    ov.save_model(ov.Core().read_model(str(net)), str(tmp_path / "net.xml"))
    (tmp_path / "net.bin").unlink()
    if weights:
        (tmp_path / "net.bin").write_bytes(weights)
    with pytest.raises(ModelFormatError, match=r"net\.xml.*next to it, in 'net\.bin'"):
        load(tmp_path / "net.xml")


def test_ir_without_tensor_names(tmp_path: Path) -> None:
    parameter = ov.opset15.parameter([1, 4], np.float32, name="the_input")
    result = ov.opset15.result(ov.opset15.relu(parameter), name="the_output")
    ov.save_model(ov.Model([result], [parameter]), str(tmp_path / "plain.xml"))
    with load(tmp_path / "plain.xml") as infer:
        assert list(infer.inputs) == ["the_input"]
        assert list(infer.outputs) == ["the_output"]
        np.testing.assert_array_equal(infer(np.float32([[-1, 0, 1, 2]]))["the_output"], [[0, 0, 1, 2]])


# ---- options ----


def test_hints_streams_and_threads_reach_the_runtime(net: Path) -> None:
    with load(net) as infer:
        assert compiled(infer, "PERFORMANCE_HINT") == "LATENCY"
        assert compiled(infer, "NUM_STREAMS") == 1
    with load(net, performance_hint="throughput", threads=2, streams=2) as infer:
        assert compiled(infer, "PERFORMANCE_HINT") == "THROUGHPUT"
        assert compiled(infer, "NUM_STREAMS") == 2
        assert compiled(infer, "INFERENCE_NUM_THREADS") == 2
    with load(net, threads=1, config={"ENABLE_CPU_PINNING": False}) as infer:
        assert compiled(infer, "INFERENCE_NUM_THREADS") == 1
        assert compiled(infer, "ENABLE_CPU_PINNING") in (False, "NO")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"performance_hint": "speed"}, r"'speed'.*performance_hint"),
        ({"streams": -1}, "streams is -1, not an int >= 0"),
        ({"threads": "2"}, "threads is .2., not an int"),
        ({"cache_dir": ""}, "the folder of the cache is ''"),
        ({"config": {"NUM_STREAMS": 2}}, r"NUM_STREAMS.*streams= instead"),
        ({"config": {"INFERENCE_PRECISION_HINT": "f16"}}, r"precision= instead"),
        ({"config": {"ENABLE_CPU_PINING": True}}, r"'ENABLE_CPU_PINING'.*did you mean 'ENABLE_CPU_PINNING'"),
        ({"config": {"CPU_DENORMALS_OPTIMIZATION": "perhaps"}}, r"CPU does not take config.*perhaps"),
    ],
)
def test_options_that_are_wrong(net: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(net, **options)


# ---- the cache ----


def origin(caplog: pytest.LogCaptureFixture, path: Path, **options: Any) -> str:
    """Where the compiled model comes from: `"built"` or `"cached"`."""
    with caplog.at_level(logging.INFO, "infersdk.load"):
        load(path, **options).close()
    return caplog.records[-1].getMessage().rpartition(", ")[2]


def kept(folder: Path) -> list[Manifest]:
    return [entry for entry in Cache(folder).entries() if entry.kind == "compiled model"]


@pytest.mark.parametrize("kind", ["net", "two", "any_size", "nonzero", "int8", "bf16"])
def test_a_model_from_the_cache_is_the_same(kind: str, net: Path, tmp_path: Path) -> None:
    if kind == "bf16" and "BF16" not in CAPABLE:
        pytest.skip("the processor has no bfloat16")
    options: dict[str, Any] = {"precision": "bf16"} if kind == "bf16" else {}
    path = quantised(net) if kind == "int8" else net
    if kind not in ("int8", "bf16"):
        path.write_bytes(contract_model(kind))

    def declared(infer: Infer) -> list[Any]:
        return [
            infer.input_specs, infer.output_specs, infer.metadata, infer.precision, infer.layer_precisions,
            infer.device, infer.scheduling,
        ]  # fmt: skip

    def results(infer: Infer) -> list[bytes]:
        rng, result = np.random.default_rng(0), []
        for rows in (2, 1, 3):
            shapes = {s.name: [rows, *(12 if d is None else d for d in s.shape[1:])] for s in infer.input_specs}
            outputs = infer({name: rng.random(shape, np.float32).round(1) for name, shape in shapes.items()})
            result += [array.tobytes() for array in outputs.values()]
        return result

    with load(path, cache=False, **options) as infer:
        about, want = declared(infer), results(infer)
    cache = tmp_path / "cache"
    load(path, cache_dir=cache, **options).close()
    with load(path, cache_dir=str(cache), **options) as infer:
        assert declared(infer) == about
        assert results(infer) == want
        with infer.clone() as twin:
            assert results(twin) == want
        infer.release()
        assert results(infer) == want
    assert len(kept(cache)) == 1


def test_a_compiled_model_with_rope_is_made_each_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """OpenVINO reads it back with other results."""
    if importlib.metadata.version("openvino") < "2026.3":
        pytest.skip("OpenVINO reads RotaryEmbedding since 2026.3")
    path, rng = tmp_path / "net.onnx", np.random.default_rng(0)
    x, cos, sin = (rng.random(shape, np.float32) for shape in ((2, 4, 3, 8), (2, 3, 4), (2, 3, 4)))
    feeds = {"x": x, "cos": cos, "sin": sin}
    inputs, outputs = [models.value(name, array.shape) for name, array in feeds.items()], [models.value("y", x.shape)]
    models.save(path, [models.node("RotaryEmbedding", "x cos sin", "y")], inputs, outputs, opset=23)
    left, right, cos, sin = x[..., :4], x[..., 4:], cos[:, None], sin[:, None]
    want = np.concatenate([left * cos - right * sin, left * sin + right * cos], -1)
    for _ in range(2):
        assert origin(caplog, path, cache_dir=str(tmp_path)) == "built"
        with load(path, cache_dir=str(tmp_path)) as infer:
            for _ in range(2):
                np.testing.assert_allclose(infer(feeds)["y"], want, atol=1e-6)
                infer.release()
    assert [entry.nbytes for entry in kept(tmp_path)] == [0]


def test_what_the_cache_depends_on(
    net: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))
    several: list[dict[str, Any]] = [
        {}, {"precision": "fp32"}, {"threads": 1}, {"streams": 2}, {"performance_hint": "throughput"},
        {"profiling": True}, {"config": {"ENABLE_CPU_PINNING": False}},
    ]  # fmt: skip
    for expected in ("built", "cached"):
        assert [origin(caplog, net, **options) for options in several] == [expected] * len(several)
    net.rename(tmp_path / "other.onnx")
    assert origin(caplog, tmp_path / "other.onnx") == "cached"
    net.write_bytes(contract_model("two"))
    assert origin(caplog, net) == "built"
    assert len(kept(tmp_path / "cache")) == len(several) + 1
    monkeypatch.setattr(ov, "get_version", lambda: "2030.1.0-1")
    assert origin(caplog, net) == "built"


def test_an_ir_from_the_cache_has_its_own_weights(tmp_path: Path) -> None:
    ir, x = tmp_path / "net.xml", np.ones((1, 4), np.float32)
    parameter = ov.opset15.parameter([1, 4], np.float32, name="x")
    ov.save_model(ov.Model([ov.opset15.add(parameter, x)], [parameter]), str(ir), compress_to_fp16=False)
    for added in (1, 2, 1):
        np.full(4, added, np.float32).tofile(ir.with_suffix(".bin"))
        with load(ir, cache_dir=str(tmp_path / "cache")) as infer:
            np.testing.assert_array_equal(next(iter(infer(x).values())), x + added)
    assert len(kept(tmp_path / "cache")) == 2


def test_nothing_is_written_without_a_cache(net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))
    load(net, cache=False).close()
    infersdk.load(net.read_bytes(), "openvino").close()
    load(net, device="auto").close()
    assert kept(tmp_path / "cache") == []
    infersdk.load(net.read_bytes(), "openvino", cache_dir=str(tmp_path / "named")).close()
    assert [entry.backend for entry in kept(tmp_path / "named")] == ["openvino"]
    with pytest.raises(ConfigError, match=r"cache_dir='named'.*cache=False"):
        load(net, cache=False, cache_dir="named")


@pytest.mark.parametrize("damage", ["flipped", "refused", "other details"])
def test_a_damaged_entry_is_made_again(
    damage: str, net: Path, x: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = str(tmp_path / "cache")
    with load(net, cache_dir=folder) as infer:
        want = infer(x)["y"]
    cache, (entry,) = Cache(folder), kept(tmp_path / "cache")
    content = bytearray(cache.path(entry.key).read_bytes())
    about = {"kind": entry.kind, "backend": entry.backend, "label": entry.label}
    if damage == "flipped":
        content[len(content) // 2] ^= 1
        cache.path(entry.key).write_bytes(content)
    elif damage == "refused":
        cache.put(entry.key, b"not a compiled model", details=entry.details, **about)
    else:
        cache.put(entry.key, content, details={"inputs": 3}, **about)
    with load(net, cache_dir=folder) as infer:
        np.testing.assert_array_equal(infer(x)["y"], want)
    load(net, cache_dir=folder).close()
    assert origin(caplog, net, cache_dir=folder) == "cached"


def test_a_cache_that_cannot_be_written(net: Path, x: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(RuntimeWarning, match="cannot be written"), load(net) as infer:
        assert infer(x)["y"].shape == (2, 7)
    with pytest.raises(OutputError, match="cannot be written"):
        load(net, cache_dir=str(tmp_path / "file" / "cache"))


# ---- devices ----


def test_auto_says_what_it_took(net: Path, x: Any) -> None:
    there = infersdk.loading.registry.backend_class("openvino").declaration.probe().devices
    assert "cpu" in there
    assert there[-1] == "auto"
    with load(net, device="auto", threads=1) as infer, load(net) as plain:
        assert set(infer.device.split(",")) < set(there)
        np.testing.assert_allclose(infer(x)["y"], plain(x)["y"], atol=1e-6 if infer.device == "cpu" else 1e-2)
        with infer.clone() as twin:
            assert twin.device == infer.device


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_an_openvino_without_plugins(net: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Core:
        available_devices: tuple[str, ...] = ()

        def get_property(self, target: str, name: str) -> None:
            raise RuntimeError(f'Device with "{target}" name is not registered in the OpenVINO Runtime')

    monkeypatch.setattr("infersdk.backends._openvino.runtime.core", Core)
    words = (
        f"device '{device}': OpenVINO cannot use it: Device with .* is not registered .*; check its driver, and that"
    )
    with pytest.raises(DeviceUnavailableError, match=words):
        infersdk.load(net, backend="openvino", device=device)


@pytest.mark.parametrize(
    ("device", "hint"),
    [("cuda:0", "tensorrt"), ("gpu:7", "driver"), ("npu:7", "driver"), ("auto:1", "auto, which picks one")],
)
def test_devices_that_are_not_there(net: Path, device: str, hint: str) -> None:
    with pytest.raises(DeviceUnavailableError, match=rf"'{device}' is not supported; .* runs here on: .*cpu.*{hint}"):
        load(net, device=device)


# ---- precision ----


def kernels(infer: Infer) -> set[str]:
    """The kernels of the convolutions, as the runtime model names them."""
    nodes = infer._compiled.get_runtime_model().get_ops()  # type: ignore[attr-defined]
    infos = [node.get_rt_info() for node in nodes]
    return {str(i["primitiveType"].value) for i in infos if str(i["layerType"].value) == "Convolution"}


def test_fp32_unless_asked_otherwise(net: Path, x: Any) -> None:
    """Left to itself OpenVINO takes bfloat16 where the processor has it: compare the bits."""
    session = ort.InferenceSession(str(net), providers=["CPUExecutionProvider"])
    with load(net) as infer:
        assert infer.precision == "fp32"
        assert all(name.endswith("f32") and "bf16" not in name for name in kernels(infer))
        np.testing.assert_allclose(infer(x)["y"], session.run(None, {"x": x})[0], atol=1e-6)


@pytest.mark.parametrize(("precision", "capability"), [("bf16", "BF16"), ("fp16", "FP16")])
def test_lower_precision_on_request(net: Path, x: Any, precision: str, capability: str) -> None:
    try:
        infer = load(net, precision=precision)
    except PrecisionUnavailableError as error:
        assert "offers" in str(error)  # noqa: PT017
        if capability in CAPABLE and capability == "BF16":
            raise
        return
    with infer, load(net) as full:
        assert infer.precision == precision
        assert all(name.endswith({"bf16": "bf16", "fp16": "_f16"}[precision]) for name in kernels(infer))
        got, want = infer(x)["y"], full(x)["y"]
        assert not np.array_equal(got, want)
        np.testing.assert_allclose(got, want, atol=2e-2)


def quantised(net: Path) -> Path:
    samples = np.random.default_rng(0).standard_normal((8, 1, 3, 12, 10), dtype=np.float32)
    return quantised_by_onnxruntime(net, samples)


def test_int8_is_read_back_and_not_given_unasked(net: Path) -> None:
    path = quantised(net)
    x = np.random.default_rng(1).standard_normal((2, 3, 12, 10), dtype=np.float32)
    with load(path) as infer, load(path, precision="int8") as asked, load(net) as full:
        assert infer.precision == asked.precision == "int8"
        assert set(infer.layer_precisions) == {"int8"}
        assert full.layer_precisions == {"fp32": sum(infer.layer_precisions.values())}
        np.testing.assert_array_equal(infer(x)["y"], asked(x)["y"])
        np.testing.assert_allclose(infer(x)["y"], full(x)["y"], atol=0.1)
    with pytest.raises(PrecisionUnavailableError, match=r"'fp32'.*int8\.onnx would run in int8"):
        load(path, precision="fp32")
    with pytest.raises(PrecisionUnavailableError, match=r"'int8'.*net\.onnx would run in fp32.*quantise"):
        load(net, precision="int8")


def test_two_quantised_matrix_products(tmp_path: Path) -> None:
    """OpenVINO 2026.4 fuses them for 4 or 8 rows, and then returns zeros or uninitialised memory."""
    rng = np.random.default_rng(2)
    weights: dict[str, Any] = {"s": np.float32(0.03), "z": np.uint8(0)}
    for name, shape in (("v", (64, 32)), ("w", (32, 8))):
        weights[name] = rng.integers(-127, 127, shape).astype(np.int8)
        weights |= {
            f"{name}s": rng.uniform(1e-3, 2e-3, shape[1]).astype(np.float32),
            f"{name}z": np.zeros(shape[1], np.int8),
        }
    graph = """(float[4,64] x) => (float[4,8] y) {
        xq = QuantizeLinear(x, s, z) xf = DequantizeLinear(xq, s, z)
        vf = DequantizeLinear<axis=1>(v, vs, vz) t = MatMul(xf, vf) r = Relu(t)
        rq = QuantizeLinear(r, s, z) rf = DequantizeLinear(rq, s, z)
        wf = DequantizeLinear<axis=1>(w, ws, wz) y = MatMul(rf, wf)
    }"""
    path = models.save_text(tmp_path / "m.onnx", graph, weights, opset=13)
    x = rng.standard_normal((4, 64), dtype=np.float32)
    with load(path) as infer:
        np.testing.assert_allclose(infer(x)["y"], models.run(path, x, optimized=False)[0], atol=1e-4)


def test_a_quantised_model_whose_layers_fell_back_is_not_int8(tmp_path: Path) -> None:
    """A layer whose input is not quantised has one factor in INT8, and is computed in floating point."""
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {"s": np.float32(0.02), "z": np.int8(0)}
    nodes, at = [], "x"
    for i in range(3):
        weights[f"w{i}"] = rng.integers(-100, 100, (3, 3, 3, 3)).astype(np.int8)
        nodes.append(models.node("DequantizeLinear", f"w{i} s z", f"d{i}"))
        if i == 1:
            nodes.append(models.node("QuantizeLinear", f"{at} s z", "q"))
            nodes.append(models.node("DequantizeLinear", "q s z", "dq"))
            at = "dq"
        nodes.append(models.node("Conv", f"{at} d{i}", f"c{i}", pads=[1] * 4))
        at = f"c{i}"
    shape = (1, 3, 12, 12)
    arrays = {name: np.asarray(array) for name, array in weights.items()}
    path = models.save(tmp_path / "part.onnx", nodes, [models.value("x", shape)], [models.value("c2", shape)], arrays)
    with load(path) as infer:
        assert infer.precision == "fp32"
        assert infer.layer_precisions["fp32"] >= 2
        assert sum(infer.layer_precisions.values()) == 3
    with pytest.raises(PrecisionUnavailableError, match=r"part\.onnx would run in fp32 on cpu \(\d layers in fp32"):
        load(path, precision="int8")


def test_half_model_runs_as_written_where_it_can(net: Path, x: Any, tmp_path: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(str(net))), str(tmp_path / "half.onnx"))
    with load(tmp_path / "half.onnx") as half, load(tmp_path / "half.onnx", precision="fp32") as wide:
        assert half.input_specs[0].dtype == np.float16
        # On a processor without FP16 the plugin would take bfloat16 instead: the model is widened to FP32.
        assert half.precision == ("fp16" if "FP16" in CAPABLE else "fp32")
        assert set(half.layer_precisions) == {half.precision}
        assert wide.precision == "fp32"
        with load(net) as full:
            for infer in (half, wide):
                np.testing.assert_allclose(infer(x.astype(np.float16))["y"], full(x)["y"], atol=2e-3)


# ---- models ----


def test_metadata_of_onnx_and_ir(tmp_path: Path) -> None:
    metadata = {"names": "{0: 'cat', 1: 'dog'}", "stride": "32", "task": "detect"}
    model = models.save_text(tmp_path / "m.onnx", "(float[1,2] x) => (float[1,2] y) { y = Relu(x) }", metadata=metadata)
    with load(model) as infer:
        assert infer.metadata == metadata
    read = ov.Core().read_model(str(model))
    read.set_rt_info("detect2", ["model_info", "task"])  # where Ultralytics and Model API put theirs in an IR
    read.set_rt_info("7", ["other", "level"])
    ov.save_model(read, str(tmp_path / "m.xml"))
    with load(tmp_path / "m.xml") as infer:
        assert infer.metadata["names"] == "{0: 'cat', 1: 'dog'}"
        assert infer.metadata["stride"] == "32"
        assert infer.metadata["task"] == "detect2"
        assert infer.metadata["other/level"] == "7"


@pytest.mark.parametrize(
    ("kind", "side", "name"),
    [
        ("string", "input 'x'", "string"),
        ("float8e4m3fn", "input 'x'", "f8"),
        ("bfloat16", "output 'y'", "bf16"),
    ],
)
def test_element_types_that_do_not_get_through(kind: str, side: str, name: str, tmp_path: Path) -> None:
    path = models.save_text(tmp_path / "m.onnx", f"({kind}[2] x) => ({kind}[2] y) {{ y = Identity(x) }}")
    with pytest.raises(UnsupportedModelError, match=rf"{side} of m\.onnx.*{name}"):
        load(path)


def test_bfloat16_is_called_and_never_bound(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    graph = "(bfloat16[n,2] x, float[1] f) => (float[n,2] y) { c = Cast<to=1>(x) y = Add(c, f) }"
    path = models.save_text(tmp_path / "m.onnx", graph)
    with load(path) as infer:
        assert str(infer.input_specs[0]) == "x: bf16 (?, 2)"
        f = np.array([0.5], np.float32)
        for mine in (infer, infer.clone()):
            for rows in (3, 1, 4):
                x = np.arange(2 * rows).reshape(rows, 2).astype(ml_dtypes.bfloat16) / 8
                for given in (x, x.view(np.uint16)):
                    y = mine({"x": given, "f": f})["y"]
                    np.testing.assert_array_equal(y, x.astype(np.float32) + f)
            for wrong, error, message in (
                (x.astype(np.float32), DTypeError, "takes bfloat16, not float32; .*bits as uint16"),
                (x.view(np.uint16).astype(">u2"), DTypeError, "takes bfloat16, not >u2; .*bits as uint16"),
                (x[:, :1], ShapeError, r"takes shape \(\?, 2\), not \(4, 1\)"),
            ):
                with pytest.raises(error, match=message):
                    mine({"x": wrong, "f": f})
            for use in (mine.forward, mine.enqueue, lambda mine=mine: mine.inputs, lambda mine=mine: mine.outputs):
                with pytest.raises(
                    UnsupportedModelError, match=r"input 'x' of m\.onnx is of type bf16, which no tensor"
                ):
                    use()


def test_operator_that_openvino_does_not_know(tmp_path: Path) -> None:
    graph = "(float[2] x) => (float[2] y) { y = com.example.Frobnicate(x) }"
    models.save_text(tmp_path / "m.onnx", graph, domains={"com.example": 1})
    with pytest.raises(UnsupportedModelError, match=r"m\.onnx.*com\.example\.Frobnicate"):
        load(tmp_path / "m.onnx")


def test_scalars(tmp_path: Path) -> None:
    graph = "(float[n] x, float f) => (float y) { s = ReduceSum<keepdims=0>(x) y = Mul(s, f) }"
    path = models.save_text(tmp_path / "m.onnx", graph)
    with load(path) as infer:
        assert infer.output_specs[0].shape == ()
        for n in (3, 1, 5):
            got = infer({"x": np.ones(n, np.float32), "f": np.array(2, np.float32)})["y"]
            assert got.shape == ()
            assert got == 2 * n


def test_outputs_that_share_a_free_dimension_or_not(tmp_path: Path) -> None:
    """Broadcasting, joining, and swapping free dimensions: sizes that do not simply follow from one input."""
    graph = """(float[n] a, float[m] b, float[p,q] c) => (float[k] sum, float[l] both, float[q,p] turned)
        { sum = Add(a, b) both = Concat<axis=0>(a, b) turned = Transpose<perm=[1,0]>(c) }"""
    path = models.save_text(tmp_path / "m.onnx", graph)
    rng = np.random.default_rng(0)
    with load(path) as infer:
        for n, m, p, q in ((3, 3, 2, 4), (1, 5, 4, 2), (6, 1, 1, 7), (2, 2, 2, 2), (1, 1, 3, 1)):
            a, b = rng.standard_normal(n, np.float32), rng.standard_normal(m, np.float32)
            c = rng.standard_normal((p, q), np.float32)
            for _ in range(2):
                got = infer({"a": a, "b": b, "c": c})
                np.testing.assert_array_equal(got["sum"], a + b)
                np.testing.assert_array_equal(got["both"], np.concatenate([a, b]))
                np.testing.assert_array_equal(got["turned"], c.T)


@pytest.mark.parametrize("factor", [1, 3])
def test_a_shape_that_was_worked_out_wrong(factor: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should an output ever turn out smaller or larger than foretold, the runtime allocates it from then on."""
    graph = "(float[1,n] x) => (float[1,m] y) { y = Concat<axis=1>(x, x) }"
    path = models.save_text(tmp_path / "m.onnx", graph)
    with load(path) as infer:
        monkeypatch.setattr(infer, "_known_output_shapes", lambda: {"y": (1, factor * infer.inputs["x"].shape[1])})
        for n in (2, 6, 1):
            x = np.arange(n, dtype=np.float32)[None]
            for _ in range(2):
                np.testing.assert_array_equal(infer(x)["y"], np.concatenate([x, x], 1))


# ---- sharing ----


def test_a_shape_that_fails_inside_spoils_none_that_went_before(tmp_path: Path) -> None:
    """The sides of the image are halved and doubled, and joined with it: odd ones do not fit."""
    graph = """(float[n,3,h,w] x) => (float[n,6,h,w] y) {
        half = AveragePool<kernel_shape=[2,2], strides=[2,2]>(x)
        whole = Resize<mode="nearest">(half, , twice)
        y = Concat<axis=1>(x, whole)
    }"""
    path = models.save_text(tmp_path / "net.onnx", graph, {"twice": np.array([1, 1, 2, 2], np.float32)})
    good, odd = np.random.default_rng(0).random((1, 3, 8, 8), np.float32), np.zeros((1, 3, 9, 9), np.float32)
    with load(path) as infer, infer.clone() as other:
        before = infer(good)["y"]
        for one in (infer, other, infer):  # the clone shares what has failed
            for _ in range(2):
                with pytest.raises(InferenceError):
                    one(odd)
            np.testing.assert_array_equal(other(good)["y"], before)
            np.testing.assert_array_equal(infer(good)["y"], before)
            with one.clone() as late:
                np.testing.assert_array_equal(late(good)["y"], before)


@pytest.mark.parametrize(
    ("node", "good", "bad"),
    [
        ("GatherElements<axis=0>", [0, 1, 1], [0, 1, 9]),
        ("Reshape", [1, 3, 1], [1, 3, 2]),
    ],
    ids=["indices", "shape"],
)
def test_one_thread_and_values_that_fail(node: str, good: list[int], bad: list[int], tmp_path: Path) -> None:
    """The inputs are floating-point numbers, from which the network computes the integers."""
    graph = f"(float[3] x) => (float[] y) {{ indices = Cast<to=7>(x) y = {node}(x, indices) }}"
    path = models.save_text(tmp_path / "net.onnx", graph)
    with load(path, threads=1) as infer:
        expected = infer(np.float32(good))["y"]
        for _ in range(2):
            with pytest.raises(InferenceError):
                infer(np.float32(bad))
            np.testing.assert_array_equal(infer(np.float32(good))["y"], expected)


def test_prints_nothing(net: Path, x: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"\x08\x07" * 500)
    with load(net, device="auto") as infer, load(net) as other:
        infer(x)
        other(x)
    with pytest.raises(ModelFormatError):
        load(tmp_path / "bad.onnx")
    assert tuple(capfd.readouterr()) == ("", "")


# ---- what ONNX's own tests brought to light ----


def test_an_output_that_is_an_input_as_it_came(tmp_path: Path) -> None:
    """The processor's plugin leaves its tensor unwritten, or writes that over the input."""
    graph = """(float[n,3] x, float[n] z, double e) => (float[n,3] same, float[n] negative, double scalar)
        { same = Max(x) negative = Neg(z) scalar = Einsum<equation="->">(e) }"""
    infer = load(models.save_text(tmp_path / "same.onnx", graph))
    assert [spec.name for spec in infer.input_specs] == ["x", "z", "e"]
    for twin in (infer, infer.clone()):
        for rows in (2, 5, 1):
            x = np.random.default_rng(rows).random((rows, 3), np.float32)
            found = twin({"x": x, "z": x[:, 0], "e": np.array(float(rows))})
            np.testing.assert_array_equal(twin.inputs["x"].numpy(), x)
            np.testing.assert_array_equal(found["same"], x)
            np.testing.assert_array_equal(found["negative"], -x[:, 0])
            assert found["scalar"] == rows


def test_an_input_that_comes_out_as_it_came_is_not_written(tmp_path: Path) -> None:
    """Not even where the caller bound memory that is read-only."""
    infer = load(models.save_text(tmp_path / "same.onnx", "(float[n,3] x) => (float[n,3] y) { y = Max(x) }"))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    x.flags.writeable = False
    infer.bind("x", infersdk.Tensor.wrap(x))
    out = np.full((2, 3), -7, np.float32)
    infer.bind("y", infersdk.Tensor.wrap(out))
    for _ in range(2):
        infer.forward()
        np.testing.assert_array_equal(x.ravel(), range(6))
        np.testing.assert_array_equal(out, x)


def test_an_operator_that_only_the_reader_of_bytes_can_convert(tmp_path: Path) -> None:
    graph = """(float[2,3] x, int64[2] t) => (float y)
        { y = NegativeLogLikelihoodLoss<ignore_index=1, reduction="sum">(x, t) }"""
    infer = load(models.save_text(tmp_path / "loss.onnx", graph))
    x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    assert infer({"x": x, "t": np.array([2, 1])})["y"] == -3


def test_an_output_whose_size_is_found_in_compiling(tmp_path: Path) -> None:
    graph = "(float[2,3,4] x, int64[1] shape) => (float[m] y) { y = Reshape(x, shape) }"
    infer = load(models.save_text(tmp_path / "reshape.onnx", graph))
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for target in (24, -1):
        np.testing.assert_array_equal(infer({"x": x, "shape": np.array([target])})["y"], x.ravel())


@pytest.mark.parametrize(("source", "target"), [("float16", "float"), ("uint8", "int64")])
def test_a_model_without_arithmetic_has_no_precision_to_refuse(source: str, target: str, tmp_path: Path) -> None:
    graph = f"({source}[3] x, {target}[1] like) => ({target}[3] y) {{ y = CastLike(x, like) }}"
    infer = load(models.save_text(tmp_path / "cast.onnx", graph))
    given = {spec.name: np.array([1, 2, 3][: spec.shape[0]], spec.dtype) for spec in infer.input_specs}  # type: ignore[misc]
    np.testing.assert_array_equal(infer(given)["y"], [1, 2, 3])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="alternate stacks as Linux has them")
def test_signals_after_a_core_has_gone_in_another_thread(net: Path) -> None:
    """Its plugin unmaps the stack for signals that it gave to the thread in which it was loaded."""
    code = f"""
import gc, os, signal, threading
import openvino as ov
from infersdk.backends._openvino.custom_ops import core_with
from infersdk.backends._openvino.runtime import core

def freed_in_another_thread(held):
    thread = threading.Thread(target=lambda: (held.clear(), gc.collect()))
    thread.start()
    thread.join()

model = {str(net)!r}
signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
first, second = core_with({{}}), core_with({{}})
held = [first.compile_model(model, "CPU"), first]
del first
freed_in_another_thread(held)
os.kill(os.getpid(), signal.SIGUSR1)
third = core_with({{}})
compiled = third.compile_model(model, "CPU")
del second  # not the newest first
gc.collect()
del compiled, third
gc.collect()
os.kill(os.getpid(), signal.SIGUSR1)
core().compile_model(model, "CPU")
os.kill(os.getpid(), signal.SIGUSR1)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout) == (0, "handled\n" * 3), ran.stderr
