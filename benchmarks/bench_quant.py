"""Quantisers side by side: ours, NNCF's, ONNX Runtime's `quantize_static` and modelopt's, on the same samples.

Run: `python benchmarks/bench_quant.py [--models yolov5n ...] [--backends ...] [--output table.md]` (the test data of
INFERSDK_ASSETS; `pip install nncf`). All of it takes about 20 minutes on two quiet cores; the table is written after
each pair of model and backend. A tool that needs an environment of its own, as modelopt with its own versions of ONNX
and ONNX Runtime, runs in that: `--python modelopt=/path/to/venv/bin/python`. What cannot be installed is a row that
says so.

Each model is quantised on one half of the images and scored on the other half, both ways, so no figure is of the images
that it was made with. All quantisers have their defaults, and the ignored scope that their own examples use for the
heads of detectors.

Each quantiser runs in a process of its own, which reads and prepares the images itself: its CPU time and its peak of
memory are the process's. Ours includes what it does beyond the others: it compares candidates, results and speed.
Speed is measured in rounds that take turns over all files: the median over the rounds of FP32's time over INT8's. What
our changes of the model's form give by themselves is a row of its own. The interval of a difference is of 300
resamplings of the images, FP32 and INT8 on the same ones; that of a speed is of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

ASSETS = Path(os.environ.get("INFERSDK_ASSETS", Path(__file__).resolve().parents[2] / "shared" / "assets"))
RESAMPLINGS = 300
#: The row of the model in FP32 in the form that ours quantises: what of the speed is not due to INT8.
PREPARED = "FP32, prepared"
#: Seconds that the speed of all files of a model is measured for, at least.
SECONDS = 3.0
#: Seconds after which a quantiser is ended.
LONGEST = 1200
_NAMES = str(ASSETS / "models" / "coco80.txt")


@dataclass(frozen=True)
class Subject:
    """A model, how it is wrapped, and what mAP is measured with.

    Attributes:
        ignored: patterns of names that other quantisers leave in floating point: the head's decoding.
    """

    settings: Mapping[str, Any]
    measured: Mapping[str, Any]
    ignored: tuple[str, ...] = ()


_MAP = {"conf": 0.001, "multi_label": True, "max_det": 300}
SUBJECTS = {
    "yolov5n": Subject({}, {**_MAP, "iou": 0.6}, (r"/model\.24/(?!m\.).*",)),
    "yolov8n": Subject({}, {**_MAP, "iou": 0.7}, (r"/model\.22/(?!cv).*", r"/model\.22/dfl.*")),
    "yolox_nano": Subject({"type": "yolox", "legacy": True, "names": _NAMES}, {**_MAP, "iou": 0.65}),
    "squeezenet1.1": Subject({"type": "classifier", "preset": "caffe"}, {"top_k": 5}),
}


def model_path(name: str) -> Path:
    return ASSETS / "models" / f"{name}.onnx"


def images(name: str, half: int) -> list[Path]:
    if name == "squeezenet1.1":
        return sorted((ASSETS / "imagenet").glob("*.JPEG"))[half::2]
    return sorted((ASSETS / "coco" / "val").glob("*.jpg"))[half::2]


def open_wrapper(name: str, path: Path, backend: str, **settings: Any) -> Any:
    from infersdk.models import load

    return load(path, backend=backend, **SUBJECTS[name].settings, **settings)


# ---- quantisers: each writes a file ----


def prepared_inputs(name: str, half: int) -> list[dict[str, Any]]:
    """What the network is given for the images of a half."""
    from infersdk.quant import ImageInputs

    with open_wrapper(name, model_path(name), "onnxruntime") as wrapper:
        return list(ImageInputs(wrapper, images(name, half)))


def by_infersdk(name: str, half: int, backend: str, output: Path) -> None:
    from infersdk import quant

    work = quant.Workflow(
        model_path(name), images(name, half), lambda path: open_wrapper(name, path, backend), target=backend
    )
    work.run(output)


def by_nncf(name: str, half: int, backend: str, output: Path) -> None:
    """NNCF's MIXED preset: on an OpenVINO model for OpenVINO, on the ONNX model for ONNX Runtime."""
    import nncf

    feeds = prepared_inputs(name, half)
    model: Any
    if backend == "openvino":
        import openvino

        model = openvino.Core().read_model(model_path(name))
        names = [node.get_friendly_name() for node in model.get_ops()]
    else:
        import onnx

        model = onnx.load(model_path(name))
        names = [node.name for node in model.graph.node]
    wanted = [pattern for pattern in SUBJECTS[name].ignored if _matches(pattern, names)]
    made = nncf.quantize(
        model, nncf.Dataset(feeds, lambda feed: feed), preset=nncf.QuantizationPreset.MIXED, subset_size=len(feeds),
        ignored_scope=nncf.IgnoredScope(patterns=wanted) if wanted else None,
    )  # fmt: skip
    if backend == "openvino":
        openvino.save_model(made, output.with_suffix(".xml"), compress_to_fp16=False)
    else:
        onnx.save(made, output)


def _matches(pattern: str, names: Sequence[str]) -> bool:
    import re

    return any(re.fullmatch(pattern, name) for name in names)


def by_onnxruntime(name: str, half: int, backend: str, output: Path) -> None:
    """quantize_static, Q/DQ, uint8 activations, int8 weights a channel; preprocessed as its manual asks for."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    feeds = iter(prepared_inputs(name, half))

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> Any:
            return next(feeds, None)

    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder, "plain.onnx")
        quant_pre_process(str(model_path(name)), str(plain), skip_symbolic_shape=True)
        import onnx

        names = [node.name for node in onnx.load(plain).graph.node]
        left = [one for one in names if any(_matches(pattern, [one]) for pattern in SUBJECTS[name].ignored)]
        quantize_static(
            str(plain), str(output), Reader(), quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8, per_channel=True, nodes_to_exclude=left,
        )  # fmt: skip


def by_modelopt(name: str, half: int, backend: str, output: Path) -> None:
    """NVIDIA's modelopt: signed, for TensorRT."""
    from modelopt.onnx.quantization import quantize

    feeds = prepared_inputs(name, half)
    data = {key: np.concatenate([feed[key] for feed in feeds]) for key in feeds[0]}
    quantize(str(model_path(name)), calibration_data=data, output_path=str(output), quantize_mode="int8")


QUANTISERS: dict[str, Callable[[str, int, str, Path], None]] = {
    "infersdk": by_infersdk, "nncf": by_nncf, "onnxruntime": by_onnxruntime, "modelopt": by_modelopt,
}  # fmt: skip


def run_in_process(
    quantiser: str, name: str, half: int, backend: str, output: Path, python: str = sys.executable
) -> dict[str, Any]:
    """Quantises in a process of its own: the file, CPU seconds, the peak of memory; or why not."""
    command = [python, "-P", __file__, "--one", quantiser, name, str(half), backend, str(output)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return {"failure": f"took more than {LONGEST} s"}
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        return {"failure": last[:200].replace("|", "/")}
    made = output.with_suffix(".xml") if output.with_suffix(".xml").exists() else output
    return {"file": made, **json.loads(done.stdout.splitlines()[-1])}


def _one(quantiser: str, name: str, half: str, backend: str, output: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        QUANTISERS[quantiser](name, int(half), backend, Path(output))
    print(json.dumps({"cpu_s": process_time(), "peak_bytes": _peak_bytes()}))


def _peak_bytes() -> int:
    """The most memory that this process has had; `ru_maxrss` counts what its parent had when it was started, too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


# ---- scores ----


def detections(name: str, path: Path, backend: str, half: int) -> dict[Path, Any]:
    with open_wrapper(name, path, backend, **SUBJECTS[name].measured) as wrapper:
        return {file: wrapper([file])[0] for file in images(name, half)}


class Scorer:
    """mAP (or top-1) of results over any choice of images."""

    def __init__(self, name: str, half: int) -> None:
        from infersdk.accuracy import read_coco

        self.files = images(name, half)
        self.classifies = name == "squeezenet1.1"
        if not self.classifies:
            self.truth = read_coco(ASSETS / "coco" / "instances_val.json", ASSETS / "coco" / "val")
            self.numbers = {file.name: number for number, file in self.truth.files.items()}

    def evaluate(self, found: Mapping[Path, Any]) -> Any:
        """What `score` takes: for classes, hits by image; for boxes, the evaluation of each image."""
        if self.classifies:
            return np.asarray([int(found[file].class_ids[0]) == int(file.name.split("_")[0]) for file in self.files])
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        categories = [number for number, _ in self.truth.categories]
        rows = [
            {"image_id": self.numbers[file.name], "category_id": categories[label], "score": score,
             "bbox": [x1, y1, x2 - x1, y2 - y1]}
            for file, boxes in found.items()
            for (x1, y1, x2, y2), score, label in zip(
                boxes.xyxy.tolist(), boxes.scores.tolist(), boxes.class_ids.tolist(), strict=True
            )
        ]  # fmt: skip
        with contextlib.redirect_stdout(io.StringIO()):
            truth = COCO()
            truth.dataset = dict(self.truth.data)
            truth.createIndex()
            evaluation = COCOeval(truth, truth.loadRes(rows), "bbox")
            evaluation.params.imgIds = [self.numbers[file.name] for file in self.files]
            evaluation.evaluate()
        return evaluation

    def score(self, evaluated: Any, chosen: Sequence[int] | None = None) -> float:
        """Over images by their positions, which may come more than once."""
        at = np.arange(len(self.files)) if chosen is None else np.asarray(chosen)
        if self.classifies:
            return float(evaluated[at].mean())
        order = {number: i for i, number in enumerate(evaluated.params.imgIds)}
        return _average_precision(evaluated, [order[self.numbers[self.files[i].name]] for i in at])


def _average_precision(evaluation: Any, chosen: Sequence[int]) -> float:
    """mAP over IoU 0.5 to 0.95 of chosen images, by their positions: COCOeval's accumulation.

    101 points of recall, 100 boxes an image.
    """
    count, areas = len(evaluation.params.imgIds), len(evaluation.params.areaRng)
    result = []
    for category in range(len(evaluation.params.catIds)):
        entries = [evaluation.evalImgs[category * areas * count + i] for i in chosen]  # the first area is all of them
        entries = [entry for entry in entries if entry is not None]
        if not entries:
            continue
        ignored = np.concatenate([entry["gtIgnore"] for entry in entries])
        positives = int(np.count_nonzero(ignored == 0))
        if positives == 0:
            continue
        scores = np.concatenate([entry["dtScores"][:100] for entry in entries])
        sort = np.argsort(-scores, kind="mergesort")
        matched = np.concatenate([entry["dtMatches"][:, :100] for entry in entries], axis=1)[:, sort]
        skipped = np.concatenate([entry["dtIgnore"][:, :100] for entry in entries], axis=1)[:, sort]
        hits = np.cumsum((matched != 0) & ~skipped.astype(bool), axis=1)
        misses = np.cumsum((matched == 0) & ~skipped.astype(bool), axis=1)
        for hit, miss in zip(hits, misses, strict=True):
            recall = hit / positives
            precision = np.maximum.accumulate((hit / np.maximum(hit + miss, 1))[::-1])[::-1]
            at = np.searchsorted(recall, np.linspace(0, 1, 101), side="left")
            result.append(np.append(precision, 0.0)[np.minimum(at, len(precision))].mean())
    return float(np.mean(result)) if result else 0.0


def resampled(scorers: Sequence[Scorer], evaluated: Sequence[Any]) -> Any:
    """Scores over images drawn with replacement, the same draws for all; the mean of both halves."""
    rng = np.random.default_rng(0)
    draws = [[rng.integers(0, len(s.files), len(s.files)) for s in scorers] for _ in range(RESAMPLINGS)]
    return np.asarray([score(scorers, evaluated, drawn) for drawn in draws])


def score(scorers: Sequence[Scorer], evaluated: Sequence[Any], chosen: Sequence[Any] | None = None) -> float:
    """The mean over both halves."""
    picked = chosen or [None] * len(scorers)
    return float(np.mean([s.score(e, c) for s, e, c in zip(scorers, evaluated, picked, strict=True)]))


def prepared(name: str, path: Path) -> Path:
    """The model in FP32 in the form that ours quantises."""
    from infersdk.graph.files import write_model
    from infersdk.quant.prepare import prepare

    return write_model(prepare(model_path(name)), path)


def speeds(
    name: str, files: Mapping[str, Path], backend: str, rounds: int, threads: int | None
) -> dict[str, tuple[float, float, float, float]]:
    """How many times as fast as FP32 each file is, its 95 % interval, and its milliseconds.

    Medians over rounds in which all take turns.

    Args:
        rounds: at least so many, and as many as fit into some seconds.
        threads: of the backend; None is its default.
    """
    import infersdk
    from infersdk.quant import ImageInputs

    options = {} if threads is None else {"threads": threads}
    with open_wrapper(name, model_path(name), backend) as wrapper, contextlib.ExitStack() as stack:
        feeds = next(iter(ImageInputs(wrapper, images(name, 0)[:1])))
        infers = {key: stack.enter_context(infersdk.load(path, backend, **options)) for key, path in files.items()}
        times: dict[str, list[float]] = {key: [] for key in files}
        for infer in infers.values():
            for _ in range(3):
                infer(feeds)
        keys = list(infers)
        began, number = perf_counter(), 0
        while number < rounds or perf_counter() - began < SECONDS:
            for key in keys[number % len(keys) :] + keys[: number % len(keys)]:
                start = perf_counter()
                infers[key].forward()
                times[key].append(perf_counter() - start)
            number += 1
    return {
        key: (*_median(np.divide(times["FP32"], spent)), statistics.median(spent) * 1e3) for key, spent in times.items()
    }


def _median(values: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    """The median and the ends of its 95 % interval, by resampling."""
    drawn = np.random.default_rng(0).choice(values, (2000, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return float(np.median(values)), float(low), float(high)


# ---- the table ----


def compare(
    name: str, backend: str, quantisers: Sequence[str], folder: Path, pythons: Mapping[str, str], *, rounds: int,
    threads: int | None,
) -> list[str]:  # fmt: skip
    """The rows of a model on a backend."""
    began = perf_counter()
    scorers = [Scorer(name, 1 - half) for half in (0, 1)]  # what is made on a half is scored on the other
    plain = [s.evaluate(detections(name, model_path(name), backend, 1 - h)) for h, s in enumerate(scorers)]
    base, drawn = score(scorers, plain), resampled(scorers, plain)
    print(f"{name} on {backend}: FP32 {base:.4f}", file=sys.stderr)
    rows = {"FP32": [f"{base:.4f}", "", "", "", ""]}
    files = {"FP32": model_path(name)}
    for quantiser in quantisers:
        made = [
            run_in_process(
                quantiser, name, half, backend, folder / f"{name}.{backend}.{quantiser}.{half}.onnx",
                pythons.get(quantiser, sys.executable),
            )
            for half in (0, 1)
        ]  # fmt: skip
        if failure := next((one["failure"] for one in made if "failure" in one), None):
            rows[quantiser] = [failure, "", "", "", ""]
            print(f"{quantiser}: {failure}", file=sys.stderr)
            continue
        try:
            after = [
                s.evaluate(detections(name, one["file"], backend, 1 - h))
                for h, (s, one) in enumerate(zip(scorers, made, strict=True))
            ]
        except Exception as error:  # a file that the backend does not take is a result
            rows[quantiser] = [f"{type(error).__name__}: {str(error)[:160]}", "", "", "", ""]
            continue
        mean = score(scorers, after) - base
        low, high = np.percentile(resampled(scorers, after) - drawn, (2.5, 97.5))
        files[quantiser] = made[0]["file"]
        rows[quantiser] = [
            f"{base + mean:.4f}", f"{mean:+.4f} ({low:+.4f} to {high:+.4f})", "",
            f"{np.mean([one['cpu_s'] for one in made]):.1f}",
            f"{max(one['peak_bytes'] for one in made) / 1e9:.2f}",
        ]  # fmt: skip
        print(f"{quantiser}: {rows[quantiser]}", file=sys.stderr)
    rows[PREPARED] = [""] * 5
    files[PREPARED] = prepared(name, folder / f"{name}.prepared.onnx")
    for key, (ratio, low, high, spent) in speeds(name, files, backend, rounds, threads).items():
        rows[key][2] = f"{ratio:.3f} ({low:.3f} to {high:.3f}), {spent:.1f} ms"
    print(f"{name} on {backend} took {perf_counter() - began:.0f} s", file=sys.stderr)
    return [f"| {name} | {backend} | {key} | " + " | ".join(row) + " |" for key, row in rows.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(SUBJECTS), choices=list(SUBJECTS))
    parser.add_argument("--backends", nargs="+", default=["openvino", "onnxruntime"])
    parser.add_argument("--quantisers", nargs="+", default=list(QUANTISERS), choices=list(QUANTISERS))
    parser.add_argument("--rounds", type=int, default=30, help="of the speed (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="of the speed (default: the backend's own)")
    parser.add_argument("--output", type=Path, help="a file for the table; else it is printed")
    parser.add_argument(
        "--python", action="append", default=[], metavar="QUANTISER=PATH", help="the interpreter that has a quantiser"
    )
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        _one(*arguments.one)
        return
    lines = [
        "| model | backend | quantiser | mAP or top-1 | against FP32, 95 % interval | speed | CPU s | peak GB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    pythons = dict(one.split("=", 1) for one in arguments.python)
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models:
            for backend in arguments.backends:
                lines += compare(
                    name, backend, arguments.quantisers, Path(folder), pythons, rounds=arguments.rounds,
                    threads=arguments.threads,
                )  # fmt: skip
                if arguments.output:
                    arguments.output.write_text("\n".join([*lines, ""]))
    if not arguments.output:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
