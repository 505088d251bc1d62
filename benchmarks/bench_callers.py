"""Callers that each wait for their own result before they come with the next image, against one stream of images.

    pytest benchmarks/bench_callers.py -q -s                # on a simulated H200, which needs no GPU
    pytest benchmarks/bench_callers.py -q -s -m gpu         # on a real GPU, against `stream()`

All figures are of one run. Callers are threads (`submit(image).result()`) and coroutines of one event loop
(`await infer(image)`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np
import pytest
from simulated_time import h200_seconds

from infersdk import Pipeline, device_count, pinned_empty
from infersdk.image import HostImage
from infersdk.models import YOLOv5
from infersdk.pipeline import OneBucket
from infersdk.pipeline.scheduler import Scheduler
from infersdk.pipeline.stats import BOUNDS

BACKEND = os.environ.get("INFERSDK_BENCH_BACKEND", "tensorrt-rtx")
COUNTS = (32, 64, 128)


# ---- callers ----


@contextlib.contextmanager
def from_threads(pipeline: Pipeline[Any], frame: Any, count: int) -> Iterator[None]:
    """Threads that each wait for their own result."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            pipeline.submit(frame).result()

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()


@contextlib.contextmanager
def from_coroutines(pipeline: Pipeline[Any], frame: Any, count: int) -> Iterator[None]:
    """Coroutines of one event loop that each await their own result."""
    stop = threading.Event()

    async def work() -> None:
        while not stop.is_set():
            await pipeline.infer(frame)

    async def main() -> None:
        await asyncio.gather(*(work() for _ in range(count)))

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    yield
    stop.set()
    thread.join()


@contextlib.contextmanager
def from_one_thread(pipeline: Pipeline[Any], frame: Any, _: int = 0) -> Iterator[None]:
    """`map()`, which keeps all slots full."""
    stop = threading.Event()

    def frames() -> Iterator[Any]:
        while not stop.is_set():
            yield frame

    def work() -> None:
        for _ in pipeline.map(frames()):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    yield
    stop.set()
    thread.join()


CALLERS: dict[str, Callable[[Pipeline[Any], Any, int], Any]] = {"threads": from_threads, "coroutines": from_coroutines}


# ---- what is measured ----


@dataclass
class Sample:
    """What a pipeline did for some seconds.

    Attributes:
        rate: results per second.
        batch: the mean size of a batch.
        sizes: the number of batches by size.
        medians: in milliseconds, of the stages of `PipelineStats`.
        processors: that were busy.
        switches: how often threads went to sleep, for each result.
    """

    rate: float
    batch: float
    sizes: dict[int, int]
    medians: dict[str, float]
    processors: float
    switches: float

    def __str__(self) -> str:
        stages = ", ".join(f"{name} {value:.2f}" for name, value in self.medians.items())
        most = sorted(self.sizes.items(), key=lambda item: -item[1])[:5]
        return (
            f"{self.rate:7,.0f}/s, batch {self.batch:4.1f} ({' '.join(f'{n}x{size}' for size, n in most)}); "
            f"ms: {stages}; {self.processors:.1f} processors, {self.switches:.1f} switches each"
        )


def sampled(pipeline: Pipeline[Any], seconds: float) -> Sample:
    before, counts, spent = pipeline.stats(), pipeline.durations(), process_time()
    switched, start = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw, perf_counter()
    sleep(seconds)
    elapsed, after = perf_counter() - start, pipeline.stats()
    spent, switched = process_time() - spent, resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - switched
    done = after.done - before.done
    sizes = {size: n - before.batch_sizes.get(size, 0) for size, n in after.batch_sizes.items()}
    medians = {}
    for name, (buckets, _, _) in pipeline.durations().items():
        seen = list(accumulate(b - a for a, b in zip(counts[name][0], buckets, strict=True)))
        medians[name] = 1e3 * BOUNDS[min(bisect_left(seen, seen[-1] / 2), len(BOUNDS) - 1)]
    return Sample(
        done / elapsed, done / max(sum(sizes.values()), 1), {s: n for s, n in sizes.items() if n}, medians,
        spent / elapsed, switched / max(done, 1),
    )  # fmt: skip


def measured(
    callers: Callable[..., Any], pipeline: Pipeline[Any], frame: Any, count: int = 0, *, settle: float, seconds: float
) -> Sample:
    with callers(pipeline, frame, count):
        sleep(settle)
        return sampled(pipeline, seconds)


# ---- on a simulated device ----


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


class SimulatedBuffer(OneBucket):
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

    def warm_up(self, count: int, example: Any = None) -> None:
        self._device.run(count)

    def close(self) -> None:
        self._images = []


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


@pytest.mark.parametrize("kind", CALLERS)
def test_on_a_simulated_h200(claim: Callable[..., None], kind: str) -> None:
    """What one thread with `map()` gets is all there is to have."""
    frame, rounds = np.zeros((1080, 1920, 3), np.uint8), 5
    counts = (1, 2, 4, 8, 16, *COUNTS)
    rates: dict[Any, list[float]] = {}

    def measure(key: Any, callers: Callable[..., Any], count: int = 0) -> None:
        with Pipeline(SimulatedDevice()) as pipeline:
            sample = measured(callers, pipeline, frame, count, settle=0.25, seconds=0.5)
            rates.setdefault(key, []).append(sample.rate)

    for _ in range(rounds):
        measure("map", from_one_thread)
        for count in counts:
            for learns in (False, True):
                with learning(learns):
                    measure((count, learns), CALLERS[kind], count)
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


# ---- on a GPU ----


def _options() -> dict[str, Any]:
    if not BACKEND.startswith("tensorrt"):
        return {}
    options: dict[str, Any] = {"cuda_graph": True, "half_io": True}
    if exact := os.environ.get("INFERSDK_BENCH_EXACT"):
        options["exact_batches"] = [int(size) for size in exact.split(",")]
    return options


def _engine_alone(model: YOLOv5, sizes: Sequence[int] = (1, 4, 8, 12, 16, 24, 32), runs: int = 60) -> str:
    """Milliseconds of a run of each size, of runs that are queued one behind the other."""
    result = []
    with model.network.clone() as infer:
        for size in sizes:
            infer.inputs["images"].resize((size, 3, 640, 640))
            for _ in range(5):
                infer.forward()
            start = perf_counter()
            for _ in range(runs):
                infer.enqueue()
            infer.wait()
            result.append(f"{size}: {1e3 * (perf_counter() - start) / runs:.2f}")
    return f"ms of the engine alone by batch: {', '.join(result)}"


@pytest.fixture(scope="module")
def frames() -> list[np.ndarray[Any, Any]]:
    """Of 1080p, in page-locked memory."""
    if device_count() == 0:
        pytest.skip("needs an NVIDIA GPU")
    rng = np.random.default_rng(0)
    frames = [pinned_empty((1080, 1920, 3)) for _ in range(32)]
    for frame in frames:
        frame[:] = rng.integers(0, 256, frame.shape, np.uint8)
    return frames


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, frames: list[Any]) -> Iterator[YOLOv5]:
    """yolov5s in FP16, all batch sizes warmed up."""
    assets: Path = request.getfixturevalue("assets")
    path = assets / "models" / "yolov5s-random.onnx"
    with YOLOv5(path, backend=BACKEND, precision="fp16", max_batch=32, **_options()) as model:
        start = perf_counter()
        model.warm_up(example=frames[0])
        print(f"\nwarmed up in {perf_counter() - start:.1f} s; {_engine_alone(model)}")
        print(
            f"Python {sys.version.split()[0]}, {os.cpu_count()} processors, kernel {os.uname().release}; a thread "
            f"wakes another one in {1e6 * _hand_over():.0f} us"
        )
        _streamed(model, frames, 4_000)
        print(f"images are preprocessed on the {sorted(set(model._placement.measured.values()))}", flush=True)
        yield model


def _streamed(model: YOLOv5, frames: Sequence[Any], count: int = 6_000) -> float:
    """Images per second of `stream()`."""
    start = perf_counter()
    for _ in model.stream(frames[i % len(frames)] for i in range(count)):
        pass
    return count / (perf_counter() - start)


@pytest.mark.gpu
@pytest.mark.parametrize("memory", ["page-locked", "ordinary"])
def test_on_a_gpu(model: YOLOv5, frames: list[Any], claim: Callable[..., None], memory: str) -> None:
    """1080p frames."""
    own = frames if memory == "page-locked" else [frame.copy() for frame in frames]
    _streamed(model, own, 2_000)
    print()
    for kind, callers in CALLERS.items():
        for count in COUNTS if memory == "page-locked" else (64,):
            shares = []
            for _ in range(3):
                streamed = _streamed(model, own)
                sample = measured(callers, model.pipeline, own[0], count, settle=0.3, seconds=0.8)
                shares.append(sample.rate / streamed)
            shares.sort()
            claim(f"{count} {kind}, {memory}, one GPU", shares[1], low=shares[0], high=shares[-1])
            print(
                f"{memory}, {count} {kind}: {shares[1]:.0%} ({shares[0]:.0%} to {shares[-1]:.0%}) of stream(), "
                f"{streamed:,.0f}/s\n  {sample}",
                flush=True,
            )


# ---- what is in the way ----


@contextlib.contextmanager
def _switch_interval(seconds: float) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _variants() -> dict[str, Callable[[], Any]]:
    """One thing at a time is changed."""
    return {
        "as it is": contextlib.nullcontext,
        "the interpreter's lock is asked for after 0.5 ms": lambda: _switch_interval(0.5e-3),
        "no learning": lambda: learning(False),
    }


class _Trace:
    """How long the parts of a batch take on a GPU, each with the waiting for the interpreter's lock."""

    def __init__(self) -> None:
        self.taken: dict[str, list[float]] = {}

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        from infersdk.infer import Infer
        from infersdk.models.execution import cuda
        from infersdk.models.yolo import DeviceBoxes
        from infersdk.pipeline import batch_runners

        with contextlib.ExitStack() as stack:
            for owner, name in (
                (cuda.InFlightBatch, "begin"), (cuda.InFlightBatch, "_bring_in"), (Infer, "enqueue"),
                (DeviceBoxes, "queue"), (DeviceBoxes, "collect"), (cuda.InFlightBatch, "finish"),
                (batch_runners.BatchRunners, "_dispatch"),
            ):  # fmt: skip
                stack.enter_context(_replaced(owner, name, self._timed(name, getattr(owner, name))))
            yield

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        taken, processor = self.taken.setdefault(name, []), self.taken.setdefault(f"{name}, of that processor", [])

        def timed(*arguments: Any, **keywords: Any) -> Any:
            start, own = perf_counter(), time.thread_time()
            try:
                return function(*arguments, **keywords)
            finally:
                taken.append(perf_counter() - start)
                processor.append(time.thread_time() - own)

        return timed

    def __str__(self) -> str:
        return "; ".join(
            f"{name} {1e3 * median(t):.2f} (p90 {1e3 * float(np.quantile(t, 0.9)):.2f})"
            for name, t in self.taken.items()
            if t
        )


def _hand_over(rounds: int = 2_000) -> float:
    """Seconds from the release of a lock to the thread that waits for it, and back, with nothing else to do."""
    ping, pong = threading.Lock(), threading.Lock()
    ping.acquire()
    pong.acquire()

    def answer() -> None:
        for _ in range(rounds):
            ping.acquire()
            pong.release()

    thread = threading.Thread(target=answer)
    thread.start()
    start = perf_counter()
    for _ in range(rounds):
        ping.release()
        pong.acquire()
    elapsed = perf_counter() - start
    thread.join()
    return elapsed / rounds / 2


def _probe(pipeline: Pipeline[Any], frame: Any, seconds: float) -> None:
    print(f"\nmap(): {measured(from_one_thread, pipeline, frame, settle=0.3, seconds=seconds)}")
    for kind, callers in CALLERS.items():
        for count in COUNTS:
            print(f"{count} {kind}")
            for name, variant in _variants().items():
                with variant():
                    print(f"  {name}: {measured(callers, pipeline, frame, count, settle=0.2, seconds=seconds)}")
            trace = _Trace()
            with trace.on():
                measured(callers, pipeline, frame, count, settle=0.1, seconds=0.4)
            print(f"  parts in ms: {trace}", flush=True)


def test_probe_a_simulated_h200() -> None:
    with Pipeline(SimulatedDevice()) as pipeline:
        _probe(pipeline, np.zeros((1080, 1920, 3), np.uint8), 0.5)


@pytest.mark.gpu
def test_probe_a_gpu(model: YOLOv5, frames: list[Any]) -> None:
    _probe(model.pipeline, frames[0], 0.5)
