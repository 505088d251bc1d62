"""Loads, swaps, runs, cancels, fails and closes models again and again, for an hour.

    pytest -m soak tests/test_soak.py                               # an hour on the processor's backends
    INFERSDK_SOAK_SECONDS=480 pytest -m "soak and gpu" tests/test_soak.py

Every result is compared with that of a model that nothing disturbs. Memory, descriptors and threads must be the same
at the end as after the first quarter.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import gc
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image
from process_samples import early_and_late, process_sample

from infersdk import errors, memory_stats, models
from infersdk.data import DETECTOR, IMAGE
from infersdk.image import HostImage, read_image

pytest.importorskip("onnxruntime")

#: Threads that submit.
CLIENTS = 8
#: What the largest of two medians may have more than the other: the allocator keeps freed memory in its own way.
GROWTH = 24 << 20


class Sample(NamedTuple):
    """The process between two rounds, when nothing is loaded."""

    memory: float
    descriptors: float
    threads: float
    memories: float
    device_bytes: float


def sample() -> Sample:
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    stats = memory_stats()
    return Sample(*process_sample(), stats["memories"], stats["device_bytes"])


def images() -> list[HostImage]:
    """The packaged image, whole and in parts of other sizes."""
    whole = Image.open(IMAGE).convert("RGB")
    parts = [whole, whole.crop((0, 0, 400, 300)), whole.crop((200, 100, 640, 480)), whole.resize((320, 240))]
    return [read_image(np.asarray(part).copy(), channel_order="rgb") for part in parts]


class Clients:
    """Threads that submit to a model until `finish()`, and check what comes back."""

    def __init__(self, model: Any, inputs: Sequence[HostImage], expected: Sequence[Any], seed: int) -> None:
        self._model, self._inputs, self._expected = model, inputs, expected
        self.counts: Counter[str] = Counter()
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._wrong: list[BaseException] = []
        self._threads = [threading.Thread(target=self._work, args=(seed * CLIENTS + i,)) for i in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a client hangs"
        if self._wrong:
            raise self._wrong[0]

    def _work(self, seed: int) -> None:
        rng = random.Random(seed)
        try:
            while not self._stop.is_set():
                outcome = self._one(rng)
                with self._guard:
                    self.counts[outcome] += 1
                if outcome == "closed":
                    return
        except BaseException as error:
            self._wrong.append(error)

    def _one(self, rng: random.Random) -> str:
        number = rng.randrange(len(self._inputs))
        kind = rng.random()
        try:
            if kind < 0.05:  # an image that cannot be read
                self._model.submit(b"no image").result(60)
                raise AssertionError("a damaged image was accepted")
            if kind < 0.1:
                future = self._model.submit(self._inputs[number], deadline=1e-4)
            else:
                future = self._model.submit(self._inputs[number], timeout=30)
            if kind > 0.9 and future.cancel():
                return "cancelled"
            found = future.result(60)
        except errors.ImageError:
            return "refused"
        except errors.DeadlineExceeded:
            return "late"
        except errors.Overloaded:
            return "overloaded"
        except (errors.ClosedError, concurrent.futures.CancelledError):
            return "closed"
        self._check(found, self._expected[number])
        return "answered"

    @staticmethod
    def _check(found: Any, expected: Any) -> None:
        assert found.class_ids.tolist() == expected.class_ids.tolist()
        np.testing.assert_allclose(found.xyxy, expected.xyxy, atol=0.6)
        np.testing.assert_allclose(found.scores, expected.scores, atol=0.02)


def one_round(
    backends: Sequence[str], number: int, inputs: Sequence[HostImage], expected: Sequence[Any]
) -> Counter[str]:
    """Loads, asks from several threads, swaps, fails and closes."""
    rng = random.Random(number)
    backend = backends[number % len(backends)]
    settings: dict[str, Any] = {"conf": 0.5, "max_batch": rng.choice((1, 4, 8))}
    if rng.random() < 0.4:
        settings["while_building"] = rng.choice([name for name in backends if name != backend] or ["onnxruntime"])
    with pytest.raises(errors.InferSDKError):
        models.YOLOv5(DETECTOR, backend, unknown_option=1)
    with pytest.raises(errors.ModelError):
        models.YOLOv5(DETECTOR.with_name("none.onnx"), backend)
    model = models.YOLOv5(DETECTOR, backend, **settings)
    clients = Clients(model, inputs, expected, number)
    time.sleep(rng.uniform(0.3, 1.5))
    if rng.random() < 0.5:
        with model.clone() as twin:
            Clients._check(twin(inputs[0]), expected[0])
    if rng.random() < 0.5:  # closed under load; what waits is cancelled
        model.close()
        clients.finish()
    else:
        clients.finish()
        model.close()
    clients.counts[f"rounds on {backend}"] += 1
    return clients.counts


def one_arena() -> None:
    """glibc gives threads heaps of their own, and these keep what is freed in the middle: 100 MB after some hundred
    pipelines, which come and go with their threads. In one heap a leak shows, and nothing else does."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX of malloc.h


def soak(backends: Sequence[str], seconds: float, tmp_path: Path) -> None:
    one_arena()
    inputs = images()
    with models.YOLOv5(DETECTOR, "onnxruntime", conf=0.5) as calm:
        expected = [calm(image) for image in inputs]
        assert len(expected[0]) > 3
    counts: Counter[str] = Counter()
    samples: list[Sample] = []
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end or number < 4 * len(backends):
        counts += one_round(backends, number, inputs, expected)
        number += 1
        samples.append(sample())
    early, late = early_and_late(samples)
    figures = {"seconds": seconds, "rounds": number, **counts, "early": early._asdict(), "late": late._asdict()}
    print(json.dumps(figures, indent=2))
    (tmp_path / "soak.json").write_text(json.dumps({**figures, "samples": samples}, indent=2))
    assert counts["answered"] > 10 * number
    assert counts["cancelled"] > 0
    assert counts["refused"] > 0
    assert late.memory - early.memory < GROWTH, figures
    assert all(after <= before for before, after in zip(early[1:], late[1:], strict=True)), figures


def seconds_of(default: float) -> float:
    return float(os.environ.get("INFERSDK_SOAK_SECONDS", default))


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_on_the_backends_of_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))
    soak(["onnxruntime", "openvino"], seconds_of(3600), tmp_path)


@pytest.mark.soak
@pytest.mark.gpu
@pytest.mark.timeout(0)
def test_on_tensorrt_rtx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from infersdk import device_count

    pytest.importorskip("tensorrt_rtx_bindings")
    if not device_count():
        pytest.skip("needs an NVIDIA GPU")
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))
    soak(["tensorrt-rtx"], seconds_of(480), tmp_path)
