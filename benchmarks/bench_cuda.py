"""Whole paths on an NVIDIA GPU: frames, requests and composed models, against the engine alone and against `stream()`.

yolov5s in FP16 where nothing else is said. INFERSDK_BENCH_BACKEND is the runtime (default: tensorrt-rtx).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from rounds import SECONDS, Turns, cut_out, large_files, rate, submitted

from infersdk import ModelGroup, Pipeline, device_count, graph, load, models, pinned_empty
from infersdk.bench.nvidia import used_bytes
from infersdk.graph.passes import FreeBatch
from infersdk.image import read_image
from infersdk.models import Embedder, TwinLiteNet, TwoStage, YOLOv5, YOLOv8

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.gpu
BACKEND = os.environ.get("INFERSDK_BENCH_BACKEND", "tensorrt-rtx")
GRAPHS = {"cuda_graph": True} if BACKEND.startswith("tensorrt") else {}
EAGER = {"kernel_specialization": "eager"} if BACKEND == "tensorrt-rtx" else {}
SETTINGS: dict[str, Any] = {"backend": BACKEND, "precision": "fp16", **GRAPHS, **EAGER}
HALF = {"half_io": True} if BACKEND.startswith("tensorrt") else {}
SIZES = {"1080p": (1080, 1920), "4k": (2160, 3840)}


def frames_of(memory: str, size: str = "1080p", count: int = 32) -> list[Any]:
    """Noise in page-locked or ordinary memory."""
    shape, rng = (*SIZES[size], 3), np.random.default_rng(0)
    frames = [pinned_empty(shape) if memory == "page-locked" else np.empty(shape, np.uint8) for _ in range(count)]
    for frame in frames:
        frame[:] = rng.integers(0, 256, shape, np.uint8)
    return frames


def detector(assets: Path, **settings: Any) -> YOLOv5:
    return YOLOv5(assets / "models" / "yolov5s-random.onnx", **{**SETTINGS, **HALF, "max_batch": 32, **settings})


def endless(run: Callable[[Iterator[Any]], Iterator[Any]], frames: list[Any]) -> float:
    """Results a second of `stream()` or `map()` over images that come without a break."""
    end, start = perf_counter() + SECONDS, perf_counter()
    images = itertools.takewhile(lambda _: perf_counter() < end, itertools.cycle(frames))
    return sum(1 for _ in run(images)) / (perf_counter() - start)


@contextlib.contextmanager
def engines(shares: Mapping[Any, float], batch: int) -> Iterator[Callable[[], float]]:
    """The images a second that the engines of some models run side by side, without images.

    Args:
        shares: the rows of each model for an image.
    """
    with contextlib.ExitStack() as stack:
        contexts = {model: [stack.enter_context(model.network.clone()) for _ in range(3)] for model in shares}
        every = [infer for several in contexts.values() for infer in several]
        for infer in every:
            for spec in infer.input_specs:
                infer.inputs[spec.name].resize((batch, *spec.shape[1:]))
            for _ in range(3):
                infer.forward()

        def run() -> None:
            queued = dict.fromkeys(shares, 0)
            for done in range(batch, 20 * batch + 1, batch):
                for model, share in shares.items():
                    while queued[model] * batch < done * share:
                        contexts[model][queued[model] % 3].enqueue()
                        queued[model] += 1
            for infer in every:
                infer.wait()

        yield lambda: rate(run, 20 * batch)


# ---- frames to boxes ----


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("memory", ["page-locked", "ordinary"])
def test_stream(assets: Path, memory: str, size: str, turns: Turns) -> None:
    """In batches of 32, by the place of preprocessing."""
    frames = frames_of(memory, size)
    with contextlib.ExitStack() as stack:
        contenders: dict[str, Callable[[], float]] = {}
        for place in ("auto", "device", "host"):
            model = stack.enter_context(detector(assets, preprocess=place))
            model.warm_up(example=frames[0])
            contenders[f"preprocess={place}"] = lambda m=model: endless(m.stream, frames)  # type: ignore[misc]
        contenders["engine alone"] = stack.enter_context(engines({model: 1}, 32))
        turns.rates(contenders)


@pytest.mark.parametrize("memory", ["page-locked", "ordinary"])
def test_one_frame(assets: Path, memory: str, turns: Turns) -> None:
    (frame,) = frames_of(memory, count=1)
    with (
        detector(assets, max_batch=1, preprocess="device") as device,
        detector(assets, max_batch=1, preprocess="host") as host,
    ):
        contenders = {"on the device": lambda: device(frame), "on the host": lambda: host(frame)}
        contenders["engine alone"] = device.network.forward
        turns.times(contenders, calls=200)


@pytest.mark.parametrize("name", ["yolov8n-seg", "yolov8n-pose", "yolov8n"])
def test_tasks(assets: Path, name: str, turns: Turns) -> None:
    """Photographs of 1080p in page-locked memory, to masks and keypoints in host memory."""
    frames = frames_of("page-locked")
    for frame, file in zip(frames, sorted((assets / "coco" / "val").glob("*.jpg")), strict=False):
        with Image.open(file) as image:
            frame[:] = np.asarray(image.convert("RGB").resize((1920, 1080)))[..., ::-1]
    read = {"yolov8n-seg": lambda result: result.masks.nbytes, "yolov8n-pose": lambda result: result.keypoints}.get(
        name, len
    )

    def results() -> float:
        return rate(lambda: [read(result) for result in model.stream(frames * 8)], 8 * len(frames))

    path = assets / "models" / f"{name}.onnx"
    with models.load(path, **SETTINGS, **HALF, max_batch=32) as model, engines({model: 1}, 32) as alone:
        turns.rates({"stream()": results, "engine alone": alone})


def test_jpeg_bytes(assets: Path, turns: Turns) -> None:
    """Files of 1080p, decoded on the GPU, against the decoder alone and frames that are in memory."""
    from infersdk import Device
    from infersdk.image.nvimgcodec import encoded_image, is_installed, shared_decoder

    if not is_installed():
        pytest.skip("nvImageCodec is not installed")
    files, frames = large_files(assets, 32), frames_of("page-locked")
    encoded, decoder = [image for file in files if (image := encoded_image(file))], shared_decoder(Device("cuda", 0))
    with detector(assets, decode="gpu", conf=0.4) as decoding, detector(assets, conf=0.4) as plain:
        for model in (decoding, plain):
            model.warm_up()
        contenders = {
            "stream()": lambda: endless(decoding.stream, files),
            "map()": lambda: endless(decoding.map, files),
            "nvImageCodec alone": lambda: rate(lambda: decoder.recycle(decoder.decode(encoded)), 32),
            "frames in memory": lambda: endless(plain.stream, frames),
            "decode=cpu": lambda: endless(plain.stream, files),
        }
        turns.rates(contenders)


# ---- many callers ----


def awaited(model: Any, images: list[Any], count: int) -> float:
    """Results a second of coroutines of one event loop that each await their own result."""

    async def work(image: Any) -> int:
        results, end = 0, perf_counter() + SECONDS
        while perf_counter() < end:
            await model.infer(image)
            results += 1
        return results

    async def all_results() -> int:
        return sum(await asyncio.gather(*(work(images[i % len(images)]) for i in range(count))))

    start = perf_counter()
    return asyncio.run(all_results()) / (perf_counter() - start)


@pytest.mark.parametrize("count", [32, 64, 128])
@pytest.mark.parametrize("kind", ["threads", "coroutines"])
@pytest.mark.parametrize("images", ["page-locked", "ordinary", "mixed sizes"])
def test_callers(assets: Path, images: str, kind: str, count: int, turns: Turns) -> None:
    """Ten rounds; with INFERSDK_BENCH_SECONDS=3 the worst one is the slowest window of 3 s."""
    frames = frames_of("ordinary" if images == "ordinary" else "page-locked")
    if images == "mixed sizes":
        frames[1::2] = frames_of("page-locked", "4k", 16)
    with detector(assets) as model:
        callers = {
            "threads": lambda: submitted(model.submit, frames, count),
            "coroutines": lambda: awaited(model, frames, count),
        }
        model.warm_up(example=frames[0])
        contenders = {f"{count} {kind}": callers[kind], "stream()": lambda: endless(model.stream, frames)}
        turns.rates(contenders, rounds=10)


def test_two_gpus(assets: Path, turns: Turns) -> None:
    if device_count() < 2:
        pytest.skip("needs two GPUs")
    frames = frames_of("page-locked")
    with (
        detector(assets, device="cuda:0") as first,
        detector(assets, device="cuda:1") as second,
        Pipeline([first, second]) as both,
        Pipeline(first) as one,
    ):
        many = frames * 64
        contenders = {
            "two GPUs": lambda: rate(lambda: list(both.map(many)), len(many)),
            "one GPU": lambda: rate(lambda: list(one.map(many)), len(many)),
        }
        turns.rates(contenders)


# ---- composed models ----


def test_two_stages(assets: Path, turns: Turns) -> None:
    """A detector and an embedder of its parts, against each alone, and against both engines."""
    files = sorted((assets / "coco" / "val").glob("*.jpg"))
    images = [np.ascontiguousarray(read_image(path).pixels[..., ::-1]) for path in files]
    own = {**SETTINGS, "max_batch": 16}
    first = YOLOv8(assets / "models" / "yolov8n.onnx", classes=["person"], **own)
    second = Embedder(assets / "models" / "osnet_x0_25_msmt17.onnx", **own)
    with TwoStage(first, second, column="vector") as both:
        both.warm_up(example=images[0])
        parts = cut_out(images, first.map(images))
        with engines({first: 1, second: len(parts) / len(images)}, 16) as alone:
            count = 20 * len(images)
            contenders = {
                "two stages": lambda: rate(lambda: list(both.map(images * 20)), count),
                "detector": lambda: rate(lambda: list(first.map(images * 20)), count),
                "embedder": lambda: rate(lambda: list(second.map(parts * 20)), count),
                "both engines": alone,
            }
            turns.rates(contenders)


@pytest.mark.parametrize("max_batch", [1, 32])
@pytest.mark.parametrize("memory", ["page-locked", "ordinary"])
def test_model_group(assets: Path, tmp_path: Path, memory: str, max_batch: int, turns: Turns) -> None:
    """Two models on each frame of a video of 640 x 360, against each alone, and against both engines."""
    pytest.importorskip("av")
    from infersdk.video import VideoReader

    with VideoReader(assets / "driving" / "drive.mp4", format="bgr") as reader:
        frames = [frame.pixels.copy() for frame in itertools.islice(reader, 48)]
    if memory == "page-locked":
        for i, pixels in enumerate(frames):
            frames[i] = pinned_empty(pixels.shape)
            frames[i][:] = pixels
    edited = graph.open(assets / "models" / "twinlitenet.onnx")
    edited.apply(FreeBatch())
    edited.save(tmp_path / "road.onnx")
    own, many = {**SETTINGS, "max_batch": max_batch}, frames * (2 if max_batch == 1 else 40)
    detecting = models.load(assets / "models" / "yolov8n.onnx", **own)
    # This export names its outputs the wrong way round.
    road = TwinLiteNet(tmp_path / "road.onnx", area="lanes", lanes="segmentation", **own)
    with ModelGroup(detector=detecting, road=road) as group:
        contenders = {"group": group, "detector": detecting, "road": road}
        for model in contenders.values():
            list(model.map(many))
        with engines({detecting: 1, road: 1}, max_batch) as alone:
            rates: dict[str, Callable[[], float]] = {
                n: lambda m=model: rate(lambda: list(m.map(many)), len(many))  # type: ignore[misc]
                for n, model in contenders.items()
            }
            turns.rates({**rates, "both engines": alone})


# ---- memory ----


def test_memory(assets: Path, turns: Turns) -> None:
    """The GPU's memory in use after each step, by NVML, in MB."""
    pytest.importorskip("pynvml")
    frames = frames_of("page-locked")

    def used() -> float:
        found = used_bytes(0)
        assert found is not None, "NVML reports no memory in use"
        return found / 1e6

    def steps() -> dict[str, float]:
        before, found = used(), {}
        with load(assets / "models" / "yolov5s-random.onnx", **SETTINGS, **HALF, max_batch=1):
            pass  # the engine is in the cache
        with detector(assets) as model:
            works: dict[str, Callable[[], object]] = {
                "loaded": lambda: None,
                "a list of 32": lambda: model(frames),
                "stream()": lambda: list(model.stream(frames * 20)),
                "one submit()": lambda: model.submit(frames[0]).result(),
                "128 submitted": lambda: [future.result() for future in model.submit_many(frames * 4)],
                "64 threads": lambda: submitted(model.submit, frames),
            }
            for name, work in works.items():
                work()
                found[name] = used() - before
            model.release()
            sleep(1)
            found["release()"] = used() - before
        return found

    turns.once(steps, " MB")
