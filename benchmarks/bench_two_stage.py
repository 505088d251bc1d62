"""Two stages: images a second of a detector and a second model together, over the sum of both models' times alone.

    pytest benchmarks/bench_two_stage.py -q -s               # the processor
    pytest benchmarks/bench_two_stage.py -q -s -m gpu        # a GPU with TensorRT-RTX

On the processor both models share the cores: the best there can be is the sum of their times. On a GPU they run side by
side, and the slower one counts. What a model takes alone is measured on the same images: the detector on all of them,
and the second one on all parts, which are cut out before. The rounds alternate; INFERSDK_BENCH_ROUNDS is how many there
are (default 5).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds import Spread, times

from infersdk import device_count
from infersdk.image import read_image
from infersdk.models import Embedder, TwoStage, YOLOv8
from infersdk.models.composed import cutter

ROUNDS = int(os.environ.get("INFERSDK_BENCH_ROUNDS", "5"))


def measured(assets: Path, count: int, **settings: Any) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of each model alone, (rounds, 2), and of both together, (rounds,)."""
    images = [read_image(path) for path in sorted((assets / "coco" / "val").glob("*.jpg"))[:count]]
    detector = YOLOv8(assets / "models" / "yolov8n.onnx", classes=["person"], **settings)
    second = Embedder(assets / "models" / "osnet_x0_25_msmt17.onnx", **settings)
    with TwoStage(detector, second, column="vector") as both:
        both.warm_up(example=images[0])
        cut = cutter("box")
        parts = [part for image, boxes in zip(images, detector.map(images), strict=True) for part in cut(image, boxes)]
        print(f"{len(images)} images, {len(parts)} persons")
        runs = {
            "detector": lambda: list(detector.map(images)),
            "second": lambda: list(second.map(parts)),
            "both": lambda: list(both.map(images)),
        }
        taken = times(runs, ROUNDS)
    return np.array([taken["detector"], taken["second"]]).T, taken["both"]


def report(claim: Callable[..., None], name: str, ratios: np.ndarray, target: float) -> None:
    ratio = Spread.of(ratios)
    print(f"{name}: {ratio:.3f}; the target is {target}")
    claim(name, ratio.median, low=ratio.low, high=ratio.high)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_on_the_processor(backend: str, assets: Path, claim: Callable[..., None]) -> None:
    pytest.importorskip(backend)
    # Idle threads of one model would spin on cores where the other one works.
    options: dict[str, Any] = {"allow_spinning": False} if backend == "onnxruntime" else {}
    alone, together = measured(assets, 24, backend=backend, **options)
    report(claim, f"two stages, {backend}, the sum of both alone over both together", alone.sum(1) / together, 0.95)


@pytest.mark.gpu
def test_on_a_gpu(assets: Path, claim: Callable[..., None]) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    if not device_count():
        pytest.skip("no CUDA device on this machine")
    alone, together = measured(assets, 80, backend="tensorrt-rtx", precision="fp16", max_batch=16)
    report(claim, "two stages, TensorRT-RTX, the slower one alone over both together", alone.max(1) / together, 0.9)
