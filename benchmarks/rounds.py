"""The harness of the benchmarks: contenders in turns, ratios within a round, and programs in processes of their own.

A disturbance of the machine reaches all contenders of a round. The ratio of two contenders is the median over the
rounds; its interval is the 95 % interval of resampled rounds.

INFERSDK_BENCH_ROUNDS is the number of rounds (default 9), INFERSDK_BENCH_SECONDS the duration of a turn of contenders
that run for a while (default 1).
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from infersdk.bench.statistics import Estimate, median_of_rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    import numpy.typing as npt

    from infersdk.models import Detections

ASSETS = Path(os.environ.get("INFERSDK_ASSETS", Path(__file__).resolve().parents[2] / "shared" / "assets"))
ROUNDS = int(os.environ.get("INFERSDK_BENCH_ROUNDS", "9"))
#: Of a program that imports modules of this folder.
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(Path(__file__).parent)])),
}
SECONDS = float(os.environ.get("INFERSDK_BENCH_SECONDS", "1"))


def rate(run: Callable[[], object], images: int = 1, seconds: float = SECONDS) -> float:
    """Images a second of calls one after another, each of which processes `images`."""
    start, calls = perf_counter(), 0
    while (spent := perf_counter() - start) < seconds or not calls:
        run()
        calls += 1
    return calls * images / spent


def in_threads(count: int, work: Callable[[int], object]) -> float:
    """The seconds until `work` has ended in each of `count` threads; it gets the number of its thread."""
    start = perf_counter()
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(work, range(count)))  # raises the exception of a thread
    return perf_counter() - start


def submitted(submit: Callable[[Any], Future[Any]], images: Sequence[Any], threads: int = 64) -> float:
    """Results a second of threads that each wait for their own result before they submit their image again."""
    counts, end = [], perf_counter() + SECONDS

    def work(number: int) -> None:
        image, count = images[number % len(images)], 0
        while perf_counter() < end:
            submit(image).result()
            count += 1
        counts.append(count)

    spent = in_threads(threads, work)
    return sum(counts) / spent


def large_files(assets: Path, count: int) -> list[bytes]:
    """JPEG files of 1920 x 1080, about 500 kB each."""
    from PIL import Image

    files = [io.BytesIO() for _ in range(count)]
    for number, file in enumerate(files):
        with Image.open(assets / "images" / ("bus.jpg", "zidane.jpg")[number % 2]) as image:
            image.convert("RGB").resize((1920, 1080)).rotate(number).save(file, "JPEG", quality=96)
    return [file.getvalue() for file in files]


def cut_out(images: Iterable[npt.NDArray[Any]], results: Iterable[Detections]) -> list[npt.NDArray[Any]]:
    """The pixels of all boxes."""
    corners = ((image, box.xyxy) for image, boxes in zip(images, results, strict=True) for box in boxes)
    return [image[int(y1) : math.ceil(y2), int(x1) : math.ceil(x2)] for image, (x1, y1, x2, y2) in corners]


def hand_over() -> None:
    """Lets the process of the other state run until it hands over, too, where `compare.py` runs two of them.

    INFERSDK_BENCH_BATON is the file descriptors of two pipes: one to read from, one to write to.
    """
    if baton := os.environ.get("INFERSDK_BENCH_BATON"):
        own, other = map(int, baton.split(","))
        with contextlib.suppress(BrokenPipeError):  # the other process has ended
            os.write(other, b".")
            os.read(own, 1)


class Turns:
    """Measures contenders in turns by pytest-benchmark's `pedantic()`, once in a test.

    Every other round runs in reverse order. `extra_info` gets the median of each contender (`figures`, in `unit`), its
    `rounds` and the worst round (`worst`). It also gets the ratios of the first contender's speed to the others
    (`ratios`: value, low, high).
    """

    def __init__(self, benchmark: Any) -> None:
        self._benchmark = benchmark

    def times(
        self, contenders: Mapping[str, Callable[[], object]], *, calls: int = 1, rounds: int = ROUNDS, warm_up: int = 1
    ) -> dict[str, Estimate]:
        """The contenders' seconds a call.

        Args:
            calls: of a contender in a turn.
            rounds, warm_up: the rounds that are measured, and those before.
        """

        def seconds(run: Callable[[], object]) -> float:
            start = perf_counter()
            for _ in range(calls):
                run()
            return (perf_counter() - start) / calls

        return self._measure({name: lambda r=run: seconds(r) for name, run in contenders.items()}, "s", rounds, warm_up)

    def rates(
        self, contenders: Mapping[str, Callable[[], float]], *, rounds: int = ROUNDS, warm_up: int = 1
    ) -> dict[str, Estimate]:
        """The contenders return their rates a second."""
        return self._measure(contenders, "/s", rounds, warm_up)

    def once(self, run: Callable[[], Mapping[str, float]], unit: str) -> None:
        """Figures of a scenario that runs once and has no other to be compared with."""
        self._keep(self._benchmark.pedantic(run, rounds=1), unit, {})

    def note(self, name: str, figure: object) -> None:
        """Keeps something else that was measured."""
        self._benchmark.extra_info[name] = figure
        print(f"{name}: {figure}")

    def _measure(
        self, contenders: Mapping[str, Callable[[], float]], unit: str, rounds: int, warm_up: int
    ) -> dict[str, Estimate]:
        names = list(contenders)
        values: dict[str, list[float]] = {name: [] for name in names}
        orders = itertools.cycle((names, names[::-1]))

        def one_round() -> None:
            for name in next(orders):
                values[name].append(contenders[name]())
            hand_over()

        self._benchmark.pedantic(one_round, rounds=rounds, warmup_rounds=warm_up)
        kept = {name: np.array(own[-rounds:]) for name, own in values.items()}
        first = kept[names[0]]
        quotients = {n: kept[n] / first if unit == "s" else first / kept[n] for n in names[1:]}
        ratios = {name: median_of_rounds(own.tolist()) for name, own in quotients.items()}
        self._keep({name: float(np.median(own)) for name, own in kept.items()}, unit, ratios)
        worst = np.max if unit == "s" else np.min
        self._benchmark.extra_info["worst"] = {name: float(worst(own)) for name, own in kept.items()}
        self._benchmark.extra_info["rounds"] = {name: own.tolist() for name, own in kept.items()}
        return ratios

    def _keep(self, figures: Mapping[str, float], unit: str, ratios: Mapping[str, Estimate]) -> None:
        kept = {name: [ratio.value, ratio.low, ratio.high] for name, ratio in ratios.items()}
        self._benchmark.extra_info.update(figures=dict(figures), unit=unit, ratios=kept)
        print()
        for name, figure in figures.items():
            print(f"{name}: {text(figure, unit)}{f'; ratio {interval(ratios[name])}' if name in ratios else ''}")


def text(figure: float, unit: str) -> str:
    if unit != "s":
        return f"{figure:,.4g}{unit}"
    size, name = next((one for one in ((1, "s"), (1e-3, "ms")) if figure >= one[0]), (1e-6, "us"))
    return f"{figure / size:.4g} {name}"


def interval(ratio: Estimate) -> str:
    if ratio.low is None:
        return f"{ratio.value:.3f}"
    return f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


class Worker:
    """A program in a process of its own that answers each line of its input by a line of JSON, and one at its start."""

    def __init__(self, *command: object) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(list(map(str, command)), env=ENVIRONMENT, **pipes)
        self.ready = self._answer()

    def ask(self, line: object) -> Any:
        print(line, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the process ended with {self._process.wait()}"
        return json.loads(line)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._process.communicate(timeout=30)  # the end of its input ends it
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
