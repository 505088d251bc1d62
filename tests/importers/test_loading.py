"""Files of other frameworks straight to a backend: converted once, kept by content, and the same numbers."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from framework_files import write_keras, write_pnnx

import infersdk
from infersdk.core.cache import Cache
from infersdk.core.model_source import ModelSource
from infersdk.importers import Conversion
from infersdk.importers.loading import converted_source
from infersdk.importers.workers.keras_export import PACKAGES

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

PNNX = """7767517
6 5
pnnx.Input    in0   0 1 0 #0=(2,3,16,16)f32
nn.Conv2d     conv  1 1 0 1 bias=True dilation=(1,1) groups=1 in_channels=3 kernel_size=(3,3) out_channels=8 \
padding=(1,1) padding_mode=zeros stride=(2,2) @bias=(8)f32 @weight=(8,3,3,3)f32 #0=(2,3,16,16)f32 #1=(2,8,8,8)f32
F.silu        silu  1 1 1 2 $input=1 #1=(2,8,8,8)f32 #2=(2,8,8,8)f32
nn.MaxPool2d  pool  1 1 2 3 ceil_mode=False dilation=(1,1) kernel_size=(2,2) padding=(0,0) return_indices=False \
stride=(2,2) #2=(2,8,8,8)f32 #3=(2,8,4,4)f32
torch.mean    mean  1 1 3 4 dim=(2,3) keepdim=False $input=3 #3=(2,8,4,4)f32 #4=(2,8)f32
pnnx.Output   out0  1 0 4 #4=(2,8)f32
"""


def pnnx_file(folder: Path, scale: float = 1.0) -> tuple[Path, Any, Any]:
    """The file, an input, and the output by NumPy."""
    pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    weight = (scale * rng.standard_normal((8, 3, 3, 3))).astype(np.float32)
    bias = rng.standard_normal(8).astype(np.float32)
    path = write_pnnx(folder, PNNX, {"conv.weight": weight, "conv.bias": bias})
    x = rng.standard_normal((2, 3, 16, 16)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    made = np.einsum("ncyxij,ocij->noyx", windows[:, :, ::2, ::2], weight) + bias[:, None, None]
    silu = made / (1 + np.exp(-made))
    return path, x, silu.reshape(2, 8, 4, 2, 4, 2).max((3, 5)).mean((2, 3))


def keras_file(folder: Path, scale: float = 1.0) -> tuple[Path, Any, Any]:
    """A dense network in Keras 2's HDF5, an input, and the output by NumPy."""
    pytest.importorskip("h5py")
    if not all(importlib.util.find_spec(name) for name in PACKAGES["keras"]):
        pytest.skip("Keras 3 with PyTorch is not installed")
    rng = np.random.default_rng(4)
    kernels = [(scale * rng.standard_normal(shape)).astype(np.float32) for shape in ((6, 16), (16, 5))]
    biases = [rng.standard_normal(len(kernel[0])).astype(np.float32) for kernel in kernels]
    layers = [{"class_name": "InputLayer", "config": {"name": "x", "batch_input_shape": [None, 6], "dtype": "float32"}}]
    weights: dict[str, dict[str, Any]] = {"x": {}}
    for number, (kernel, activation) in enumerate(zip(kernels, ("relu", "softmax"), strict=True)):
        config = {"name": f"d{number}", "units": kernel.shape[1], "activation": activation, "use_bias": True}
        layers.append({"class_name": "Dense", "config": config | {"dtype": "float32"}})
        weights[f"d{number}"] = {f"d{number}/kernel:0": kernel, f"d{number}/bias:0": biases[number]}
    folder.mkdir(exist_ok=True)
    model = {"class_name": "Sequential", "config": {"name": "m", "layers": layers}}
    path = write_keras(folder / "m.h5", model, "2.11.0", weights)
    x = rng.standard_normal((3, 6)).astype(np.float32)
    logits = np.maximum(x @ kernels[0] + biases[0], 0) @ kernels[1] + biases[1]
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return path, x, powers / powers.sum(1, keepdims=True)


#: TensorRT-RTX rounds the factors of products to TF32, which has 10 bits behind the point, whatever its flag says.
TF32 = {"rtol": 5e-3, "atol": 5e-3}

FORMATS = {"pnnx": pnnx_file, "keras": keras_file}


def results(path: Path, backend: str, x: Any, **options: Any) -> Any:
    with infersdk.load(path, backend, **options) as infer:
        (name,) = infer.inputs
        (output,) = infer({name: x}).values()
        return np.array(output)


def kept(kind: str) -> int:
    """How many entries of a kind the cache has."""
    return sum(entry.kind == kind for entry in Cache().entries())


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests at the same time keep entries, too."""
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_is_converted_once_by_its_content(kind: str, tmp_path: Path) -> None:
    path, x, expected = FORMATS[kind](tmp_path / "a")
    np.testing.assert_allclose(results(path, "onnxruntime", x), expected, rtol=1e-4, atol=1e-5)
    assert kept("conversion") == 1
    copy = Path(shutil.copytree(path.parent, tmp_path / "b"), path.name)
    np.testing.assert_allclose(results(copy, "onnxruntime", x), expected, rtol=1e-4, atol=1e-5)
    assert kept("conversion") == 1  # the same content in another folder
    other, _, changed = FORMATS[kind](tmp_path / "c", scale=0.5)
    np.testing.assert_allclose(results(other, "onnxruntime", x), changed, rtol=1e-4, atol=1e-5)
    assert kept("conversion") == 2


def test_a_package_of_another_interpreter_is_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is converted again."""
    (tmp_path / "net.tflite").write_bytes(b"\x1c\0\0\0TFL3")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    converted = Conversion("net.tflite", "tflite", b"onnx", None, "not requested", ())
    calls: list[Any] = []

    def convert(model: Any, *, python: Any = None) -> Conversion:
        calls.append(model)
        return converted

    monkeypatch.setattr("infersdk.importers.loading.convert", convert)
    source = ModelSource.of(tmp_path / "net.tflite")
    for version in ("1.98", "1.98", "1.99"):
        about = tmp_path / "tf2onnx-1.dist-info" / "METADATA"
        about.parent.mkdir(exist_ok=True)
        about.write_text(f"Metadata-Version: 2.1\nName: tf2onnx\nVersion: {version}\n")
        converted_source(source, {"python": python})
    assert len(calls) == 2


@pytest.mark.parametrize("kind", FORMATS)
def test_engines_of_a_converted_file_are_kept(kind: str, tmp_path: Path) -> None:
    """As those of an ONNX file; nothing is written of a model that is given in memory."""
    pytest.importorskip("tensorrt_rtx_bindings")
    from infersdk.backends.tensorrt import TensorRtRtxInfer

    path, _, _ = FORMATS[kind](tmp_path / "a")
    source = converted_source(ModelSource.of(path), {})
    for model, keeps in ((source, True), (ModelSource.of(source.read()), False)):
        assert (Cache.of_model(model, TensorRtRtxInfer.declaration.options()) is not None) == keeps


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["tensorrt-rtx", "tensorrt"])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_goes_straight_to_an_engine(kind: str, backend: str, tmp_path: Path) -> None:
    """Converted, built, kept and run: the results are those of ONNX Runtime, and a second load makes nothing."""
    pytest.importorskip({"tensorrt-rtx": "tensorrt_rtx_bindings", "tensorrt": "tensorrt"}[backend])
    pytest.importorskip("onnxruntime")
    path, x, expected = FORMATS[kind](tmp_path / "a")
    reference = results(path, "onnxruntime", x)
    np.testing.assert_allclose(reference, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(results(path, backend, x, max_batch=4, precision="fp32"), reference, **TF32)
    assert (kept("conversion"), kept("engine")) == (1, 1)
    copy = Path(shutil.copytree(path.parent, tmp_path / "b"), path.name)
    np.testing.assert_allclose(results(copy, backend, x, max_batch=4, precision="fp32"), reference, **TF32)
    assert (kept("conversion"), kept("engine")) == (1, 1)
    other, _, changed = FORMATS[kind](tmp_path / "c", scale=0.5)
    np.testing.assert_allclose(results(other, backend, x, max_batch=4, precision="fp32"), changed, **TF32)
    assert (kept("conversion"), kept("engine")) == (2, 2)
