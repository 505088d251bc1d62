"""Videos: a file through the command, many files at once, decoding on a GPU, live streams in real time, and tracking.

INFERSDK_BENCH_STREAMS is the numbers of live streams that are tried ("16,32,64"), INFERSDK_BENCH_BACKEND the runtime on
the GPU (default: tensorrt-rtx).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from bench_cuda import SETTINGS
from rounds import Turns, Worker, in_threads

from infersdk.cli import main
from infersdk.core.processors import available_processors
from infersdk.data import DETECTOR
from infersdk.models import Detections, Tracker, YOLOv5, load
from infersdk.video import DeviceVideoReader, Streams, VideoReader, VideoWriter, paired

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

pytest.importorskip("av")
FILES, FRAMES = 8, 300
#: Seconds that live streams are measured, and those before: frames that came during the opening are decoded then. And a
#: limit for one without results.
MEASURED, SETTLED, LIMIT = 5.0, 15.0, 60.0
#: The limits of real time: the share of frames without a result, and the 95th percentile of the delay in seconds beyond
#: one interval.
DROPPED, DELAY = 0.001, 0.066


def write_videos(source: Path, targets: list[Path], frames: int, size: tuple[int, int] | None = None) -> None:
    """The first frames of a video, in each of the files."""
    from PIL import Image

    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(VideoReader(source))
        writers = [stack.enter_context(VideoWriter(path, size or reader.size, reader.fps)) for path in targets]
        for frame in itertools.islice(reader, frames):
            for writer in writers:
                writer.write(Image.fromarray(frame.pixels).resize(size) if size else frame)


# ---- files ----


@pytest.mark.parametrize("format", ["rgb", "nv12"])
@pytest.mark.parametrize("kind", ["file", "RTSP"])
def test_the_reader_against_pyav(assets: Path, tmp_path: Path, kind: str, format: str, turns: Turns) -> None:
    """Frames of 720p a second of processor time, against a loop of PyAV with the same format and threads, for decoding
    and for conversion. The RTSP server sends 1,000 frames a second.
    """
    import av

    options = {"rtsp_transport": "tcp"} if kind == "RTSP" else {}
    pixels = {"rgb": "rgb24", "nv12": "nv12"}[format]

    def ours(source: str) -> None:
        with VideoReader(source, format=format, drop="never", options=options) as reader:
            assert sum(1 for _ in itertools.islice(reader, FRAMES)) == FRAMES

    def loop(source: str) -> None:
        with av.open(source, options=options) as container:
            (stream,) = container.streams.video
            stream.thread_type = "AUTO" if kind == "file" else "SLICE"
            frames = itertools.islice(container.decode(stream), FRAMES)
            assert sum(1 for frame in frames if frame.to_ndarray(format=pixels, threads=1) is not None) == FRAMES

    def frame_rate(read: Callable[[str], None], source: str) -> float:
        start = time.process_time()
        read(source)
        return FRAMES / (time.process_time() - start)

    with contextlib.ExitStack() as stack:
        if kind == "file":
            source = str(tmp_path / "people.mp4")
            write_videos(assets / "video" / "people.mp4", [Path(source)], FRAMES, (1280, 720))
        else:
            script, sent = Path(__file__).with_name("live_server.py"), tmp_path / "sent.npy"
            settings = ("--streams", 1, "--rate", 1000, "--size", "1280x720", "--seconds", 0.3, "--sent", sent)
            video = assets / "video" / "people.mp4"
            server = stack.enter_context(Worker(sys.executable, script, video, *settings))
            (source,) = server.ready["addresses"]
        turns.rates({name: lambda r=read: frame_rate(r, source) for name, read in (("ours", ours), ("PyAV", loop))})  # type: ignore[misc]


def test_predict_against_a_loop(assets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], turns: Turns) -> None:
    """`infersdk predict` on a video, loading included, against OpenCV around the same detector and drawing."""
    cv2 = pytest.importorskip("cv2")
    video, weights = tmp_path / "in.mp4", assets / "models" / "yolov5n.onnx"
    write_videos(assets / "video" / "people.mp4", [video], 100)

    def by_hand() -> None:
        capture, target = cv2.VideoCapture(str(video)), str(tmp_path / "plain.mp4")
        size = int(capture.get(cv2.CAP_PROP_FRAME_WIDTH)), int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
        writer = cv2.VideoWriter(target, cv2.VideoWriter_fourcc(*"mp4v"), capture.get(cv2.CAP_PROP_FPS), size)
        while True:
            there, frame = capture.read()
            if not there:
                break
            writer.write(cv2.cvtColor(np.asarray(model(frame).draw(frame)), cv2.COLOR_RGB2BGR))
        writer.release()

    def command() -> None:
        assert main(["predict", str(video), "-o", str(tmp_path / "ours.mp4"), "--model", str(weights)]) == 0

    with YOLOv5(weights) as model:
        turns.times({"infersdk predict": command, "OpenCV": by_hand})
    capsys.readouterr()


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_eight_files_against_one(assets: Path, tmp_path: Path, backend: str, turns: Turns) -> None:
    """Through `Streams` and one model, against one file with as many frames."""
    pytest.importorskip(backend)
    each, one = [tmp_path / f"{number}.mp4" for number in range(FILES)], tmp_path / "one.mp4"
    write_videos(assets / "video" / "people.mp4", each, 20)
    write_videos(assets / "video" / "people.mp4", [one], 20 * FILES)
    settings: dict[str, Any] = {"performance_hint": "throughput"}
    cores = available_processors()
    if backend == "onnxruntime":
        settings = {"threads": max(1, cores // 8), "allow_spinning": False}

    def run_all() -> None:
        with Streams(each) as streams:
            assert sum(item.error is None for item in streams.run(model)) == 20 * FILES

    def run_one() -> None:
        with VideoReader(one) as reader:
            assert sum(1 for _ in paired(model.map, reader)) == 20 * FILES

    with load(assets / "models" / "yolov8n.onnx", backend, max_batch=1, **settings) as model:
        if backend == "onnxruntime":
            model.configure_pipeline(instances=min(cores, 8))
        model.warm_up()
        turns.times({"eight files": run_all, "one file": run_one})


@pytest.mark.gpu
def test_decoding_on_a_gpu(assets: Path, tmp_path: Path, turns: Turns) -> None:
    """Eight files of 1080p at once, against the loop of PyNvVideoCodec's sample for performance, and the processor."""
    module, video = pytest.importorskip("PyNvVideoCodec"), tmp_path / "people.mp4"
    write_videos(assets / "video" / "people.mp4", [video], 600, (1920, 1080))

    def ours() -> Iterator[Any]:
        with DeviceVideoReader(video) as reader:
            yield from reader

    def alone() -> Iterable[Any]:
        demuxer = module.CreateDemuxer(filename=str(video))
        decoder = module.CreateDecoder(gpuid=0, codec=demuxer.GetNvCodecId(), usedevicememory=True)
        return (frame for packet in demuxer for frame in decoder.Decode(packet))

    def processor() -> Iterator[Any]:
        with VideoReader(video, format="nv12") as reader:
            yield from reader

    readers: dict[str, Callable[[], Iterable[Any]]] = {
        "DeviceVideoReader": ours, "PyNvVideoCodec": alone, "VideoReader": processor
    }  # fmt: skip
    turns.times(
        {n: lambda r=read: in_threads(FILES, lambda _: sum(1 for _ in r())) for n, read in readers.items()}  # type: ignore[misc]
    )


# ---- tracking ----


def moving_boxes(frames: int, objects: int, size: tuple[int, int]) -> list[Detections]:
    """Objects that move at random, with scores of all kinds."""
    random = np.random.default_rng(1)
    place, velocity = random.random((objects, 2)) * size, random.normal(0, 4, (objects, 2))
    sides, made = random.uniform(30, 120, (objects, 2)), []
    for _ in range(frames):
        velocity *= np.where((place < 0) | (place > size), -1, 1)
        place += velocity
        centres = place + random.normal(0, 2, place.shape)
        edges, scores = np.concatenate([centres - sides / 2, centres + sides / 2], 1), random.uniform(0.3, 1, objects)
        made.append(Detections.of(edges, scores, names=("object",), size=size))
    return made


@pytest.mark.parametrize("size", [(1920, 1080), (640, 360)], ids=["apart", "crowded"])
def test_tracking(size: tuple[int, int], turns: Turns) -> None:
    """100 frames of 100 boxes through ByteTrack, against the package `trackers` on its own type of boxes."""
    trackers = pytest.importorskip("trackers")
    frames = moving_boxes(100, 100, size)
    theirs = [found.to_supervision() for found in frames]

    def ours() -> None:
        tracker = Tracker()
        for found in frames:
            tracker.update(found)

    def package() -> None:
        tracker = trackers.ByteTrackTracker()
        for found in theirs:
            tracker.update(found)

    turns.times({"Tracker": ours, "trackers": package})


# ---- live streams ----


def live_figures(model: Any, server: Worker, sent: Any, rate: int, count: int, **settings: Any) -> dict[str, float]:
    """The delays of `count` streams, in seconds from the last byte of a frame to its tracked result, and their results.

    RTSP tells the end of a frame by the next one: of each delay, one interval is due to the format.
    """
    trackers = [Tracker() for _ in range(count)]
    sources = {str(number): address for number, address in enumerate(server.ready["addresses"][:count])}
    rows: list[tuple[int, int, float, float]] = []  # stream, frame, decoded, result
    begin: float | None = None
    with Streams(sources, **settings) as streams:
        ending = threading.Timer(LIMIT, streams.close)
        ending.start()
        opened: set[str] = set()
        for item in streams.run(model):
            assert item.error is None, f"stream {item.stream}: {item.error}"
            trackers[int(item.stream)].update(item.result)
            now = time.monotonic()
            opened.add(item.stream)
            if begin is None and len(opened) == count:
                begin = now + SETTLED
            if begin is not None and now > begin + MEASURED + 1:
                break
            rows.append((int(item.stream), round(item.frame.time * rate), item.frame.decoded, now))
        ending.cancel()
    while any(thread.name == "infersdk-prefetch" for thread in threading.enumerate()):
        time.sleep(0.1)  # it still has its connection, which the server sends to
    assert begin is not None, f"{count - len(opened)} of {count} streams have no result after {LIMIT:g} s"
    stream, frame = np.array([row[:2] for row in rows]).T
    decoded, result = np.array([row[2:] for row in rows]).T
    start, measured = sent[stream, frame], (sent[:count] >= begin) & (sent[:count] < begin + MEASURED)
    kept = measured[stream, frame]
    delays, reading = (result - start)[kept], (decoded - start)[kept]
    return {
        "results a second": kept.sum() / MEASURED,
        "dropped": 1 - kept.sum() / measured.sum(),
        "delay, p50": float(np.median(delays)),
        "delay, p95": float(np.quantile(delays, 0.95)),
        "delay, p99": float(np.quantile(delays, 0.99)),
        "sent to decoded, p99": float(np.quantile(reading, 0.99)),
    }


def largest_in_real_time(
    model: Any, source: Path, folder: Path, counts: list[int], size: str, rate: int, **settings: Any
) -> dict[str, float]:
    """More and more streams, until they are not in real time; each number has two tries."""
    if "INFERSDK_BENCH_STREAMS" in os.environ:
        counts = [int(number) for number in os.environ["INFERSDK_BENCH_STREAMS"].split(",")]
    script, path, largest = Path(__file__).with_name("live_server.py"), folder / "sent.npy", 0
    options = ("--streams", max(counts), "--rate", rate, "--size", size, "--sent", path)
    with Worker(sys.executable, script, source, *options) as server:
        sent = np.load(path, mmap_mode="r")
        for count in counts:
            for _ in range(2):
                figures = live_figures(model, server, sent, rate, count, **settings)
                print(f"{count} streams: {', '.join(f'{name} {value:.4g}' for name, value in figures.items())}")
                if in_time := figures["dropped"] <= DROPPED and figures["delay, p95"] <= DELAY + 1 / rate:
                    break
            if not in_time:
                break
            largest = count
    return {"streams in real time": largest}


@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_live_streams_on_a_gpu(assets: Path, tmp_path: Path, turns: Turns) -> None:
    """1080p at 30 frames a second by RTSP, decoded on the GPU, through a detector in FP16.

    INFERSDK_BENCH_MODEL names its file (default: yolov8n), INFERSDK_BENCH_TYPE its wrapper where the file does not.
    """
    settings = {**SETTINGS, "max_batch": 32}
    if kind := os.environ.get("INFERSDK_BENCH_TYPE"):
        settings["type"] = kind
    with load(os.environ.get("INFERSDK_BENCH_MODEL", assets / "models" / "yolov8n.onnx"), **settings) as model:
        model.warm_up()
        arguments = (model, assets / "video" / "people.mp4", tmp_path, [1, 16, 32, 64, 80, 96], "1920x1080", 30)
        live: dict[str, Any] = {"decode": "gpu", "options": {"rtsp_transport": "tcp"}}
        turns.once(lambda: largest_in_real_time(*arguments, **live), "")


def test_live_streams(assets: Path, tmp_path: Path, turns: Turns) -> None:
    """360p at 15 frames a second by RTSP, through the model of the package."""
    pytest.importorskip("onnxruntime")
    with load(DETECTOR, backend="onnxruntime", max_batch=1, threads=1) as model:
        model.warm_up()
        arguments = (model, assets / "video" / "people.mp4", tmp_path, [1, 2], "640x360", 15)
        turns.once(lambda: largest_in_real_time(*arguments, options={"rtsp_transport": "tcp"}), "")
