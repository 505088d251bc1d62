"""Masks and keypoints on the GPU, from page-locked frames to results, against the engine alone; and NMS in the model.

    pytest benchmarks/bench_cuda_tasks.py -q -s

yolov8n-seg and yolov8n-pose in FP16, 32 frames of 1920 x 1080 in page-locked memory a batch, again and again. The
frames are photographs of the test data, enlarged, in which the model finds 1 to 20 objects. Masks are read: the bits of
each are in host memory when a frame counts as done. The engine alone runs batches of 32 that are queued one behind the
other on one stream. yolov5s with its NMS as a node of the model (`infersdk::DetectionNMS`) is held against the same
model with NMS behind it. The contenders alternate; the ratio is the median over the rounds, its interval that of
resampled rounds.

INFERSDK_BENCH_BACKEND (default tensorrt-rtx) runs the engine, for INFERSDK_BENCH_SECONDS (default 1) a round, for
INFERSDK_BENCH_ROUNDS rounds (default 7).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from cuda_engine import BACKEND, batch_seconds, engine_options
from PIL import Image
from rounds import figures

from infersdk import device_count, graph, load, models, pinned_empty
from infersdk.bench.statistics import median_of_rounds
from infersdk.custom_ops.detection_nms import AddDetectionNms
from infersdk.graph.passes import ResizeInput

pytestmark = pytest.mark.skipif(device_count() == 0, reason="needs an NVIDIA GPU")

SECONDS = float(os.environ.get("INFERSDK_BENCH_SECONDS", "1"))
ROUNDS = int(os.environ.get("INFERSDK_BENCH_ROUNDS", "7"))
BATCH, HEIGHT, WIDTH = 32, 1080, 1920


def photographs(folder: Path) -> Iterator[np.ndarray[Any, Any]]:
    for path in sorted(folder.glob("*.jpg")):
        with Image.open(path) as image:
            yield np.asarray(image.convert("RGB").resize((WIDTH, HEIGHT)))[:, :, ::-1]


def frames_with_objects(model: models.VisionModel[Any], folder: Path) -> tuple[list[np.ndarray[Any, Any]], float]:
    """A batch of page-locked frames with 1 to 20 objects each, and the mean number of these."""
    frames, counts = [], []
    for pixels in photographs(folder):
        if 1 <= (count := len(model(pixels))) <= 20:
            locked = pinned_empty((HEIGHT, WIDTH, 3))
            locked[:] = pixels
            frames.append(locked)
            counts.append(count)
    assert len(frames) >= 16, f"{folder} has only {len(frames)} images with 1 to 20 objects"
    chosen = list(itertools.islice(itertools.cycle(range(len(frames))), BATCH))
    return [frames[i] for i in chosen], float(np.mean([counts[i] for i in chosen]))


def model_rate(
    model: models.VisionModel[Any], frames: list[np.ndarray[Any, Any]], read: Callable[[Any], object]
) -> float:
    """Images a second of frames that are streamed, with what a caller reads of each result."""
    end, count = perf_counter() + SECONDS, 0
    start = perf_counter()
    for result in model.stream(itertools.takewhile(lambda _: perf_counter() < end, itertools.cycle(frames))):
        read(result)
        count += 1
    return count / (perf_counter() - start)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "side", "read"),
    [
        ("yolov8n-seg", 640, lambda result: result.masks.nbytes),
        ("yolov8n-seg", 320, lambda result: result.masks.nbytes),
        ("yolov8n-pose", 640, lambda result: result.keypoints),
        ("yolov8n", 640, lambda result: result.xyxy),
    ],
)
def test_from_frames_to_results(
    assets: Path, tmp_path: Path, claim: Callable[..., None], name: str, side: int, read: Callable[[Any], object]
) -> None:
    edited = graph.open(assets / "models" / f"{name}.onnx")
    edited.apply(ResizeInput(side, side))
    path = edited.save(tmp_path / f"{name}-{side}.onnx")
    settings = {"backend": BACKEND, "precision": "fp16", "max_batch": BATCH, **engine_options()}
    with models.load(path, **settings) as model, load(path, **settings) as infer:
        frames, objects = frames_with_objects(model, assets / "coco" / "val")
        (tensor,) = infer.inputs.values()
        tensor.resize((BATCH, 3, side, side))
        for _ in range(20):
            infer.forward()
        for _ in model.stream(frames * 6):
            pass
        contenders = {
            "model": lambda: model_rate(model, frames, read),
            "engine": lambda: BATCH / batch_seconds(infer, SECONDS),
        }
        rates = figures(contenders, ROUNDS)
    ratio = median_of_rounds(rates["model"] / rates["engine"])
    print(
        f"\n{name} at {side}, {objects:.1f} objects an image: {np.median(rates['model']):.0f} img/s, the engine alone "
        f"{np.median(rates['engine']):.0f} img/s; ratio {ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    )
    what = f"{name} at {side}, batch 32, page-locked 1080p frames to results over the engine alone"
    claim(what, ratio.value, low=ratio.low, high=ratio.high)


@pytest.mark.gpu
def test_nms_in_the_model(assets: Path, tmp_path: Path, claim: Callable[..., None]) -> None:
    path = assets / "models" / "yolov5s-random.onnx"
    edited = graph.open(path)
    edited.apply(AddDetectionNms("yolov5", num_classes=80))
    end_to_end = edited.save(tmp_path / "end_to_end.onnx")
    settings = {"backend": BACKEND, "precision": "fp16", "max_batch": BATCH, **engine_options()}
    frames = [pinned_empty((HEIGHT, WIDTH, 3)) for _ in range(BATCH)]
    for frame, pixels in zip(frames, photographs(assets / "coco" / "val"), strict=False):
        frame[:] = pixels
    with models.load(path, **settings) as separate, models.load(end_to_end, **settings) as one:
        for frame in frames:
            assert len(one(frame)) == len(separate(frame))
        for model in (separate, one):
            for _ in model.stream(frames * 6):
                pass
        contenders = {
            "in the model": lambda: model_rate(one, frames, len),
            "behind it": lambda: model_rate(separate, frames, len),
        }
        rates = figures(contenders, ROUNDS)
    ratio = median_of_rounds(rates["in the model"] / rates["behind it"])
    print(
        f"\nNMS in the model: {np.median(rates['in the model']):.0f} img/s, behind it "
        f"{np.median(rates['behind it']):.0f} img/s; ratio {ratio.value:.3f} ({ratio.low:.3f} to "
        f"{ratio.high:.3f})"
    )
    claim(
        "yolov5s, batch 32, NMS as a node of the model over NMS behind it", ratio.value, low=ratio.low, high=ratio.high
    )
