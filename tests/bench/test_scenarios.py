"""MLPerf's scenarios and the cold start, on the packaged models and both backends of a processor."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from raw_head_models import yolov5_model

from infersdk.accuracy import ClassifyTask
from infersdk.bench import BenchSettings, Report, bench, combine, scenarios
from infersdk.bench.cold_start import STAGES, cold_start
from infersdk.bench.combination_run import CombinationRun
from infersdk.bench.plan import Combination
from infersdk.bench.server import LOWER, Server, keeps_bound
from infersdk.bench.statistics import Measurement
from infersdk.bench.worker import Worker
from infersdk.bench.worker_process import StepError
from infersdk.bench.workload import Workload
from infersdk.data import CLASSIFIER, DETECTOR, IMAGE
from infersdk.errors import ConfigError

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")

SETTINGS = BenchSettings(
    time=0.6, rounds=3, warmup=0.5, starts=2, latency_bound_ms=400, wrapper={"preset": "unit", "resize": 32}
)
#: One of one image and one of four: there is a row of each scenario that depends on it.
BATCHES = {"onnxruntime": 1, "openvino": 4}


@pytest.fixture(scope="module", params=BATCHES)
def report(request: pytest.FixtureRequest) -> Report:
    combinations = combine([CLASSIFIER], [request.param], batches=[BATCHES[request.param]], threads=1)
    return bench(combinations, SETTINGS, accuracy=False)


def test_each_scenario_has_its_figures(report: Report) -> None:
    assert len(report.rows) == 1
    for row in report.rows:
        assert row.status == "ok", row.reason
        stream_of = {True: "single_stream", False: "multi_stream"}
        alone = row.combination.batch == 1
        assert {stream_of[alone], "offline", "server"} <= row.scenarios.keys()
        assert stream_of[not alone] not in row.scenarios
        stream, offline, server = row.stream, row.scenarios["offline"], row.scenarios["server"]
        # One call after another: where the machine holds some of the calls up, the median call knows nothing of it.
        assert stream.latency_ms["p50"] is not None
        rate = 1e3 * row.combination.batch / stream.latency_ms["p50"].value
        assert 0 < stream.throughput.value < 1.5 * rate
        assert offline.requests > offline.slots
        assert 0 < server.rate <= 1.5 * offline.throughput.value  # found on another moment of a machine in use
        assert server.bound_ms == 400
        assert server.warmup_seconds > 0.1  # the search of the rate: six trials of 50 requests at least


def test_the_server_keeps_its_bound_or_says_that_it_does_not(report: Report) -> None:
    for row in report.rows:
        server = row.scenarios["server"]
        assert server.late is not None
        assert server.rate is not None
        assert server.keeps_bound is keeps_bound(server.requests, server.late)
        if server.keeps_bound and server.latency_ms["p99"] is not None:
            assert server.latency_ms["p99"].value <= 400 * 1.01
        # The requests that arrive are those of the rate: a Poisson process of that mean.
        seconds = SETTINGS.time * len(server.throughput.rounds) / SETTINGS.rounds
        assert abs(server.requests - server.rate * seconds) < 6 * np.sqrt(server.rate * seconds)
        assert all(refused.rate > server.rate for refused in server.refused)
        assert all(keeps_bound(refused.requests, refused.late) is False for refused in server.refused)


def test_a_cold_start_is_its_stages(report: Report) -> None:
    for row in report.rows:
        start = row.cold_start
        assert start is not None, row.notes
        assert len(start.seconds.rounds) == 2
        assert tuple(start.stages) == STAGES
        assert all(seconds > 0 for seconds in start.stages.values())
        assert sum(start.stages.values()) == pytest.approx(start.seconds.value, rel=0.5)
        assert 0.1 < start.seconds.value < 60
        keeps = row.loading is not None and row.loading.cached_seconds is not None
        assert (start.uncached_seconds is not None) == keeps


def test_a_bound_that_cannot_be_kept_is_said() -> None:
    settings = msgspec.structs.replace(SETTINGS, time=0.06, rounds=1, starts=0, latency_bound_ms=0.001)
    (row,) = bench(combine([CLASSIFIER]), settings, accuracy=False, loading=False).rows
    assert row.status == "ok", row.reason
    assert "server" not in row.scenarios
    assert "not run as a server: even alone requests take longer than 0.001 ms" in row.notes
    only = msgspec.structs.replace(settings, scenarios=["server"])
    (row,) = bench(combine([CLASSIFIER]), only, accuracy=False, loading=False).rows
    assert row.status == "failed"
    assert "even alone requests take longer" in row.reason


def test_a_server_needs_its_bound() -> None:
    with pytest.raises(ConfigError, match="needs the latency that its requests have to keep"):
        bench(combine([CLASSIFIER]), BenchSettings(scenarios=["server"]))


class Simulation:
    """A device that serves one request at a time, `seconds` each, in a time of its own; and that time."""

    def __init__(self, seconds: float) -> None:
        self.now, self._seconds, self._free = 0.0, seconds, 0.0
        self._under_way: list[tuple[float, Future[Any]]] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        while self._under_way and self._under_way[0][0] <= until:
            self.end_next()
        self.now = until

    def end_next(self) -> None:
        self.now, future = self._under_way.pop(0)
        future.set_result(None)

    def submit(self, item: Any) -> Future[Any]:
        self._free = max(self._free, self.now) + self._seconds
        future = SimulatedFuture(self)
        self._under_way.append((self._free, future))
        return future


class SimulatedFuture(Future[Any]):
    """Waiting for it makes the simulated time pass."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._simulation = simulation

    def result(self, timeout: float | None = None) -> Any:
        while not self.done():
            self._simulation.end_next()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.result(timeout)
        return super().exception(timeout)


def simulated(bound: float) -> tuple[Server, Simulation]:
    device = Simulation(0.001)
    return Server(device, [0], bound, seed=1, clock=device.clock, sleep=device.sleep), device  # type: ignore[arg-type]


def test_the_rate_is_found_by_halving() -> None:
    server, _ = simulated(0.010)
    assert server.find_rate(1000, 20, 1e6)
    # A queue of the kind M/D/1 whose requests take 1 ms: 0.6 % of them wait longer than 9 ms at 750 a second, 1.8 % at
    # 800 (by the exponential decay of its waiting time, Tijms, *A first course in stochastic models*, 2003).
    assert 740 < server.rate < 800
    found = server.run(20)
    assert found.rate is not None
    assert found.images == len(found.latencies) == pytest.approx(20 * found.rate, rel=0.03)
    assert np.quantile(found.latencies, 0.5) < np.quantile(found.latencies, 0.99) < 0.012
    assert min(found.latencies) == pytest.approx(0.001)


def test_a_bound_below_a_single_request_is_refused_at_once() -> None:
    server, device = simulated(0.0005)
    assert not server.find_rate(1000, 100, 1e6)
    assert server.rate == 0
    assert device.now == pytest.approx(0.005)


def test_latency_counts_from_when_a_request_is_due() -> None:
    server, _ = simulated(0.05)
    server.rate = 3000.0  # three times what the device can do
    found = server.run(1.0)
    assert found.late > 0.9 * len(found.latencies)
    assert max(found.latencies) == pytest.approx(2.0, rel=0.1)  # the last one waited for all before it
    assert found.seconds == pytest.approx(3.0, rel=0.1)
    assert server.rate == pytest.approx(LOWER * 3000)


@pytest.mark.parametrize(
    ("requests", "late", "judgement"),
    [
        (99, 0, None), (99, 2, None), (50, 3, False), (100, 1, True), (100, 2, False), (1000, 10, True),
        (1000, 11, False),
    ],
)  # fmt: skip
def test_a_rate_is_judged_on_enough_requests(requests: int, late: int, judgement: bool | None) -> None:
    assert keeps_bound(requests, late) is judgement


def test_a_lowered_rate_is_what_is_reported() -> None:
    run = CombinationRun(Combination(model=str(CLASSIFIER)), SETTINGS)
    rounds = [
        Measurement(200, 1.0, [0.1] * 200, rate=rate, late=late) for rate, late in ((100.0, 50), (90.0, 1), (90.0, 0))
    ]
    kept, fields = run._kept_rate(rounds)
    assert kept == rounds[1:]
    assert (fields["rate"], fields["late"], fields["keeps_bound"]) == (90.0, 1, True)
    assert [(r.rate, r.requests, r.late) for r in fields["refused"]] == [(100.0, 200, 50)]
    assert run._kept_rate(rounds[:1])[1]["keeps_bound"] is False


@pytest.mark.parametrize(
    ("backend", "wrapper", "used"),
    [
        ("onnxruntime", {}, "native"),
        ("openvino", {"decode_head": "graph"}, "graph"),
    ],
)
def test_calls_run_what_load_runs(tmp_path: Path, backend: str, wrapper: dict[str, Any], used: str) -> None:
    """The wrapper rows decode natively, as `models.load()` does; the engine runs the file's own outputs."""
    model = yolov5_model(tmp_path / "m.onnx", size=(96, 96))
    settings = BenchSettings(
        time=0.1, rounds=1, warmup=0.1, starts=0, scenarios=["engine", "single_stream"], wrapper=wrapper
    )
    (row,) = bench(combine([model], [backend], threads=1), settings, loading=False).rows
    assert row.status == "ok", row.reason
    assert (row.ran["kind"], row.ran["decode_head"]) == ("yolov5", used)
    assert any("without the decoding of its head" in note for note in row.notes) is (used == "native")
    assert row.accuracy.value is not None, row.accuracy.note
    assert row.accuracy.value > 0.9999


def test_accuracy_is_of_what_load_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = yolov5_model(tmp_path / "m.onnx", size=(96, 96))
    seen = []
    monkeypatch.setattr(ClassifyTask, "__init__", lambda self, *arguments, **own: None)
    monkeypatch.setattr(ClassifyTask, "figures", lambda self, infer: seen.append(infer) or {"top1": 1.0})
    monkeypatch.setattr(ClassifyTask, "images", 1, raising=False)
    worker = Worker()
    settings = BenchSettings(time=0.1, rounds=1, warmup=0.1, scenarios=["engine"], data=str(IMAGE), labels="folder")
    worker.load(combine([model])[0], settings)
    assert worker.prepare()["decode_head"] == "native"
    worker.accuracy()
    alone = Worker()
    alone.load(combine([model])[0], BenchSettings(scenarios=["engine"]))
    assert alone.prepare()["decode_head"] == "graph", "a second network would be loaded for nothing"
    assert [spec.name for spec in seen[0].output_specs] == ["head_0", "head_1", "head_2"]


def test_the_time_of_a_stage_is_the_median_of_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    settings = BenchSettings(type="arrays", time=0.01, rounds=1, warmup=0.01, scenarios=["single_stream"])
    worker.load(combine([CLASSIFIER])[0], settings)
    worker.prepare()
    calls = iter([{"engine": 3.0}, {"engine": 1.0}])
    monkeypatch.setattr(Workload, "call", lambda self: next(calls))
    monkeypatch.setattr(scenarios, "_repeat", lambda call, seconds: ([call() or 1.0, call() or 3.0], 4.0))
    assert worker.measure("single_stream", 1.0).stages == {"engine": 2.0}


def test_the_rates_of_parallel_runs_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    settings = BenchSettings(type="arrays", time=0.01, rounds=1, warmup=0.01, scenarios=["engine_parallel"])
    worker.load(combine([CLASSIFIER], ["openvino"], options={"streams": 2})[0], settings)
    worker.prepare()
    latencies, threads = iter([[0.3] * 4, [0.272] * 4]), list[threading.Thread]()

    def repeat(call: Any, seconds: float) -> tuple[list[float], float]:
        threads.append(threading.current_thread())
        return next(latencies), 1.0

    monkeypatch.setattr(scenarios, "_repeat", repeat)
    done = worker.measure("engine_parallel", 1.0)
    assert (done.images, len(done.latencies)) == (8, 8)
    assert done.images / done.seconds == pytest.approx(1 / 0.3 + 1 / 0.272)
    assert all(one.is_alive() for one in threads), "the time that ended threads waited is unknown"


def test_a_cold_start_of_a_detector_and_of_arrays(tmp_path: Path) -> None:
    order: dict[str, Any] = {
        "model": str(DETECTOR), "type": "yolov5", "wrapper": {}, "arguments": {"backend": "onnxruntime"},
        "options": {"threads": 1}, "image": str(IMAGE), "batch": 1, "shapes": {},
    }  # fmt: skip
    assert cold_start(order, 60)["load"] > 0
    assert cold_start({**order, "type": "arrays", "image": None}, 60)["first result"] > 0
    with pytest.raises(StepError, match="no model at"):
        cold_start({**order, "model": str(tmp_path / "none.onnx")}, 60)
    with pytest.raises(StepError, match=r"took longer than 0\.01 s"):
        cold_start(order, 0.01)
