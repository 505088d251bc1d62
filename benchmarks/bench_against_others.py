"""Our figures against those of other tools at the same settings, and from a picture's file to boxes against what users
use instead.

    pytest benchmarks/bench_against_others.py -q -s

Throughput is held against OpenVINO's own benchmark_app, and against a loop around an ONNX Runtime session with I/O
binding as onnxruntime_perf_test runs it; each figure comes from a process of its own, ours by `infersdk.bench`, and
both take turns. The target is to be within 3 %.

INFERSDK_BENCH_SECONDS is how long each turn runs (default 5), INFERSDK_BENCH_TURNS how often (default 5). Packages that
are not installed, or do not work here, are skipped with the reason: `pip install ultralytics openvino-model-api
polyinfer` gets those of the last part.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from infersdk.bench import BenchSettings, Combination, bench
from infersdk.bench.statistics import ratio
from infersdk.models import YOLOv8

SECONDS = float(os.environ.get("INFERSDK_BENCH_SECONDS", "5"))
TURNS = int(os.environ.get("INFERSDK_BENCH_TURNS", "5"))
TARGET = 0.03

#: As onnxruntime_perf_test does it: one session, inputs and outputs bound once, run after run for a while.
RAW_LOOP = """
import sys, time
import numpy as np, onnxruntime as ort
path, threads, batch, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
options = ort.SessionOptions()
options.intra_op_num_threads = threads
session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
binding = session.io_binding()
(node,) = session.get_inputs()
x = np.random.default_rng(0).random((batch, *node.shape[1:]), np.float32)
binding.bind_cpu_input(node.name, x)
for output in session.get_outputs():
    binding.bind_output(output.name, "cpu")
session.run_with_iobinding(binding)
places = [value.numpy() for value in binding.get_outputs()]
for output, place in zip(session.get_outputs(), places):
    binding.bind_output(output.name, "cpu", 0, np.float32, place.shape, place.ctypes.data)
until, start, count = time.perf_counter() + 1, 0, 0
while time.perf_counter() < until:  # warm
    session.run_with_iobinding(binding)
start = time.perf_counter()
while time.perf_counter() - start < seconds:
    session.run_with_iobinding(binding)
    count += 1
print(count * batch / (time.perf_counter() - start))
"""


def ours(model: Path, backend: str, way: str, batch: int, options: dict[str, Any]) -> float:
    """Images a second, by `infersdk.bench`."""
    what = Combination(model=str(model), backend=backend, batch=batch, precision="fp32", options=options)
    settings = BenchSettings(type="arrays", time=SECONDS, rounds=1, warmup=5, ways=[way])  # type: ignore[list-item]
    (row,) = bench([what], settings, accuracy=False, loading=False).rows
    assert row.status == "ok", row.reason
    return row.ways[way].throughput.value


def benchmark_app(model: Path, batch: int, *, options: list[str]) -> float:
    """Images a second, by OpenVINO's tool."""
    command = [sys.executable, "-c", "from openvino.tools.benchmark.main import main; main()"]
    done = subprocess.run(
        [
            *command, "-m", str(model), "-d", "CPU", "-t", f"{SECONDS:g}", "-infer_precision", "f32",
            "-shape", f"[{batch},3,640,640]", *options,
        ],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    found = re.search(r"Throughput:\s+([\d.]+) FPS", done.stdout)
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    return float(found[1])


def raw_loop(model: Path, batch: int, threads: int) -> float:
    command = [sys.executable, "-c", RAW_LOOP, str(model), str(threads), str(batch), str(SECONDS)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def side_by_side(what: str, mine: Callable[[], float], theirs: Callable[[], float]) -> None:
    """Turn by turn; fails where the interval of the ratio lies wholly outside the target."""
    figures: tuple[list[float], list[float]] = ([], [])
    for turn in range(TURNS):
        for which in (0, 1) if turn % 2 else (1, 0):
            figures[which].append((mine, theirs)[which]())
    found = ratio(*figures)
    told = f" (95 %: {found.low:.3f} to {found.high:.3f})" if found.low is not None else ""
    print(
        f"\n{what}: ours {np.median(figures[0]):.2f}, theirs {np.median(figures[1]):.2f} images/s, "
        f"ratio {found.value:.3f}{told}"
    )
    if found.low is not None and found.high is not None:
        assert found.low <= 1 + TARGET, f"{what}: we say more than there is"
        assert found.high >= 1 - TARGET, f"{what}: slower by more than {TARGET:.0%}"


@pytest.mark.parametrize("batch", [1, 8])
def test_openvino_one_after_another(assets: Path, batch: int) -> None:
    pytest.importorskip("openvino.tools.benchmark")
    model = assets / "models" / "yolov5n.onnx"
    side_by_side(
        f"OpenVINO, latency hint, batch {batch}, against benchmark_app -api sync",
        lambda: ours(model, "openvino", "engine", batch, {}),
        lambda: benchmark_app(model, batch, options=["-hint", "latency", "-api", "sync"]),
    )


def test_openvino_side_by_side(assets: Path) -> None:
    """As many requests at a time as there are streams, in both."""
    pytest.importorskip("openvino.tools.benchmark")
    model, streams = assets / "models" / "yolov5n.onnx", max(len(os.sched_getaffinity(0)), 2)
    side_by_side(
        f"OpenVINO, {streams} streams, against benchmark_app -api async",
        lambda: ours(model, "openvino", "engine_parallel", 1, {"streams": streams, "threads": streams}),
        lambda: benchmark_app(
            model, 1,
            options=[
                "-hint", "none", "-nstreams", str(streams), "-nthreads", str(streams), "-nireq", str(streams),
                "-api", "async",
            ],
        ),
    )  # fmt: skip


@pytest.mark.parametrize("batch", [1, 8])
def test_onnxruntime(assets: Path, batch: int) -> None:
    pytest.importorskip("onnxruntime")
    model, threads = assets / "models" / "yolov5n.onnx", len(os.sched_getaffinity(0))
    side_by_side(
        f"ONNX Runtime, {threads} threads, batch {batch}, against a loop by hand",
        lambda: ours(model, "onnxruntime", "engine", batch, {"threads": threads}),
        lambda: raw_loop(model, batch, threads),
    )


# ---- from a picture's file to boxes ----


def ultralytics(model: Path, picture: Path) -> Callable[[], int]:
    """What most users of YOLO call. It runs ONNX files on ONNX Runtime."""
    os.environ.setdefault("YOLO_AUTOINSTALL", "false")  # else it installs what it misses
    try:
        from ultralytics import YOLO

        detector = YOLO(str(model), task="detect")
        call = lambda: len(  # noqa: E731
            detector.predict(str(picture), conf=0.25, iou=0.45, verbose=False, device="cpu", imgsz=640, rect=False)[
                0
            ].boxes
        )
        call()
    except Exception as error:  # it needs torch and torchvision, of versions that fit
        pytest.skip(f"ultralytics does not run here: {type(error).__name__}: {error}")
    return call


def model_api(model: Path, picture: Path) -> Callable[[], int]:
    """OpenVINO's own model wrappers."""
    module = pytest.importorskip("model_api.models")
    adapters = pytest.importorskip("model_api.adapters")
    cv2 = pytest.importorskip("cv2")
    # In float32, as ours: left alone, OpenVINO computes in bfloat16 where the processor can.
    properties = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    adapter = adapters.OpenvinoAdapter(adapters.create_core(), str(model), device="CPU", plugin_config=properties)
    settings = {"confidence_threshold": 0.25, "iou_threshold": 0.45}
    detector = module.Model.create_model(adapter, model_type="YOLOv8", configuration=settings)
    return lambda: len(detector(cv2.cvtColor(cv2.imread(str(picture)), cv2.COLOR_BGR2RGB)).bboxes)


def polyinfer(model: Path, picture: Path) -> Callable[[], int]:
    """It runs the network alone: around it stands what its users write, OpenCV and NumPy."""
    module = pytest.importorskip("polyinfer")
    cv2 = pytest.importorskip("cv2")
    network = module.load(str(model), backend="onnxruntime", device="cpu")

    def call() -> int:
        image = cv2.imread(str(picture))
        scale = min(640 / image.shape[0], 640 / image.shape[1])
        width, height = round(image.shape[1] * scale), round(image.shape[0] * scale)
        canvas = np.full((640, 640, 3), 114, np.uint8)
        left, top = (640 - width) // 2, (640 - height) // 2
        canvas[top : top + height, left : left + width] = cv2.resize(image, (width, height))
        x = np.ascontiguousarray(canvas[..., ::-1].transpose(2, 0, 1)[None].astype(np.float32) / 255)
        rows = network(x)[0].T
        best = rows[:, 4:].max(1)
        rows, best = rows[best > 0.25], best[best > 0.25]
        kinds = rows[:, 4:].argmax(1)
        corners = rows[:, :2] - rows[:, 2:4] / 2 + kinds[:, None] * 7680.0
        return len(cv2.dnn.NMSBoxes(np.hstack([corners, rows[:, 2:4]]).tolist(), best.tolist(), 0.25, 0.45))

    return call


@pytest.mark.parametrize(
    ("theirs", "backend"), [(ultralytics, "onnxruntime"), (model_api, "openvino"), (polyinfer, "onnxruntime")]
)
def test_from_file_to_boxes(assets: Path, theirs: Callable[..., Callable[[], int]], backend: str) -> None:
    """The same model, picture, thresholds and runtime, call by call in turn."""
    pytest.importorskip(backend)
    model, picture = assets / "models" / "yolov8n.onnx", assets / "images" / "bus.jpg"
    other = theirs(model, picture)
    with YOLOv8(model, backend) as detector:
        calls: list[Callable[[], int]] = [lambda: len(detector(str(picture))), other]
        assert abs(calls[0]() - calls[1]()) <= 2  # the same work: letterboxes and orders of NMS differ a little
        spent: tuple[list[float], list[float]] = ([], [])
        until = perf_counter() + 2 * SECONDS
        while perf_counter() < until or len(spent[0]) < 5:
            for times, call in zip(spent, calls, strict=True):
                start = perf_counter()
                call()
                times.append(perf_counter() - start)
    mine, usual = (float(np.median(times)) * 1e3 for times in spent)
    print(
        f"\nfile to boxes on {backend}: ours {mine:.2f} ms, {theirs.__name__} {usual:.2f} ms: {usual / mine:.2f} times"
    )
