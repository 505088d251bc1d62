"""An infersdk backend behind ONNX's own interface, called as that interface is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_models import node, save, value

from infersdk.errors import BackendNotFoundError, ConfigError, InputError, ModelFormatError

onnx = pytest.importorskip("onnx")

from onnx.backend.base import Backend  # noqa: E402

from infersdk.testing.onnx_backend import InferBackend, backend_for  # noqa: E402

RUNTIMES = ["onnxruntime", "openvino"]


@pytest.fixture(params=RUNTIMES)
def backend(request: pytest.FixtureRequest) -> type[InferBackend]:
    pytest.importorskip(request.param)
    return backend_for(request.param)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`twice` and `sum` of x and a weight, which older models list among the inputs."""
    path = tmp_path_factory.mktemp("backend") / "m.onnx"
    inputs, outputs = [value("w", [3]), value("x", ["n", 3])], [value("twice", ["n", 3]), value("sum", ["n", 3])]
    nodes = [node("Add", "x x", "twice"), node("Add", "x w", "sum")]
    return onnx.load(save(path, nodes, inputs, outputs, {"w": np.float32([1, 2, 3])}))


def test_prepare_and_run(backend: type[InferBackend], model: Any) -> None:
    assert issubclass(backend, Backend)
    rep = backend.prepare(model, "CPU")
    assert rep.input_names == ("x",)
    for rows in (1, 4):
        x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
        outputs = rep.run([x])
        assert outputs._fields == ("twice", "sum")  # type: ignore[attr-defined]
        np.testing.assert_array_equal(outputs[0], x + x)
        np.testing.assert_array_equal(outputs.sum, x + np.array([1, 2, 3]))  # type: ignore[attr-defined]


def test_devices(backend: type[InferBackend]) -> None:
    assert backend.supports_device("CPU")
    assert not backend.supports_device("FPGA:3")
    assert not backend.supports_device("")


def test_errors(backend: type[InferBackend], model: Any) -> None:
    rep = backend.prepare(model)
    with pytest.raises(InputError):
        rep.run([np.ones((2, 4), np.float32)])
    with pytest.raises(ValueError, match="shorter"):
        rep.run([])
    with pytest.raises(ModelFormatError):
        backend.prepare(onnx.ModelProto())


def test_options_are_handed_on(model: Any) -> None:
    pytest.importorskip("onnxruntime")
    (twice, _) = backend_for("onnxruntime", threads=1).run_model(model, [np.ones((2, 3), np.float32)])
    assert twice.shape == (2, 3)
    with pytest.raises(ConfigError, match="thread"):
        backend_for("onnxruntime", thread=1).prepare(model)
    with pytest.raises(BackendNotFoundError):
        backend_for("nonesuch")
