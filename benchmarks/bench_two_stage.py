"""Two stages: images a second of a detector and a second model together, over the sum of both models' times alone.

    pytest benchmarks/bench_two_stage.py -q -s               # the processor, and what the host costs
    pytest benchmarks/bench_two_stage.py -q -s -m gpu        # a GPU with TensorRT-RTX

On the processor both models share the cores: the best there can be is the sum of their times. On a GPU they run side by
side, and the slower one counts. What a model takes alone is measured on the same images: the detector on all of them,
and the second one on all parts, which are cut out before. The rounds alternate; INFERSDK_BENCH_ROUNDS is how many there
are (default 5).

A GPU runs the 80 images in 20 ms, which is the time of the first and the last batches on their way through both
pipelines. There each round runs them 40 times, one after the other: 3,200 images, half a second and more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from no_device import NoDevice, cost
from rounds import Spread, times

from infersdk import Pipeline, device_count
from infersdk.data import CLASSIFIER, CLASSIFIER_SETTINGS, DETECTOR
from infersdk.image import HostImage, read_image
from infersdk.models import Classifier, Detections, Embedder, TwoStage, YOLOv5, YOLOv8
from infersdk.models.composed import cutter

ROUNDS = int(os.environ.get("INFERSDK_BENCH_ROUNDS", "5"))


def measured(assets: Path, count: int, repeats: int = 1, **settings: Any) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of each model alone, (rounds, 2), and of both together, (rounds,), on the images so many times over."""
    images = [read_image(path) for path in sorted((assets / "coco" / "val").glob("*.jpg"))[:count]]
    detector = YOLOv8(assets / "models" / "yolov8n.onnx", classes=["person"], **settings)
    second = Embedder(assets / "models" / "osnet_x0_25_msmt17.onnx", **settings)
    with TwoStage(detector, second, column="vector") as both:
        both.warm_up(example=images[0])
        cut = cutter("box")
        parts = [part for image, boxes in zip(images, detector.map(images), strict=True) for part in cut(image, boxes)]
        images, parts = images * repeats, parts * repeats
        print(f"{len(images)} images, {len(parts)} persons")
        runs = {
            "detector": lambda: list(detector.map(images)),
            "second": lambda: list(second.map(parts)),
            "both": lambda: list(both.map(images)),
        }
        taken = times(runs, ROUNDS, warm_up=1)
        print(", ".join(f"{name} {len(images) / np.median(taken[name]):,.1f} images/s" for name in runs))
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
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_on_a_gpu(assets: Path, claim: Callable[..., None], cuda_graph: bool) -> None:
    """Without CUDA graphs, launching the kernels of both models is much of the time."""
    pytest.importorskip("tensorrt_rtx_bindings")
    if not device_count():
        pytest.skip("no CUDA device on this machine")
    settings: dict[str, Any] = {"backend": "tensorrt-rtx", "precision": "fp16", "max_batch": 16}
    if cuda_graph:
        settings["options"] = {"cuda_graph": True, "kernel_specialization": "eager"}
    alone, together = measured(assets, 80, 40, **settings)
    name = "two stages, TensorRT-RTX" + (" with CUDA graphs" if cuda_graph else "")
    report(claim, f"{name}, the slower one alone over both together", alone.max(1) / together, 0.9)


@pytest.mark.parametrize("count", [0, 2, 8])
def test_what_the_host_costs(claim: Callable[..., None], count: int) -> None:
    """Microseconds of an image with so many parts, with models that take no time; and of a detector alone."""
    pytest.importorskip("onnxruntime")
    corners = np.random.default_rng(1).uniform(0, 200, (count, 2))
    found = Detections.of(np.hstack([corners, corners + 100]), np.ones(count), names=("a",), size=(640, 360))
    images = [HostImage(np.zeros((360, 640, 3), np.uint8), "bgr")] * 3_000
    detector, second = YOLOv5(DETECTOR, threads=1), Classifier(CLASSIFIER, threads=1, **CLASSIFIER_SETTINGS)
    detector._pipeline_holder._pipeline = Pipeline(NoDevice(found), max_batch=16)
    second._pipeline_holder._pipeline = Pipeline(NoDevice("an answer"), max_batch=16)
    with TwoStage(detector, second) as both:
        costs: dict[str, list[tuple[float, ...]]] = {"detector": [], "both": []}
        for _ in range(5):
            costs["detector"].append(cost(detector.map(images), len(images)))
            costs["both"].append(cost(both.map(images), len(images)))
    print()
    for name, own in costs.items():
        wall, processor, sleeps = np.median(own, 0)
        print(
            f"{count} parts, {name}: {wall:.1f} us an image, {processor:.1f} us of processors, {sleeps:.2f} sleeps of "
            "threads"
        )
    alone, both_costs = (np.array(own)[:, 0] for own in costs.values())
    ratio = Spread.of(both_costs / alone)
    claim(
        f"two stages, the host's time with {count} parts over the detector",
        ratio.median,
        low=ratio.low,
        high=ratio.high,
    )
