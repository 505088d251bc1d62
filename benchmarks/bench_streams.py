"""Eight files at once through one model, against one file with the same frames.

Run: `pytest -s benchmarks/bench_streams.py` (the test data of INFERSDK_ASSETS). One file goes through
`paired(model.map, reader)`, the fastest way for one file; eight go through `Streams`. Both have the same frames and the
same settings, which are those of `infersdk detect`; each round runs one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import pytest

from infersdk.models import VisionModel, load
from infersdk.ops.batch import available_processors
from infersdk.video import Streams, VideoReader, VideoWriter, paired

pytest.importorskip("av")
ROUNDS, FILES, FRAMES = 5, 8, 40


@pytest.fixture(scope="module")
def videos(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """One file, and the same frames in several files."""
    folder = tmp_path_factory.mktemp("streams")
    one, several = folder / "one.mp4", [folder / f"{number}.mp4" for number in range(FILES)]
    with VideoReader(assets / "video" / "people.mp4") as reader, VideoWriter(one, reader.size, reader.fps) as whole:
        for path in several:
            with VideoWriter(path, reader.size, reader.fps) as part:
                for frame in itertools.islice(reader, FRAMES):
                    whole.write(frame)
                    part.write(frame)
    return one, several


def run_one(model: VisionModel[Any], path: Path) -> None:
    with VideoReader(path) as reader:
        count = sum(1 for _ in paired(model.map, reader))
    assert count == FILES * FRAMES


def run_all(model: VisionModel[Any], paths: list[Path]) -> None:
    with Streams(paths) as streams:
        items = list(streams.run(model))
    assert len(items) == FILES * FRAMES
    assert not any(item.error for item in items)


def seconds(run: Callable[[], None]) -> tuple[float, float]:
    """The seconds of a run, and those of the processors."""
    start, used = perf_counter(), process_time()
    run()
    return perf_counter() - start, process_time() - used


def models(folder: Path) -> Iterator[tuple[str, VisionModel[Any]]]:
    """As `infersdk detect` sets them up for videos on the processor."""
    path = folder / "models" / "yolov8n.onnx"
    cores = available_processors()
    threads = max(1, cores // 8)
    with load(path, backend="onnxruntime", max_batch=1, threads=threads, allow_spinning=False) as model:
        model.configure_pipeline(instances=min(cores // threads, 8))
        yield "ONNX Runtime", model
    with load(path, backend="openvino", max_batch=1, performance_hint="throughput") as model:
        yield "OpenVINO", model


def test_eight_files_against_one(
    assets: Path, videos: tuple[Path, list[Path]], claim: Callable[..., None]
) -> None:  # fmt: skip
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    one, several = videos
    for name, model in models(assets):
        model.warm_up()
        rounds = []
        for _ in range(ROUNDS):
            rounds.append((seconds(lambda m=model: run_one(m, one)), seconds(lambda m=model: run_all(m, several))))  # type: ignore[misc]
        pairs, used = np.array(rounds).transpose(2, 0, 1)
        ratios = np.sort(pairs[:, 0] / pairs[:, 1])
        median = float(ratios[ROUNDS // 2])
        rates = FILES * FRAMES / np.median(pairs, axis=0)
        print(
            f"\n{name}: one file {rates[0]:.1f} images/s, {FILES} files {rates[1]:.1f} in sum: "
            f"{median:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}); by the time of the processors "
            f"{np.median(used[:, 0] / used[:, 1]):.3f}"
        )
        claim(
            f"{FILES} files at once against one, yolov8n, {name}", median, low=float(ratios[0]), high=float(ratios[-1])
        )
