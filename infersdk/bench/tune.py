"""The best settings for a model on this machine, within a time budget, by successive halving.

All candidates are tried for a short time. The better half continues with twice the time, until a few are left. These
are measured in rounds as in `bench()`. See Jamieson and Talwalkar, *Non-stochastic best arm identification*, 2016. The
accuracy is measured only for candidates that would continue; those that lose too much are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Real
from time import perf_counter
from typing import TYPE_CHECKING, Literal

import msgspec

from ..core.target import Target
from ..errors import (
    BackendNotFoundError,
    BackendUnavailableError,
    ConfigError,
    DeviceUnavailableError,
    PrecisionUnavailableError,
)
from .candidates import check_objective
from .plan import BenchSettings, Combination, Scenario, check_files, checked
from .report import Accuracy
from .run import Progress, bench

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .report import Report, Row
    from .statistics import Estimate

__all__ = ["Tuned", "tune"]

#: So many candidates are measured together at the end.
FINALISTS = 3
#: The shares of the budget at which further candidates are no longer tried, and no longer measured against each other.
TRYING, MEASURING = 0.4, 0.6
#: Codes of the errors of a backend, device or precision, which are the same with every batch size and option.
_OF_TARGET = {
    kind.code
    for kind in (BackendNotFoundError, BackendUnavailableError, DeviceUnavailableError, PrecisionUnavailableError)
}


@dataclass
class Tuned:
    """The result of a search.

    Attributes:
        best: the winner, measured in the last stage.
        report: the last stage: the winner, and those that came close.
        tried: each candidate that was run, in order of the first stage, with the speed that it reached.
        dropped: names of those that lost too much accuracy, with the loss; and of those whose accuracy could not be
            measured, with the reason.
        failed: names of those that cannot run here, with the reason.
        untried: names of those that the budget did not reach.
        accuracy: how accuracy was judged.
        interrupted: Ctrl-C ended the search: the winner is the best of what had been tried.
    """

    best: Row
    report: Report
    objective: str
    tried: list[tuple[str, float]] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    untried: list[str] = field(default_factory=list)
    accuracy: str = ""
    seconds: float = 0.0
    interrupted: bool = False


def tune(
    search: Sequence[Combination],
    settings: BenchSettings | None = None,
    *,
    objective: Literal["latency", "throughput"] = "latency",
    max_drop: float = 0.01,
    budget: float = 300.0,
    progress: Progress | None = None,
) -> Tuned:
    """Searches the best of `search`.

    Args:
        search: see `candidates()`. The first model of it is the reference for accuracy.
        settings: data, truth and wrapper; the search sets scenarios, times and rounds itself.
        objective: `"latency"`: the median of one call after another; `"throughput"`: images a second, offline.
        max_drop: maximum loss of accuracy against the first model on ONNX Runtime in FP32: of mAP or top-1 with
            labels, otherwise 1 minus the cosine similarity of the outputs.
        budget: seconds for the whole search. A running measurement is then ended, except for the first candidate that
            can run.

    Raises:
        ConfigError: a setting is out of range; or no candidate can run, or none is accurate enough, or the accuracy
            could not be measured.
    """
    check_objective(objective)
    if not (isinstance(max_drop, Real) and 0 <= max_drop < 1):
        raise ConfigError(f"max_drop is a number from 0 to 1, 0.01 say, not {max_drop!r}")
    if not (isinstance(budget, Real) and 0 < budget < float("inf")):
        raise ConfigError(f"a budget is a number of seconds above 0, not {budget!r}")
    settings = checked(settings or BenchSettings(), BenchSettings)
    combinations = [checked(combination, Combination) for combination in search]
    return _Search(combinations, settings, objective, max_drop, budget, progress).run()


class _Search:
    def __init__(
        self, search: list[Combination], settings: BenchSettings, objective: str, max_drop: float, budget: float,
        progress: Progress | None,
    ) -> None:  # fmt: skip
        if not search:
            raise ConfigError("there is nothing to try")
        check_files(search)
        self._search, self._settings, self._objective = search, settings, objective
        self._max_drop, self._budget = max_drop, budget
        self._progress = progress or (lambda stage, share, detail: None)
        self._scenarios: list[Scenario] = ["single_stream", "multi_stream"]
        if objective == "throughput":
            self._scenarios.append("offline")
        self._started = perf_counter()
        self._failed: dict[str, str] = {}
        self._dropped: dict[str, str] = {}
        self._judged: dict[str, Accuracy] = {}
        self._rows: dict[str, Row] = {}
        self._interrupted = False
        self._late = False  # the time of the last measuring was up before its end
        self._starting = 0.0  # maximum seconds of a candidate besides its scenarios

    def _spent(self) -> float:
        return perf_counter() - self._started

    def run(self) -> Tuned:
        alive, untried = self._first_stage()
        tried = [(what.name, self._speed(what)) for what in alive]
        seconds = 2 * self._slice
        alive = self._halved(alive)
        while len(alive) > FINALISTS and self._left(MEASURING) > 0 and not self._interrupted:
            report = self._bench(alive, seconds, rounds=2, what="stage", seconds_left=self._left_to_judge())
            alive = self._halved(self._ranked(alive, report))
            seconds *= 2
        each = self._starting + len(self._scenarios) * self._slice  # seconds of a finalist at least
        final = alive[: max(min(FINALISTS, int(self._left(1.0) / each)), 0)]
        if final and not self._interrupted:
            # Each scenario of each finalist takes this long.
            left = self._left(1.0) - len(final) * self._starting
            seconds = min(max(0.8 * left / (len(self._scenarios) * len(final)), self._slice), 5.0)
            report, alive = self._bench(final, seconds, rounds=5, what="final", seconds_left=self._left(1.0)), final
        if not final or self._interrupted or not any(row.scenarios for row in report.rows):
            # There was no time to measure them again: the latest figures count.
            alive, report = alive[:FINALISTS], self._last
            report.rows, report.interrupted = [self._rows[what.name] for what in alive], self._interrupted
        alive = self._ranked(alive, report)
        for row in report.rows:
            judged = self._judged.get(row.combination.judged_as)
            row.accuracy = judged if judged is not None and judged.value is not None else None
        best = self._rows[alive[0].name if alive else tried[0][0]]
        return Tuned(
            best=best, report=report, objective=self._objective, tried=tried, dropped=self._dropped,
            failed=self._failed, untried=untried, accuracy=self._judgement(best), seconds=self._spent(),
            interrupted=self._interrupted,
        )  # fmt: skip

    def _left(self, share: float) -> float:
        """The seconds that are left of a share of the budget."""
        return share * self._budget - self._spent()

    def _left_to_judge(self) -> float:
        """The seconds that are left to measure accuracy, before one finalist has to start."""
        return self._left(1.0) - self._starting

    def _first_stage(self) -> tuple[list[Combination], list[str]]:
        """Each for a short while, as far as its part of the budget reaches. Returns those that ran, the best first, and
        the names of those that were not reached."""
        self._slice = min(max(0.25 * self._budget / len(self._search) / 2, 0.05), 1.0)
        alive: list[Combination] = []
        refused: dict[str, str] = {}
        for i, what in enumerate(self._search):
            if (alive and self._left(TRYING) <= 0) or self._interrupted:
                break
            target = f"{what.model}\0{what.target}"
            if target in refused:
                self._failed[what.name] = refused[target]
                continue
            self._progress("first try", 0.5 * i / len(self._search), f"{i + 1} of {len(self._search)}, {what.name}")
            begun = self._spent()
            self._last = report = bench(
                [what], self._quick(self._slice, 1), accuracy=False, loading=False,
                budget=self._left(MEASURING) if alive else None,
            )  # fmt: skip
            row = report.rows[0]
            self._starting = max(self._starting, self._spent() - begun - len(row.scenarios) * self._slice)
            if alive and not row.scenarios and self._left(MEASURING) <= 0:
                break  # it is among those that the budget did not reach
            self._interrupted = report.interrupted
            if row.scenarios and self._figure(row) is not None:
                self._rows[what.name] = row
                alive.append(what)
            elif not report.interrupted:
                reason = "it cannot run with these settings"
                if row.scenarios:
                    reason = f"its run takes longer than the {self._slice:.2g} s that it had; give a larger budget"
                self._failed[what.name] = row.reason or reason
                if row.code in _OF_TARGET:
                    refused[target] = row.reason
        if not alive:
            if self._interrupted:
                raise KeyboardInterrupt
            name, reason = next(iter(self._failed.items()))
            raise ConfigError(f"none of the {len(self._failed)} candidates could be measured; {name}: {reason}")
        seen = {what.name for what in alive} | self._failed.keys()
        alive.sort(key=self._speed, reverse=True)
        return alive, [what.name for what in self._search if what.name not in seen]

    def _quick(self, seconds: float, rounds: int) -> BenchSettings:
        return msgspec.structs.replace(
            self._settings, time=seconds * rounds, rounds=rounds, warmup=max(4 * seconds, 0.2),
            scenarios=self._scenarios, latency_bound_ms=None, starts=0,
        )  # fmt: skip

    def _bench(self, alive: list[Combination], seconds: float, rounds: int, what: str, seconds_left: float) -> Report:
        """Measures candidates together, as far as the time reaches."""
        begun = self._spent()
        done, stage_name = min(self._spent() / self._budget, 0.99), f"{what}, {len(alive)} candidates"
        self._last = report = bench(
            alive, self._quick(seconds / rounds, rounds), accuracy=False, loading=False, alive=4,
            budget=max(seconds_left, 0.0),
            progress=lambda stage, _, name: self._progress(stage_name, done, f"{stage}, {name}"),
        )  # fmt: skip
        self._interrupted |= report.interrupted
        self._late = self._spent() - begun >= seconds_left
        self._rows |= {row.name: row for row in report.rows if row.scenarios}
        return report

    def _ranked(self, alive: list[Combination], report: Report) -> list[Combination]:
        rows = {row.name: row for row in report.rows}
        for what in alive:
            if not rows[what.name].scenarios and not report.interrupted and not self._late:
                self._failed[what.name] = rows[what.name].reason
        return sorted((what for what in alive if what.name not in self._failed), key=self._speed, reverse=True)

    def _figure(self, row: Row) -> Estimate | None:
        return row.latency if self._objective == "latency" else row.best_throughput

    def _speed(self, what: Combination) -> float:
        """The maximised figure: images a second, or 1 / latency in ms."""
        figure = self._figure(self._rows[what.name])
        if figure is None:
            return 0.0
        return 1 / figure.value if self._objective == "latency" else figure.value

    # ---- accuracy ----

    def _halved(self, alive: list[Combination]) -> list[Combination]:
        """The best that are accurate enough: half as many as these, and three at least.

        Accuracy is measured from the best on, until there are so many.
        """
        count = max(-(-len(alive) // 2), FINALISTS)
        kept: list[Combination] = []
        for what in alive:
            if len(kept) >= count:
                break
            if self._accurate(what):
                kept.append(what)
        if not kept and not self._dropped:
            raise ConfigError(
                f"a budget of {self._budget:g} s is too short to measure the accuracy of a candidate; give more"
            )
        if not kept:
            name, loss = next(iter(self._dropped.items()))
            if all(result.value is None for result in self._judged.values()):
                labelled = self._settings.annotations or self._settings.labels
                hint = "" if labelled else ". The first file is the reference: give one that ONNX Runtime reads"
                raise ConfigError(f"the accuracy of no candidate could be measured; {name}: {loss}{hint}")
            raise ConfigError(f"every candidate loses more than {self._max_drop:g} of accuracy; {name}: {loss}")
        return kept

    def _accurate(self, what: Combination) -> bool:
        is_first = what.target.precision is None and what.model == self._search[0].model
        result = self._judged.get(what.judged_as) or (None if self._stopped() else self._accuracy(what))
        if result is None or (self._stopped() and result.value is None):
            return is_first
        if result.value is None:
            self._dropped[what.name] = result.note
            return False
        reference = 1.0  # two outputs that agree
        if result.metric != "agreement":
            full = self._accuracy(self._reference())
            if full.value is None:
                if self._stopped():
                    return is_first
                raise ConfigError(f"there is no accuracy to compare with: {self._reference().name}: {full.note}")
            reference = full.value
        if reference - result.value <= self._max_drop + 1e-9:
            return True
        self._dropped[what.name] = f"{_text(result)}, against {reference:.4f}"
        return False

    def _stopped(self) -> bool:
        """Whether there is no time to measure the accuracy of more candidates."""
        return self._interrupted or self._left_to_judge() <= 0

    def _reference(self) -> Combination:
        return Combination(
            model=self._search[0].model, target=Target("onnxruntime", "cpu", "fp32"), batch=self._search[0].batch
        )

    def _accuracy(self, what: Combination) -> Accuracy:
        """Of a model on a target, measured once for all batches and threads. Without a value, `note` has the reason."""
        key = what.judged_as
        if key not in self._judged:
            self._progress("accuracy", min(self._spent() / self._budget, 0.99), what.name)
            report = bench(
                [what], self._quick(1e-3, 1), loading=False, budget=max(self._left_to_judge(), 0.0),
                reference=self._search[0].model,
            )  # fmt: skip
            self._interrupted |= report.interrupted
            row = report.rows[0]
            result = row.accuracy or Accuracy(metric="", value=None)
            if result.value is None:
                note = row.reason or result.note or "it could not be measured"
                result = msgspec.structs.replace(result, note=note)
            self._judged[key] = result
        return self._judged[key]

    def _judgement(self, best: Row) -> str:
        result = self._judged.get(best.combination.judged_as)
        if result is None or result.value is None:
            return f"not measured: {'the search was interrupted' if self._interrupted else 'the budget was too short'}"
        if result.metric != "agreement":
            return f"{_text(result)}; allowed is {self._max_drop:g} less than in FP32 on ONNX Runtime"
        return (
            f"{_text(result)} with FP32 on ONNX Runtime; the cost in accuracy is unknown without labelled "
            "images (--data with --annotations or --labels)"
        )


def _text(found: Accuracy) -> str:
    return f"{found.metric} {found.value:.4f}"
