"""From the file of an image to results, against other tools; and networks alone, by `infersdk bench`.

Each tool is called as its documentation has it, on the same runtime, with its usual threads, at the same size and
thresholds, in a process of its own: `pip install ultralytics openvino-model-api polyinfer sahi rapidocr_onnxruntime`. A
tool that does not import is skipped. INFERSDK_BENCH_OTHERS is the interpreter of an environment that has them.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rounds import ENVIRONMENT, SECONDS, Turns, Worker, large_files, rate

from infersdk.bench import BenchSettings, Combination, bench
from infersdk.core.processors import available_processors
from infersdk.core.target import Target
from infersdk.graph.passes import ResizeInput, prepared_model
from infersdk.models import OCR, Tiled, YOLOv5, YOLOv8, load

OTHERS = os.environ.get("INFERSDK_BENCH_OTHERS", sys.executable)
BACKENDS = ["onnxruntime", "openvino"]
OCR_NETWORKS = ("ch_PP-OCRv4_det_infer.onnx", "ch_PP-OCRv4_rec_infer.onnx", "ch_ppocr_mobile_v2.0_cls_infer.onnx")


# ---- one contender, in a process of its own: from a file to the number of results ----


def ultralytics(model: str, backend: str) -> Callable[[str], int]:
    os.environ.setdefault("YOLO_AUTOINSTALL", "false")
    from ultralytics import YOLO

    detector = YOLO(model, task="detect")
    settings = {"conf": 0.25, "iou": 0.45, "imgsz": 640, "rect": False, "device": "cpu", "verbose": False}
    return lambda file: sum(len(result.boxes) for result in detector.predict(file, stream=True, **settings))


def model_api(model: str, backend: str) -> Callable[[str], int]:
    import cv2
    from model_api.adapters import OpenvinoAdapter, create_core
    from model_api.models import Model

    # In float32, as ours: without the hint OpenVINO computes in bfloat16 where the processor can.
    properties = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    adapter = OpenvinoAdapter(create_core(), model, device="CPU", plugin_config=properties)
    settings = {"confidence_threshold": 0.25, "iou_threshold": 0.45}
    detector = Model.create_model(adapter, model_type="YOLOv8", configuration=settings)
    return lambda file: len(detector(cv2.cvtColor(cv2.imread(file), cv2.COLOR_BGR2RGB)).bboxes)


def polyinfer(model: str, backend: str) -> Callable[[str], int]:
    """It runs the network alone; around it is OpenCV and NumPy."""
    import cv2
    import polyinfer as module

    network = module.load(model, backend="onnxruntime", device="cpu")

    def call(file: str) -> int:
        pixels = cv2.imread(file)
        scale = min(640 / pixels.shape[0], 640 / pixels.shape[1])
        width, height = round(pixels.shape[1] * scale), round(pixels.shape[0] * scale)
        canvas, left, top = np.full((640, 640, 3), 114, np.uint8), (640 - width) // 2, (640 - height) // 2
        canvas[top : top + height, left : left + width] = cv2.resize(pixels, (width, height))
        x = np.ascontiguousarray(canvas[..., ::-1].transpose(2, 0, 1)[None].astype(np.float32) / 255)
        rows = network(x)[0].T
        rows = rows[rows[:, 4:].max(1) > 0.25]
        best, kinds = rows[:, 4:].max(1), rows[:, 4:].argmax(1)
        corners = rows[:, :2] - rows[:, 2:4] / 2 + kinds[:, None] * 7680.0
        return len(cv2.dnn.NMSBoxes(np.hstack([corners, rows[:, 2:4]]).tolist(), best.tolist(), 0.25, 0.45))

    return call


def sahi(model: str, backend: str) -> Callable[[str], int]:
    """Tiles, by its support for Ultralytics."""
    os.environ.setdefault("YOLO_AUTOINSTALL", "false")
    from sahi import AutoDetectionModel
    from sahi.predict import get_sliced_prediction

    detector = AutoDetectionModel.from_pretrained(
        "ultralytics", model_path=model, confidence_threshold=0.25, device="cpu", image_size=640
    )
    predict = detector.model.predict
    detector.model.predict = lambda *args, **kwargs: predict(*args, **{**kwargs, "rect": False})
    settings = {
        "slice_height": 640, "slice_width": 640, "overlap_height_ratio": 0.2, "overlap_width_ratio": 0.2,
        "postprocess_type": "NMS", "postprocess_match_metric": "IOS", "verbose": 0, "batch_size": 8,
    }  # fmt: skip
    return lambda file: len(get_sliced_prediction(file, detector, **settings).object_prediction_list)


def rapidocr(model: str, backend: str) -> Callable[[str], int]:
    from rapidocr_onnxruntime import RapidOCR

    names = ("det_model_path", "rec_model_path", "cls_model_path")
    engine = RapidOCR(**{name: str(Path(model, file)) for name, file in zip(names, OCR_NETWORKS, strict=True)})
    return lambda file: len(engine(file)[0] or [])


def infersdk(model: str, backend: str) -> Callable[[str], int]:
    detector = YOLOv8(model, backend, iou=0.45)
    return lambda file: len(detector(file))


def infersdk_tiles(model: str, backend: str) -> Callable[[str], int]:
    tiled = Tiled(YOLOv8(model, backend, max_batch=8), tile=640, overlap=0.2)
    return lambda file: len(tiled(file))


def infersdk_ocr(model: str, backend: str) -> Callable[[str], int]:
    reader = OCR(*(Path(model, file) for file in OCR_NETWORKS), backend)
    return lambda file: len(reader(file))


def serve(name: str, model: str, backend: str, image: str) -> None:
    """For each line of seconds on stdin: calls a second."""
    answers, sys.stdout = sys.stdout, sys.stderr  # packages print to stdout
    call = globals()[name](model, backend)
    print(json.dumps(call(image)), file=answers, flush=True)
    for line in sys.stdin:
        call(image)
        print(json.dumps(rate(lambda: call(image), seconds=float(line))), file=answers, flush=True)


def against(turns: Turns, mine: str, theirs: str, packages: str, model: Path, image: Path, backend: str) -> None:
    """Sessions of ONNX Runtime in one process would slow each other: their threads spin after a run."""
    done = subprocess.run([OTHERS, "-c", f"import {packages}"], check=False, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1]
        pytest.skip(f"{OTHERS} does not import {packages}: {reason}")
    commands = [
        (python, __file__, name, model, backend, image) for python, name in ((sys.executable, mine), (OTHERS, theirs))
    ]
    with Worker(*commands[0]) as ours, Worker(*commands[1]) as other:
        assert abs(ours.ready - other.ready) <= 2 + 0.05 * other.ready, "the tools do not find the same"
        turns.rates({mine: lambda: ours.ask(SECONDS), theirs: lambda: other.ask(SECONDS)})


@pytest.mark.parametrize(
    ("theirs", "packages", "backend"),
    [
        ("ultralytics", "ultralytics, torchvision", "onnxruntime"), ("model_api", "model_api", "openvino"),
        ("polyinfer", "polyinfer", "onnxruntime"),
    ],
)  # fmt: skip
def test_from_a_file_to_boxes(assets: Path, theirs: str, packages: str, backend: str, turns: Turns) -> None:
    image = assets / "images" / "bus.jpg"
    against(turns, "infersdk", theirs, packages, assets / "models" / "yolov8n.onnx", image, backend)


def test_from_a_large_file_to_boxes(assets: Path, tmp_path: Path, turns: Turns) -> None:
    """3840 x 2160, made of photographs, in tiles."""
    canvas, large = Image.new("RGB", (3840, 2160), (114, 114, 114)), tmp_path / "large.png"
    corners = itertools.product(range(0, 2160, 480), range(0, 3840, 640))
    for corner, file in zip(corners, sorted((assets / "coco" / "val").glob("*.jpg")), strict=False):
        canvas.paste(Image.open(file), corner[::-1])
    canvas.save(large, compress_level=0)
    model, packages = assets / "models" / "yolov8n.onnx", "sahi, ultralytics, torchvision"
    against(turns, "infersdk_tiles", "sahi", packages, model, large, "onnxruntime")


def test_from_a_page_to_text(assets: Path, turns: Turns) -> None:
    page = assets / "ocr" / "en.jpg"
    against(turns, "infersdk_ocr", "rapidocr", "rapidocr_onnxruntime", assets / "ocr", page, "onnxruntime")


# ---- networks alone ----

#: As onnxruntime_perf_test does it: inputs and outputs bound once.
RAW_LOOP = """
import sys
import numpy as np, onnxruntime as ort
from rounds import rate
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
rate(lambda: session.run_with_iobinding(binding), seconds=1)
print(rate(lambda: session.run_with_iobinding(binding), batch, seconds))
"""


def reported(model: Path, backend: str, batch: int, **options: Any) -> float:
    """Images a second of the engine alone, by `infersdk bench`."""
    combination = Combination(model=str(model), target=Target(backend, precision="fp32"), batch=batch, options=options)
    settings = BenchSettings(type="arrays", time=SECONDS, rounds=1, warmup=5, scenarios=["engine"])
    (row,) = bench([combination], settings, accuracy=False, loading=False).rows
    assert row.status == "ok", row.reason
    return row.scenarios["engine"].throughput.value


def printed(*command: object) -> str:
    words = [sys.executable, *map(str, command)]
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("batch", [1, 8])
def test_bench_against_a_loop_by_hand(assets: Path, batch: int, turns: Turns) -> None:
    pytest.importorskip("onnxruntime")
    model, threads = assets / "models" / "yolov5n.onnx", available_processors()
    contenders = {
        "infersdk bench": lambda: reported(model, "onnxruntime", batch, threads=threads),
        "loop by hand": lambda: float(printed("-c", RAW_LOOP, model, threads, batch, SECONDS)),
    }
    turns.rates(contenders, warm_up=0)


@pytest.mark.parametrize("batch", [1, 8])
def test_bench_against_benchmark_app(assets: Path, tmp_path: Path, batch: int, turns: Turns) -> None:
    """With `-api async`: its synchronous call copies the outputs as well."""
    pytest.importorskip("openvino.tools.benchmark")
    onnx = pytest.importorskip("onnx")
    graph, model = onnx.load(assets / "models" / "yolov5n.onnx"), tmp_path / "fixed.onnx"
    for value in (*graph.graph.input, *graph.graph.output):  # a free batch takes longer, and the other tool fixes it
        value.type.tensor_type.shape.dim[0].dim_value = batch
    onnx.save(graph, model)
    command = ("-c", "from openvino.tools.benchmark.main import main; main()", "-m", model, "-d", "CPU")
    hints = f"-t {max(1, round(SECONDS))} -infer_precision f32 -ip f32 -hint latency -api async -nireq 1".split()

    def theirs() -> float:
        match = re.search(r"Throughput:\s+([\d.]+) FPS", printed(*command, *hints, "-b", batch))
        assert match
        return float(match[1])

    turns.rates({"infersdk bench": lambda: reported(model, "openvino", batch), "benchmark_app": theirs}, warm_up=0)


# ---- settings of our own ----


def test_decoding(assets: Path, turns: Turns) -> None:
    pytest.importorskip("simplejpeg")
    from infersdk.image import read_image

    (data,) = large_files(assets, 1)
    contenders: dict[str, Callable[[], Any]] = {
        "read_image()": lambda: read_image(data).pixels,
        "Pillow": lambda: np.asarray(Image.open(io.BytesIO(data))),
    }
    np.testing.assert_array_equal(*(run() for run in contenders.values()))
    turns.times(contenders, calls=5)


def test_jpeg_bytes_to_boxes(assets: Path, turns: Turns) -> None:
    files = large_files(assets, 8)
    path = assets / "models" / "yolov5n.onnx"
    with YOLOv5(path, max_batch=4) as model, YOLOv5(path, max_batch=4, scaled_decode=True) as scaled:
        contenders: dict[str, Callable[[], object]] = {
            "stream()": lambda: list(model.stream(files)),
            "map()": lambda: list(model.map(files)),
            "one by one": lambda: [model(data) for data in files],
            "stream(), scaled_decode": lambda: list(scaled.stream(files)),
        }
        turns.rates({name: lambda r=run: rate(r, len(files)) for name, run in contenders.items()})  # type: ignore[misc]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["yolov5n", "yolov8n"])
def test_native_decoding_of_the_head(assets: Path, photograph: Any, name: str, backend: str, turns: Turns) -> None:
    pytest.importorskip(backend)
    path = assets / "models" / f"{name}.onnx"
    with load(path, backend, threads=1) as native, load(path, backend, threads=1, decode_head="graph") as graph:
        assert native.decode_head_used == "native"
        np.testing.assert_allclose(native(photograph).scores, graph(photograph).scores, atol=1e-4)
        turns.times({"native": lambda: native(photograph), "graph": lambda: graph(photograph)}, calls=3)


@pytest.mark.parametrize("backend", [*BACKENDS, pytest.param("tensorrt-rtx", marks=pytest.mark.gpu)])
def test_canvases_that_fit(assets: Path, backend: str, turns: Turns) -> None:
    """Frames of 1080p on a canvas of 640 x 384 instead of 640 x 640, and the gain of the engine alone."""
    import infersdk as sdk

    pytest.importorskip({"tensorrt-rtx": "tensorrt_rtx_bindings"}.get(backend, backend))
    path = assets / "models" / "yolov8n.onnx"
    frames = [np.random.default_rng(0).integers(0, 255, (1080, 1920, 3), np.uint8)] * 8
    small, large = np.zeros((4, 3, 384, 640), np.float32), np.zeros((4, 3, 640, 640), np.float32)
    settings: dict[str, Any] = {"backend": backend, "max_batch": 4, "precision": "fp16" if "rtx" in backend else None}
    resized = prepared_model(path, [ResizeInput(640, 384)])
    assert resized is not None
    with (
        YOLOv8(path, canvas="fit", canvas_sizes=[(640, 384)], **settings) as fit,
        YOLOv8(path, **settings) as fixed,
        sdk.load(resized, **settings) as small_engine,
        sdk.load(path, **settings) as large_engine,
    ):
        contenders = {
            "fit": lambda: list(fit.stream(frames)),
            "fixed": lambda: list(fixed.stream(frames)),
            "engine, 640 x 384": lambda: [small_engine(small) for _ in range(2)],
            "engine, 640 x 640": lambda: [large_engine(large) for _ in range(2)],
        }
        turns.times(contenders)


if __name__ == "__main__":
    serve(*sys.argv[1:])
