"""Two models on each frame of a video: a `ModelGroup` against each model alone.

    pytest -s benchmarks/bench_model_group.py              # on the processor, and what the host costs for a GPU
    pytest -s benchmarks/bench_model_group.py -m gpu       # on a GPU

It takes the test data of INFERSDK_ASSETS. On the processor both models share the cores, so the group is held against
the sum of their times. On a GPU the group is held against what the device can do: the slower model alone, or both
engines side by side on it without images, whichever is less. Frames are decoded before; each round runs the models
alone and the group one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from cuda_engine import engines_rate
from no_device import NoDevice, cost
from rounds import Spread, seconds

from infersdk import ModelGroup, Pipeline, device_count, graph, pinned_empty
from infersdk.data import DETECTOR
from infersdk.graph.passes import FreeBatch
from infersdk.models import TwinLiteNet, YOLOv5, load

FRAMES = 48
#: This export names its outputs the wrong way round.
ROAD = {"area": "lanes", "lanes": "segmentation"}


def frames_of(video: Path) -> list[np.ndarray[Any, Any]]:
    pytest.importorskip("av")
    from infersdk.video import VideoReader

    with VideoReader(video, format="bgr") as reader:
        return [frame.pixels.copy() for frame in itertools.islice(reader, FRAMES)]


@contextmanager
def group_of(models: Path, road_file: Path | None = None, **settings: Any) -> Iterator[ModelGroup]:
    detector = load(models / "yolov8n.onnx", **settings)
    road = TwinLiteNet(road_file or models / "twinlitenet.onnx", **ROAD, **settings)
    with ModelGroup(detector=detector, road=road) as group:
        yield group


def rounds_of(
    group: ModelGroup, frames: list[Any], rounds: int = 5
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Seconds of each model alone, (rounds, models), and of the group, (rounds,)."""
    alone, together = [], []
    for _ in range(rounds):
        alone.append([seconds(lambda m=model: list(m.map(frames))) for model in group.models.values()])
        results: list[Any] = []
        together.append(seconds(lambda to=results: to.extend(group.map(frames))))
        assert len(results) == len(frames)
        assert not any(result.errors for result in results)
    return np.array(alone), np.array(together)


def report(claim: Callable[..., None], name: str, ratios: np.ndarray[Any, Any]) -> None:
    ratio = Spread.of(ratios)
    print(f"{name}: {ratio:.3f}")
    claim(name, ratio.median, low=ratio.low, high=ratio.high)


def test_on_the_processor(assets: Path, claim: Callable[..., None]) -> None:
    pytest.importorskip("onnxruntime")
    frames = frames_of(assets / "driving" / "drive.mp4")
    with group_of(assets / "models", options={"allow_spinning": False}) as group:
        group.warm_up()
        alone, together = rounds_of(group, frames)
    report(claim, "two models on a frame, the sum of both alone over the group, ONNX Runtime", alone.sum(1) / together)


# ---- on a GPU ----


def page_locked(frames: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    copies = []
    for frame in frames:
        copies.append(pinned_empty(frame.shape))
        copies[-1][:] = frame
    return copies


@pytest.mark.gpu
@pytest.mark.parametrize("max_batch", [1, 32])
def test_on_a_gpu(assets: Path, tmp_path: Path, claim: Callable[..., None], max_batch: int) -> None:
    """Frames of 640 x 360, in ordinary and in page-locked memory."""
    pytest.importorskip("tensorrt_rtx_bindings")
    if not device_count():
        pytest.skip("no CUDA device on this machine")
    decoded = frames_of(assets / "driving" / "drive.mp4")
    kinds = {"ordinary": decoded, "page-locked": page_locked(decoded)}
    road = graph.open(assets / "models" / "twinlitenet.onnx")
    road.apply(FreeBatch())
    road.save(tmp_path / "road.onnx")
    start = perf_counter()
    settings: dict[str, Any] = {"backend": "tensorrt-rtx", "precision": "fp16", "max_batch": max_batch}
    settings["options"] = {"cuda_graph": True, "kernel_specialization": "eager"}
    with group_of(assets / "models", tmp_path / "road.onnx", **settings) as group:
        print(f"\nmax_batch {max_batch}: loaded in {perf_counter() - start:.1f} s")
        engines = {name: engines_rate({model: 1}, max_batch) for name, model in group.models.items()}
        both = engines_rate(dict.fromkeys(group.models.values(), 1), max_batch)
        print(f"  frames/s of the engines: {_rates(engines)}; both on each frame {both:,.0f}")
        for memory, own in kinds.items():
            frames = own * (16 if max_batch == 1 else 40)
            for _ in range(4):  # graphs of these batches are captured, kernels compiled
                list(group.map(frames[: 16 * max_batch]))
            alone, together = rounds_of(group, frames, 3)
            rates = dict(zip(group.models, len(frames) / np.median(alone, 0), strict=True))
            bound = np.minimum(both, len(frames) / alone.max(1))
            print(
                f"  {memory}: frames/s of each model alone {_rates(rates)}; of the group "
                f"{len(frames) / np.median(together):,.0f}; the device allows {np.median(bound):,.0f}"
            )
            name = f"two models on a frame, TensorRT-RTX, max_batch {max_batch}, {memory}"
            report(claim, f"{name}, the slower alone over the group", alone.max(1) / together)
            report(claim, f"{name}, the group's share of what the device allows", len(frames) / together / bound)


def _rates(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())


# ---- what the host costs ----


@pytest.mark.parametrize("max_batch", [1, 32])
def test_what_the_host_costs(claim: Callable[..., None], max_batch: int) -> None:
    """Microseconds for each frame of one model and of a group of two, with a device that takes no time."""
    pytest.importorskip("onnxruntime")
    frames = [np.zeros((360, 640, 3), np.uint8)] * 3_000
    models = {name: YOLOv5(DETECTOR) for name in ("first", "second")}
    for model in models.values():
        model._pipeline_holder._pipeline = Pipeline(NoDevice(), max_batch=max_batch)
    with ModelGroup(**models) as group:
        costs: dict[str, list[tuple[float, ...]]] = {"one model": [], "group of two": []}
        for _ in range(7):
            costs["one model"].append(cost(models["first"].map(frames), len(frames)))
            costs["group of two"].append(cost(group.map(frames), len(frames)))
    print(f"\nmax_batch {max_batch}")
    for name, own in costs.items():
        wall, processor, sleeps = np.median(own, 0)
        print(f"  {name}: {wall:.1f} us a frame, {processor:.1f} us of processors, {sleeps:.2f} sleeps of threads")
    one, two = (np.array(own)[:, 0] for own in costs.values())
    report(claim, f"the host's time for two models over one, max_batch {max_batch}", two / one)
