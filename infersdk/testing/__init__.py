"""Tests for authors of backends: the contract of all backends, and an adapter for ONNX's backend tests.

`infersdk.testing.InferContract` needs pytest, `infersdk.testing.onnx_backend` the onnx package; each is imported on
first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.lazy import lazy

if TYPE_CHECKING:
    from .contract import InferContract, device_memory_used, resident_bytes
    from .models import contract_model

__all__ = ["InferContract", "contract_model", "device_memory_used", "resident_bytes"]

__getattr__, __dir__ = lazy(
    __name__, {"contract": "InferContract device_memory_used resident_bytes", "models": "contract_model"}
)
