"""Eight processes with a model each, against one process with eight threads that share a model.

    pytest benchmarks/bench_processes.py -q -s           # the processor; -m gpu: TensorRT-RTX on cuda:0

Both serve the same number of frames of 640 x 480. Throughput and memory are printed: of the processes together by
Linux's proportional set size, which counts shared pages once, and of a GPU by NVML where `nvidia-ml-py` is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rounds import times

from infersdk import device_count
from infersdk.bench.statistics import median_of_rounds
from infersdk.models import YOLOv5

if TYPE_CHECKING:
    from collections.abc import Callable

WORKERS = 8
FRAMES = int(os.environ.get("INFERSDK_BENCH_IMAGES", "160"))
ROUNDS = int(os.environ.get("INFERSDK_BENCH_ROUNDS", "5"))


def resident() -> int:
    """Bytes of this process, shared pages in proportion."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def device_bytes() -> int:
    """Bytes that are used on the first GPU; 0 without `nvidia-ml-py` or a GPU."""
    try:
        import pynvml
    except ImportError:
        return 0
    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
    except pynvml.NVMLError:
        return 0


def process(path: str, load: dict[str, Any]) -> None:
    """One of the processes: serves as many frames as a line says, and answers its bytes."""
    frame = np.random.default_rng(0).integers(0, 255, (480, 640, 3), np.uint8)
    with YOLOv5(path, **load) as model:
        model(frame)
        print(resident(), flush=True)
        for line in sys.stdin:
            for _ in range(int(line)):
                model(frame)
            print(resident(), flush=True)


def compare(path: Path, claim: Callable[..., None], one: dict[str, Any], each: dict[str, Any]) -> None:
    frame = np.random.default_rng(0).integers(0, 255, (480, 640, 3), np.uint8)
    before = device_bytes()
    command = [sys.executable, __file__, str(path), json.dumps(each)]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(WORKERS)
    ]
    host = [int(worker.stdout.readline()) for worker in workers if worker.stdout is not None]
    on_device = device_bytes() - before

    def by_processes() -> None:
        for worker in workers:
            print(FRAMES // WORKERS, file=worker.stdin, flush=True)
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()

    between = device_bytes()
    with YOLOv5(path, **one) as model:
        model.warm_up()

        def caller() -> None:
            for _ in range(FRAMES // WORKERS):
                model.submit(frame).result()

        def by_threads() -> None:
            threads = [threading.Thread(target=caller) for _ in range(WORKERS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        by_threads()
        shared, shared_on_device = resident(), device_bytes() - between
        taken = times({"processes": by_processes, "threads": by_threads}, ROUNDS)
    for worker in workers:
        worker.communicate()  # the end of its input ends it
    estimate = median_of_rounds(taken["processes"] / taken["threads"])
    print(f"\none process with {WORKERS} threads is {estimate.value:.3f} times {WORKERS} processes")
    print(f"  host memory: {shared / 2**20:.0f} MiB against {sum(host) / 2**20:.0f} MiB")
    print(f"  device memory: {shared_on_device / 2**20:.0f} MiB against {on_device / 2**20:.0f} MiB")
    claim(f"one process with {WORKERS} threads, {one['backend']}", estimate.value, low=estimate.low, high=estimate.high)


def test_on_the_processor(assets: Path, claim: Callable[..., None]) -> None:
    path = assets / "models" / "yolov5n.onnx"
    compare(path, claim, {"backend": "onnxruntime", "max_batch": 8}, {"backend": "onnxruntime", "threads": 1})


@pytest.mark.gpu
@pytest.mark.skipif(device_count() == 0, reason="needs an NVIDIA GPU")
def test_on_a_gpu(assets: Path, claim: Callable[..., None]) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    load = {"backend": "tensorrt-rtx", "precision": "fp16", "max_batch": 8}
    compare(assets / "models" / "yolov5n.onnx", claim, load, load)


if __name__ == "__main__":
    process(sys.argv[1], json.loads(sys.argv[2]))
