"""The built-in backends that run anywhere, under the contract that all backends share."""

from __future__ import annotations

import pytest

from infersdk.testing import InferContract

pytest.importorskip("onnx")


class TestOnnxRuntime(InferContract):
    backend = "onnxruntime"

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("onnxruntime")


class TestOpenVino(InferContract):
    backend = "openvino"
    # Its convolutions add up in another order for another batch.
    batch_atol = 1e-6

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("openvino")
