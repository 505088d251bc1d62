"""The scenarios in which a combination runs: the network alone, and those of MLPerf Inference.

- `engine`: the network alone, run after run, on prepared inputs.
- `engine_parallel`: as many such runs at a time as the backend makes.
- `single_stream`: calls of one image, from input to results; the next begins when the last has ended.
- `multi_stream`: the same with a whole batch in each call.
- `offline`: all images are there from the beginning: requests enter a pipeline as fast as it takes them.
- `server`: requests arrive at random, see `server.py`.

Reddi et al., *MLPerf inference benchmark*, 2020, describe the last four.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, OutOfMemoryError, UnsupportedModelError
from .plan import SCENARIOS, BenchSettings, Scenario
from .server import Server
from .statistics import Measurement, is_steady

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from ..infer import Infer
    from ..pipeline import Pipeline
    from .workload import Workload

__all__ = ["Scenarios"]

#: Runs in a window of a warm-up at least.
_WINDOW_RUNS = 5


class Scenarios:
    """The scenarios of one combination. `notes` has the reasons of requested ones that are not run, a line each."""

    def __init__(self, workload: Workload, settings: BenchSettings) -> None:
        self._workload, self._settings = workload, settings
        self._clones: list[Infer] = []
        # Kept to the end: the kernel has no figures of ended threads.
        self._threads = ThreadPoolExecutor(workload.infer.scheduling.concurrency)
        self._pipeline: Pipeline[Any] | None = None
        self._server: Server | None = None
        self.notes: list[str] = []

    def names(self) -> list[Scenario]:
        """The requested scenarios that this combination can run; `notes` has the reasons of missing ones."""
        wanted = self._settings.scenarios
        result = [name for name in SCENARIOS if wanted is None or name in wanted]
        one = self._workload.batch == 1
        leave_out: set[Scenario] = {"multi_stream" if one else "single_stream"}
        if self._workload.infer.scheduling.concurrency == 1:
            leave_out.add("engine_parallel")
        if self._settings.latency_bound_ms is None:
            leave_out.add("server")
        if {"offline", "server"} & set(result):
            try:
                self._pipeline = self._workload.open_pipeline()
            except (UnsupportedModelError, ConfigError, OutOfMemoryError) as error:
                self.notes.append(f"not run offline or as a server: {error}")
                leave_out |= {"offline", "server"}
        return [name for name in result if name not in leave_out]

    @property
    def slots(self) -> int | None:
        """The requests that are in the pipeline at a time under full load."""
        return self._pipeline.slots if self._pipeline is not None else None

    def run(self, scenario: Scenario, seconds: float) -> Measurement:
        """Runs for so many seconds at least."""
        runs: dict[Scenario, Callable[[float], Measurement]] = {
            "engine": self._engine, "engine_parallel": self._engine_parallel, "single_stream": self._calls,
            "multi_stream": self._calls, "offline": self._offline, "server": self._serve,
        }  # fmt: skip
        return runs[scenario](seconds)

    def warm_up(self, scenario: Scenario, window: float, limit: float) -> tuple[float, bool]:
        """Runs until the times are steady, at most `limit` seconds; returns the seconds and whether they are steady.

        A window is `window` seconds long at least. Where one run follows another, it has at least five runs, and its
        figure is the median run. Where several run at a time, its figure is the seconds for each image.
        """
        start = perf_counter()
        if scenario == "server":
            found = self._find_rate(window, limit)
            return perf_counter() - start, found
        windows: list[float] = []
        while perf_counter() - start < limit:
            if scenario in ("engine", "single_stream", "multi_stream"):
                latencies: list[float] = []
                while len(latencies) < _WINDOW_RUNS:
                    latencies += self.run(scenario, window).latencies
                windows.append(float(np.median(latencies)))
            else:
                done = self.run(scenario, window)
                windows.append(done.seconds / done.images)
            if is_steady(windows):
                return perf_counter() - start, True
        return perf_counter() - start, False

    def settle(self, scenario: Scenario) -> None:
        """Runs uncounted calls on a device: after another scenario, some runtimes plan again for other shapes, which
        takes as long as hundreds of runs.
        """
        if self._workload.infer.stream is None:
            return
        if scenario == "engine":
            self._workload.infer.forward()
        elif scenario == "engine_parallel":
            for clone in self._clones:
                clone.forward()
        elif scenario in ("single_stream", "multi_stream"):
            self._workload.call()

    # ---- the network alone ----

    def _engine(self, seconds: float) -> Measurement:
        latencies, elapsed = _repeat(self._workload.infer.forward, seconds)
        return Measurement(len(latencies) * self._workload.batch, elapsed, latencies)

    def _engine_parallel(self, seconds: float) -> Measurement:
        """Each run on a clone with the same input."""
        infer, batch = self._workload.infer, self._workload.batch
        while len(self._clones) < infer.scheduling.concurrency:
            self._clones.append(clone := infer.clone())
            for name, tensor in infer.inputs.items():
                np.copyto(clone.inputs[name].resize(tensor.shape).numpy(writable=True), tensor.numpy())
            clone.forward()
        result = list(self._threads.map(lambda clone: _repeat(clone.forward, seconds)[0], self._clones))
        latencies = [latency for each in result for latency in each]
        # The rates of the threads are added, because they end at different times.
        rate = sum(len(each) * batch / sum(each) for each in result)
        images = len(latencies) * batch
        return Measurement(images, images / rate, latencies)

    # ---- calls ----

    def _calls(self, seconds: float) -> Measurement:
        stages: dict[str, list[float]] = {}

        def call() -> None:
            for stage, spent in self._workload.call().items():
                stages.setdefault(stage, []).append(spent)

        latencies, elapsed = _repeat(call, seconds)
        medians = {stage: median(spent) for stage, spent in stages.items()}
        return Measurement(len(latencies) * self._workload.batch, elapsed, latencies, medians)

    # ---- the pipeline ----

    def _offline(self, seconds: float) -> Measurement:
        """Under full load: a request enters as soon as there is a slot.

        Counting begins when all slots have been filled and emptied once, and ends with the last request that ended
        while others still entered.
        """
        assert self._pipeline is not None
        pipeline, batch = self._pipeline, self._workload.batch
        ended: list[tuple[float, float]] = []
        fill = pipeline.slots + batch
        least = fill + 3 * batch
        failed: list[BaseException] = []

        def done(future: Future[Any], begun: float) -> None:
            now = perf_counter()
            if not future.cancelled() and (error := future.exception()) is not None:
                failed.append(error)
            ended.append((now, now - begun))

        futures: list[Future[Any]] = []
        start = perf_counter()
        for item in itertools.cycle(self._workload.items):
            now = perf_counter()
            if failed or (now - start >= seconds and len(ended) >= least):
                break
            future = pipeline.submit(item)
            future.add_done_callback(lambda f, begun=now: done(f, begun))  # type: ignore[misc]
            futures.append(future)
            if len(futures) > 4 * pipeline.slots:
                del futures[: pipeline.slots]
        stopped = perf_counter()
        for future in futures:
            future.exception()
        if failed:
            raise failed[0]
        times = sorted(entry for entry in ended if entry[0] <= stopped)
        # Results arrive in batches, so that the time between two ends of batches counts.
        counted = (len(times) - fill) // batch * batch
        first, last = times[len(times) - 1 - counted], times[-1]
        latencies = [latency for _, latency in times[-counted:]]
        return Measurement(counted, last[0] - first[0], latencies)

    def _find_rate(self, window: float, limit: float) -> bool:
        """Finds the rate of the scenario `server`; tells whether there is one that keeps the bound."""
        bound = self._settings.latency_bound_ms
        assert self._pipeline is not None
        assert bound is not None
        full = self._offline(window)
        self._server = Server(self._pipeline, self._workload.items, bound / 1e3, seed=self._settings.seed)
        result = self._server.find_rate(full.images / full.seconds, window, limit)
        if not result:
            tried = f"even at {self._server.rate:.3g} requests a second" if self._server.rate else "even alone"
            self.notes.append(f"not run as a server: {tried} requests take longer than {bound:g} ms")
        return result

    def _serve(self, seconds: float) -> Measurement:
        assert self._server is not None
        return self._server.run(seconds)


def _repeat(call: Callable[[], Any], seconds: float) -> tuple[list[float], float]:
    """Calls until the seconds are over, once at least: the seconds of each call, and of all."""
    latencies, start = [], perf_counter()
    before = start
    while True:
        call()
        now = perf_counter()
        latencies.append(now - before)
        before = now
        if now - start >= seconds:
            return latencies, now - start
