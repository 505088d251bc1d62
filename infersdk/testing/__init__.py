"""Tests for authors of backends: the contract of all backends, and an adapter for ONNX's backend tests.

`infersdk.testing.InferContract` needs pytest, `infersdk.testing.onnx_backend` the onnx package; each is imported on
first access.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .contract import InferContract, device_memory_used, resident_bytes
    from .models import contract_model

__all__ = ["InferContract", "contract_model", "device_memory_used", "resident_bytes"]

_HOMES = {
    "InferContract": "contract",
    "contract_model": "models",
    "device_memory_used": "contract",
    "resident_bytes": "contract",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
