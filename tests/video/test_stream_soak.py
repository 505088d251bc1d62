"""Many live streams through one model, which are cut, damaged and silenced again and again, with tracking.

    pytest -m "soak and not gpu" tests/video/test_stream_soak.py
    pytest -m "soak and gpu" tests/video/test_stream_soak.py         # 80 streams of 1080p, decoded on a GPU

INFERSDK_SOAK_SECONDS is how long each takes (default 600).
No stream is lost, the frames of each come in order, its counts add up, and memory, descriptors and threads do not grow.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from infersdk import device_info, models
from infersdk.data import DETECTOR
from infersdk.video import Streams, stream

pytest.importorskip("av")
import live_server
from process_samples import early_and_late, process_sample
from rounds import Worker

TIMEOUT = 3.0
#: Frames that may be dropped after the last result of a stream, beyond those that its camera sends until the end.
LAST_DROPS = 2 * stream.WAITING


class Scenario(NamedTuple):
    """The videos of the cameras, and the model that gets them.

    Attributes:
        streams: the numbers of streams by RTSP, and by MPEG-TS over TCP.
        seconds, repeats: of the video, and how often the longest connection has it.
        growth: of memory in bytes between the second and the last quarter; less is noise of the allocator.
    """

    streams: tuple[int, int]
    size: str
    rate: int
    seconds: int
    repeats: int
    model: dict[str, Any]
    settings: dict[str, Any]
    growth: int


PROCESSOR = Scenario(
    (6, 2), "160x120", 5, 4, 2, {"backend": "onnxruntime", "max_batch": 1, "threads": 1}, {"format": "nv12"}, 16 << 20
)
GPU = Scenario(
    (70, 10), "1920x1080", 30, 4, 10, {"backend": "tensorrt-rtx", "max_batch": 32, "precision": "fp16"},
    {"decode": "gpu"}, 64 << 20,
)  # fmt: skip


class Sample(NamedTuple):
    """A sample of this process, and the bytes of memory of the device by all processes."""

    memory: float
    descriptors: float
    threads: float
    device_memory: float


def sample(on_device: bool) -> Sample:
    gc.collect()
    device = device_info("cuda:0") if on_device else {"total_bytes": 0, "free_bytes": 0}
    return Sample(*process_sample(), device["total_bytes"] - device["free_bytes"])


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    "scenario", [pytest.param(PROCESSOR, id="processor"), pytest.param(GPU, id="gpu", marks=pytest.mark.gpu)]
)
def test_streams_that_fail_again_and_again(scenario: Scenario, assets: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx_bindings" if scenario is GPU else "onnxruntime")
    seconds = float(os.environ.get("INFERSDK_SOAK_SECONDS", "600"))
    sources: dict[str, str] = {}
    items: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    samples = []
    with ExitStack() as stack:
        servers = []
        for count, form in zip(scenario.streams, ("rtsp", "ts-lengths"), strict=True):
            server = Worker(
                sys.executable, live_server.__file__, assets / "video" / "people.mp4", "--format", form,
                "--streams", count, "--size", scenario.size, "--rate", scenario.rate, "--seconds", scenario.seconds,
                "--repeats", scenario.repeats, "--faults", count, "--sent", tmp_path / form,
            )  # fmt: skip
            servers.append(stack.enter_context(server))
            sources |= {f"{form} {number}": address for number, address in enumerate(server.ready["addresses"])}
        numbers, times = dict.fromkeys(sources, -1), dict.fromkeys(sources, -1.0)
        latest: dict[str, float] = {}
        trackers = {name: models.Tracker() for name in sources}
        options = {"rtsp_transport": "tcp", "fpsprobesize": "0"}
        model = stack.enter_context(models.load(DETECTOR, **scenario.model))
        streams = stack.enter_context(Streams(sources, timeout=TIMEOUT, options=options, **scenario.settings))
        model.warm_up()
        begin = sampled = time.monotonic()
        for item in streams.run(model):
            assert item.frame is not None, f"stream {item.stream} was lost: {item.error}"
            items[item.stream] += 1
            errors[item.stream] += item.error is not None
            assert item.frame.number > numbers[item.stream]
            assert item.frame.time >= times[item.stream]
            numbers[item.stream], times[item.stream] = item.frame.number, item.frame.time
            if item.result is not None:
                trackers[item.stream].update(item.result)
            now = latest[item.stream] = time.monotonic()
            if now - sampled > seconds / 100:
                samples.append(sample(scenario is GPU))
                sampled = now
            if now - begin > seconds:
                break
        streams.close()
        end = time.monotonic()
        health = streams.health()
        for server in servers:
            faults.update(server.ask("end"))
    for name, state in health.items():
        print(name, items[name], state)
    dropped = sum(state.dropped for state in health.values())
    print(f"{items.total()} results in {seconds:g} s, {dropped} dropped, {faults}")
    early, late = early_and_late(samples)
    print(early, late, sep="\n")
    most = max(items.values())
    for name, state in health.items():
        assert items[name] > most / 2, f"{name} has {items[name]} results, and another stream has {most}"
        assert state.connects > seconds / (4 * scenario.seconds * scenario.repeats), "it is opened again and again"
        assert (state.results + state.errors, state.errors) == (items[name], errors[name])
        assert 0 <= state.frames - items[name] <= stream.WAITING
        last_drops = state.dropped - (numbers[name] + 1 - items[name])
        assert 0 <= last_drops <= scenario.rate * (end - latest[name]) + LAST_DROPS
    assert set(faults) == {*live_server.ENDS, "damage", "stall"}
    assert late.memory - early.memory < scenario.growth
    assert late.device_memory - early.device_memory < scenario.growth
    assert late.descriptors - early.descriptors <= len(sources)
    assert late.threads - early.threads <= len(sources)
