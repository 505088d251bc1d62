"""1080p frames on canvases that fit them, against the whole canvas and against what the engine alone gains.

    pytest benchmarks/bench_canvases.py -q -s            # ONNX Runtime and OpenVINO on the processor
    pytest benchmarks/bench_canvases.py -q -s -m gpu     # TensorRT-RTX

The engine alone is the network of each size, fixed by `ResizeInput`, on arrays. INFERSDK_BENCH_ROUNDS: default 9.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rounds import times

import infersdk
from infersdk import device_count
from infersdk.bench.statistics import median_of_rounds
from infersdk.graph.passes import ResizeInput, prepared_model
from infersdk.models import YOLOv8

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROUNDS = int(os.environ.get("INFERSDK_BENCH_ROUNDS", "9"))
FRAMES = int(os.environ.get("INFERSDK_BENCH_IMAGES", "16"))


def compare(path: Path, claim: Callable[..., None], batch: int, **load: Any) -> None:
    small = prepared_model(path, [ResizeInput(640, 384)])
    assert small is not None
    frames = [np.random.default_rng(i).integers(0, 255, (1080, 1920, 3), np.uint8) for i in range(4)] * (FRAMES // 4)
    arrays = {size: np.zeros((batch, 3, *size), np.float32) for size in ((640, 640), (384, 640))}
    with (
        YOLOv8(path, canvas="fit", canvas_sizes=[(640, 384)], max_batch=batch, **load) as fit,
        YOLOv8(path, max_batch=batch, **load) as fixed,
        infersdk.load(path, max_batch=batch, **load) as whole_engine,
        infersdk.load(small, max_batch=batch, **load) as small_engine,
    ):
        works: dict[str, Callable[[], Any]] = {
            "fit": lambda: list(fit.stream(frames)),
            "fixed": lambda: list(fixed.stream(frames)),
            "engine, 640 x 384": lambda: [small_engine(arrays[384, 640]) for _ in range(FRAMES // batch)],
            "engine, 640 x 640": lambda: [whole_engine(arrays[640, 640]) for _ in range(FRAMES // batch)],
        }
        taken = times(works, ROUNDS, warm_up=1)
    gains = taken["fixed"] / taken["fit"]
    engine = taken["engine, 640 x 640"] / taken["engine, 640 x 384"]
    ours, alone = median_of_rounds(gains), median_of_rounds(engine)
    share = median_of_rounds(gains / engine)
    print(f"\n{load}: with frames {ours.value:.3f} times, the engine alone {alone.value:.3f} times")
    print(f"  that is {share.value:.3f} of it (95 %: {share.low:.3f} to {share.high:.3f})")
    claim(f"canvas='fit' on 1080p, {load['backend']}", ours.value, low=ours.low, high=ours.high)
    claim(f"  of what the engine alone gains, {load['backend']}", share.value, low=share.low, high=share.high)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_on_the_processor(assets: Path, claim: Callable[..., None], backend: str) -> None:
    pytest.importorskip(backend)
    compare(assets / "models" / "yolov8n.onnx", claim, 4, backend=backend)


@pytest.mark.gpu
@pytest.mark.skipif(device_count() == 0, reason="needs an NVIDIA GPU")
def test_on_a_gpu(assets: Path, claim: Callable[..., None]) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    compare(assets / "models" / "yolov8n.onnx", claim, 16, backend="tensorrt-rtx", precision="fp16")
