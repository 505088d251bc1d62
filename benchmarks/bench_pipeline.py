"""Requests from many callers: against the same backend in a plain loop over full batches, against OpenVINO's own queue,
and against the rate at which a device takes images.

    pytest benchmarks/bench_pipeline.py -q -s

Each ratio is of figures that were measured in turns in one run. The models are yolov5n, on an image of 810 x 1080, and
a simulated device that takes as long as an H200 and needs none.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np
import pytest

from infersdk import Pipeline, device_count, pinned_empty
from infersdk.image import HostImage, read_image
from infersdk.models import YOLOv5
from infersdk.pipeline.scheduler import Scheduler

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from idle_backend import idle
from simulated_time import h200_seconds

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


# ---- many callers ----


class SimulatedDevice:
    """A GPU that takes as long as an H200 for FP16 YOLOv5s, and runs batches one after another. What the host does for
    each image and each batch is done: a copy engine and a model that sleep, without the interpreter's lock.
    """

    concurrency = 3
    serializes_runs = True
    #: Seconds in which a 1080p image is copied, of which every third row is read.
    COPY = 40e-6
    #: Seconds of Python for each image of a batch, around its run.
    HOST = 15e-6

    def __init__(self, capacity: int = 32) -> None:
        self.capacity = capacity
        self._guard = threading.Lock()
        self._copied = self._ran = 0.0

    def batch_buffer(self, capacity: int | None) -> SimulatedBuffer:
        return SimulatedBuffer(self, capacity or self.capacity)

    def run(self, count: int) -> None:
        with self._guard:
            self._copied = max(self._copied, perf_counter()) + self.COPY * count
            self._ran = max(self._copied, self._ran) + h200_seconds(count)
            end = self._ran
        sleep(max(0.0, end - perf_counter()))


class SimulatedBuffer:
    def __init__(self, device: SimulatedDevice, capacity: int) -> None:
        self.capacity, self._device = capacity, device
        self._images: list[HostImage | None] = [None] * capacity

    def prepares_quickly(self, item: Any) -> bool:
        return True

    def prepare(self, row: int, item: Any, parameters: Mapping[str, Any] | None) -> None:
        self._images[row] = HostImage(item, "bgr")

    def move(self, source: int, target: int) -> None:
        self._images[target] = self._images[source]

    def run(self, count: int) -> None:
        self._work(count)
        self._device.run(count)

    def results(self, count: int) -> Sequence[Any]:
        self._work(count)
        images, self._images = self._images[:count], [None] * self.capacity
        return images

    def _work(self, count: int) -> None:
        end = perf_counter() + count * self._device.HOST / 2
        while perf_counter() < end:
            pass

    def refresh(self) -> bool:
        return False

    def batch_sizes(self) -> Sequence[int]:
        return range(1, self.capacity + 1)

    def warm_up(self, count: int) -> None:
        self._device.run(count)

    def close(self) -> None:
        self._images = []


def from_threads(pipeline: Pipeline[Any], frame: Any, callers: int, seconds: float) -> float:
    """Results per second of threads that each wait for their own result."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            pipeline.submit(frame).result()

    threads = [threading.Thread(target=work) for _ in range(callers)]
    for thread in threads:
        thread.start()
    sleep(seconds / 2)
    before, start = pipeline.stats().done, perf_counter()
    sleep(seconds)
    rate = (pipeline.stats().done - before) / (perf_counter() - start)
    stop.set()
    for thread in threads:
        thread.join()
    return rate


def from_coroutines(pipeline: Pipeline[Any], frame: Any, callers: int, seconds: float) -> float:
    """Results per second of coroutines that each await their own result."""

    async def work(stop: asyncio.Event) -> None:
        while not stop.is_set():
            await pipeline.infer(frame)

    async def main() -> float:
        stop = asyncio.Event()
        tasks = [asyncio.ensure_future(work(stop)) for _ in range(callers)]
        await asyncio.sleep(seconds / 2)
        before, start = pipeline.stats().done, perf_counter()
        await asyncio.sleep(seconds)
        rate = (pipeline.stats().done - before) / (perf_counter() - start)
        stop.set()
        await asyncio.gather(*tasks)
        return rate

    return asyncio.run(main())


def from_one_thread(pipeline: Pipeline[Any], frame: Any, seconds: float) -> float:
    """Results per second of `map()`, which keeps all slots full."""
    stop = threading.Event()

    def frames() -> Iterator[Any]:
        while not stop.is_set():
            yield frame

    results = pipeline.map(frames())
    for _ in range(2 * pipeline.slots):
        next(results)
    before, start = pipeline.stats().done, perf_counter()
    while perf_counter() < start + seconds:
        next(results)
    rate = (pipeline.stats().done - before) / (perf_counter() - start)
    stop.set()
    for _ in results:
        pass
    return rate


@contextlib.contextmanager
def learning(learns: bool) -> Iterator[None]:
    """Pipelines that learn how many callers they have, or whose batches leave only full or after `max_delay`."""
    complete = Scheduler._complete
    if not learns:
        Scheduler._complete = lambda _, batch, occupied: occupied >= batch.capacity  # type: ignore[method-assign]
    try:
        yield
    finally:
        Scheduler._complete = complete  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", ["threads", "coroutines"])
def test_many_callers(claim: Callable[..., None], kind: str) -> None:
    """Callers with one request each, on a simulated H200: what one thread with `map()` gets is all there is to have."""
    frame, seconds, rounds = np.zeros((1080, 1920, 3), np.uint8), 0.5, 5
    callers = from_threads if kind == "threads" else from_coroutines
    counts = (1, 2, 4, 8, 16, 32, 64, 128)
    rates: dict[Any, list[float]] = {}

    def measure(key: Any, run: Callable[[Pipeline[Any]], float]) -> None:
        with Pipeline(SimulatedDevice()) as pipeline:
            rates.setdefault(key, []).append(run(pipeline))

    for _ in range(rounds):
        measure("map", lambda pipeline: from_one_thread(pipeline, frame, seconds))
        for count in counts:
            for learns in (False, True):
                with learning(learns):
                    measure((count, learns), lambda pipeline, count=count: callers(pipeline, frame, count, seconds))
    print(f"\nsimulated H200, one thread with map(): {median(rates['map']):,.0f} results/s")
    for count in counts:
        plain, learned = rates[count, False], rates[count, True]
        shares = sorted(rate / most for rate, most in zip(learned, rates["map"], strict=True))
        gains = sorted(after / before for before, after in zip(plain, learned, strict=True))
        claim(f"{count} {kind}, simulated H200", median(shares), low=shares[0], high=shares[-1])
        print(
            f"{count} {kind}: {median(learned):,.0f}/s = {median(shares):.0%} of that ({shares[0]:.0%} to "
            f"{shares[-1]:.0%}); without learning {median(plain):,.0f}/s, {median(gains):.2f} times as fast "
            f"({gains[0]:.2f} to {gains[-1]:.2f})"
        )


@pytest.mark.gpu
def test_many_callers_on_a_gpu(assets: Path, claim: Callable[..., None]) -> None:
    """The same on a real one: yolov5s in FP16 with TensorRT-RTX, 1080p frames in page-locked memory, all warmed up."""
    if device_count() == 0:
        pytest.skip("needs an NVIDIA GPU")
    path = assets / "models" / "yolov5s-random.onnx"
    frame = pinned_empty((1080, 1920, 3))
    frame[:] = np.random.default_rng(0).integers(0, 256, frame.shape, np.uint8)
    with YOLOv5(path, backend="tensorrt_rtx", precision="fp16", max_batch=32) as model:
        start = perf_counter()
        model.warm_up()
        print(f"\nwarmed up in {perf_counter() - start:.1f} s")
        pipeline = model.pipeline
        for _ in range(2):
            streamed = [from_one_thread(pipeline, frame, 1.0)]
        for kind, callers in (("threads", from_threads), ("coroutines", from_coroutines)):
            for count in (1, 8, 16, 32, 64, 128):
                result = []
                for _ in range(3):
                    streamed.append(from_one_thread(pipeline, frame, 1.0))
                    result.append(callers(pipeline, frame, count, 1.5) / streamed[-1])
                claim(f"{count} {kind}, one GPU", median(result), low=min(result), high=max(result))
                print(f"{count} {kind}: {median(result):.0%} ({min(result):.0%} to {max(result):.0%}) of map()")
        print(f"map(): {median(streamed):,.0f} img/s")


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
