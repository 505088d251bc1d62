"""The first request and the first call after `warm_up()`, in processes of their own, over the p99 of later ones.

    pytest benchmarks/bench_first_request.py -q -s            # the processor
    pytest benchmarks/bench_first_request.py -q -s -m gpu     # TensorRT-RTX, with and without CUDA graphs

Each process loads the model, warms it up and times what comes: one request or call after another, of a 1080p frame.
INFERSDK_BENCH_ROUNDS is how many processes there are of each kind (default 5).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from infersdk import device_count

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = int(os.environ.get("INFERSDK_BENCH_ROUNDS", "5"))
#: The target: the first takes at most so many times the p99 of later ones.
TARGET = 1.5


def process(path: str, load: dict[str, Any], how: str, warm: bool, later: int) -> None:
    """One of the processes: prints the seconds of each request."""
    from infersdk.models import YOLOv5

    frame = np.random.default_rng(0).integers(0, 255, (1080, 1920, 3), np.uint8)
    with YOLOv5(path, **load) as model:
        if warm:
            model.warm_up(example=frame)
        work: Callable[[], Any] = (lambda: model.submit(frame).result()) if how == "submit()" else lambda: model(frame)
        seconds = []
        for _ in range(later + 1):
            start = perf_counter()
            work()
            seconds.append(perf_counter() - start)
    print(json.dumps(seconds))


def first_over_p99(path: Path, load: dict[str, Any], how: str, warm: bool, later: int) -> float:
    command = [sys.executable, __file__, str(path), json.dumps(load), how, str(int(warm)), str(later)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    first, *rest = json.loads(done.stdout.splitlines()[-1])
    return float(first / np.quantile(rest, 0.99))


def compare(path: Path, claim: Callable[..., None], later: int, **load: Any) -> None:
    for how in ("submit()", "a call"):
        ratios: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(ROUNDS):
            for warm in (True, False):
                ratios[warm].append(first_over_p99(path, load, how, warm, later))
        warmed, cold = sorted(ratios[True]), sorted(ratios[False])
        middle = ROUNDS // 2
        print(f"\n{load}, {how}: the first takes {warmed[middle]:.2f} times the p99 of {later} later ones "
              f"({warmed[0]:.2f} to {warmed[-1]:.2f}); without warm_up() {cold[middle]:.2f} ({cold[0]:.2f} to "
              f"{cold[-1]:.2f}); target {TARGET}")  # fmt: skip
        claim(f"first {how} after warm_up(), {load['backend']}", warmed[middle], low=warmed[0], high=warmed[-1])


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_on_the_processor(assets: Path, claim: Callable[..., None], backend: str) -> None:
    pytest.importorskip(backend)
    compare(assets / "models" / "yolov5n.onnx", claim, 100, backend=backend, max_batch=4)


@pytest.mark.gpu
@pytest.mark.skipif(device_count() == 0, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_on_a_gpu(assets: Path, claim: Callable[..., None], cuda_graph: bool) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    load = {"backend": "tensorrt-rtx", "precision": "fp16", "max_batch": 8, "cuda_graph": cuda_graph}
    compare(assets / "models" / "yolov5n.onnx", claim, 500, **load)


if __name__ == "__main__":
    process(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], sys.argv[4] == "1", int(sys.argv[5]))
