"""Two stages: images a second of a detector and a second model together, over the sum of both models' times alone.

    pytest benchmarks/bench_two_stage.py -q -s               # the processor, and what the host costs
    pytest benchmarks/bench_two_stage.py -q -s -m gpu        # a GPU with TensorRT-RTX

On the processor both models share the cores: the best there can be is the sum of their times. On a GPU they run side by
side, and the slower one counts. What a model takes alone is measured on the same images: the detector on all of them,
and the second one on all parts, which are cut out before. The rounds alternate; INFERSDK_BENCH_ROUNDS is how many there
are (default 5).

A GPU runs the 80 images in 20 ms, which is the time of the first and the last batches on their way through both
pipelines. There each round runs them 40 times, one after the other: 3,200 images, half a second and more. Whether two
models on one GPU reach the rate of the slower one depends on the GPU, too. So two stages are also held against what the
device allows: both models at the same time, each with its own thread and its own pipeline, on the same images and on
parts that were cut out before, and neither waits for the other. The engines alone, without images and pipelines, are
printed as well.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cuda_engine import engines_rate
from no_device import NoDevice, cost
from rounds import Spread, times

from infersdk import Pipeline, device_count
from infersdk.data import CLASSIFIER, CLASSIFIER_SETTINGS, DETECTOR
from infersdk.image import HostImage, read_image
from infersdk.models import Classifier, Detections, Embedder, TwoStage, YOLOv5, YOLOv8
from infersdk.models.composed import cutter

ROUNDS = int(os.environ.get("INFERSDK_BENCH_ROUNDS", "5"))


@dataclass(frozen=True)
class Measured:
    """Seconds of each round, float64 (rounds,).

    Attributes:
        detector, second: of each model alone.
        apart: of both at the same time, neither waiting for the other; empty on the processor.
        both: of two stages.
    """

    detector: npt.NDArray[np.float64]
    second: npt.NDArray[np.float64]
    apart: npt.NDArray[np.float64]
    both: npt.NDArray[np.float64]


def at_once(*runs: Callable[[], object]) -> None:
    """Calls each function in a thread of its own, and waits for all. Raises what one of them raises."""
    errors: list[BaseException] = []

    def call(run: Callable[[], object]) -> None:
        try:
            run()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def count_batches(model: Any) -> npt.NDArray[np.int64]:
    """How many batches the pipeline of a model has run, and how many requests were in them."""
    sizes = model.pipeline.stats().batch_sizes
    return np.array([sum(sizes.values()), sum(size * count for size, count in sizes.items())])


def measured(assets: Path, count: int, repeats: int = 1, *, on_gpu: bool = False, **settings: Any) -> Measured:
    """Each model alone, and both together, on the images so many times over."""
    images = [read_image(path) for path in sorted((assets / "coco" / "val").glob("*.jpg"))[:count]]
    detector = YOLOv8(assets / "models" / "yolov8n.onnx", classes=["person"], **settings)
    second = Embedder(assets / "models" / "osnet_x0_25_msmt17.onnx", **settings)
    with TwoStage(detector, second, column="vector") as both:
        both.warm_up(example=images[0])
        cut = cutter("box")
        parts = [part for image, boxes in zip(images, detector.map(images), strict=True) for part in cut(image, boxes)]
        if on_gpu:
            print_engines({"detector": (detector, 1.0), "second": (second, len(parts) / len(images))})
        images, parts = images * repeats, parts * repeats
        print(f"{len(images)} images, {len(parts)} persons")
        batches: list[npt.NDArray[np.int64]] = []

        def run_both() -> None:
            before = [count_batches(model) for model in (detector, second)]
            for _ in both.map(images):
                pass
            batches.append(
                np.array([count_batches(model) - old for model, old in zip((detector, second), before, strict=True)])
            )

        runs: dict[str, Callable[[], object]] = {
            "detector": lambda: list(detector.map(images)),
            "second": lambda: list(second.map(parts)),
            "both": run_both,
        }
        if on_gpu:
            runs["apart"] = partial(at_once, runs["detector"], runs["second"])
        taken = times(runs, ROUNDS, warm_up=1)
        print_rates(len(images), taken, batches)
    return Measured(taken["detector"], taken["second"], taken.get("apart", np.empty(0)), taken["both"])


def print_engines(models: dict[str, tuple[Any, float]]) -> None:
    """Images a second of the engines alone; each model comes with its rows for an image."""
    rates = {name: engines_rate({model: share}, model.batch_limit) for name, (model, share) in models.items()}
    rates["both"] = engines_rate(dict(models.values()), min(model.batch_limit for model, _ in models.values()))
    print("engines alone: " + ", ".join(f"{name} {rate:,.0f} images/s" for name, rate in rates.items()))


def print_rates(
    count: int, taken: dict[str, npt.NDArray[np.float64]], batches: Sequence[npt.NDArray[np.int64]]
) -> None:
    medians = {name: float(np.median(seconds)) for name, seconds in taken.items()}
    print(", ".join(f"{name} {count / seconds:,.1f} images/s" for name, seconds in medians.items()))
    in_turn = medians["detector"] + medians["second"]
    runs, requests = np.sum(batches, axis=0).T
    means = requests / runs
    print(
        f"one model after the other {count / in_turn:,.1f} images/s; with two stages the batches hold {means[0]:.1f} "
        f"images and {means[1]:.1f} parts on average"
    )


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
    found = measured(assets, 24, backend=backend, **options)
    ratios = (found.detector + found.second) / found.both
    report(claim, f"two stages, {backend}, the sum of both alone over both together", ratios, 0.95)


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
    found = measured(assets, 80, 40, on_gpu=True, **settings)
    name = "two stages, TensorRT-RTX" + (" with CUDA graphs" if cuda_graph else "")
    slower = np.maximum(found.detector, found.second)
    report(claim, f"{name}, the slower one alone over both together", slower / found.both, 0.9)
    report(claim, f"{name}, the share of what the device allows", found.apart / found.both, 0.9)


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
