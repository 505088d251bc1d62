"""An infersdk backend behind ONNX's own interface, called as that interface is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from infersdk.errors import BackendNotFoundError, ConfigError, InputError, ModelFormatError

onnx = pytest.importorskip("onnx")
helper = onnx.helper

from onnx.backend.base import Backend  # noqa: E402

from infersdk.testing.onnx_backend import InferBackend, backend_for  # noqa: E402

RUNTIMES = ["onnxruntime", "openvino"]


@pytest.fixture(params=RUNTIMES)
def backend(request: pytest.FixtureRequest) -> type[InferBackend]:
    pytest.importorskip(request.param)
    return backend_for(request.param)


def model() -> Any:
    """`twice` and `sum` of x and a weight, which older models list among the inputs."""
    weight = onnx.numpy_helper.from_array(np.float32([1, 2, 3]), "w")
    infos = {
        name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 3]) for name in ("x", "twice", "sum")
    }
    w = helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [3])
    nodes = [helper.make_node("Add", ["x", "x"], ["twice"]), helper.make_node("Add", ["x", "w"], ["sum"])]
    graph = helper.make_graph(nodes, "g", [w, infos["x"]], [infos["twice"], infos["sum"]], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_prepare_and_run(backend: type[InferBackend]) -> None:
    assert issubclass(backend, Backend)
    rep = backend.prepare(model(), "CPU")
    assert rep.input_names == ("x",)
    for rows in (1, 4):
        x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
        outputs = rep.run([x])
        assert outputs._fields == ("twice", "sum")  # type: ignore[attr-defined]
        np.testing.assert_array_equal(outputs[0], x + x)
        np.testing.assert_array_equal(outputs.sum, x + np.array([1, 2, 3]))  # type: ignore[attr-defined]


def test_run_model(backend: type[InferBackend]) -> None:
    twice, _ = backend.run_model(model(), [np.ones((2, 3), np.float32)])
    np.testing.assert_array_equal(twice, np.full((2, 3), 2))


def test_devices(backend: type[InferBackend]) -> None:
    assert backend.supports_device("CPU")
    assert not backend.supports_device("FPGA:3")
    assert not backend.supports_device("")


def test_errors(backend: type[InferBackend]) -> None:
    rep = backend.prepare(model())
    with pytest.raises(InputError):
        rep.run([np.ones((2, 4), np.float32)])
    with pytest.raises(ValueError, match="shorter"):
        rep.run([])
    with pytest.raises(ModelFormatError):
        backend.prepare(onnx.ModelProto())


def test_options_are_handed_on() -> None:
    pytest.importorskip("onnxruntime")
    (twice, _) = backend_for("onnxruntime", threads=1).run_model(model(), [np.ones((2, 3), np.float32)])
    assert twice.shape == (2, 3)
    with pytest.raises(ConfigError, match="thread"):
        backend_for("onnxruntime", thread=1).prepare(model())
    with pytest.raises(BackendNotFoundError):
        backend_for("nonesuch")
