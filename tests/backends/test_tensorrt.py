"""TensorRT: engines are built here without a GPU, by TensorRT-RTX; what runs them needs one."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from waiting import together

import infersdk
from infersdk.backends._trt import build as building
from infersdk.backends._trt.engine import check_details, manifest_path, read_engine
from infersdk.backends._trt.flavour import FLAVOURS
from infersdk.backends._trt.infer import Options
from infersdk.backends._trt.options import Range
from infersdk.backends._trt.profiles import fits, make_profile, make_profiles
from infersdk.backends._trt.progress import run_cancellable
from infersdk.backends.tensorrt import build
from infersdk.core.model_source import ModelSource
from infersdk.core.stream import device_count
from infersdk.core.tensor_spec import TensorSpec
from infersdk.errors import (
    BackendUnavailableError,
    ConfigError,
    CustomOpError,
    DeviceUnavailableError,
    EngineError,
    ModelFormatError,
    ModelNotFoundError,
    OutputError,
    PrecisionUnavailableError,
    UnsupportedModelError,
)

pytest.importorskip("onnx")
import onnx_models
from onnx_models import node, value

RTX = FLAVOURS["tensorrt-rtx"]


def _has_rtx() -> bool:
    try:
        return bool(RTX.trt)
    except ImportError:
        return False


rtx = pytest.mark.skipif(not _has_rtx(), reason="TensorRT-RTX (tensorrt_rtx_bindings) is not installed")


# ---- models ----


Shapes = dict[str, tuple[int | str, ...]]
Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Writes a model of float tensors, given by the shapes of its inputs and outputs."""

    def write(nodes: list[Any], inputs: Shapes, outputs: Shapes, weights: Any = None, **more: Any) -> Path:
        ends = [[value(name, shape) for name, shape in shapes.items()] for shapes in (inputs, outputs)]
        return onnx_models.save(tmp_path / "net.onnx", nodes, *ends, weights, **more)

    return write


def conv_net(save: Save, batch: int | str = "batch", side: int | str = 16) -> Path:
    """A convolution and a Relu, with metadata as exporters write it."""
    weights = {"w": np.random.default_rng(0).normal(size=(8, 3, 3, 3)).astype(np.float32)}
    nodes = [node("Conv", "images w", "c", pads=[1] * 4, name="conv1"), node("Relu", "c", "y", name="relu1")]
    shapes = {"images": (batch, 3, side, side)}, {"y": (batch, 8, side, side)}
    return save(nodes, *shapes, weights, metadata={"names": "{0: 'person'}", "stride": "32"})


@pytest.fixture
def net(save: Save) -> Path:
    return conv_net(save)


@pytest.fixture
def engine(net: Path) -> Path:
    """An engine file for compute capability 8.6."""
    build(net, net.with_suffix(".engine"), compute_capabilities=("8.6",), max_batch=4)
    return net.with_suffix(".engine")


# ---- building ----


@rtx
def test_builds_for_named_capabilities_without_a_gpu(net: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.engine"
    manifest = build(net, output, compute_capabilities=("8.9", "8.6"), max_batch=4)
    data = output.read_bytes()
    assert data[:4] == b"vtrt"
    assert manifest.matches(data)
    assert json.loads(manifest_path(output).read_text()) == json.loads(manifest.text())
    details = manifest.details
    assert details["capabilities"] == ["8.6", "8.9"]
    assert details["version"] == RTX.version
    assert details["precision"] == "fp32"
    assert details["metadata"] == {"names": "{0: 'person'}", "stride": "32"}
    assert details["inputs"] == [{"name": "images", "dtype": "float32", "shape": ["batch", 3, 16, 16]}]
    assert details["outputs"] == [{"name": "y", "dtype": "float32", "shape": ["batch", 8, 16, 16]}]
    assert details["profiles"] == [
        {"images": [[4, 3, 16, 16]] * 3},  # the largest and the smallest batch alone
        {"images": [[1, 3, 16, 16]] * 3},
        {"images": [[1, 3, 16, 16], [4, 3, 16, 16], [4, 3, 16, 16]]},
    ]
    assert details["options"] == {"max_batch": 4}
    assert details["build_seconds"] > 0
    assert {file.name for file in tmp_path.iterdir()} == {"net.onnx", "out.engine", "out.engine.json"}


@rtx
def test_builds_for_all_that_the_runtime_supports(net: Path, tmp_path: Path) -> None:
    manifest = build(net, tmp_path / "out.engine", backend="tensorrt-rtx")
    assert manifest.details["capabilities"] == []


@rtx
@pytest.mark.parametrize("capability", ["9.9", "86", "", "sm_86", "10"])
def test_capabilities_that_there_are_not(net: Path, tmp_path: Path, capability: str) -> None:
    wanted = (capability, "8.6") if capability else ("8.6,", "x")
    with pytest.raises(ConfigError, match=r"compute capability '.*builds for 7\.5, 8\.0"):
        build(net, tmp_path / "out.engine", compute_capabilities=wanted)


@rtx
@pytest.mark.slow
@pytest.mark.assets
@pytest.mark.parametrize("precision", [None, "fp16"])
@pytest.mark.parametrize("name", ["yolov5n", "squeezenet1.1"])
def test_builds_real_models(assets: Path, tmp_path: Path, name: str, precision: str | None) -> None:
    manifest = build(
        assets / "models" / f"{name}.onnx", tmp_path / "out.engine",
        compute_capabilities=("8.6",), precision=precision, max_batch=4,
    )  # fmt: skip
    assert manifest.details["precision"] == (precision or "fp32")
    assert manifest.nbytes > 1_000_000
    data, details = read_engine(tmp_path / "out.engine", RTX, None)
    assert details is not None
    assert len(data) == manifest.nbytes


def quantised(save: Save, *, activations: bool = True) -> Path:
    """A matrix product with int8 weights, and int8 activations or none: what TensorRT-RTX takes of INT8 (it has no INT8
    convolutions)."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.integers(-100, 100, (16, 8)).astype(np.int8),
        "scale": np.asarray(0.01, np.float32),
        "zero": np.asarray(0, np.int8),
    }
    nodes = [node("DequantizeLinear", "w scale zero", "dw"), node("MatMul", "x dw", "y")]
    if activations:
        nodes = [
            node("QuantizeLinear", "x scale zero", "qx"), node("DequantizeLinear", "qx scale zero", "dx"),
            nodes[0], node("MatMul", "dx dw", "y"),
        ]  # fmt: skip
    return save(nodes, {"x": ("n", 16)}, {"y": ("n", 8)}, weights)


@rtx
def test_int8_is_a_quantised_graph(save: Save, tmp_path: Path) -> None:
    path = quantised(save)
    details = build(path, tmp_path / "a.engine", compute_capabilities=("8.6",), precision="int8").details
    assert (details["precision"], details["layers"]) == ("int8", {"int8": 1})
    with pytest.raises(PrecisionUnavailableError, match=r"'fp16': net\.onnx is int8"):
        build(path, tmp_path / "b.engine", compute_capabilities=("8.6",), precision="fp16")


@rtx
def test_int8_convolutions_are_refused_by_name(save: Save, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.integers(-100, 100, (8, 3, 3, 3)).astype(np.int8),
        "scale": np.asarray(0.01, np.float32),
        "zero": np.asarray(0, np.int8),
    }
    nodes = [
        node("QuantizeLinear", "x scale zero", "qx"), node("DequantizeLinear", "qx scale zero", "dx"),
        node("DequantizeLinear", "w scale zero", "dw"), node("Conv", "dx dw", "y"),
    ]  # fmt: skip
    nodes[-1].name = "stem"
    path = save(nodes, {"x": ("n", 3, 16, 16)}, {"y": ("n", 8, 14, 14)}, weights)
    with pytest.raises(UnsupportedModelError, match=r"no INT8 convolutions, and net\.onnx has 1, 'stem'"):
        build(path, tmp_path / "a.engine", compute_capabilities=("8.6",))
    assert not (tmp_path / "a.engine").exists()


@rtx
def test_weights_in_int8_are_not_arithmetic_in_int8(save: Save, tmp_path: Path) -> None:
    path = quantised(save, activations=False)
    details = build(path, tmp_path / "a.engine", compute_capabilities=("8.6",)).details
    assert (details["precision"], details["layers"]) == ("fp32", {"fp32": 1})
    with pytest.raises(PrecisionUnavailableError, match=r"'int8': net\.onnx is fp32"):
        build(path, tmp_path / "b.engine", compute_capabilities=("8.6",), precision="int8")
    with pytest.raises(UnsupportedModelError, match="is quantised; convert the original fp32 model"):
        build(path, tmp_path / "b.engine", compute_capabilities=("8.6",), precision="fp16")


@rtx
def test_nodes_that_stay_fp32(save: Save, tmp_path: Path) -> None:
    """What the network says once it is parsed, and a key of its own."""
    weights = {name: np.eye(16, dtype=np.float32) for name in ("v", "w", "u")}
    nodes = [
        node("MatMul", "x v", "a", name="one"), node("MatMul", "a w", "b", name="two"), node("MatMul", "b u", "y")
    ]  # fmt: skip
    path = save(nodes, {"x": ("n", 16)}, {"y": ("n", 16)}, weights)
    common: dict[str, Any] = {"compute_capabilities": ("8.6",), "precision": "fp16"}
    assert build(path, tmp_path / "a.engine", **common).details["layers"] == {"fp16": 3}
    details = build(path, tmp_path / "a.engine", **common, fp16_keep=["two"]).details
    assert details["layers"] == {"fp16": 2, "fp32": 1}
    assert details["precision"] == "fp16"
    assert details["options"]["fp16_keep"] == ["two"]
    with pytest.raises(ConfigError, match=r"has no node 'tow' to keep in fp32; did you mean 'two'\?"):
        build(path, tmp_path / "a.engine", **common, fp16_keep=["tow"])
    with pytest.raises(ConfigError, match="fp16_keep is for precision='fp16' of an fp32 model, not for None"):
        build(path, tmp_path / "a.engine", compute_capabilities=("8.6",), fp16_keep=["two"])
    with pytest.raises(UnsupportedModelError, match="stay in fp32"):
        build(path, tmp_path / "a.engine", **common, fp16_keep=["one", "two"])


@rtx
@pytest.mark.parametrize(("precision", "hint"), [("int8", "quantise it first"), ("bf16", "convert it to bf16 first")])
def test_a_precision_that_the_graph_has_not(net: Path, tmp_path: Path, precision: str, hint: str) -> None:
    with pytest.raises(PrecisionUnavailableError, match=rf"'{precision}': net\.onnx is fp32.*{hint}"):
        build(net, tmp_path / "out.engine", compute_capabilities=("8.6",), precision=precision)


@rtx
@pytest.mark.parametrize(
    ("kind", "domain", "words"),
    [("Foo", "my.ops", "Op type Foo is not supported"), ("Det", "", "not supported as it is used here")],
)
def test_an_operator_that_is_not_supported_is_named(
    save: Save, tmp_path: Path, kind: str, domain: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    nodes = [node("Relu", "x", "a", name="fine"), node(kind, "a", "y", name="head/odd", domain=domain)]
    path = save(nodes, {"x": (3, 3)}, {"y": ()}, domains={domain: 1} if domain else {})
    with pytest.raises(UnsupportedModelError, match=rf"TensorRT-RTX.*net\.onnx: node 'head/odd' \({kind}\): .*{words}"):
        build(path, tmp_path / "out.engine", compute_capabilities=("8.6",))
    assert not (tmp_path / "out.engine").exists()
    assert tuple(capfd.readouterr()) == ("", "")


@rtx
def test_an_undeclared_operator_does_not_become_one_of_tensorrt(save: Save, tmp_path: Path) -> None:
    def graph(domain: str) -> Path:
        nodes = [node("HardSwish", "x", "y", name="act", domain=domain)]
        return save(nodes, {"x": (3, 3)}, {"y": (3, 3)}, domains={domain: 1} if domain else {})

    build(graph(""), tmp_path / "out.engine", compute_capabilities=("8.6",))
    words = r"custom::HardSwish, node 'act' of net\.onnx: not declared. Derive a class.*would run its own HardSwish"
    with pytest.raises(CustomOpError, match=words):
        build(graph("custom"), tmp_path / "other.engine", compute_capabilities=("8.6",))
    assert not (tmp_path / "other.engine").exists()


@rtx
def test_an_input_whose_values_are_a_shape_is_refused(tmp_path: Path) -> None:
    inputs = [value("x", (6,)), value("shape", (2,), "int64")]
    path = onnx_models.save(tmp_path / "m.onnx", [node("Reshape", "x shape", "y")], inputs, [value("y", ("a", "b"))])
    with pytest.raises(UnsupportedModelError, match="input 'shape': its values decide the shapes"):
        build(path, tmp_path / "out.engine", compute_capabilities=("8.6",))


@rtx
@pytest.mark.parametrize("content", [b"", b"This is no model.\n" * 30, bytes(range(256)) * 20])
def test_what_is_no_model(tmp_path: Path, content: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelFormatError, match=r"net\.onnx"):
        build(path, tmp_path / "out.engine", compute_capabilities=("8.6",))
    with pytest.raises(ModelNotFoundError):
        build(tmp_path / "none.onnx", tmp_path / "out.engine", compute_capabilities=("8.6",))
    assert tuple(capfd.readouterr()) == ("", "")


@rtx
def test_arguments_that_do_not_fit(net: Path, tmp_path: Path) -> None:
    out, common = tmp_path / "out.engine", {"compute_capabilities": ("8.6",)}
    with pytest.raises(ConfigError, match=r"Known are: profiles, exact_batches, workspace"):
        build(net, out, **common, no_such_option=1)
    with pytest.raises(ConfigError, match="optimization_level"):
        build(net, out, **common, optimization_level=9)
    with pytest.raises(ConfigError, match=r"workspace is a number of bytes.*'much'"):
        build(net, out, **common, workspace="much")
    with pytest.raises(ConfigError, match=r"plugins: '/no/such/lib\.so' cannot be loaded: no such file"):
        build(net, out, **common, plugins=["/no/such/lib.so"])
    # The runtime says why only if it has a logger, which the first builder of a process sets.
    with pytest.raises(
        ConfigError, match=r"net\.onnx' cannot be loaded: .*(Error Code|does not say why; give a library)"
    ):
        build(net, out, **common, plugins=[str(net)])
    with pytest.raises(ConfigError, match="'onnxruntime' builds no engine files"):
        build(net, out, backend="onnxruntime")
    with pytest.raises(OutputError, match="there is no folder"):
        build(net, tmp_path / "none" / "out.engine", **common)
    with pytest.raises(ConfigError, match="NVIDIA GPU, not for 'cpu'"):
        build(net, out, **common, device="cpu")
    assert not out.exists()


@rtx
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        *(
            ({"max_batch": wrong}, f"max_batch is a whole number from 1, not {wrong!r}")
            for wrong in (0, -1, 2.5, True, "4")
        ),
        ({"precision": "fp17"}, "unknown precision 'fp17'; use one of fp32"),
        ({"compute_capabilities": 89}, r'compute_capabilities is a list such as \["8.6", "8.9"\], not 89'),
    ],
)
def test_arguments_are_checked_as_load_checks_them(
    net: Path, tmp_path: Path, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        build(net, tmp_path / "out.engine", **{"backend": "tensorrt-rtx", **arguments})
    assert list(tmp_path.iterdir()) == [net]


@rtx
def test_no_file_of_the_model_is_replaced(net: Path, tmp_path: Path) -> None:
    onnx = onnx_models.onnx
    for weights in ("w.bin", "out.engine.json"):  # the second has the name of a manifest
        model = onnx.load(net)
        file = tmp_path / weights.replace(".", "-") / "net.onnx"
        file.parent.mkdir()
        onnx.save(model, file, save_as_external_data=True, location=weights, size_threshold=0)
        before = {path: path.read_bytes() for path in file.parent.iterdir()}
        assert len(before) == 2
        output = file.with_name(weights.removesuffix(".json"))
        with pytest.raises(ConfigError, match=f"{weights}' is an input, too; write to another file"):
            build(file, output, compute_capabilities=("8.6",))
        with pytest.raises(ConfigError, match=r"net\.onnx' is the model itself; write to another file"):
            build(file, file, compute_capabilities=("8.6",))
        with pytest.raises(ConfigError, match=f"{weights}' is"):
            build(ModelSource.of(file.read_bytes(), file.parent), output, compute_capabilities=("8.6",))
        assert {path: path.read_bytes() for path in file.parent.iterdir()} == before


@rtx
def test_a_batch_of_another_whole_type_is_an_int_in_the_manifest(net: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.engine"
    build(net, output, compute_capabilities=("8.6",), max_batch=np.int64(3))
    _, details = read_engine(output, RTX, None)
    assert details is not None
    assert details.options["max_batch"] == 3


@rtx
def test_options_are_taken(net: Path, tmp_path: Path) -> None:
    manifest = build(
        net, tmp_path / "out.engine", compute_capabilities=("8.6",), workspace="256MiB", tf32=False,
        optimization_level=1, cache_tag="mine",
    )  # fmt: skip
    assert manifest.details["options"] == {
        "workspace": "256MiB", "tf32": False, "optimization_level": 1, "cache_tag": "mine",
    }  # fmt: skip


# ---- profiles ----


@rtx
def test_free_dimensions_need_a_profile(save: Save, tmp_path: Path) -> None:
    path, out = conv_net(save, side="side"), tmp_path / "out.engine"
    with pytest.raises(UnsupportedModelError, match=r"input 'images' is \(batch, 3, side, side\).*profiles=.*\"min\""):
        build(path, out, compute_capabilities=("8.6",))
    profiles = {"images": {"min": [1, 3, 8, 8], "opt": [2, 3, 16, 16], "max": [4, 3, 32, 32]}}
    manifest = build(path, out, compute_capabilities=("8.6",), profiles=profiles)
    assert manifest.details["profiles"] == [{"images": [[1, 3, 8, 8], [2, 3, 16, 16], [4, 3, 32, 32]]}]


SPEC = TensorSpec("x", np.dtype("float32"), ("batch", 3, 8))


def test_profile_by_batch() -> None:
    fixed = TensorSpec("fixed", np.dtype("float32"), (2, 3))
    assert make_profile([SPEC, fixed], 4, {}) == {"x": ((1, 3, 8), (4, 3, 8), (4, 3, 8))}
    assert make_profile([SPEC], None, {}) == {"x": ((1, 3, 8), (1, 3, 8), (1, 3, 8))}
    assert make_profile([fixed], 4, {}) == {}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"y": Range([1], [1], [1])}, r"no input 'y'; its inputs are \['x'\]"),
        ({"x": Range([1, 3], [1, 3, 8], [1, 3, 8])}, r"min has 3 dimensions, not \[1, 3\]"),
        ({"x": Range([1, 3, 8], [1, 4, 8], [1, 3, 8])}, "dimension 1 of opt is 3, not 4"),
        ({"x": Range([4, 3, 8], [2, 3, 8], [8, 3, 8])}, "dimension 0 goes min 4, opt 2, max 8"),
        ({"x": Range([1, 3, 8], [2, 3, 8], [8, 3, 8])}, "max_batch=4, but profiles has a largest batch of 8"),
    ],
)
def test_profiles_that_do_not_fit(given: dict[str, Range], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_profiles([SPEC], 4, given, None)


def test_batch_sizes_with_a_profile_of_their_own() -> None:
    def sizes(batches: list[int] | None, max_batch: int | None = 4, given: dict[str, Range] | None = None) -> list[Any]:
        return [tuple(s[0] for s in p["x"]) for p in make_profiles([SPEC], max_batch, given or {}, batches)]

    assert sizes(None) == [(4, 4, 4), (1, 1, 1), (1, 4, 4)]
    assert sizes(None, 1) == [(1, 1, 1)]
    assert sizes([]) == [(1, 4, 4)]
    assert sizes([2, 3, 2]) == [(2, 2, 2), (3, 3, 3), (1, 4, 4)]
    given = {"x": Range([2, 3, 8], [2, 3, 8], [8, 3, 8])}
    assert sizes(None, None, given) == [(2, 2, 8)]
    assert sizes([8], None, given) == [(8, 8, 8), (2, 2, 8)]
    assert make_profiles([TensorSpec("fixed", np.dtype("float32"), (2, 3))], 4, {}, None) == []
    with pytest.raises(ConfigError, match=r"exact_batches=\[1, 5\]: 5 is not within the range of 1 to 4"):
        sizes([1, 5])
    free = {"x": Range([1, 3, 4], [1, 3, 8], [4, 3, 8])}
    wide = TensorSpec("x", np.dtype("float32"), ("batch", 3, "side"))
    assert len(make_profiles([wide], 4, free, None)) == 1
    several = {"x": [Range([1, 3, side], [4, 3, side], [4, 3, side]) for side in (8, 16)]}
    made = [p["x"] for p in make_profiles([wide], 4, several, None)]
    assert [tuple(shapes[0] for shapes in p) for p in made] == [(4, 4, 4), (1, 1, 1), (1, 4, 4)] * 2
    assert [p[0][2] for p in made] == [8] * 3 + [16] * 3
    assert [p[0][0] for p in (q["x"] for q in make_profiles([wide], 4, several, []))] == [1, 1]
    growing = {"x": [Range([1, 3, 8], [size, 3, 8], [size, 3, 8]) for size in (1, 4)]}
    assert sizes([], 4, growing) == [(1, 1, 1), (1, 4, 4)], "max_batch is the largest batch of all ranges"
    with pytest.raises(ConfigError, match="max_batch=8, but profiles has a largest batch of 4 for input 'x'"):
        sizes([], 8, growing)
    with pytest.raises(ConfigError, match="one at least"):
        make_profiles([wide], 4, {"x": []}, None)
    with pytest.raises(ConfigError, match="other dimensions than the batch are free"):
        make_profiles([wide], 4, free, [1])


def test_what_fits_a_profile() -> None:
    profile = {"x": ((1, 3), (2, 3), (4, 3))}
    assert fits(profile, {"x": (1, 3)})
    assert fits(profile, {"x": (4, 3), "other": (9,)})
    assert not fits(profile, {"x": (5, 3)})
    assert not fits(profile, {"x": (0, 3)})


# ---- watching and stopping ----


@rtx
def test_progress_grows_from_0_to_1(net: Path, tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    build(net, tmp_path / "out.engine", compute_capabilities=("8.6",), progress=lambda *what: told.append(what))
    fractions = [fraction for _, fraction in told]
    assert fractions == sorted(fractions)
    assert fractions[0] == 0
    assert fractions[-1] == pytest.approx(1)
    assert len({phase for phase, _ in told}) > 3
    assert len(set(fractions)) > 10


@rtx
def test_ctrl_c_stops_the_build_and_leaves_nothing(net: Path, tmp_path: Path) -> None:
    code = """
        import sys, time
        from infersdk.backends.tensorrt import build
        told = []
        def progress(phase, fraction):
            told.append(fraction)
            if len(told) == 10:
                print("ready", flush=True)
                time.sleep(2)  # a long step, in which Ctrl-C comes
        try:
            build(sys.argv[1], sys.argv[2], compute_capabilities=("8.6",), progress=progress)
        except KeyboardInterrupt:
            print("interrupted at", max(told))
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(net), str(tmp_path / "out.engine")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert said.startswith("interrupted at ")
    assert float(said.split()[-1]) < 0.9
    assert {file.name for file in tmp_path.iterdir()} == {"net.onnx"}


@pytest.mark.parametrize("started", [True, False])
def test_an_interrupt_while_the_build_starts(monkeypatch: pytest.MonkeyPatch, started: bool) -> None:
    cancelled, ends = threading.Event(), list[bool]()
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if started:
            start(thread)
            began.wait(30)
        raise KeyboardInterrupt

    def work() -> None:
        began.set()
        ends.append(cancelled.wait(30))

    began = threading.Event()
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_cancellable(work, cancelled)
    assert cancelled.is_set()
    assert ends == [True] * started


@rtx
def test_builds_in_threads(net: Path, tmp_path: Path) -> None:
    together(lambda i: build(net, tmp_path / f"{i}.engine", compute_capabilities=("8.6",)), range(3))
    assert len({read_engine(tmp_path / f"{i}.engine", RTX, None)[1].model_sha256 for i in range(3)}) == 1  # type: ignore[union-attr]


@rtx
def test_the_messages_of_a_build_are_for_the_thread_that_wants_it(net: Path, tmp_path: Path) -> None:
    with RTX.messages() as here:
        together(lambda _: build(net, tmp_path / "other.engine", compute_capabilities=("8.6",)), range(1))
        assert here.memory == {}
        manifest = build(net, tmp_path / "own.engine", compute_capabilities=("8.6",))
    assert here.memory == {
        "Weights": manifest.details["weights_nbytes"],
        "Activation": manifest.details["workspace_nbytes"],
    }


# ---- engine files: what is wrong with one is known before the runtime sees it ----


@rtx
def test_an_engine_is_read_with_its_manifest(engine: Path) -> None:
    data, details = read_engine(engine, RTX, None)
    assert data == engine.read_bytes()
    assert details.metadata["stride"] == "32"
    assert details.inputs[0] == TensorSpec("images", np.dtype("float32"), ("batch", 3, 16, 16))


@rtx
@pytest.mark.parametrize("damage", ["truncated", "flipped", "grown", "other"])
def test_damage_is_known_by_the_manifest(engine: Path, damage: str) -> None:
    data = bytearray(engine.read_bytes())
    if damage == "truncated":
        del data[len(data) // 2 :]
    elif damage == "flipped":
        data[len(data) // 2] ^= 4
    elif damage == "grown":
        data += b"0"
    else:
        data = bytearray(b"something else")
    engine.write_bytes(data)
    with pytest.raises(EngineError, match=r"net\.engine' is damaged.*SHA-256.*infersdk build .*net\.onnx"):
        read_engine(engine, RTX, None)


@rtx
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-1], "is damaged: it should have"),
        (lambda data: data + b"0", "is damaged: it should have"),
        (lambda data: data[:30], "is no engine of TensorRT-RTX"),
        (lambda data: b"ftrt" + data[4:], "is no engine of TensorRT-RTX: it begins with b'ftrt'"),
        (lambda data: data[:24] + bytes([1, 5, 0, 76]) + data[28:], r"was built by TensorRT-RTX 1\.5\.0\.76, and this"),
    ],
)
def test_without_a_manifest_the_header_tells(engine: Path, damage: Callable[[bytes], bytes], words: str) -> None:
    manifest_path(engine).unlink()
    data = engine.read_bytes()
    assert read_engine(engine, RTX, None) == (data, None)
    engine.write_bytes(damage(data))
    with pytest.raises(EngineError, match=words):
        read_engine(engine, RTX, None)


@rtx
def test_a_manifest_that_cannot_be_understood(engine: Path) -> None:
    for text in ("{", "{}", '"text"'):
        manifest_path(engine).write_text(text)
        with pytest.raises(EngineError, match=r"net\.engine\.json' should be the manifest"):
            read_engine(engine, RTX, None)


@rtx
def test_an_engine_for_another_version_gpu_or_backend(engine: Path) -> None:
    def device(capability: str) -> Any:
        class Gpu(SimpleNamespace):
            __str__ = lambda self: "cuda:0"  # noqa: E731

        return Gpu(capability=capability, name="NVIDIA Test")

    read_engine(engine, RTX, device("8.6"))
    with pytest.raises(EngineError, match=r"for compute capability 8\.6, and cuda:0 \(NVIDIA Test\) has 9\.0"):
        read_engine(engine, RTX, device("9.0"))
    _, details = read_engine(engine, RTX, None)
    details.version = "1.2.3.4"
    with pytest.raises(EngineError, match=r"built by TensorRT-RTX 1\.2\.3\.4, and this is"):
        check_details("net.engine", details, RTX, None)
    with pytest.raises(EngineError, match="an engine of backend 'tensorrt-rtx', not of 'tensorrt'"):
        read_engine(engine, FLAVOURS["tensorrt"], None)


# ---- the key of the cache ----


@rtx
def test_the_key_depends_on_all_that_makes_the_engine(net: Path, save: Save, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.so"
    plugin.write_bytes(b"one")

    def key(model: Path = net, flavour: Any = RTX, **changes: Any) -> str:
        settings: dict[str, Any] = {"precision": None, "max_batch": None, "capabilities": (), "options": Options()}
        settings |= {"device": SimpleNamespace(capability="8.6", name="A")} | changes
        return building.engine_key(flavour, model, **settings)

    assert key() == key()
    other = tmp_path / "other.onnx"
    other.write_bytes(net.read_bytes())
    assert key(other) == key()  # what counts is the content
    changed = [
        key(precision="fp16"), key(precision="fp16", options=Options(fp16_keep=["conv1"])),
        key(precision="fp32"), key(max_batch=2), key(capabilities=("8.9",)),
        key(device=SimpleNamespace(capability="8.9", name="A")), key(device=None), key(options=Options(tf32=False)),
        key(options=Options(workspace="1GB")), key(options=Options(workspace="2GB")),
        key(options=Options(optimization_level=1)), key(options=Options(cache_tag="a")),
        key(options=Options(plugins=[str(plugin)])),
        key(options=Options(profiles={"images": Range([1], [1], [1])})),
        key(options=Options(profiles={"images": Range([1], [1], [2])})),
    ]  # fmt: skip
    plugin.write_bytes(b"two")
    changed.append(key(options=Options(plugins=[str(plugin)])))
    changed.append(key(conv_net(save, "n")))
    assert len({key(other), *changed}) == len(changed) + 1
    assert key(other, options=Options(progress=print, kernel_specialization="eager", cache=False)) == key(other)


def test_the_key_names_the_gpu_where_kernels_are_chosen_by_timing(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", SimpleNamespace(__version__="10.13.0"))
    full = dataclasses.replace(FLAVOURS["tensorrt"])  # one that keeps nothing of the stand-in
    keys = {
        building.engine_key(
            full, net, precision=None, max_batch=None, options=Options(), capabilities=(),
            device=SimpleNamespace(capability="8.6", name=name),  # type: ignore[arg-type]
        )
        for name in ("RTX A4000", "RTX 3090")
    }  # fmt: skip
    assert len(keys) == 2


# ---- runtimes and devices that are not there ----


@rtx
@pytest.mark.skipif(device_count() > 0, reason="for machines without a GPU")
def test_without_a_gpu(net: Path) -> None:
    info = infersdk.loading.registry.backend_class("tensorrt-rtx").declaration.probe()
    assert info.version == RTX.version
    assert info.devices == ()
    with pytest.raises(DeviceUnavailableError, match="no device cuda:0: "):
        infersdk.load(net, "tensorrt-rtx")


@rtx
@pytest.mark.parametrize("device", ["cpu", "abacus:3"])
def test_runs_on_cuda_alone(net: Path, device: str) -> None:
    with pytest.raises(DeviceUnavailableError, match=rf"'{device}' is not supported; TensorRT-RTX runs on: "):
        infersdk.load(net, "tensorrt-rtx", device=device)


def _package(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "raise OSError('libnvinfer.so.10: cannot open')",
            r"fails to import: OSError: libnvinfer\.so\.10.*pip install",
        ),
        ("import no_such_module_inside", "needs no_such_module_inside, which is not installed"),
        ("__version__ = '8.6.1'", r"ImportError: TensorRT 8\.6\.1 is too old; 10 or later"),
    ],
)
def test_a_package_that_fails(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    if "tensorrt" in sys.modules:
        pytest.skip("the real TensorRT is loaded already")
    _package(tmp_path, "tensorrt", text, monkeypatch)
    with pytest.raises(BackendUnavailableError, match=words):
        infersdk.load(net, "tensorrt")
    sys.modules.pop("tensorrt", None)


def test_a_package_that_is_missing(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)  # what Python knows to be missing
    with pytest.raises(BackendUnavailableError, match=r"'tensorrt' needs tensorrt, .*infersdk\[tensorrt\]"):
        infersdk.load(net, "tensorrt")


def test_importing_the_module_imports_no_runtime() -> None:
    code = "import sys, infersdk.backends.tensorrt; print([m for m in sys.modules if m.startswith('tensorrt')])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
