"""Infer on OpenVINO side by side with OpenVINO itself: what the one interface costs.

    pytest benchmarks/bench_infer_openvino.py --benchmark-columns=min,median,rounds

The tiny network is all overhead; the real one shows how little of it is left with real work. Baselines are the calls
that a user would write: an infer request over arrays bound once, the quickest there is; and calling the compiled model,
which is what the tutorials show.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import infersdk
from infersdk.testing import contract_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ov = pytest.importorskip("openvino")
pytest.importorskip("onnx")

PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}


def bound_request(path: Path, x: Any) -> Callable[[], object]:
    """OpenVINO's quickest: arrays bound once, a run that copies nothing."""
    compiled = ov.Core().compile_model(str(path), "CPU", PROPERTIES)
    y = np.empty(compiled(x)[0].shape, np.float32)
    request = compiled.create_infer_request()
    request.set_input_tensor(0, ov.Tensor(x, shared_memory=True))
    request.set_output_tensor(0, ov.Tensor(y, shared_memory=True))
    # The request keeps the addresses of the arrays, and nothing else: the function keeps the arrays.
    return functools.partial(lambda *kept: request.infer(share_outputs=True), x, y)


def compiled_call(path: Path, x: Any) -> Callable[[], object]:
    """What the tutorials show."""
    compiled = ov.Core().compile_model(str(path), "CPU", PROPERTIES)
    return lambda: compiled(x)[0]


def infer_forward(path: Path, x: Any) -> Callable[[], object]:
    infer = infersdk.load(path, "openvino")
    infer(x)
    return infer.forward


def infer_call(path: Path, x: Any) -> Callable[[], object]:
    infer = infersdk.load(path, "openvino")
    return lambda: infer(x)


CALLS = [bound_request, infer_forward, compiled_call, infer_call]


@pytest.mark.benchmark(group="tiny network: overhead")
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_tiny(benchmark: Any, call: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(contract_model("net"))
    benchmark(call(path, np.zeros((1, 3, 12, 10), np.float32)))


@pytest.mark.benchmark(group="YOLOv5n, one image")
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_yolov5n(benchmark: Any, call: Callable[..., Any], assets: Path) -> None:
    benchmark.pedantic(
        call(assets / "models" / "yolov5n.onnx", np.zeros((1, 3, 640, 640), np.float32)), rounds=30, warmup_rounds=3
    )
