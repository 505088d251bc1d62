"""The built-in backends that run anywhere, under the contract that all backends share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from infersdk.testing import InferContract

pytest.importorskip("onnx")


class TestOnnxRuntime(InferContract):
    backend = "onnxruntime"

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("onnxruntime")


class TestOnnxRuntimeFixedBatch(TestOnnxRuntime):
    """The same models with a batch of 1, for backends that take no other."""

    dynamic_batch = False
    leak_cycles = 50


class TestOpenVino(InferContract):
    backend = "openvino"

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("openvino")


class TestOpenVinoOneThread(TestOpenVino):
    options: ClassVar[dict[str, Any]] = {"threads": 1}
    leak_cycles = 50


class TestOpenVinoIr(TestOpenVino):
    """The same models as IR, and several streams."""

    options: ClassVar[dict[str, Any]] = {"performance_hint": "throughput", "streams": 2}
    leak_cycles = 50

    def prepare(self, onnx_path: Path) -> Path:
        import openvino as ov

        path = onnx_path.with_suffix(".xml")
        ov.save_model(ov.Core().read_model(str(onnx_path)), str(path), compress_to_fp16=False)
        return path


class TestOpenVinoBf16(TestOpenVino):
    """Asked for less than FP32, and stating so."""

    precision = "bf16"
    rtol, atol = 0.05, 0.02
    batch_atol = 0.02
    leak_cycles = 50

    @pytest.fixture(autouse=True)
    def _capable(self) -> None:
        ov = pytest.importorskip("openvino")
        if "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            pytest.skip("this processor has no bfloat16 arithmetic")
