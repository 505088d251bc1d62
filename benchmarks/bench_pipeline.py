"""Requests from many callers: against the same backend in a plain loop over full batches, and against OpenVINO's own
queue.

    pytest benchmarks/bench_pipeline.py -q -s

Each ratio is of figures that were measured alternately in one run. The model is yolov5n, on an image of 810 x 1080.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np
import pytest
from idle_backend import idle

from infersdk import Pipeline
from infersdk.image import read_image
from infersdk.models import YOLOv5

BATCH = 8
THREADS = 64


@pytest.fixture(scope="module")
def frame(request: pytest.FixtureRequest) -> np.ndarray[Any, Any]:
    assets: Path = request.getfixturevalue("assets")
    return np.ascontiguousarray(read_image(assets / "images" / "bus.jpg").pixels[..., ::-1])


def in_threads(threads: int, work: Any) -> float:
    """Seconds until all of them have ended."""
    workers = [threading.Thread(target=work) for _ in range(threads)]
    start = perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return perf_counter() - start


def plain_loop(model: YOLOv5, frame: Any, count: int) -> float:
    """Images per second."""
    start = perf_counter()
    for _ in range(count // BATCH):
        model([frame] * BATCH)
    return count / (perf_counter() - start)


def submitted(pipeline: Pipeline[Any], frame: Any, count: int) -> float:
    def work() -> None:
        for _ in range(count // THREADS):
            pipeline.submit(frame).result()

    return count / in_threads(THREADS, work)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_submitters_and_latency(assets: Path, frame: Any, claim: Callable[..., None], backend: str) -> None:
    """64 threads that submit single images; then the p99 of requests that arrive at random at 70% of that rate."""
    with YOLOv5(assets / "models" / "yolov5n.onnx", backend=backend, max_batch=BATCH) as model:
        pipeline = model.configure_pipeline(max_delay=0.01)
        plain_loop(model, frame, 64)
        submitted(pipeline, frame, 64)
        loops, rates = [], []
        for _ in range(5):
            loops.append(plain_loop(model, frame, 256))
            rates.append(submitted(pipeline, frame, 256))
        ratios = sorted(b / a for a, b in zip(loops, rates, strict=True))
        claim(f"submitters, {backend}", ratios[2], low=ratios[0], high=ratios[-1])
        rate = float(np.median(rates))
        print(
            f"\n{backend}: plain loop over batches of {BATCH} {np.median(loops):.1f} img/s, {THREADS} submitters "
            f"{rate:.1f} img/s: {ratios[2]:.3f} (least {ratios[0]:.3f})"
        )
    with YOLOv5(assets / "models" / "yolov5n.onnx", backend=backend, max_batch=BATCH) as model:
        pipeline = model.configure_pipeline(max_delay=0.01)
        submitted(pipeline, frame, 64)
        latencies: list[float] = []
        rng, futures = random.Random(0), []

        def record(start: float) -> Any:
            return lambda _: latencies.append(perf_counter() - start)

        due = perf_counter()
        for _ in range(int(rate * 0.7 * 25)):
            due += rng.expovariate(rate * 0.7)
            sleep(max(0.0, due - perf_counter()))
            futures.append(pipeline.submit(frame))
            futures[-1].add_done_callback(record(due))
        for future in futures:
            future.result()
        batch_time = BATCH / float(np.median(loops))
        limit = 0.01 + 2 * batch_time
        p50, p99 = np.quantile(latencies, (0.5, 0.99))
        claim(f"p99, {backend}", p99 / limit)
        print(
            f"{backend} at 70% of that, {len(latencies)} requests: p50 {p50 * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms; "
            f"max_delay + 2 batches {limit * 1e3:.0f} ms: {p99 / limit:.2f}"
        )


def test_machinery(tmp_path: Path) -> None:
    """A backend that does nothing, 8 threads with 16 requests in flight each, inputs of 3x64x64 float32."""
    array = np.zeros((3, 64, 64), np.float32)
    with idle(tmp_path, 32) as infer, Pipeline(infer) as pipeline:

        def work() -> None:
            futures: deque[Any] = deque()
            for _ in range(25_000):
                futures.append(pipeline.submit(array))
                if len(futures) >= 16:
                    futures.popleft().result()
            for future in futures:
                future.result()

        spent = process_time()
        rates = [200_000 / in_threads(8, work) for _ in range(3)]
        spent = (process_time() - spent) / 600_000
        print(
            f"\nmachinery alone: {sorted(rates)[1]:,.0f} requests/s (least {min(rates):,.0f}, most {max(rates):,.0f}), "
            f"{spent * 1e6:.1f} us of processor time each"
        )


def test_against_openvinos_queue(assets: Path, frame: Any, claim: Callable[..., None]) -> None:
    """Images to boxes, against AsyncInferQueue with as many streams and its own preprocessing, but without boxes."""
    ov = pytest.importorskip("openvino")
    core = ov.Core()
    network = core.read_model(assets / "models" / "yolov5n.onnx")
    network.reshape([1, 3, 640, 640])
    steps = ov.preprocess.PrePostProcessor(network)
    steps.input().tensor().set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC")).set_color_format(
        ov.preprocess.ColorFormat.BGR
    ).set_spatial_static_shape(*frame.shape[:2])
    steps.input().preprocess().convert_element_type(ov.Type.f32).convert_color(ov.preprocess.ColorFormat.RGB).resize(
        ov.preprocess.ResizeAlgorithm.RESIZE_LINEAR
    ).scale(255.0)
    steps.input().model().set_layout(ov.Layout("NCHW"))
    hints = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(steps.build(), "CPU", hints)
    queue = ov.AsyncInferQueue(compiled)
    done: list[float] = []
    queue.set_callback(lambda request, _: done.append(float(request.get_output_tensor().data[0, 0, 4])))

    def theirs(count: int) -> float:
        start = perf_counter()
        for _ in range(count):
            queue.start_async({0: frame[None]})
        queue.wait_all()
        return count / (perf_counter() - start)

    path = assets / "models" / "yolov5n.onnx"
    with YOLOv5(path, backend="openvino", max_batch=1, performance_hint="throughput") as model:
        pipeline = model.configure_pipeline()
        assert model.concurrency == len(queue)
        theirs(32)
        submitted(pipeline, frame, 64)
        a, b = [], []
        for _ in range(5):
            a.append(theirs(256))
            b.append(submitted(pipeline, frame, 256))
        ratios = sorted(y / x for x, y in zip(a, b, strict=True))
        claim("AsyncInferQueue", ratios[2], low=ratios[0], high=ratios[-1])
        print(
            f"\nAsyncInferQueue, {len(queue)} streams: {np.median(a):.1f} img/s; {THREADS} submitters to boxes: "
            f"{np.median(b):.1f} img/s: {ratios[2]:.3f} (least {ratios[0]:.3f})"
        )


# ---- the first request ----


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_first_request(assets: Path, frame: Any, claim: Callable[..., None], backend: str) -> None:
    """The first request of a new pipeline with and without `warm_up()`, over the p99 of later ones."""
    pytest.importorskip(backend)
    result: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(3):
        for warm in (False, True):
            with YOLOv5(assets / "models" / "yolov5n.onnx", backend=backend, max_batch=BATCH) as model:
                if warm:
                    model.warm_up()
                times = []
                for _ in range(60):
                    start = perf_counter()
                    model.submit(frame).result()
                    times.append(perf_counter() - start)
                result[warm].append(times[0] / float(np.quantile(times[10:], 0.99)))
    cold, warmed = (sorted(result[warm]) for warm in (False, True))
    claim(f"first request, {backend}", warmed[1], low=warmed[0], high=warmed[-1])
    print(
        f"\n{backend}: the first request takes {warmed[1]:.2f} times the p99 of later ones ({warmed[0]:.2f} to "
        f"{warmed[-1]:.2f}); without warm_up() {cold[1]:.2f} ({cold[0]:.2f} to {cold[-1]:.2f})"
    )
