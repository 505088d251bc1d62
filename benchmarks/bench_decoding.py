"""From JPEG files to results: decoders, threads, and what users write today, side by side.

    pytest benchmarks/bench_decoding.py -q -s            # the processor
    pytest benchmarks/bench_decoding.py -q -s -m gpu     # a GPU with nvImageCodec and TensorRT-RTX

The rounds alternate, and a ratio is the median over them. INFERSDK_BENCH_ROUNDS is how many there are (default 9),
INFERSDK_BENCH_IMAGES how many images a round has (default 48).
"""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rounds import times

from infersdk import device_count
from infersdk.bench.statistics import median_of_rounds
from infersdk.image import read_image
from infersdk.models import Classifier, YOLOv5
from infersdk.models.read_ahead import decoding_threads, read_ahead

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: A process that decodes as many images as a line says, over and over, by the decoder that this process has.
DECODE = """
import pickle, sys
from itertools import cycle, islice
from infersdk.image import read_image
files = cycle(pickle.loads(open(sys.argv[1], "rb").read()))
for line in sys.stdin:
    for data in islice(files, int(line)):
        read_image(data)
    print("done", flush=True)
"""
ROUNDS = int(os.environ.get("INFERSDK_BENCH_ROUNDS", "9"))
IMAGES = int(os.environ.get("INFERSDK_BENCH_IMAGES", "48"))


def rates_of(works: dict[str, Callable[[], Any]], count: int) -> dict[str, np.ndarray]:
    """Images a second of each, by name, in each round. One round warms up."""
    return {name: count / taken for name, taken in times(works, ROUNDS, warm_up=1).items()}


def report(what: str, rates: dict[str, np.ndarray], mine: str, theirs: str, claim: Callable[..., None]) -> None:
    estimate = median_of_rounds(rates[mine] / rates[theirs])
    print(f"\n{what}: " + ", ".join(f"{name} {float(np.median(values)):.1f}/s" for name, values in rates.items()))
    print(f"  {mine} is {estimate.value:.3f} times {theirs} (95 %: {estimate.low:.3f} to {estimate.high:.3f})")
    claim(what, estimate.value, low=estimate.low, high=estimate.high)


def large(assets: Path) -> list[bytes]:
    """JPEG files of 1920 x 1080, about 500 kB each."""
    from PIL import Image

    files = []
    for number in range(8):
        with Image.open(assets / "images" / ("bus.jpg", "zidane.jpg")[number % 2]) as image:
            frame = image.convert("RGB").resize((1920, 1080)).rotate(number)
        buffer = io.BytesIO()
        frame.save(buffer, "JPEG", quality=96)
        files.append(buffer.getvalue())
    return files


def pixels_by_pillow(data: bytes) -> Any:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def test_decoders(assets: Path, claim: Callable[..., None]) -> None:
    """One thread: what reads images now against Pillow."""
    pytest.importorskip("simplejpeg")
    files = large(assets)[:4]
    for data in files:
        np.testing.assert_array_equal(read_image(data).pixels, pixels_by_pillow(data))
    works = {
        "simplejpeg": lambda: [read_image(data) for data in files],
        "Pillow": lambda: [pixels_by_pillow(data) for data in files],
    }
    report("decoding 1080p JPEG, one thread", rates_of(works, len(files)), "simplejpeg", "Pillow", claim)


def test_threads_against_processes(assets: Path, claim: Callable[..., None], tmp_path: Path) -> None:
    """Images in one process, in order, against as many processes that do nothing but decode."""
    files = (large(assets) * (IMAGES // 8 + 1))[:IMAGES]
    count = decoding_threads()
    (tmp_path / "files.pickle").write_bytes(pickle.dumps(large(assets)))
    command = [sys.executable, "-c", DECODE, str(tmp_path / "files.pickle")]
    with ExitStack() as stack:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        workers = [stack.enter_context(subprocess.Popen(command, cwd=tmp_path, **pipes)) for _ in range(count)]
        for worker in workers:
            stack.callback(worker.terminate)

        def by_processes() -> None:
            for number, worker in enumerate(workers):
                print(len(range(number, IMAGES, count)), file=worker.stdin, flush=True)
            for worker in workers:
                assert worker.stdout is not None
                worker.stdout.readline()

        works = {
            "threads": lambda: sum(1 for _ in read_ahead(iter(files), read_image, 16, overlap=True)),
            "processes": by_processes,
        }
        report(f"decoding 1080p JPEG on {count} cores", rates_of(works, IMAGES), "threads", "processes", claim)


def test_classifier_from_files(assets: Path, claim: Callable[..., None]) -> None:
    """A folder of files to classes, against the loop that users write: OpenCV, NumPy, ONNX Runtime, image by image."""
    ort, cv2 = pytest.importorskip("onnxruntime"), pytest.importorskip("cv2")
    files = sorted((assets / "imagenet").glob("*.JPEG"))[:IMAGES]
    session = ort.InferenceSession(str(assets / "models" / "squeezenet1.1.onnx"))

    def plain() -> list[int]:
        best = []
        for file in files:
            image = cv2.imread(str(file))
            scale = 259 / min(image.shape[:2])
            image = cv2.resize(image, (round(image.shape[1] * scale), round(image.shape[0] * scale)))
            left, top = (image.shape[1] - 227) // 2, (image.shape[0] - 227) // 2
            pixels = image[top : top + 227, left : left + 227].astype(np.float32)
            pixels = (pixels - np.array([104, 117, 123], np.float32)).transpose(2, 0, 1)[None]
            best.append(int(session.run(None, {"data": np.ascontiguousarray(pixels)})[0].argmax()))
        return best

    with Classifier(assets / "models" / "squeezenet1.1.onnx", preset="caffe", resize=259, max_batch=8) as model:
        ours = [result[0].class_id for result in model.stream(files)]
        same = sum(a == b for a, b in zip(ours, plain(), strict=True))
        assert same >= 0.85 * len(files), same  # the crop may be one pixel off
        works = {"stream()": lambda: list(model.stream(files)), "plain loop": plain}
        report("classifier from files", rates_of(works, len(files)), "stream()", "plain loop", claim)


def test_files_to_boxes(assets: Path, claim: Callable[..., None]) -> None:
    """1080p JPEG bytes to boxes, decoded on all cores, against the same wrapper image by image."""
    files = large(assets)
    with YOLOv5(assets / "models" / "yolov5n.onnx", max_batch=4) as model:
        works = {
            "stream()": lambda: list(model.stream(files)),
            "map()": lambda: list(model.map(files)),
            "one by one": lambda: [model(data) for data in files],
        }
        rates = rates_of(works, len(files))
        report("1080p JPEG bytes to boxes, stream()", rates, "stream()", "one by one", claim)
        report("1080p JPEG bytes to boxes, map()", rates, "map()", "one by one", claim)


def test_reduced_decoding(assets: Path, claim: Callable[..., None]) -> None:
    files = large(assets)
    path = assets / "models" / "yolov5n.onnx"
    with YOLOv5(path, max_batch=4) as whole, YOLOv5(path, max_batch=4, scaled_decode=True) as reduced:
        works = {
            "scaled_decode=True": lambda: list(reduced.stream(files)),
            "in full": lambda: list(whole.stream(files)),
        }
        rates = rates_of(works, len(files))
        report("1080p JPEG bytes to boxes at half the size", rates, "scaled_decode=True", "in full", claim)


@pytest.mark.gpu
@pytest.mark.skipif(device_count() == 0, reason="needs an NVIDIA GPU")
def test_decoding_on_a_gpu(assets: Path, claim: Callable[..., None]) -> None:
    """1080p JPEG bytes to boxes by `decode="gpu"`, against the slower one of its decoder and its engine alone."""
    pytest.importorskip("tensorrt_rtx_bindings")
    from infersdk import Device, pinned_empty
    from infersdk.image.nvimgcodec import encoded_image, is_installed, shared_decoder

    if not is_installed():
        pytest.skip("nvImageCodec is not installed")
    batch, files = 32, (large(assets) * 64)[:512]
    model = assets / "models" / "yolov5s-random.onnx"
    settings: dict[str, Any] = {"backend": "tensorrt-rtx", "precision": "fp16", "max_batch": batch, "conf": 0.4}
    decoder = shared_decoder(Device("cuda", 0))
    encoded = [file for file in map(encoded_image, files) if file is not None]

    def decode_alone() -> None:
        for start in range(0, len(encoded), batch):
            decoder.recycle(decoder.decode(encoded[start : start + batch]))

    frames = [pinned_empty((1080, 1920, 3), "uint8") for _ in range(batch)]
    with YOLOv5(model, decode="gpu", **settings) as detector, YOLOv5(model, **settings) as other:
        detector.warm_up()
        other.warm_up()
        works: dict[str, Callable[[], Any]] = {
            "decode=gpu, stream()": lambda: sum(1 for _ in detector.stream(files)),
            "decode=gpu, map()": lambda: sum(1 for _ in detector.map(files)),
            "decode=cpu, stream()": lambda: sum(1 for _ in other.stream(files)),
            "nvImageCodec alone": decode_alone,
            "frames in memory": lambda: sum(1 for _ in other.stream(frames * (512 // batch))),
        }
        rates = rates_of(works, len(files))
        rates["bound"] = np.minimum(rates["nvImageCodec alone"], rates["frames in memory"])
        print(detector.decoded)
        report("1080p JPEG bytes to boxes on a GPU, stream()", rates, "decode=gpu, stream()", "bound", claim)
        report("1080p JPEG bytes to boxes on a GPU, map()", rates, "decode=gpu, map()", "bound", claim)
