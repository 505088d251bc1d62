"""Two models on each frame of a video: a `ModelGroup` against each model alone.

Run: `pytest -s benchmarks/bench_model_group.py` (the test data of INFERSDK_ASSETS). On the processor both models share
the cores, so the group is held against the sum of their times; on a GPU against the slower one of them. Frames are
decoded before; each round runs the models alone and the group one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from infersdk import ModelGroup, device_count
from infersdk.models import TwinLiteNet, load

ROUNDS, FRAMES = 5, 48
#: This export names its outputs the wrong way round.
ROAD = {"area": "lanes", "lanes": "segmentation"}


def frames_of(video: Path) -> list[np.ndarray[Any, Any]]:
    pytest.importorskip("av")
    from infersdk.video import VideoReader

    with VideoReader(video, format="bgr") as reader:
        return [frame.pixels.copy() for frame in itertools.islice(reader, FRAMES)]


@contextmanager
def group_of(models: Path, **settings: Any) -> Iterator[ModelGroup]:
    detector = load(models / "yolov8n.onnx", **settings)
    road = TwinLiteNet(models / "twinlitenet.onnx", **ROAD, **settings)
    with ModelGroup(detector=detector, road=road) as group:
        group.warm_up()
        yield group


def seconds(run: Callable[[], Any]) -> float:
    start = perf_counter()
    run()
    return perf_counter() - start


def rounds_of(group: ModelGroup, frames: list[Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Seconds of each model alone, (rounds, models), and of the group, (rounds,)."""
    alone, together = [], []
    for _ in range(ROUNDS):
        alone.append([seconds(lambda m=model: list(m.map(frames))) for model in group.models.values()])
        results: list[Any] = []
        together.append(seconds(lambda to=results: to.extend(group.map(frames))))
        assert len(results) == len(frames)
        assert not any(result.errors for result in results)
    return np.array(alone), np.array(together)


def report(claim: Callable[..., None], name: str, ratios: np.ndarray[Any, Any]) -> None:
    ordered = np.sort(ratios)
    print(f"{name}: {ordered[len(ordered) // 2]:.3f} ({ordered[0]:.3f} to {ordered[-1]:.3f})")
    claim(name, float(ordered[len(ordered) // 2]), low=float(ordered[0]), high=float(ordered[-1]))


def test_on_the_processor(assets: Path, claim: Callable[..., None]) -> None:
    pytest.importorskip("onnxruntime")
    frames = frames_of(assets / "driving" / "drive.mp4")
    with group_of(assets / "models", options={"allow_spinning": False}) as group:
        alone, together = rounds_of(group, frames)
    report(claim, "two models on a frame, the sum of both alone over the group, ONNX Runtime", alone.sum(1) / together)


@pytest.mark.gpu
def test_on_a_gpu(assets: Path, claim: Callable[..., None]) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    if not device_count():
        pytest.skip("no CUDA device on this machine")
    frames = frames_of(assets / "driving" / "drive.mp4") * 16
    with group_of(assets / "models", backend="tensorrt-rtx", precision="fp16") as group:
        alone, together = rounds_of(group, frames)
    report(claim, "two models on a frame, the slower alone over the group, TensorRT-RTX", alone.max(1) / together)
