"""Our figures against those of other tools at the same settings, and from an image's file to boxes against what users
call instead.

    pytest benchmarks/bench_against_others.py -q -s

Throughput is compared with OpenVINO's own benchmark_app, and with a loop around an ONNX Runtime session with I/O
binding as onnxruntime_perf_test runs it; each figure comes from a process of its own, ours by `infersdk.bench`, round
by round. The target is to be within 3 %. benchmark_app runs with `-api async`, also where one request runs at a
time: its synchronous call copies the outputs as well, which takes 2 to 3 % of the time of this model.

A ratio is the median over the rounds of ours by theirs in the same round, so that what the machine did meanwhile
cancels out; the interval is that of resampled rounds.

From file to boxes each of the others is called as its own documentation has it, on the same runtime with its usual
threads (one a core), at the same size and thresholds; each has a process of its own, and both run in each round. What
else differs is printed with each row. Ultralytics needs torchvision for one function, non-maximum suppression of the
few boxes that are left: where torchvision does not import (its wheels on PyPI need CUDA's libraries), OpenCV's stands
in for that function, and the row says so; all the rest is Ultralytics' own.

A folder of files is what each tool has for it: `stream()` here, `predict(folder, stream=True)` of Ultralytics, a loop
around model_api. With `canvas="fit"` the canvas is as large as the image needs, which the others do not do with a model
of a fixed size.

INFERSDK_BENCH_SECONDS is how long a round runs (default 2), INFERSDK_BENCH_ROUNDS how many there are (default 15).
INFERSDK_BENCH_OTHERS is the interpreter that runs the others, of an environment that has their packages (default: this
one).
Packages that are not installed, or do not work here, are skipped with the reason: `pip install ultralytics
openvino-model-api polyinfer sahi` gets those of the last part.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from contextlib import closing
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from time import perf_counter
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from infersdk.bench import BenchSettings, Combination, bench
from infersdk.bench.statistics import Estimate, median_of_rounds
from infersdk.models import Classifier, Tiled, YOLOv8
from infersdk.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from infersdk.bench.plan import Scenario

SECONDS = float(os.environ.get("INFERSDK_BENCH_SECONDS", "2"))
ROUNDS = int(os.environ.get("INFERSDK_BENCH_ROUNDS", "15"))
OTHERS_PYTHON = os.environ.get("INFERSDK_BENCH_OTHERS", sys.executable)
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
arrays = [value.numpy() for value in binding.get_outputs()]
for output, array in zip(session.get_outputs(), arrays):
    binding.bind_output(output.name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
until, start, count = time.perf_counter() + 1, 0, 0
while time.perf_counter() < until:  # warm
    session.run_with_iobinding(binding)
start = time.perf_counter()
while time.perf_counter() - start < seconds:
    session.run_with_iobinding(binding)
    count += 1
print(count * batch / (time.perf_counter() - start))
"""


def ours(model: Path, backend: str, scenario: Scenario, batch: int, options: dict[str, Any]) -> float:
    """Images a second, by `infersdk.bench`."""
    what = Combination(model=str(model), target=Target(backend, precision="fp32"), batch=batch, options=options)
    settings = BenchSettings(type="arrays", time=SECONDS, rounds=1, warmup=5, scenarios=[scenario])
    (row,) = bench([what], settings, accuracy=False, loading=False).rows
    assert row.status == "ok", row.reason
    return row.scenarios[scenario].throughput.value


def of_batch(model: Path, batch: int, folder: Path) -> Path:
    """The model for that batch alone. With a free batch OpenVINO takes 3 to 4 % longer, and its tool fixes it."""
    onnx = pytest.importorskip("onnx")
    graph = onnx.load(model)
    for value in (*graph.graph.input, *graph.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    onnx.save(graph, folder / "fixed.onnx")
    return folder / "fixed.onnx"


def benchmark_app(model: Path, batch: int, *, options: list[str]) -> float:
    """Images a second, by OpenVINO's tool; left alone it would feed uint8 and convert that in the network."""
    command = [sys.executable, "-c", "from openvino.tools.benchmark.main import main; main()"]
    done = subprocess.run(
        [
            *command, "-m", str(model), "-d", "CPU", "-t", f"{SECONDS:g}", "-infer_precision", "f32",
            "-ip", "f32", "-b", str(batch), *options,
        ],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    match = re.search(r"Throughput:\s+([\d.]+) FPS", done.stdout)
    assert match, done.stdout[-2000:] + done.stderr[-2000:]
    return float(match[1])


def raw_loop(model: Path, batch: int, threads: int) -> float:
    command = [sys.executable, "-c", RAW_LOOP, str(model), str(threads), str(batch), str(SECONDS)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def in_rounds(mine: Callable[[], float], theirs: Callable[[], float], rounds: int) -> tuple[list[float], list[float]]:
    """The figures of both in each round; who comes first alternates."""
    figures: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            figures[which].append((mine, theirs)[which]())
    return figures


def paired(top: list[float], bottom: list[float]) -> Estimate:
    return median_of_rounds([a / b for a, b in zip(top, bottom, strict=True)])


def side_by_side(
    what: str, mine: Callable[[], float], theirs: Callable[[], float], keep: Callable[..., None], name: str
) -> None:
    """Round by round; fails where the interval of the ratio lies wholly outside the target."""
    figures = in_rounds(mine, theirs, ROUNDS)
    ratio = paired(*figures)
    keep(name, ratio.value, low=ratio.low, high=ratio.high)
    interval = f" (95 %: {ratio.low:.3f} to {ratio.high:.3f})" if ratio.low is not None else ""
    print(
        f"\n{what}: ours {np.median(figures[0]):.2f}, theirs {np.median(figures[1]):.2f} images/s, "
        f"ratio {ratio.value:.3f}{interval}"
    )
    if ratio.low is not None and ratio.high is not None:
        assert ratio.low <= 1 + TARGET, f"{what}: we report more than there is"
        assert ratio.high >= 1 - TARGET, f"{what}: slower by more than {TARGET:.0%}"


@pytest.mark.parametrize("batch", [1, 8])
def test_openvino_one_after_another(assets: Path, tmp_path: Path, claim: Callable[..., None], batch: int) -> None:
    pytest.importorskip("openvino.tools.benchmark")
    model = of_batch(assets / "models" / "yolov5n.onnx", batch, tmp_path)
    side_by_side(
        f"OpenVINO, latency hint, batch {batch}, against benchmark_app",
        lambda: ours(model, "openvino", "engine", batch, {}),
        lambda: benchmark_app(model, batch, options=["-hint", "latency", "-api", "async", "-nireq", "1"]),
        claim,
        f"benchmark_app, batch {batch}",
    )


def test_openvino_side_by_side(assets: Path, tmp_path: Path, claim: Callable[..., None]) -> None:
    """As many requests at a time as there are streams, in both."""
    pytest.importorskip("openvino.tools.benchmark")
    model, streams = of_batch(assets / "models" / "yolov5n.onnx", 1, tmp_path), max(len(os.sched_getaffinity(0)), 2)
    side_by_side(
        f"OpenVINO, {streams} streams, against benchmark_app",
        lambda: ours(model, "openvino", "engine_parallel", 1, {"streams": streams, "threads": streams}),
        lambda: benchmark_app(
            model, 1,
            options=[
                "-hint", "none", "-nstreams", str(streams), "-nthreads", str(streams), "-nireq", str(streams),
                "-api", "async",
            ],
        ),
        claim, "benchmark_app, streams",
    )  # fmt: skip


@pytest.mark.parametrize("batch", [1, 8])
def test_onnxruntime(assets: Path, claim: Callable[..., None], batch: int) -> None:
    pytest.importorskip("onnxruntime")
    model, threads = assets / "models" / "yolov5n.onnx", len(os.sched_getaffinity(0))
    side_by_side(
        f"ONNX Runtime, {threads} threads, batch {batch}, against a loop by hand",
        lambda: ours(model, "onnxruntime", "engine", batch, {"threads": threads}),
        lambda: raw_loop(model, batch, threads),
        claim,
        f"loop by hand, batch {batch}",
    )


# ---- from an image's file to boxes ----


class Other(NamedTuple):
    """What users use instead: a call from the file to the number of boxes, and how its work differs from ours."""

    call: Callable[[], int]
    differs: str


def torchvision_or_stand_in() -> str:
    """Lets Ultralytics import torchvision; returns what to say about it."""
    try:
        import torchvision  # noqa: F401

        return "torchvision's NMS"
    except (ImportError, OSError, RuntimeError):  # RuntimeError: its operators did not load
        import cv2
        import torch

    def nms(boxes: Any, scores: Any, iou: float) -> Any:
        """As torchvision.ops.nms: corners in, indices by descending score out."""
        sides = torch.cat((boxes[:, :2], boxes[:, 2:] - boxes[:, :2]), 1)
        kept = cv2.dnn.NMSBoxes(sides.numpy(), scores.numpy(), 0.0, iou)
        return torch.as_tensor(np.asarray(kept, np.int64).reshape(-1))

    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # what is left of one that did not load
    module, module.ops = ModuleType("torchvision"), SimpleNamespace(nms=nms)  # type: ignore[attr-defined]
    module.__spec__ = ModuleSpec("torchvision", None)  # some look for it to see whether the package is there
    sys.modules["torchvision"] = module
    return "OpenCV's NMS in place of torchvision's, which does not import here"


def ultralytics(model: Path, image: Path) -> Other:
    """What most users of YOLO call. It runs ONNX files on ONNX Runtime."""
    os.environ.setdefault("YOLO_AUTOINSTALL", "false")  # else it installs what it misses
    try:
        from ultralytics import YOLO

        nms = torchvision_or_stand_in()
        detector = YOLO(str(model), task="detect")
        settings = {"conf": 0.25, "iou": 0.45, "imgsz": 640, "rect": False, "device": "cpu", "verbose": False}

        def call() -> int:
            return sum(len(result.boxes) for result in detector.predict(str(image), stream=True, **settings))

        call()
    except Exception as error:  # it needs torch, of a version that fits
        pytest.skip(f"ultralytics does not run here: {type(error).__name__}: {error}")
    options = detector.predictor.model.backend.session.get_session_options()
    assert options.intra_op_num_threads in (0, len(os.sched_getaffinity(0)))  # 0: one a core, as ours
    return Other(call, f"reads by OpenCV, letterbox by OpenCV and torch, {nms}; its results keep the image")


def files_of(image: Path) -> list[str]:
    """The file, or those of a folder."""
    return [str(file) for file in sorted(image.iterdir())] if image.is_dir() else [str(image)]


def model_api(model: Path, image: Path) -> Other:
    """OpenVINO's own model wrappers."""
    module = pytest.importorskip("model_api.models")
    adapters = pytest.importorskip("model_api.adapters")
    cv2 = pytest.importorskip("cv2")
    # In float32, as ours: left alone, OpenVINO computes in bfloat16 where the processor can.
    properties = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    adapter = adapters.OpenvinoAdapter(adapters.create_core(), str(model), device="CPU", plugin_config=properties)
    files = files_of(image)
    if "squeezenet" in model.name:
        settings = {"topk": 1, "resize_type": "crop", "mean_values": [104.0, 117.0, 123.0], "scale_values": [1.0] * 3}
        classifier = module.Model.create_model(adapter, model_type="Classification", configuration=settings)
        return Other(
            lambda: sum(int(classifier(cv2.imread(file)).top_labels[0].id) for file in files),
            "reads by OpenCV, resizes and crops within the compiled model",
        )
    settings = {"confidence_threshold": 0.25, "iou_threshold": 0.45}
    detector = module.Model.create_model(adapter, model_type="YOLOv8", configuration=settings)
    return Other(
        lambda: sum(len(detector(cv2.cvtColor(cv2.imread(file), cv2.COLOR_BGR2RGB)).bboxes) for file in files),
        "reads by OpenCV, letterbox within the compiled model, NMS by NumPy",
    )


def polyinfer(model: Path, image: Path) -> Other:
    """It runs the network alone: around it stands what its users write, OpenCV and NumPy."""
    module = pytest.importorskip("polyinfer")
    cv2 = pytest.importorskip("cv2")
    network = module.load(str(model), backend="onnxruntime", device="cpu")

    def call() -> int:
        pixels = cv2.imread(str(image))
        scale = min(640 / pixels.shape[0], 640 / pixels.shape[1])
        width, height = round(pixels.shape[1] * scale), round(pixels.shape[0] * scale)
        canvas = np.full((640, 640, 3), 114, np.uint8)
        left, top = (640 - width) // 2, (640 - height) // 2
        canvas[top : top + height, left : left + width] = cv2.resize(pixels, (width, height))
        x = np.ascontiguousarray(canvas[..., ::-1].transpose(2, 0, 1)[None].astype(np.float32) / 255)
        rows = network(x)[0].T
        best = rows[:, 4:].max(1)
        rows, best = rows[best > 0.25], best[best > 0.25]
        kinds = rows[:, 4:].argmax(1)
        corners = rows[:, :2] - rows[:, 2:4] / 2 + kinds[:, None] * 7680.0
        return len(cv2.dnn.NMSBoxes(np.hstack([corners, rows[:, 2:4]]).tolist(), best.tolist(), 0.25, 0.45))

    return Other(call, "runs the network alone; around it OpenCV and NumPy by hand, and OpenCV's NMS")


def sahi(model: Path, image: Path) -> Other:
    """Tiles of large images, with its own support for YOLO files: Ultralytics on ONNX Runtime."""
    os.environ.setdefault("YOLO_AUTOINSTALL", "false")
    try:
        from sahi import AutoDetectionModel
        from sahi.predict import get_sliced_prediction

        nms = torchvision_or_stand_in()
        detector = AutoDetectionModel.from_pretrained(
            "ultralytics", model_path=str(model), confidence_threshold=0.25, device="cpu", image_size=640
        )
        detector.model.predict = partial(detector.model.predict, rect=False)  # the file takes squares alone

        def call() -> int:
            result = get_sliced_prediction(
                str(image), detector, slice_height=640, slice_width=640, overlap_height_ratio=0.2,
                overlap_width_ratio=0.2, postprocess_type="NMS", postprocess_match_metric="IOS",
                postprocess_match_threshold=0.5, verbose=0, batch_size=8,
            )  # fmt: skip
            return len(result.object_prediction_list)

        call()
    except Exception as error:  # it needs Ultralytics, and that torch
        pytest.skip(f"SAHI with Ultralytics does not run here: {type(error).__name__}: {error}")
    return Other(call, f"eight tiles a batch in Ultralytics, one thread a core; {nms}")


def ours_from_file(model: Path, image: Path, backend: str, canvas: str) -> Other:
    pytest.importorskip(backend)
    if canvas == "tiles":
        tiled = Tiled(YOLOv8(model, backend, max_batch=8), tile=640, overlap=0.2)
        return Other(lambda: len(tiled(str(image))), "eight tiles a batch")
    files = files_of(image)
    if "squeezenet" in model.name:
        classifier = Classifier(model, backend, preset="caffe", resize=227, max_batch=4)
        (first,) = classifier.stream(files[:1])
        return Other(
            lambda: sum(result[0].class_id for result in classifier.stream(files)),
            f"reads by {first.decoder} on all cores, batches of 4",
        )
    settings: dict[str, Any] = {"canvas": canvas, **({"max_batch": 4} if image.is_dir() else {})}
    detector = YOLOv8(model, backend, iou=0.45, **settings)
    decoder = detector(files[0]).decoder
    if image.is_dir():
        return Other(
            lambda: sum(len(boxes) for boxes in detector.stream(files)), f"reads by {decoder} on all cores, {settings}"
        )
    return Other(lambda: len(detector(files[0])), f"reads by {decoder}, {settings}")


OTHERS = {"ultralytics": ultralytics, "model_api": model_api, "polyinfer": polyinfer, "sahi": sahi}


def in_a_process(name: str, model: Path, image: Path, backend: str) -> None:
    """One contender, in a process of its own: for each line of seconds on stdin, the milliseconds of calls back.

    Two sessions of ONNX Runtime that alternate in one process take nearly twice as long each: the threads of the one
    that is done still spin for a while.
    """
    answers, sys.stdout = sys.stdout, sys.stderr  # what the packages print is no answer
    made = OTHERS[name](model, image) if name in OTHERS else ours_from_file(model, image, backend, name)
    print(json.dumps({"boxes": made.call(), "differs": made.differs}), file=answers, flush=True)
    for line in sys.stdin:
        for _ in range(1 if image.is_dir() or name in ("sahi", "tiles") else 3):  # warm again
            made.call()
        times: list[float] = []
        until = perf_counter() + float(line)
        while perf_counter() < until or len(times) < 3:
            start = perf_counter()
            made.call()
            times.append((perf_counter() - start) * 1e3)
        print(json.dumps(times), file=answers, flush=True)


class Contender:
    """The other end of `in_a_process`."""

    def __init__(self, *arguments: object) -> None:
        python = OTHERS_PYTHON if arguments[0] in OTHERS else sys.executable
        command = [python, "-P", __file__, *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._ask, self._answers = self._process.stdin, self._process.stdout
        said = self._answer()
        if "skipped" in said:
            self.close()
            pytest.skip(said["skipped"])
        self.boxes: int = said["boxes"]
        self.differs: str = said["differs"]

    def _answer(self) -> Any:
        line = self._answers.readline()
        assert line, f"the process ended with {self._process.wait()}"
        return json.loads(line)

    def run(self, seconds: float) -> float:
        """The median of so many seconds of calls, in milliseconds."""
        print(seconds, file=self._ask, flush=True)
        return float(np.median(self._answer()))

    def close(self) -> None:
        self._ask.close()
        self._process.wait()
        self._answers.close()


BACKENDS = {"ultralytics": "onnxruntime", "model_api": "openvino", "polyinfer": "onnxruntime", "sahi": "onnxruntime"}


def against(
    what: str,
    model: Path,
    image: Path,
    theirs: str,
    canvas: str,
    claim: Callable[..., None],
    *,
    same: bool = True,
    rounds: int = 2 * ROUNDS,
) -> None:
    """Ours and theirs in processes of their own, alternately."""
    task = model, image, BACKENDS[theirs]
    with closing(Contender(canvas, *task)) as mine, closing(Contender(theirs, *task)) as other:
        if same:  # the same work: letterboxes and orders of NMS differ a little
            assert abs(mine.boxes - other.boxes) <= 2 + 0.05 * other.boxes
        spent = in_rounds(lambda: mine.run(SECONDS / 4), lambda: other.run(SECONDS / 4), rounds)
    ratio = paired(spent[1], spent[0])
    claim(f"{what}, {theirs}", ratio.value, low=ratio.low, high=ratio.high)
    assert ratio.low is not None
    assert ratio.high is not None
    verdict = "faster" if ratio.low > 1 else "slower" if ratio.high < 1 else "the same within noise"
    print(
        f"\n{what} on {task[2]}: ours {np.median(spent[0]):.2f} ms, {theirs} {np.median(spent[1]):.2f} ms: "
        f"{ratio.value:.3f} times (95 %: {ratio.low:.3f} to {ratio.high:.3f}), {verdict}\n"
        f"    ours {mine.differs}; {theirs} {other.differs}"
    )


@pytest.mark.parametrize("canvas", ["fixed", "fit"])
@pytest.mark.parametrize("theirs", ["ultralytics", "model_api", "polyinfer"])
def test_from_file_to_boxes(assets: Path, claim: Callable[..., None], theirs: str, canvas: str) -> None:
    """The same model, image, thresholds and runtime, many short rounds."""
    model, image = assets / "models" / "yolov8n.onnx", assets / "images" / "bus.jpg"
    against(f"file to boxes, canvas={canvas!r}", model, image, theirs, canvas, claim)


@pytest.mark.parametrize("canvas", ["fixed", "fit"])
@pytest.mark.parametrize("theirs", ["ultralytics", "model_api"])
def test_from_a_folder_to_boxes(
    assets: Path, tmp_path: Path, claim: Callable[..., None], theirs: str, canvas: str
) -> None:
    for file in sorted((assets / "coco" / "val").glob("*.jpg"))[:12]:
        (tmp_path / file.name).symlink_to(file)
    model = assets / "models" / "yolov8n.onnx"
    against(f"a folder to boxes, canvas={canvas!r}", model, tmp_path, theirs, canvas, claim)


def test_from_a_large_file_to_boxes(assets: Path, tmp_path: Path, claim: Callable[..., None]) -> None:
    """3840 x 2160, made of photographs, in tiles and whole; `bench_tiles.py` has SAHI around our detector."""
    canvas = Image.new("RGB", (3840, 2160), (114, 114, 114))
    corners = itertools.product(range(0, 2160, 480), range(0, 3840, 640))
    for corner, file in zip(corners, sorted((assets / "coco" / "val").glob("*.jpg")), strict=False):
        canvas.paste(Image.open(file), corner[::-1])
    canvas.save(tmp_path / "large.png", compress_level=0)
    model = assets / "models" / "yolov8n.onnx"
    against("a large file to boxes, tiles", model, tmp_path / "large.png", "sahi", "tiles", claim, rounds=ROUNDS)


def test_from_a_folder_to_classes(assets: Path, tmp_path: Path, claim: Callable[..., None]) -> None:
    for file in sorted((assets / "imagenet").glob("*.JPEG"))[:24]:
        (tmp_path / file.name).symlink_to(file)
    model = assets / "models" / "squeezenet1.1.onnx"
    against("a folder to classes", model, tmp_path, "model_api", "fixed", claim, same=False)


if __name__ == "__main__":
    try:
        in_a_process(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
    except pytest.skip.Exception as reason:
        print(json.dumps({"skipped": str(reason)}), file=sys.__stdout__, flush=True)
