"""The measurements of one combination, and its row of the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .cold_start import STAGES
from .energy import NOT_MEASURABLE
from .machine import contention
from .report import ColdStart, Energy, RefusedRate, Row, ScenarioResult
from .server import keeps_bound
from .statistics import median_of_rounds, outliers, percentile_of_rounds
from .worker import ENERGY_SCENARIOS

if TYPE_CHECKING:
    from .plan import BenchSettings, Combination
    from .statistics import Measurement
    from .worker_process import StepError, WorkerProcess

__all__ = ["CombinationRun"]


class CombinationRun:
    """A combination with its process, measurements and row.

    Attributes:
        row: of the report; `finish()` completes it.
        loaded, prepared: the responses to `load` and `prepare`.
        measurements: by scenario, those of each round.
        starts: seconds by stage of cold starts; `uncached` is the one without the cache of the backend.
    """

    def __init__(self, combination: Combination, settings: BenchSettings) -> None:
        self.combination, self._settings = combination, settings
        self.row = Row(
            name=combination.name, combination=combination, status="ok",
            reason="the measuring was interrupted before it began",
        )  # fmt: skip
        self.process: WorkerProcess | None = None
        self.loaded: dict[str, Any] = {}
        self.prepared: dict[str, Any] = {}
        self.measurements: dict[str, list[Measurement]] = {}
        self.starts: list[dict[str, float]] = []
        self.uncached: dict[str, float] | None = None

    def fail(self, error: StepError) -> None:
        self.row.status, self.row.reason, self.row.code = "failed", str(error), error.code
        self.end()

    def end(self) -> None:
        if self.process is not None:
            self.process.end()
            self.process = None

    def finish(self, *, interrupted: bool) -> Row:
        row = self.row
        if not self.measurements:
            row.status = "failed"
        elif row.status != "failed":
            complete = all(len(rounds) == self._settings.rounds for rounds in self.measurements.values())
            missing = "interrupted" if interrupted else "not all rounds were run"
            row.status, row.reason = ("ok", "") if complete else ("partial", missing)
        row.notes = [*self.loaded.get("notes", ()), *self.prepared.get("notes", ()), *row.notes]
        if self.loaded:
            names = ("backend", "version", "device", "precision", "layers", "concurrency")
            of_wrapper = {name: self.prepared.get(name) for name in ("kind", "decode_head")}
            row.ran = {name: self.loaded[name] for name in names} | of_wrapper
        row.scenarios = {name: self._result(name, rounds) for name, rounds in self.measurements.items()}
        row.cold_start = self._cold_start()
        row.stages_ms = self._stages(row)
        row.energy = self._energy()
        row.contention = contention([r.load for rounds in self.measurements.values() for r in rounds])
        return row

    def _result(self, scenario: str, rounds: list[Measurement]) -> ScenarioResult:
        warm = self.prepared["warmup"][scenario]
        own: dict[str, Any] = {}
        if scenario == "offline":
            own["slots"] = self.prepared["slots"]
        elif scenario == "server":
            rounds, own = self._kept_rate(rounds)
        samples = [1e3 * np.asarray(r.latencies) for r in rounds]
        return ScenarioResult(
            throughput=median_of_rounds([r.images / r.seconds for r in rounds]),
            latency_ms={f"p{q}": percentile_of_rounds(samples, q) for q in (50, 90, 99)},
            requests=sum(map(len, samples)), outliers=sum(map(outliers, samples)),
            steady=warm["steady"], warmup_seconds=warm["seconds"], **own,
        )  # fmt: skip

    def _kept_rate(self, rounds: list[Measurement]) -> tuple[list[Measurement], dict[str, Any]]:
        """The rounds at the last rate, which is the lowest, and the fields of the scenario `server`."""
        by_rate: dict[float, list[Measurement]] = {}
        for r in rounds:
            by_rate.setdefault(r.rate or 0.0, []).append(r)
        *refused, last = (
            RefusedRate(rate=rate, requests=sum(len(r.latencies) for r in own), late=sum(r.late or 0 for r in own))
            for rate, own in by_rate.items()
        )
        return by_rate[last.rate], {
            "rate": last.rate, "bound_ms": self._settings.latency_bound_ms, "late": last.late,
            "keeps_bound": keeps_bound(last.requests, last.late), "refused": refused,
        }  # fmt: skip

    def _cold_start(self) -> ColdStart | None:
        if not self.starts:
            return None
        return ColdStart(
            seconds=median_of_rounds([sum(start.values()) for start in self.starts]),
            stages={name: median_of_rounds([start[name] for start in self.starts]).value for name in STAGES},
            uncached_seconds=sum(self.uncached.values()) if self.uncached is not None else None,
        )

    def _stages(self, row: Row) -> dict[str, float]:
        rounds = self.measurements.get("single_stream") or self.measurements.get("multi_stream") or []
        names = list(rounds[0].stages) if rounds else []
        medians = {n: 1e3 * median_of_rounds([r.stages[n] for r in rounds]).value for n in names}
        engine = row.at("scenarios.engine.latency_ms.p50")
        if "whole" in medians and engine is not None:  # on a device with a stream
            # The scenario `engine` runs on inputs on the device. The rest is reading, copies, preprocessing and
            # postprocessing, as far as they do not overlap with the engine.
            return {"engine": engine.value, "around the engine": max(medians["whole"] - engine.value, 0.0)}
        return medians

    def _energy(self) -> Energy | None:
        scenario = next((name for name in ENERGY_SCENARIOS if self.measurements.get(name)), None)
        if scenario is None:
            return None
        rounds = self.measurements[scenario]
        per_joule = []
        for r in rounds:
            if not r.watts:
                more = "" if r.energy_source.startswith(NOT_MEASURABLE) else f" of {r.seconds:.2g} s: give more --time"
                return Energy(images_per_joule=None, source=r.energy_source + more)
            per_joule.append(r.images / (r.watts * r.seconds))
        source = rounds[0].energy_source
        return Energy(images_per_joule=median_of_rounds(per_joule), source=source, scenario=scenario)
