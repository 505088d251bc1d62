"""How many live videos one machine takes in real time, and how long a frame takes from its sender to its result.

Run: `pytest -s -m gpu benchmarks/bench_live_streams.py` (an NVIDIA GPU with a video decoder, `infersdk[gpu,nvvideo]`),
`pytest -s -m "not gpu" benchmarks/bench_live_streams.py` (the processor, a few small streams); the test data of
INFERSDK_ASSETS. INFERSDK_BENCH_STREAMS sets the numbers of streams ("16,32,64"), INFERSDK_BENCH_BACKEND the GPU's
backend.

`live_server.py` sends the videos, in a process of its own: a frame each interval, whether anyone reads it or not. They
go through `Streams` and one model. Time counts from the moment when the server has sent the last byte of a frame until
`Streams.run()` gives its result; both processes read the same clock. A frame without a result was dropped. A number of
streams is in real time while no more than 1 % of the frames are dropped and the 99th percentile is below 100 ms.

A number that is in real time takes 7 seconds and the opening of its streams, any other one 17 seconds, or 34 where it
is close and is measured again; the first that is not in real time is the last one. What was reached is printed in any
case, with the part that is behind. The time of processors is divided among reading (each stream has a thread that reads
packets and has them decoded), submitting (another one gives its frames to the model), batches and results. How long a
thread waits until Python runs it is measured by one more thread, which sleeps a few milliseconds at a time.

A part of that time is of the format, not of this machine: FFmpeg knows the end of a frame when the next one begins,
an interval later, with RTSP and MPEG-TS. MPEG-TS whose packets do not tell their length costs a second interval.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cuda_engine import BACKEND, engine_options

from infersdk import device_count
from infersdk.data import DETECTOR
from infersdk.models import load
from infersdk.video import Streams

pytest.importorskip("av")
#: Seconds that are measured, and those before, after all streams give new frames: a frame is new for some seconds. What
#: was sent while a stream was opened is decoded first; after START seconds the measurement begins in any case. LIMIT
#: ends one that has no results at all.
MEASURED, SETTLED, NEW, START, LIMIT = 5.0, 1.0, 0.25, 10.0, 20.0
#: What real time means: the share of frames that may be dropped, and the 99th percentile in seconds.
DROPPED, DELAY = 0.01, 0.1
#: What is close to it, and so is measured again.
CLOSE_DROPPED, CLOSE_DELAY = 0.03, 0.2
#: Seconds that the thread sleeps that measures how long Python lets a thread wait.
SLEEP = 0.005
#: The parts of the work, by what the names of their threads contain.
PARTS = {"prefetch": "reading", "infersdk-stream": "submitting", "runner": "batches", "MainThread": "results"}
TCP = {"rtsp_transport": "tcp"}
#: A packet of MPEG-TS is taken as one frame: for senders that put each frame into a packet of its own.
WHOLE_PACKETS = {"fflags": "+noparse"}


class LiveServer:
    """`live_server.py` in its process."""

    def __init__(self, source: Path, folder: Path, streams: int, rate: int, *settings: str) -> None:
        self.rate = rate
        path = folder / "sent.npy"
        script = Path(__file__).with_name("live_server.py")
        command = [sys.executable, script, source, "--streams", str(streams), "--rate", str(rate)]
        start = time.monotonic()
        self._process = subprocess.Popen(
            [*command, "--sent", path, *settings], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        ready = json.loads(self._process.stdout.readline())
        print(f"\nserver ready after {time.monotonic() - start:.1f} s", flush=True)
        self.megabits: float = ready["megabits"]
        self.sources = {str(number): address for number, address in enumerate(ready["addresses"])}
        #: When each frame was sent: float64 (streams, frames), 0 for those that were not.
        self.sent: npt.NDArray[np.float64] = np.load(path, mmap_mode="r")

    def close(self) -> None:
        try:
            self._process.communicate(timeout=10)  # it ends with its standard input
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def __enter__(self) -> LiveServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Probe:
    """How late Python runs a thread that has slept, on a thread of its own."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="probe", daemon=True)

    def _work(self) -> None:
        while not self._stopped:
            start = time.monotonic()
            time.sleep(SLEEP)
            self.seconds.append(time.monotonic() - start - SLEEP)

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped = True
        self._thread.join()


def processor_seconds() -> Counter[str]:
    """The processor time of this process so far, by the part of the work; threads of native code are "others"."""
    seconds: Counter[str] = Counter({"others": time.process_time()})
    for thread in threading.enumerate():
        assert thread.ident is not None
        with contextlib.suppress(OSError):  # it has ended just now
            own = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            part = next((part for name, part in PARTS.items() if name in thread.name), "others")
            seconds[part] += own
            seconds["others"] -= own
    return seconds


@dataclass(frozen=True)
class Figures:
    """What was measured with a number of streams; times in seconds.

    Attributes:
        rates: results a second of each stream.
        dropped: the share of the frames that have no result.
        total, decoding, running: from the sent frame to its result, to the decoded frame, and from there to the result.
        late: the longest interval between two frames of a stream, less the usual one: how steady the server was.
        opening: until all streams gave new frames; None if some never did.
        processors: how many of them this process kept busy while it was measured, by the part of the work.
        waits: how late Python ran a thread that had slept.
        errors: what streams ended with, and which were opened again.
    """

    rates: npt.NDArray[np.float64]
    dropped: float
    total: npt.NDArray[np.float64]
    decoding: npt.NDArray[np.float64]
    running: npt.NDArray[np.float64]
    late: float
    opening: float | None
    processors: Mapping[str, float]
    waits: npt.NDArray[np.float64]
    errors: Sequence[str]

    @property
    def real_time(self) -> bool:
        return self._within(DROPPED, DELAY) and not self.errors

    @property
    def is_close(self) -> bool:
        return self._within(CLOSE_DROPPED, CLOSE_DELAY) and not self.errors

    def _within(self, dropped: float, delay: float) -> bool:
        return self.dropped <= dropped and bool(len(self.total)) and float(np.percentile(self.total, 99)) < delay

    @property
    def behind(self) -> str:
        """The part that keeps it from real time."""
        if not len(self.total):
            return "no result at all"
        decoding, running = (float(np.percentile(part, 99)) for part in (self.decoding, self.running))
        if self.late > DELAY / 2:
            return "the server"
        if self.opening is None or decoding > max(DELAY / 2, running):
            return "reading and decoding"
        return "the model's pipeline"

    def __str__(self) -> str:
        live = "not all live" if self.opening is None else f"all live after {self.opening:.1f} s"
        parts = ", ".join(f"{part} {busy:.2f}" for part, busy in sorted(self.processors.items()))
        return (
            f"{self.rates.sum():.0f} results/s, {self.rates.min():.2f} to {self.rates.max():.2f} a stream, "
            f"{self.dropped:.2%} dropped; ms, median / 99 % / longest: sent to result {_shown(self.total)}, "
            f"sent to decoded {_shown(self.decoding)}, decoded to result {_shown(self.running)}, a thread waits for "
            f"Python {_shown(self.waits)}; {live}, server late by {1e3 * self.late:.1f} ms at most, "
            f"{sum(self.processors.values()):.2f} processors busy ({parts})"
            f"{'' if self.real_time else f'; NOT in real time: {self.behind} behind'}"
            f"{''.join(f'; {error}' for error in self.errors)}"
        )


def _shown(times: npt.NDArray[np.float64]) -> str:
    return " / ".join(f"{1e3 * part:.1f}" for part in np.percentile(times, (50, 99, 100))) if len(times) else "none"


def measure(model: Any, server: LiveServer, count: int, **settings: Any) -> Figures:
    """Runs the first `count` streams of the server through a model. It ends after LIMIT seconds at the latest."""
    sources = dict(list(server.sources.items())[:count])
    begin = time.monotonic()
    first: float | None = None
    opening = set(sources)
    used: Counter[str] = Counter()
    rows: list[tuple[int, int, float, float]] = []  # stream, frame, decoded, result
    errors: list[str] = []
    with Streams(sources, **settings) as streams, Probe() as probe:
        ending = threading.Timer(LIMIT, streams.close)
        ending.start()
        for item in streams.run(model):
            now = time.monotonic()
            if item.error is not None:
                errors.append(f"stream {item.stream}: {item.error}")
                continue
            number, frame = int(item.stream), round(item.frame.time * server.rate)
            if first is None:
                if now - server.sent[number, frame] < NEW:
                    opening.discard(item.stream)
                if not opening or now > begin + START:
                    first, used = now, processor_seconds()
                    probe.seconds.clear()
            elif now > first + SETTLED + MEASURED + 1:  # late results of the measured frames have come
                break
            rows.append((number, frame, item.frame.decoded, now))
        ending.cancel()
        first = begin if first is None else first
        seconds = time.monotonic() - first
        busy = {part: (own - used[part]) / seconds for part, own in processor_seconds().items()}
        again = [name for name, health in streams.health().items() if health.connects != 1]
        errors += [f"streams that were not opened once: {', '.join(again)}"] if again else []
        waits = np.array(probe.seconds)
    return figures(
        np.array(rows).reshape(-1, 4), server.sent[:count], first + SETTLED, server.rate,
        opening=None if opening else first - begin, processors=busy, waits=waits, errors=errors,
    )  # fmt: skip


def figures(
    rows: npt.NDArray[np.float64], sent: npt.NDArray[np.float64], begin: float, rate: int, **others: Any
) -> Figures:
    """Of the frames that were sent in the measured time."""
    measured = (sent >= begin) & (sent < begin + MEASURED)
    stream, frame = rows[:, :2].astype(int).T
    kept = measured[stream, frame]
    stream, frame, (decoded, result) = stream[kept], frame[kept], rows[kept, 2:].T
    assert len(set(zip(stream, frame, strict=True))) == len(stream), "a frame has two results"
    start = sent[stream, frame]
    assert (decoded > start).all(), "a frame was decoded before it was sent"
    intervals = [np.diff(np.sort(times[chosen])).max(initial=0) for times, chosen in zip(sent, measured, strict=True)]
    expected = sum(int(frames) or round(MEASURED * rate) for frames in measured.sum(axis=1))  # some may not be open
    return Figures(
        rates=np.bincount(stream, minlength=len(sent)) / MEASURED,
        dropped=1 - len(stream) / expected,
        total=result - start,
        decoding=decoded - start,
        running=result - decoded,
        late=max(intervals) - 1 / rate,
        **others,
    )


def numbers(default: str) -> list[int]:
    return [int(number) for number in os.environ.get("INFERSDK_BENCH_STREAMS", default).split(",")]


def largest_in_real_time(model: Any, server: LiveServer, counts: list[int], title: str, **settings: Any) -> int:
    """More and more streams, until they are not in real time; a number that is close to it gets a second try. Returns
    the last number that was.
    """
    largest = 0
    for count in counts:
        for tries_left in (1, 0):
            result = measure(model, server, count, **settings)
            print(f"\n{count} streams of {title}, {server.megabits:.1f} Mbit/s each: {result}", flush=True)
            if result.real_time:
                break
            if not (tries_left and result.is_close):
                return largest
        largest = count
    return largest


@pytest.fixture(scope="module")
def detector(assets: Path) -> Iterator[Any]:
    """YOLOv8n at 640 in FP16 on the GPU, as fast as its engine goes."""
    if not device_count():
        pytest.skip("no CUDA device on this machine")
    pytest.importorskip("PyNvVideoCodec")
    settings = {"backend": BACKEND, "max_batch": 32, "precision": "fp16", **engine_options()}
    start = time.monotonic()
    with load(assets / "models" / "yolov8n.onnx", **settings) as model:
        model.warm_up()  # all graphs are captured before videos are decoded
        print(f"\nmodel ready after {time.monotonic() - start:.1f} s", flush=True)
        yield model


@pytest.fixture
def serve(assets: Path, tmp_path: Path) -> Iterator[Callable[..., LiveServer]]:
    """Starts a server of people who walk: `serve(streams, rate, *settings)`."""
    with contextlib.ExitStack() as stack:
        yield lambda *settings: stack.enter_context(
            LiveServer(assets / "video" / "people.mp4", tmp_path, *settings)
        )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_streams_on_a_gpu(detector: Any, serve: Callable[..., LiveServer], claim: Callable[..., None]) -> None:
    counts = numbers("1,16,32,64,96,112,128,144,160")
    server = serve(max(counts), 30, "--size", "1920x1080")
    title = "1080p at 30 by RTSP, decoded on the GPU"
    largest = largest_in_real_time(detector, server, counts, title, decode="gpu", options=TCP)
    claim("live streams of 1080p at 30 frames a second in real time on a GPU", largest)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("title", "sending", "options"),
    [
        ("MPEG-TS, packets without a length", ("--format", "ts"), {}),
        ("MPEG-TS, a packet is a frame", ("--format", "ts-lengths"), WHOLE_PACKETS),
        ("RTSP, frames refer to later ones", ("--b-frames", "2"), TCP),
    ],
)
def test_other_streams_on_a_gpu(
    detector: Any,
    serve: Callable[..., LiveServer],
    title: str,
    sending: tuple[str, ...],
    options: Mapping[str, str],
) -> None:
    """16 streams of another kind: for information, as the format decides how long a frame is held back."""
    server = serve(16, 30, "--size", "1920x1080", *sending)
    print(f"\n16 streams of 1080p at 30, {title}: {measure(detector, server, 16, decode='gpu', options=options)}")


def test_streams_on_the_processor(serve: Callable[..., LiveServer], claim: Callable[..., None]) -> None:
    """Small ones, through the model that comes with the package."""
    pytest.importorskip("onnxruntime")
    counts = numbers("1,2")
    server = serve(max(counts), 15, "--size", "640x360")
    with load(DETECTOR, backend="onnxruntime", max_batch=1, threads=1) as model:
        model.warm_up()
        title = "360p at 15 by RTSP, decoded on the processor"
        largest = largest_in_real_time(model, server, counts, title, options=TCP)
    claim("live streams of 360p at 15 frames a second in real time on the processor", largest)
