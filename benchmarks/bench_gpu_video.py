"""Videos decoded on a GPU: eight files against the decoder alone. `bench_live_streams.py` has live ones.

Run: `pytest -s benchmarks/bench_gpu_video.py` (an NVIDIA GPU with a video decoder, `infersdk[nvvideo]`, the test data
of INFERSDK_ASSETS).

The decoder alone is the loop of PyNvVideoCodec's own sample for performance: a demuxer and a decoder on each thread,
whose frames are counted and dropped. Ours keeps each frame on the device, with its time. Two ratios are printed: of
the whole time, with opening and closing, and of the rates from the first to the last frame of each file, in sum, as the
sample measures them.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk import device_count
from infersdk.video import DeviceVideoReader, VideoReader, VideoWriter

pytest.importorskip("av")
pytestmark = pytest.mark.gpu
ROUNDS, FILES, FRAMES, RATE = 5, 8, 600, 30.0
SIZE = (1920, 1080)


@pytest.fixture(scope="module")
def module() -> Any:
    if not device_count():
        pytest.skip("no CUDA device on this machine")
    return pytest.importorskip("PyNvVideoCodec")


@pytest.fixture(scope="module")
def video(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """People who walk, in 1080p."""
    from PIL import Image

    path = tmp_path_factory.mktemp("gpu_video") / "people.mp4"
    with VideoReader(assets / "video" / "people.mp4") as reader, VideoWriter(path, SIZE, RATE) as writer:
        for frame in itertools.islice(reader, FRAMES):
            writer.write(Image.fromarray(frame.pixels).resize(SIZE))
    return path


def rates_of(read: Callable[[Path], Iterator[Any]], path: Path) -> tuple[int, float, float]:
    """Reads a file on each of FILES threads.

    Returns:
        The frames, their rate over the whole time, and the sum of the rates from the first to the last frame.
    """
    runs: list[tuple[int, float, float]] = []

    def work() -> None:
        count, first, last = 0, 0.0, 0.0
        for _ in read(path):
            last = time.perf_counter()
            first = first or last
            count += 1
        runs.append((count, first, last))

    threads = [threading.Thread(target=work) for _ in range(FILES)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    count = sum(count for count, _, _ in runs)
    return count, count / seconds, sum((count - 1) / (last - first) for count, first, last in runs)


def decoder_alone(module: Any, path: Path) -> Iterator[Any]:
    demuxer = module.CreateDemuxer(filename=str(path))
    decoder = module.CreateDecoder(gpuid=0, codec=demuxer.GetNvCodecId(), usedevicememory=True)
    return (frame for packet in demuxer for frame in decoder.Decode(packet))


def our_reader(path: Path) -> Iterator[Any]:
    with DeviceVideoReader(path) as reader:
        yield from reader


def processor(path: Path) -> Iterator[Any]:
    with VideoReader(path, format="nv12") as reader:
        yield from reader


def test_eight_files_against_the_decoder_alone(module: Any, video: Path, claim: Callable[..., None]) -> None:
    rates = []
    rates_of(our_reader, video)  # warms up
    for _ in range(ROUNDS):
        alone = rates_of(lambda path: decoder_alone(module, path), video)
        ours = rates_of(our_reader, video)
        assert ours[0] == FILES * FRAMES
        rates.append([*alone[1:], *ours[1:]])
    on_processor = rates_of(processor, video)
    table = np.array(rates)
    alone_whole, alone_steady, our_whole, our_steady = np.median(table, axis=0)
    whole, steady = (np.sort(table[:, 2 + i] / table[:, i]) for i in range(2))
    print(
        f"\n{FILES} files of 1080p H.264, frames a second in sum: the decoder alone {alone_whole:.0f}, "
        f"DeviceVideoReader {our_whole:.0f} ({np.median(whole):.3f} of it, {whole[0]:.3f} to {whole[-1]:.3f}), "
        f"VideoReader on the processor {on_processor[1]:.0f}; from first to last frame: the decoder alone "
        f"{alone_steady:.0f}, DeviceVideoReader {our_steady:.0f} ({np.median(steady):.3f} of it, {steady[0]:.3f} to "
        f"{steady[-1]:.3f})"
    )
    claim(f"{FILES} videos decoded on a GPU, against PyNvVideoCodec's own loop", float(np.median(whole)))
