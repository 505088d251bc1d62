"""Quantisers on the same images, ours and those of NNCF, ONNX Runtime and modelopt; and the parts of calibration.

Each model is quantised on one half of the images and scored on the other one, both ways. Each quantiser runs in its own
process with its defaults, and with the ignored scope of its own examples for the heads of detectors. CPU time and the
peak of memory are those of the process; ours includes comparisons of results and speed that the others do not make.
The speed is that of `forward()`, in turns, against the file in FP32, with INFERSDK_BENCH_THREADS threads (default 1).

`pip install nncf` or modelopt; INFERSDK_BENCH_OTHERS is the interpreter of an environment that has them.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rounds import ASSETS, ENVIRONMENT, Turns

import infersdk
from infersdk import quant
from infersdk.bench.machine import peak_resident_bytes
from infersdk.graph.files import write_model
from infersdk.models import load
from infersdk.quant.prepare import prepare

if TYPE_CHECKING:
    from collections.abc import Callable

OTHERS = os.environ.get("INFERSDK_BENCH_OTHERS", sys.executable)
THREADS = int(os.environ.get("INFERSDK_BENCH_THREADS", "1"))
NAMES = str(ASSETS / "models" / "coco80.txt")
#: Settings of each model, and the names of nodes that other quantisers leave in floating point: the head's decoding.
SUBJECTS: dict[str, tuple[dict[str, Any], str]] = {
    "yolov5n": ({"iou": 0.6}, r"/model\.24/(?!m\.).*"),
    "yolov8n": ({"iou": 0.7}, r"/model\.22/(?!cv).*|/model\.22/dfl.*"),
    "yolox_nano": ({"iou": 0.65, "type": "yolox", "legacy": True, "names": NAMES}, r"$^"),
    "squeezenet1.1": ({"type": "classifier", "preset": "caffe"}, r"$^"),
}


def model_path(name: str) -> Path:
    return ASSETS / "models" / f"{name}.onnx"


def images(name: str, half: int) -> list[Path]:
    folder = ASSETS / ("imagenet" if name == "squeezenet1.1" else "coco/val")
    return sorted(path for path in folder.iterdir() if path.suffix in (".jpg", ".JPEG"))[half::2]


def wrapper(name: str, path: Path, backend: str, **settings: Any) -> Any:
    return load(path, backend, **SUBJECTS[name][0], **settings)


# ---- quantisers: each writes a file ----


def prepared_inputs(name: str, half: int) -> list[dict[str, Any]]:
    with wrapper(name, model_path(name), "onnxruntime") as model:
        return [dict(feed) for feed in quant.ImageInputs(model, images(name, half))]


def by_infersdk(name: str, half: int, backend: str, output: Path) -> None:
    opened: Callable[[Path], Any] = lambda path: wrapper(name, path, backend)  # noqa: E731
    quant.Workflow(model_path(name), images(name, half), opened, target=backend).run(output)


def by_nncf(name: str, half: int, backend: str, output: Path) -> None:
    import nncf
    import onnx

    model: Any
    if backend == "openvino":
        import openvino

        model = openvino.Core().read_model(model_path(name))
        names = [node.get_friendly_name() for node in model.get_ops()]
    else:
        model = onnx.load(model_path(name))
        names = [node.name for node in model.graph.node]
    left = [one for one in names if re.fullmatch(SUBJECTS[name][1], one)]
    feeds = prepared_inputs(name, half)
    made = nncf.quantize(
        model, nncf.Dataset(feeds, lambda feed: feed), preset=nncf.QuantizationPreset.MIXED, subset_size=len(feeds),
        ignored_scope=nncf.IgnoredScope(names=left) if left else None,
    )  # fmt: skip
    if backend == "openvino":
        openvino.save_model(made, output.with_suffix(".xml"), compress_to_fp16=False)
    else:
        onnx.save(made, output)


def by_onnxruntime(name: str, half: int, backend: str, output: Path) -> None:
    """Q/DQ, uint8 activations, int8 weights a channel, preprocessed as its manual asks for."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    feeds, plain = iter(prepared_inputs(name, half)), output.with_suffix(".plain.onnx")

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> Any:
            return next(feeds, None)

    quant_pre_process(str(model_path(name)), str(plain), skip_symbolic_shape=True)
    names = [node.name for node in onnx.load(plain).graph.node]
    quantize_static(
        str(plain), str(output), Reader(), quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8, per_channel=True,
        nodes_to_exclude=[one for one in names if re.fullmatch(SUBJECTS[name][1], one)],
    )  # fmt: skip


def by_modelopt(name: str, half: int, backend: str, output: Path) -> None:
    from modelopt.onnx.quantization import quantize

    feeds = prepared_inputs(name, half)
    data = {key: np.concatenate([feed[key] for feed in feeds]) for key in feeds[0]}
    quantize(str(model_path(name)), calibration_data=data, output_path=str(output), quantize_mode="int8")


QUANTISERS = {"infersdk": by_infersdk, "nncf": by_nncf, "onnxruntime": by_onnxruntime, "modelopt": by_modelopt}


def quantised(quantiser: str, name: str, half: int, backend: str, folder: Path) -> tuple[Path, float, float]:
    """The file, CPU seconds and the peak of memory in GB."""
    output = folder / f"{quantiser}.{half}.onnx"
    python = OTHERS if quantiser in ("nncf", "modelopt") else sys.executable
    command = [python, __file__, quantiser, name, str(half), backend, str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-2000:]
    cpu, peak = json.loads(done.stdout.splitlines()[-1])
    made = output.with_suffix(".xml")
    return (made if made.exists() else output), cpu, peak


# ---- scores and speed ----


def score(name: str, path: Path, backend: str, half: int, folder: Path) -> float:
    """mAP, or top-1, on a half of the images."""
    from infersdk.accuracy import coco_figures, read_coco, read_labels, top_figures

    files = {path.name for path in images(name, half)}
    if name == "squeezenet1.1":
        labelled = [image for image in read_labels(ASSETS / "imagenet") if Path(image.file).name in files]
        with wrapper(name, path, backend, top_k=5) as model:
            return top_figures(model, labelled)["top1"]
    data = json.loads((ASSETS / "coco" / "instances_val.json").read_text())
    data["images"] = [image for image in data["images"] if image["file_name"] in files]
    numbers = {image["id"] for image in data["images"]}
    data["annotations"] = [box for box in data["annotations"] if box["image_id"] in numbers]
    (folder / "half.json").write_text(json.dumps(data))
    with wrapper(name, path, backend, conf=0.001, multi_label=True, max_det=300) as model:
        return coco_figures(model, read_coco(folder / "half.json", ASSETS / "coco" / "val"))["mAP"]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("quantiser", QUANTISERS)
@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
@pytest.mark.parametrize("name", SUBJECTS)
def test_quantiser(assets: Path, tmp_path: Path, name: str, backend: str, quantiser: str, turns: Turns) -> None:
    pytest.importorskip(backend)
    if sys.executable == OTHERS:
        pytest.importorskip(quantiser)
    made = [quantised(quantiser, name, half, backend, tmp_path) for half in (0, 1)]
    pairs = [
        (score(name, file, backend, 1 - half, tmp_path), score(name, model_path(name), backend, 1 - half, tmp_path))
        for half, (file, _, _) in enumerate(made)
    ]
    int8, fp32 = np.mean(pairs, axis=0).tolist()
    turns.note("mAP or top-1", round(int8, 4))
    turns.note("against FP32", round(int8 - fp32, 4))
    turns.note("CPU s", round(float(np.mean([cpu for _, cpu, _ in made])), 1))
    turns.note("peak GB", round(max(peak for _, _, peak in made), 2))
    (feed,) = (dict(feed) for feed in quant.ImageInputs(wrapper(name, model_path(name), backend), images(name, 0)[:1]))
    files = {"INT8": made[0][0], "FP32": model_path(name)}
    if quantiser == "infersdk":  # the form of the model that ours quantises: the part of the speed that is not INT8's
        files["FP32, prepared"] = write_model(prepare(model_path(name)), tmp_path / "prepared.onnx")
    with contextlib.ExitStack() as stack:
        infers = {n: stack.enter_context(infersdk.load(path, backend, threads=THREADS)) for n, path in files.items()}
        for infer in infers.values():
            infer(feed)
        turns.times({n: infer.forward for n, infer in infers.items()}, calls=5)


# ---- the parts of calibration ----


def test_thresholds(turns: Turns) -> None:
    """Entropy thresholds of 10 tensors, against ONNX Runtime's calibrator on the same histograms."""
    calibrate = pytest.importorskip("onnxruntime.quantization.calibrate")
    rng, histograms = np.random.default_rng(0), []
    for i in range(10):
        histograms.append(quant.Histogram(8192))
        histograms[-1].update((rng.normal if i % 2 else rng.laplace)(size=200_000).astype(np.float32))
    collector = calibrate.HistogramCollector("entropy", True, 8192, 128, 99.999, "same")
    for i, one in enumerate(histograms):
        edges = np.linspace(-one.limit, one.limit, len(one.counts) + 1, dtype=np.float32)
        collector.histogram_dict[str(i)] = (one.counts, edges, -one.limit, one.limit, one.limit)
    contenders = {"entropy()": lambda: [one.entropy() for one in histograms], "ONNX Runtime": collector.compute_entropy}
    turns.times(contenders, rounds=1, warm_up=0)


def test_histogram(turns: Turns) -> None:
    """One pass over 32 channels of 320 x 320 after a ReLU."""
    values = np.maximum(np.random.default_rng(1).normal(size=(1, 32, 320, 320)), 0).astype(np.float32)
    histogram, peak = quant.Histogram(), float(values.max())
    contenders: dict[str, Callable[[], object]] = {
        "Histogram.update()": lambda: histogram.update(values, peak),
        "NumPy": lambda: np.histogram(np.abs(values), 4096, (0, peak)),
    }
    turns.times(contenders)


if __name__ == "__main__":
    _, quantiser, name, half, backend, output = sys.argv
    with contextlib.redirect_stdout(io.StringIO()):
        QUANTISERS[quantiser](name, int(half), backend, Path(output))
    print(json.dumps([process_time(), peak_resident_bytes() / 1e9]))
