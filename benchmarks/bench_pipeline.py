"""Requests of many callers and composed models on the processor.

The plain loop, OpenVINO's own queue and each model alone are the baselines. `bench_cuda.py` has the same on a GPU.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from idle_backend import idle
from rounds import SECONDS, Turns, cut_out, in_threads, rate, submitted

from infersdk import ModelGroup, Pipeline
from infersdk.image import read_image
from infersdk.models import Embedder, TwinLiteNet, TwoStage, YOLOv5, YOLOv8, load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BATCH = 8
BACKENDS = ["onnxruntime", "openvino"]


@pytest.fixture(params=BACKENDS)
def model(request: pytest.FixtureRequest, assets: Path) -> Iterator[YOLOv5]:
    pytest.importorskip(request.param)
    with YOLOv5(assets / "models" / "yolov5n.onnx", request.param, max_batch=BATCH) as model:
        model.configure_pipeline(max_delay=0.01)
        yield model


def test_threads_against_a_loop(model: YOLOv5, photograph: Any, turns: Turns) -> None:
    """64 threads that submit single images, against calls with full batches."""
    contenders = {
        "64 threads": lambda: submitted(model.submit, [photograph]),
        "loop over batches": lambda: rate(lambda: model([photograph] * BATCH), BATCH),
    }
    turns.rates(contenders)


def test_latency(model: YOLOv5, photograph: Any, turns: Turns) -> None:
    """The p99 of requests that arrive at random at 70 % of the rate of 64 threads; the limit is two batches."""
    arrivals = 0.7 * submitted(model.submit, [photograph])
    batch = BATCH / rate(lambda: model([photograph] * BATCH), BATCH)

    def run() -> dict[str, float]:
        latencies: list[float] = []
        rng, futures, due = random.Random(0), [], perf_counter()
        for _ in range(max(100, int(arrivals * 10 * SECONDS))):
            due += rng.expovariate(arrivals)
            sleep(max(0.0, due - perf_counter()))
            futures.append(model.submit(photograph))
            futures[-1].add_done_callback(lambda _, start=due: latencies.append(perf_counter() - start))
        for future in futures:
            future.result()
        p50, p99 = np.quantile(latencies, (0.5, 0.99)).tolist()
        return {"p50": p50, "p99": p99, "max_delay and two batches": 0.01 + 2 * batch}

    turns.once(run, "s")


def test_threads_against_openvinos_queue(assets: Path, photograph: Any, turns: Turns) -> None:
    """Images to boxes, against AsyncInferQueue with as many streams and its own preprocessing, without boxes."""
    ov = pytest.importorskip("openvino")
    core, path = ov.Core(), assets / "models" / "yolov5n.onnx"
    network = core.read_model(path)
    network.reshape([1, 3, 640, 640])
    steps = ov.preprocess.PrePostProcessor(network)
    tensor = steps.input().tensor().set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC"))
    tensor.set_color_format(ov.preprocess.ColorFormat.BGR).set_spatial_static_shape(*photograph.shape[:2])
    colour = steps.input().preprocess().convert_element_type(ov.Type.f32).convert_color(ov.preprocess.ColorFormat.RGB)
    colour.resize(ov.preprocess.ResizeAlgorithm.RESIZE_LINEAR).scale(255.0)
    steps.input().model().set_layout(ov.Layout("NCHW"))
    hints = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": "f32"}
    queue = ov.AsyncInferQueue(core.compile_model(steps.build(), "CPU", hints))
    queue.set_callback(lambda request, _: request.get_output_tensor().data[0, 0, 4])

    def theirs() -> None:
        for _ in range(16):
            queue.start_async({0: photograph[None]})
        queue.wait_all()

    with YOLOv5(path, "openvino", max_batch=1, performance_hint="throughput") as model:
        assert model.details.concurrency == len(queue)
        contenders = {
            "64 threads, to boxes": lambda: submitted(model.submit, [photograph]),
            "AsyncInferQueue": lambda: rate(theirs, 16),
        }
        turns.rates(contenders)


def test_pipeline_alone(tmp_path: Path, turns: Turns) -> None:
    """A backend that does nothing, 8 threads with 16 requests in flight each, inputs of 3 x 64 x 64."""
    array = np.zeros((3, 64, 64), np.float32)

    def requests() -> float:
        counts, end = [], perf_counter() + SECONDS

        def work(_: int) -> None:
            futures: deque[Any] = deque()
            count = 0
            while perf_counter() < end:
                count += 1
                futures.append(pipeline.submit(array))
                if len(futures) >= 16:
                    futures.popleft().result()
            for future in futures:
                future.result()
            counts.append(count)

        spent = in_threads(8, work)
        return sum(counts) / spent

    with idle(tmp_path, 32) as infer, Pipeline(infer) as pipeline:
        turns.rates({"requests": requests})


# ---- composed models: both models share the cores, so the sum of their times is the best possible ----


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_stages(assets: Path, backend: str, turns: Turns) -> None:
    """A detector and an embedder of its parts, against each alone on the same images and parts."""
    pytest.importorskip(backend)
    # Idle threads of one model would spin on cores where the other one works.
    settings: dict[str, Any] = {"backend": backend, **({"allow_spinning": False} if backend == "onnxruntime" else {})}
    files = sorted((assets / "coco" / "val").glob("*.jpg"))[:24]
    images = [np.ascontiguousarray(read_image(path).pixels[..., ::-1]) for path in files]
    detector = YOLOv8(assets / "models" / "yolov8n.onnx", classes=["person"], **settings)
    second = Embedder(assets / "models" / "osnet_x0_25_msmt17.onnx", **settings)
    with TwoStage(detector, second, column="vector") as both:
        both.warm_up(example=images[0])
        parts = cut_out(images, detector.map(images))

        def each_alone() -> None:
            list(detector.map(images))
            list(second.map(parts))

        turns.times({"two stages": lambda: list(both.map(images)), "each model alone": each_alone})


def test_model_group(assets: Path, turns: Turns) -> None:
    """Two models on each frame of a video, against each alone."""
    pytest.importorskip("av")
    from infersdk.video import VideoReader

    with VideoReader(assets / "driving" / "drive.mp4", format="bgr") as reader:
        frames = [frame.pixels.copy() for frame in itertools.islice(reader, 24)]
    settings = {"options": {"allow_spinning": False}}
    detector = load(assets / "models" / "yolov8n.onnx", **settings)
    # This export names its outputs the wrong way round.
    road = TwinLiteNet(assets / "models" / "twinlitenet.onnx", area="lanes", lanes="segmentation", **settings)
    with ModelGroup(detector=detector, road=road) as group:
        group.warm_up()
        contenders = {
            "group": lambda: list(group.map(frames)),
            "each model alone": lambda: [list(model.map(frames)) for model in (detector, road)],
        }
        turns.times(contenders)
