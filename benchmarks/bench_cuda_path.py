"""From host frames to boxes on the GPU, against what limits it: the engine alone, the bus, the host's own memory.

    pytest benchmarks/bench_cuda_path.py -q -s

All rows are measured in one run, on yolov5s in FP16 with TensorRT-RTX (INFERSDK_BENCH_BACKEND chooses another backend).
The first figure of each row is ours, the second the limit that it is compared with.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import deque
from time import perf_counter, process_time, sleep
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cuda_engine import BACKEND, batch_seconds, engine_options

from infersdk import Event, Pipeline, Stream, Tensor, device_count, device_info, load, pinned_empty
from infersdk.image import Geometry, image_view
from infersdk.models import YOLOv5
from infersdk.ops.batch import ImageBatch, shared_workers

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(device_count() == 0, reason="needs an NVIDIA GPU")

PRECISION = os.environ.get("INFERSDK_BENCH_PRECISION", "fp16")
ENGINE: dict[str, Any] = {"backend": BACKEND, "precision": PRECISION, **engine_options(PRECISION)}
HEIGHT, WIDTH = 1080, 1920
WHOLE = Geometry.stretch((WIDTH, HEIGHT), (WIDTH, HEIGHT))  # every row is read


def engine_only(path: Path, batch: int, seconds: float = 1.5) -> float:
    """Seconds a batch, calls queued one behind the other on one stream."""
    with load(path, max_batch=batch, **ENGINE) as infer:
        tensor = infer.inputs["images"].resize((batch, 3, 640, 640))
        tensor.numpy(writable=True)[:] = np.random.default_rng(0).random(tensor.shape, np.float32)  # of either type
        for _ in range(20):
            infer.forward()
        return batch_seconds(infer, seconds)


def copy_in(frames: list[np.ndarray[Any, Any]], repeat: int = 10) -> float:
    """Seconds for all page-locked frames to reach the device, copies only."""
    stream, batch = Stream(), ImageBatch(len(frames))
    batch.fill([image_view(f) for f in frames], [WHOLE] * len(frames))
    area = Tensor((batch.upload_nbytes(),), "uint8", "cuda:0")
    host, device = area.host_ptr(read=False, write=True), area.device_ptr(read=False, write=True)
    best = np.inf
    for _ in range(repeat):
        start, stop = Event(timing=True).record(stream), Event(timing=True)
        batch.upload(host, device, area.nbytes, stream)
        stop.record(stream)
        stream.synchronize()
        best = min(best, stop.milliseconds_since(start) / 1e3)
    return float(best)


def staging(frames: list[np.ndarray[Any, Any]], repeat: int = 5) -> float:
    """Seconds for ordinary frames to reach the device through the staging area: the host's own limit."""
    stream, batch = Stream(), ImageBatch(len(frames))
    batch.fill([image_view(f) for f in frames], [WHOLE] * len(frames))
    area = Tensor((batch.upload_nbytes(),), "uint8", "cuda:0")
    host, device = area.host_ptr(read=False, write=True), area.device_ptr(read=False, write=True)
    best = np.inf
    for _ in range(repeat):
        start = perf_counter()
        batch.upload(host, device, area.nbytes, stream, workers=shared_workers())
        stream.synchronize()
        best = min(best, perf_counter() - start)
    return float(best)


def end_to_end(model: YOLOv5, frames: list[np.ndarray[Any, Any]], batches: int = 60) -> float:
    """Images a second, streamed."""
    for _ in model.stream(frames * 6):
        pass
    start = perf_counter()
    count = sum(1 for _ in model.stream(frames * batches))
    return count / (perf_counter() - start)


def submitted(
    pipeline: Pipeline[Any], frames: list[np.ndarray[Any, Any]], threads: int, ahead: int, seconds: float = 2.0
) -> tuple[float, float, float]:
    """Results a second, of so many threads that submit single frames and have `ahead` of them under way at a time; the
    mean batch; and the processors that were busy. Counted while all of them are at it, after a second."""
    stop = threading.Event()

    def work(seed: int) -> None:
        futures: deque[Any] = deque()
        for frame in itertools.islice(itertools.cycle(frames), seed, None):
            if stop.is_set():
                break
            futures.append(pipeline.submit(frame))
            if len(futures) >= ahead:
                futures.popleft().result()
        for future in futures:
            future.result()

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    sleep(1)
    before, start, spent = pipeline.stats(), perf_counter(), process_time()
    sleep(seconds)
    after, end, spent = pipeline.stats(), perf_counter(), process_time() - spent
    stop.set()
    for worker in workers:
        worker.join()
    done, batches = after.done - before.done, sum(after.batch_sizes.values()) - sum(before.batch_sizes.values())
    return done / (end - start), done / max(batches, 1), spent / (end - start)


def in_flight(pipeline: Pipeline[Any], frames: list[np.ndarray[Any, Any]], count: int = 20_000) -> float:
    """Results a second of one thread that keeps the slots full."""
    for _ in pipeline.map(frames[i % len(frames)] for i in range(1000)):
        pass
    start = perf_counter()
    for _ in pipeline.map(frames[i % len(frames)] for i in range(count)):
        pass
    return count / (perf_counter() - start)


def page_locked(count: int = 32) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    locked = [pinned_empty((HEIGHT, WIDTH, 3)) for _ in range(count)]
    for target in locked:
        target[:] = rng.integers(0, 256, target.shape, np.uint8)
    return locked


def test_submitters(assets: Path) -> None:
    """64 threads that submit single frames, against the streamed path; and as many devices as there are."""
    path = assets / "models" / "yolov5s-random.onnx"
    frames = page_locked()
    rates = {}
    with contextlib.ExitStack() as stack:
        models = [
            stack.enter_context(YOLOv5(path, device=f"cuda:{i}", max_batch=32, **ENGINE)) for i in range(device_count())
        ]
        streamed = end_to_end(models[0], frames)
        print(f"\nstreamed: {streamed:.0f} img/s; preprocess {sorted(set(models[0]._placement.measured.values()))}")
        for model in models:  # TensorRT-RTX compiles for each size of a batch when it first comes
            with Pipeline(model) as pipeline:
                for threads in (64, 24, 12, 8, 4):
                    submitted(pipeline, frames, threads, 1, 0.2)
        for devices in range(1, len(models) + 1):
            with Pipeline(models[:devices]) as pipeline:
                submitted(pipeline, frames, 64, 4, 0.5)
                flight = max(in_flight(pipeline, frames, 20_000 * devices) for _ in range(3))
                rates[devices] = flight
                print(
                    f"{devices} device(s), {pipeline.slots} slots: one thread with map() "
                    f"{flight:.0f} img/s = {flight / streamed:.1%} of the streamed path"
                )
                for threads, ahead in ((64, devices), (64, 2 * devices), (64, 4 * devices), (16, 8 * devices)):
                    rate, batch, busy = submitted(pipeline, frames, threads, ahead)
                    rates[devices] = max(rates[devices], rate)
                    print(
                        f"  {threads} submitters with {ahead} under way each: {rate:.0f} img/s = "
                        f"{rate / streamed:.1%}; mean batch {batch:.1f}; {busy:.1f} processors"
                    )
    if len(rates) > 1:
        print(
            f"{len(models)} devices: {rates[len(models)]:.0f} img/s, {rates[len(models)] / rates[1]:.2f} times the "
            f"best of one ({rates[1]:.0f}), {rates[len(models)] / streamed:.2f} times the streamed path"
        )


def usual_path(path: Path, frames: list[np.ndarray[Any, Any]], repeat: int = 3) -> float:
    """Images a second of what users write: ONNX Runtime's CUDA provider, OpenCV before it, torch's NMS behind it."""
    ort, cv2, torch = (pytest.importorskip(name) for name in ("onnxruntime", "cv2", "torch"))
    nms = pytest.importorskip("torchvision.ops").batched_nms
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        pytest.skip("the usual path needs onnxruntime-gpu")
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    session = ort.InferenceSession(str(path), providers=["CUDAExecutionProvider"])
    assert session.get_providers()[0] == "CUDAExecutionProvider"
    dtype = np.float16 if "float16" in session.get_inputs()[0].type else np.float32

    def prepare(frame: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        image = cv2.resize(frame, (640, 360), interpolation=cv2.INTER_LINEAR)
        image = cv2.copyMakeBorder(image, 140, 140, 0, 0, cv2.BORDER_CONSTANT, value=(114, 114, 114))
        return np.ascontiguousarray(image[..., ::-1].transpose(2, 0, 1)).astype(dtype) / 255

    def run() -> None:
        batch = np.stack([prepare(frame) for frame in frames]).astype(dtype)
        output = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: batch})[0]).cuda().float()
        for x in output:
            x = x[x[:, 4] > 0.25]  # noqa: PLW2901
            score, kind = (x[:, 5:] * x[:, 4:5]).max(1)
            keep = score > 0.25
            x, score, kind = x[keep], score[keep], kind[keep]  # noqa: PLW2901
            box = torch.cat([x[:, :2] - x[:, 2:4] / 2, x[:, :2] + x[:, 2:4] / 2], 1)
            nms(box, score, kind, 0.45)[:300].cpu()

    run()
    start = perf_counter()
    for _ in range(repeat):
        run()
    return repeat * len(frames) / (perf_counter() - start)


def test_against_the_usual_path(assets: Path, tmp_path: Path) -> None:
    """Ours on ordinary frames against ONNX Runtime's CUDA provider with OpenCV and torch, both FP16, batch 32."""
    from infersdk.graph.files import read_model, write_model
    from infersdk.graph.passes import ToFloat16

    path = assets / "models" / "yolov5s-random.onnx"
    network = read_model(path)
    ToFloat16(keep_io=False).apply(network)
    half = write_model(network, tmp_path / "half.onnx")
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8) for _ in range(32)]
    theirs = usual_path(half, frames)
    with YOLOv5(path, max_batch=32, **ENGINE) as model:
        ours = end_to_end(model, frames)
    print(
        f"\nordinary frames to boxes: {ours:.0f} img/s; ONNX Runtime CUDA, OpenCV, torch {theirs:.0f} img/s: "
        f"{ours / theirs:.1f}x"
    )


def test_path(assets: Path) -> None:
    path = assets / "models" / "yolov5s-random.onnx"
    rng = np.random.default_rng(0)
    ordinary = [rng.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8) for _ in range(32)]
    locked = page_locked()  # the same pixels
    info = device_info()
    print(f"\n{info['name']}, compute capability {info['compute_capability']}, {shared_workers().threads} threads")
    one, many = engine_only(path, 1), engine_only(path, 32)
    bus, staged = copy_in(locked), staging(ordinary)
    print(f"engine alone: batch 1 {one * 1e3:.3f} ms, batch 32 {many * 1e3:.3f} ms, {32 / many:.0f} img/s")
    print(
        f"copy in of 32 page-locked 1080p frames {bus * 1e3:.3f} ms, {32 / bus:.0f} frames/s; "
        f"one {bus / 32 * 1e3:.3f} ms"
    )
    print(f"staging and copy in of 32 ordinary frames {staged * 1e3:.3f} ms, {32 / staged:.0f} frames/s")
    for where in ("device", "host", "auto"):
        with YOLOv5(path, max_batch=32, preprocess=where, **ENGINE) as model:
            fast, plain = end_to_end(model, locked), end_to_end(model, ordinary)
            limit, plain_limit = min(32 / many, 32 / bus), min(32 / many, 32 / bus, 32 / staged)
            chosen = sorted(set(model._placement.measured.values())) if where == "auto" else where
            print(
                f"preprocess={where} {chosen}: page-locked {fast:.0f} img/s = {fast / limit:.1%} of {limit:.0f}; "
                f"ordinary {plain:.0f} img/s = {plain / plain_limit:.1%} of {plain_limit:.0f}"
            )
    for where in ("device", "host"):
        with YOLOv5(path, max_batch=1, preprocess=where, **ENGINE) as model:
            for kind, frame in (("page-locked", locked[0]), ("ordinary", ordinary[0])):
                for _ in range(100):
                    model(frame)
                times = []
                for _ in range(500):
                    start = perf_counter()
                    model(frame)
                    times.append(perf_counter() - start)
                median = float(np.median(times))
                above = median - one - bus / 32
                print(
                    f"batch 1, preprocess={where}, {kind}: {median * 1e3:.3f} ms "
                    f"(p99 {np.quantile(times, 0.99) * 1e3:.3f}), "
                    f"{above * 1e3:.3f} ms above engine and copy"
                )
