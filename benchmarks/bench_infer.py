"""The cost of the interface: `Infer` and a model's call on a tiny network, against each runtime called by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx_models import double, node, save, value

import infersdk
from infersdk.models import Classifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rounds import Turns

SHAPE = (1, 3, 16, 16)
X = np.ones(SHAPE, np.float32)
#: Calls in a turn.
CALLS = 300
BACKENDS = ["onnxruntime", "openvino", pytest.param("tensorrt-rtx", marks=pytest.mark.gpu)]


@pytest.fixture
def network(tmp_path: Path) -> Path:
    return double(tmp_path / "add.onnx", ("batch", *SHAPE[1:]))


@pytest.fixture(params=BACKENDS)
def infer(request: pytest.FixtureRequest, network: Path) -> Iterator[infersdk.Infer]:
    pytest.importorskip({"tensorrt-rtx": "tensorrt_rtx_bindings"}.get(request.param, request.param))
    options = {} if request.param == "tensorrt-rtx" else {"threads": 1}
    with infersdk.load(network, request.param, **options) as loaded:
        np.testing.assert_array_equal(loaded(X)["y"], 2 * X)
        yield loaded


def session(network: Path) -> Any:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(network), options, providers=["CPUExecutionProvider"])


def compiled(network: Path) -> Any:
    ov = pytest.importorskip("openvino")
    hints = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": 1}
    return ov.Core().compile_model(str(network), "CPU", hints)


def bound(infer: infersdk.Infer, network: Path) -> Callable[[], object]:
    """A run over memory that is bound once: the fastest call of each runtime."""
    y = np.empty_like(X)
    if infer.backend == "onnxruntime":
        own = session(network)
        binding = own.io_binding()
        binding.bind_input("x", "cpu", 0, np.float32, SHAPE, X.ctypes.data)
        binding.bind_output("y", "cpu", 0, np.float32, SHAPE, y.ctypes.data)
        return lambda kept=y: own.run_with_iobinding(binding)  # type: ignore[misc]
    if infer.backend == "openvino":
        ov, request = pytest.importorskip("openvino"), compiled(network).create_infer_request()
        request.set_input_tensor(0, ov.Tensor(X, shared_memory=True))
        request.set_output_tensor(0, ov.Tensor(y, shared_memory=True))
        return lambda kept=y: request.infer(share_outputs=True)  # type: ignore[misc]
    context, stream = infer._context, infer.stream  # type: ignore[attr-defined]
    assert stream is not None

    def run() -> None:
        context.execute_async_v3(stream.handle)
        stream.synchronize()

    return run


def test_forward(infer: infersdk.Infer, network: Path, turns: Turns) -> None:
    turns.times({"forward()": infer.forward, "bound by hand": bound(infer, network)}, calls=CALLS)


def test_call(infer: infersdk.Infer, network: Path, turns: Turns) -> None:
    """An array in, arrays out."""
    if infer.backend == "tensorrt-rtx":
        pytest.skip("the runtime has no such call")
    if infer.backend == "onnxruntime":
        own = session(network)
        turns.times({"infer(x)": lambda: infer(X), "session.run()": lambda: own.run(None, {"x": X})}, calls=CALLS)
    else:
        model = compiled(network)
        turns.times({"infer(x)": lambda: infer(X), "compiled(x)": lambda: model(X)[0]}, calls=CALLS)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_warm_call_on_an_array(backend: str, tmp_path: Path, turns: Turns) -> None:
    """From pixels to classes, against the same in NumPy around ONNX Runtime."""
    pytest.importorskip(backend)
    nodes = [node("GlobalAveragePool", "x", "pooled"), node("Flatten", "pooled", "flat"), node("Softmax", "flat", "y")]
    inputs, outputs = [value("x", ("batch", *SHAPE[1:]))], [value("y", ("batch", 3))]
    network = save(tmp_path / "mean.onnx", nodes, inputs, outputs)
    pixels, own = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8), session(network)

    def by_hand() -> Any:
        x = np.ascontiguousarray(pixels[..., ::-1].transpose(2, 0, 1)[None], np.float32) / 255
        return np.argsort(own.run(None, {"x": x})[0][0])[::-1]

    with Classifier(network, backend, preset="unit", resize=16, threads=1) as model:
        assert model(pixels)[0].class_id == by_hand()[0]
        turns.times({"model(array)": lambda: model(pixels), "NumPy and ONNX Runtime": by_hand}, calls=CALLS)
