"""The engine that benchmarks of a GPU run, and its own speed: INFERSDK_BENCH_BACKEND (default tensorrt-rtx)."""

from __future__ import annotations

import os
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infersdk import Infer

BACKEND = os.environ.get("INFERSDK_BENCH_BACKEND", "tensorrt-rtx")


def engine_options(precision: str = "fp16") -> dict[str, Any]:
    """The settings with which a TensorRT engine is fastest; other backends keep theirs."""
    if not BACKEND.startswith("tensorrt"):
        return {}
    eager = {"kernel_specialization": "eager"} if BACKEND == "tensorrt-rtx" else {}
    return {"cuda_graph": True, "half_io": precision == "fp16", **eager}


def batch_seconds(infer: Infer, duration: float) -> float:
    """Seconds a batch of the engine alone: its inputs are set, and calls are queued one behind the other on one stream.

    Args:
        duration: seconds for which it runs, at least.
    """
    assert infer.stream is not None, f"{BACKEND} has no stream"
    calls, start = 0, perf_counter()
    while perf_counter() - start < duration:
        for _ in range(10):
            infer.enqueue()
        infer.stream.synchronize()
        calls += 10
    return (perf_counter() - start) / calls
