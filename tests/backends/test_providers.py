"""Execution providers beyond CPU and CUDA: the contract on each that is installed here, and strictness about nodes.

They need `onnxruntime-ep-webgpu` and a Vulkan driver, `onnxruntime-qnn`, and `onnxruntime-ep-openvino` on an Intel
processor or `onnxruntime-openvino` in place of `onnxruntime`.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import infersdk
from infersdk.errors import DeviceUnavailableError, PrecisionUnavailableError, UnsupportedModelError
from infersdk.testing import InferContract, contract_model

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def _needs(device: str, options: dict[str, Any]) -> None:
    if (reason := _MISSING.get(device)) is None:
        try:
            infersdk.load(contract_model("type_float32", 1), device=device, **options).close()
            reason = ""
        except DeviceUnavailableError as error:
            reason = str(error)
        _MISSING[device] = reason
    if reason:
        pytest.skip(reason)


_MISSING: dict[str, str] = {}


class _ProviderContract(InferContract):
    backend = "onnxruntime"
    data_dependent = False
    leak_cycles = 20

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        assert self.device is not None
        _needs(self.device, dict(self.options))


class TestOpenVinoProvider(_ProviderContract):
    device = "openvino:cpu"
    dtypes = ("float32", "float16", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")


class TestWebGpu(_ProviderContract):
    device = "webgpu"
    dtypes = ("float32", "int32", "uint32", "bool")


class TestQnn(_ProviderContract):
    device = "qnn"
    options: ClassVar[dict[str, Any]] = {"provider_options": {"backend_type": "htp"}}
    dynamic_batch = False
    max_batch = 1
    dynamic_shape = False
    dtypes = ("float32", "float16", "bool", "int32", "int64")


class TestNodesOnTheProcessor:
    """A node that the provider does not take is named, and refused unless it is allowed."""

    @pytest.fixture(params=["webgpu", "qnn"])
    def provider(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        options = {"qnn": {"provider_options": {"backend_type": "htp"}}}.get(request.param, {})
        _needs(request.param, options)
        return {"device": request.param, **options}

    def test_are_refused(self, provider: dict[str, Any]) -> None:
        with pytest.raises(UnsupportedModelError, match=r"1 of 1 nodes of .*NonZero.*allow_cpu_nodes=True"):
            infersdk.load(contract_model("nonzero", 1), **provider)

    def test_are_allowed_and_logged(
        self, provider: dict[str, Any], caplog: pytest.LogCaptureFixture, tmp_path: Path
    ) -> None:
        with (
            caplog.at_level(logging.INFO, "infersdk"),
            infersdk.load(contract_model("nonzero", 1), allow_cpu_nodes=True, **provider) as infer,
        ):
            assert infer(np.array([[0, 3, 0, 5]], np.float32))["y"].tolist() == [[0, 0], [1, 3]]
        assert "NonZero" in caplog.text


def test_a_precision_that_cannot_be_verified_is_refused() -> None:
    options: dict[str, Any] = {"provider_options": {"backend_type": "htp"}}
    _needs("qnn", options)
    with pytest.raises(PrecisionUnavailableError, match="'fp16' cannot be verified.*QNNExecutionProvider"):
        infersdk.load(contract_model("net", 1), device="qnn", precision="fp16", **options)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("coreml", r"'coreml' is not supported.*runs on: .*cpu.*pip install \"onnxruntime\""),
        ("directml:1", "'directml:1' is not supported.*pip install \"onnxruntime-directml\""),
        ("abacus:gpu", r"'abacus:gpu' is not supported.*runs on: .*cpu"),
        ("cpu:gpu", "unknown device 'cpu:gpu'"),
        ("cpu:1", "'cpu:1' is not supported"),
    ],
)
def test_a_device_without_a_provider_is_refused(device: str, message: str) -> None:
    with pytest.raises(DeviceUnavailableError, match=message):
        infersdk.load(contract_model("net"), device=device)


def test_a_library_that_is_no_provider_is_refused(tmp_path: Path) -> None:
    library = tmp_path / "libabacus.so"
    library.write_bytes(b"no library")
    with pytest.raises(DeviceUnavailableError, match=r"'abacus' is not supported.*libabacus\.so.*cannot be loaded"):
        infersdk.load(contract_model("net"), device="abacus", provider_library=str(library))
