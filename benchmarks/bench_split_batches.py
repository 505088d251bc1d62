"""Batches on a processor: as one run on all cores, split over the cores, and on instances of one thread.

    pytest benchmarks/bench_split_batches.py -q -s       # the test data of INFERSDK_ASSETS

Images/s of requests from 16 threads (as arrays, and as JPEG), of `map()` and of calls with 16 images; and of single
images, which run on all cores whatever the setting. The rounds alternate; INFERSDK_BENCH_ROUNDS is how many there are
(default 7). Ratios are over batches that run as a whole.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds import Spread, times

from infersdk.image import read_image
from infersdk.models import VisionModel, YOLOv5, YOLOv8
from infersdk.ops.batch import available_processors

ROUNDS = int(os.environ.get("INFERSDK_BENCH_ROUNDS", "7"))
THREADS, IMAGES = 16, 32
MODELS: dict[str, type[VisionModel[Any]]] = {"yolov5n": YOLOv5, "yolov8n": YOLOv8}
#: What each of them is loaded with, by backend.
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "onnxruntime": {
        "whole": {"split_batches": False},
        "as it comes": {},
        "instances": {"threads": 1, "max_batch": 1},
    },
    "openvino": {
        "whole": {"split_batches": False},
        "as it comes": {},
        "instances": {"streams": available_processors(), "max_batch": 1},
    },
}


@pytest.fixture(params=[(backend, model) for backend in WAYS for model in MODELS], ids="-".join)
def loaded(request: pytest.FixtureRequest, assets: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    backend, name = request.param
    pytest.importorskip(backend)
    models: dict[str, Any] = {}
    for way, options in WAYS[backend].items():
        models[way] = model = MODELS[name](assets / "models" / f"{name}.onnx", backend, **options)
        if way == "instances":
            model.configure_pipeline(instances=available_processors())
        model.warm_up()
    yield f"{backend}, {name}", models
    for model in models.values():
        model.close()


def from_threads(model: Any, image: Any) -> None:
    def work() -> None:
        for _ in range(IMAGES // THREADS):
            model.submit(image).result()

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.timeout(1800)
def test_split_batches(loaded: tuple[str, dict[str, Any]], assets: Path, claim: Callable[..., None]) -> None:
    what, models = loaded
    file = assets / "images" / "bus.jpg"
    frame, jpeg = np.ascontiguousarray(read_image(file).pixels[..., ::-1]), file.read_bytes()
    scenarios: dict[str, tuple[int, Callable[[Any], Any]]] = {
        "requests of arrays": (IMAGES, lambda model: from_threads(model, frame)),
        "requests of JPEG": (IMAGES, lambda model: from_threads(model, jpeg)),
        "map()": (IMAGES, lambda model: list(model.map([frame] * IMAGES))),
        "calls of 16": (16, lambda model: model([frame] * 16)),
        "single calls": (4, lambda model: [model(frame) for _ in range(4)]),
        "single requests": (4, lambda model: [model.submit(frame).result() for _ in range(4)]),
    }
    for scenario, (images, run) in scenarios.items():
        runs = {way: (lambda model=model, run=run: run(model)) for way, model in models.items()}
        taken = times(runs, ROUNDS)
        base = taken["whole"]
        figures = []
        for way, seconds in taken.items():
            ratio = Spread.of(base / seconds)
            figures.append(f"{way} {images / np.median(seconds):.1f}/s, {ratio:.2f}")
            if way == "as it comes":
                claim(f"split batches, {what}, {scenario}", ratio.median, low=ratio.low, high=ratio.high)
        print(f"\n{what}, {scenario}: {'; '.join(figures)}")
