"""The best settings for a model on this machine, within a time budget: successive halving over what there is to set.

All candidates are tried for a short while first. The better half goes on with twice the time, and so forth, until a few
are left; those are measured as `bench()` does, all in turn (Jamieson and Talwalkar, *Non-stochastic best arm
identification and hyperparameter optimization*, 2016). A candidate that loses too much accuracy is out as soon as it
would go on: nothing is spent on those that are too slow anyway.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..errors import BackendError, ConfigError
from ..registry import backend_class
from ..target import Target
from .plan import BenchSettings, Combination
from .run import bench

if TYPE_CHECKING:
    from ..options import BackendOptions
    from .report import Accuracy, Report, Row
    from .run import Progress

__all__ = ["Tuned", "candidates", "tune", "tuned_toml"]

#: So many go into the last round together.
FINALISTS = 3
BATCHES = (1, 2, 4, 8, 16, 32)


@dataclass
class Tuned:
    """What came of a search.

    Attributes:
        best: the winner, measured in the last round.
        report: the last round: the winner, and those that came close.
        tried: each candidate that was run, in order of the first stage, with what it reached.
        dropped: names of those that lost too much accuracy, with the loss.
        failed: names of those that cannot run here, with the reason.
        untried: names of those that the budget did not reach.
        accuracy: how accuracy was judged.
        interrupted: Ctrl-C ended the search: the winner is of what had been tried.
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


def candidates(
    models: Sequence[str | os.PathLike[str]],
    sides: Sequence[str],
    *,
    objective: Literal["latency", "throughput"],
    precisions: Iterable[str | None] = (None, "bf16", "fp16"),
    batches: Sequence[int] | None = None,
    threads: Sequence[int] | None = None,
) -> list[Combination]:
    """What there is to try, the most promising first: those that differ least from the defaults, and where there is a
    GPU, those on it.

    Args:
        sides: backends as `"name"` or `"name@device"`.
        precisions: None is each model's own. One that a backend cannot have is found out by trying.
        batches: None is 1 for latency, and 1 to 32 for throughput.
        threads: on a processor; None is the backend's choice, all cores, and half of them.
    """
    from ..ops.batch import available_processors

    count = available_processors()
    own_threads = list(dict.fromkeys(threads or (0, count, max(count // 2, 1))))
    sizes = list(batches or ((1,) if objective == "latency" else BATCHES))
    targets = []
    for side in sides:
        target = Target.parse(side)
        try:
            kind = backend_class(target.backend)
        except BackendError as error:
            raise type(error)(f"{error}; leave it out, or install it") from None
        targets.append((target, kind, (target.device or kind.default_device).startswith("cpu")))
    beside_gpu = not all(on_processor for *_, on_processor in targets)
    found: list[tuple[int, bool, int, Combination]] = []
    for target, kind, on_processor in targets:
        for precision in (target.precision,) if target.precision else precisions:
            for options, apart in _settings(kind.Options, own_threads, objective, precision, on_processor=on_processor):
                for batch in sizes:
                    for model in models:
                        what = Combination(
                            model=str(model), backend=target.backend, device=target.device, precision=precision,
                            batch=batch, options=options,
                        )  # fmt: skip
                        cost = apart + (precision is not None) + (batch > 8) + (on_processor and beside_gpu)
                        found.append((cost, on_processor, apart, what))
    found.sort(key=lambda entry: entry[:3])
    return [what for *_, what in found]


def _settings(
    kind: type[BackendOptions], threads: Sequence[int], objective: str, precision: str | None, *, on_processor: bool
) -> list[tuple[dict[str, Any], int]]:
    """Options of a backend, each with how far it is from the defaults."""
    found: list[tuple[dict[str, Any], int]] = []
    for i, number in enumerate(threads if on_processor and kind.has("threads") else (0,)):
        own = {"threads": number} if number else {}
        found.append((own, i))
        if objective == "throughput" and kind.has("performance_hint"):
            found.append(({**own, "performance_hint": "throughput"}, i))
        if objective == "throughput" and kind.has("streams"):
            most = number or max(threads)
            found += [({**own, "streams": streams}, i + 1) for streams in (2, 4) if streams <= most]
    if kind.has("cuda_graph") and not on_processor:
        found += [({**own, "cuda_graph": True}, cost + 1) for own, cost in list(found)]
    if kind.has("half_io") and precision == "fp16":
        found += [({**own, "half_io": True}, cost + 1) for own, cost in list(found)]
    return found


#: Options that change how fast a model is, and not what comes out.
_SPEED_ALONE = ("threads", "streams", "performance_hint", "cuda_graph")


def _judged_as(what: Combination) -> str:
    """The same for all that give the same results: what accuracy is asked of once."""
    options = {key: value for key, value in sorted(what.options.items()) if key not in _SPEED_ALONE}
    return f"{what.model}\0{what.side}\0{options}"


def tune(
    search: Sequence[Combination],
    settings: BenchSettings | None = None,
    *,
    objective: Literal["latency", "throughput"] = "latency",
    max_drop: float = 0.01,
    budget: float = 300.0,
    progress: Progress | None = None,
) -> Tuned:
    """Looks for the best of `search`.

    Args:
        search: see `candidates()`. The first model of it is the reference for accuracy.
        settings: data, truth and wrapper; times and rounds are the search's own.
        objective: `"latency"`: the median of one call after another; `"throughput"`: images a second, pipelined.
        max_drop: how much less accurate than the first model on ONNX Runtime in FP32 it may be: mAP or top-1 where
            the data has labels, else 1 less the cosine similarity of the outputs.
        budget: seconds. A step that has begun is ended, so it may be a little more.

    Raises:
        ConfigError: nothing of `search` can run, or all of it loses too much accuracy.
    """
    if not 0 <= max_drop < 1:
        raise ConfigError(f"max_drop is a number from 0 to 1, 0.01 say, not {max_drop!r}")
    if budget <= 0:
        raise ConfigError(f"a budget is a number of seconds above 0, not {budget!r}")
    return _Search(list(search), settings or BenchSettings(), objective, max_drop, budget, progress).run()


class _Search:
    def __init__(
        self, search: list[Combination], settings: BenchSettings, objective: str, max_drop: float, budget: float,
        progress: Progress | None,
    ) -> None:  # fmt: skip
        if not search:
            raise ConfigError("there is nothing to try")
        self._search, self._settings, self._objective = search, settings, objective
        self._max_drop, self._budget = max_drop, budget
        self._progress = progress or (lambda stage, share, detail: None)
        self._placement: Any = ["single"] if objective == "latency" else ["single", "pipelined"]
        self._started = perf_counter()
        self._failed: dict[str, str] = {}
        self._dropped: dict[str, str] = {}
        self._judged: dict[str, Accuracy | str] = {}  # its accuracy, or why there is none
        self._rows: dict[str, Row] = {}
        self._interrupted = False
        self._reports: list[Report] = []

    def _spent(self) -> float:
        return perf_counter() - self._started

    def run(self) -> Tuned:
        alive, untried = self._first_stage()
        tried = [(self._rows[c.name].name, self._speed(self._rows[c.name])) for c in alive]
        seconds = 2 * self._slice
        alive = self._halved(alive, max(-(-len(alive) // 2), FINALISTS))
        while len(alive) > FINALISTS and self._spent() < 0.75 * self._budget and not self._interrupted:
            report = self._bench(alive, seconds, rounds=2, what="stage")
            alive = self._ranked(alive, report)
            alive = self._halved(alive, max(-(-len(alive) // 2), FINALISTS))
            seconds *= 2
        alive = alive[:FINALISTS]
        left = max(self._budget - self._spent(), 0.0)
        # Each way of each finalist takes this long; loading and warming up take about as much again.
        seconds = min(max(0.5 * left / (3 * len(alive)), self._slice), 5.0)
        report = self._last_report(alive) if self._interrupted else self._bench(alive, seconds, rounds=5, what="final")
        alive = self._ranked(alive, report)
        for row in report.rows:
            found = self._judged.get(_judged_as(row.combination), "")
            row.accuracy = None if isinstance(found, str) else found
        best = next(row for row in report.rows if row.name == alive[0].name) if alive else None
        if best is None or not best.ways:
            best = self._rows[tried[0][0]]
        return Tuned(
            best=best, report=report, objective=self._objective, tried=tried, dropped=self._dropped,
            failed=self._failed, untried=untried, accuracy=self._told(best), seconds=self._spent(),
            interrupted=self._interrupted,
        )  # fmt: skip

    def _last_report(self, alive: list[Combination]) -> Report:
        """What there is when the search was interrupted: the latest figures of those that are left."""
        report = self._reports[-1]
        report.rows = [self._rows[what.name] for what in alive]
        report.interrupted = True
        return report

    def _first_stage(self) -> tuple[list[Combination], list[str]]:
        """Each for a short while, as far as half of the budget reaches: the best first, and those left out."""
        self._slice = min(max(0.25 * self._budget / len(self._search) / 2, 0.05), 1.0)
        alive: list[Combination] = []
        for i, what in enumerate(self._search):
            enough = self._spent() > 0.5 * self._budget and alive
            if enough or self._interrupted:
                break
            side = f"{what.model}\0{what.side}"
            if side in self._failed:  # no batch and no thread will help a precision that cannot be had
                self._failed[what.name] = self._failed[side]
                continue
            self._progress("first try", 0.5 * i / len(self._search), f"{i + 1} of {len(self._search)}, {what.name}")
            report = bench([what], self._quick(self._slice, 1), accuracy=False, loading=False)
            self._reports.append(report)
            row = report.rows[0]
            self._interrupted = report.interrupted
            if row.ways and self._objective_way(row) is not None:
                self._rows[what.name] = row
                alive.append(what)
            elif not report.interrupted:
                self._failed[what.name] = row.reason or "it cannot be run so"
                if row.reason.startswith(("precision", "backend", "device")):
                    self._failed[side] = row.reason
        self._failed = {name: reason for name, reason in self._failed.items() if "\0" not in name}
        if not alive:
            if self._interrupted:
                raise KeyboardInterrupt
            name, reason = next(iter(self._failed.items()))
            raise ConfigError(f"none of the {len(self._failed)} candidates can run here; {name}: {reason}")
        seen = {what.name for what in alive} | self._failed.keys()
        alive.sort(key=lambda what: -self._speed(self._rows[what.name]))
        return alive, [what.name for what in self._search if what.name not in seen]

    def _quick(self, seconds: float, rounds: int) -> BenchSettings:
        return msgspec.structs.replace(
            self._settings, time=seconds * rounds, rounds=rounds, warmup=max(4 * seconds, 0.2), ways=self._placement
        )  # fmt: skip

    def _bench(self, alive: list[Combination], seconds: float, rounds: int, what: str) -> Report:
        share, left = min(self._spent() / self._budget, 0.99), f"{what}, {len(alive)} candidates"
        report = bench(
            alive, self._quick(seconds / rounds, rounds), accuracy=False, loading=False, alive=4,
            progress=lambda stage, _, name: self._progress(left, share, f"{stage}, {name}"),
        )  # fmt: skip
        self._reports.append(report)
        self._interrupted |= report.interrupted
        self._rows |= {row.name: row for row in report.rows if row.ways}
        return report

    def _ranked(self, alive: list[Combination], report: Report) -> list[Combination]:
        rows = {row.name: row for row in report.rows}
        for what in alive:
            if not rows[what.name].ways and not report.interrupted:
                self._failed[what.name] = rows[what.name].reason
        return sorted(
            (what for what in alive if what.name not in self._failed),
            key=lambda what: -self._speed(self._rows[what.name]),
        )

    def _objective_way(self, row: Row) -> Any:
        return row.latency if self._objective == "latency" else row.best_throughput

    def _speed(self, row: Row) -> float:
        """What is to be as large as can be: images a second, or 1 over the latency in ms."""
        found = self._objective_way(row)
        if found is None:
            return 0.0
        return 1 / found.value if self._objective == "latency" else float(found.value)

    # ---- accuracy ----

    def _halved(self, alive: list[Combination], count: int) -> list[Combination]:
        """The best `count` that are accurate enough; they are asked from the best on."""
        kept: list[Combination] = []
        for what in alive:
            if len(kept) >= count:
                break
            if self._accurate(what):
                kept.append(what)
        if not kept:
            name, loss = next(iter(self._dropped.items()))
            raise ConfigError(f"every candidate loses more than {self._max_drop:g} of accuracy; {name}: {loss}")
        return kept

    def _accurate(self, what: Combination) -> bool:
        if self._interrupted:
            return what.precision is None and what.model == self._search[0].model
        found = self._accuracy(what)
        if isinstance(found, str):
            self._dropped[what.name] = found
            return False
        reference: float | None = 1.0  # two outputs that agree
        if found.metric != "agreement":
            full = self._accuracy(self._reference())
            if isinstance(full, str):
                raise ConfigError(f"there is no accuracy to hold others against: {self._reference().name}: {full}")
            reference = full.value
        assert found.value is not None
        assert reference is not None
        if reference - found.value <= self._max_drop + 1e-9:
            return True
        self._dropped[what.name] = f"{_said(found)}, against {reference:.4f}"
        return False

    def _reference(self) -> Combination:
        return Combination(
            model=self._search[0].model,
            backend="onnxruntime",
            device="cpu",
            precision="fp32",
            batch=self._search[0].batch,
        )

    def _accuracy(self, what: Combination) -> Accuracy | str:
        """Of a model on a backend in a precision, asked once for all batches and threads; or why there is none."""
        key = _judged_as(what)
        if key not in self._judged:
            self._progress("accuracy", min(self._spent() / self._budget, 0.99), what.name)
            models = [self._reference(), what] if what.model != self._search[0].model else [what]
            report = bench(models, self._quick(1e-3, 1), loading=False, alive=1)
            self._interrupted |= report.interrupted
            row = report.rows[-1]
            found = row.accuracy
            if found is not None and found.value is not None:
                self._judged[key] = found
            else:
                note = found.note if found is not None else ""
                self._judged[key] = row.reason or note or "it could not be measured"
        return self._judged[key]

    def _told(self, best: Row) -> str:
        found = self._judged.get(_judged_as(best.combination), "")
        if isinstance(found, str):
            return "not measured: the search was interrupted"
        if found.metric != "agreement":
            return f"{_said(found)}; at most {self._max_drop:g} less than in FP32 on ONNX Runtime is allowed"
        return (
            f"{_said(found)} with FP32 on ONNX Runtime; without labelled images (--data with --annotations or "
            "--labels) nobody can tell what that costs in accuracy"
        )


def _said(found: Accuracy) -> str:
    return f"{found.metric} {found.value:.4f}"


def tuned_toml(found: Tuned, settings: BenchSettings, output: str | os.PathLike[str]) -> str:
    """The configuration of the winner, for `infersdk.load()` and, with a wrapper, `infersdk.models.create()`.

    Paths in it are relative to the folder of `output`, as those who read it take them.
    """
    row = found.best
    what, ran = row.combination, row.ran or {}
    folder, model = Path(output).resolve().parent, Path(what.model).resolve()
    table: dict[str, Any] = {"path": os.path.relpath(model, folder), "backend": what.backend}
    kind = ran.get("kind")
    if kind not in (None, "arrays"):
        own: dict[str, Any] = {"preset": settings.preset, "resize": settings.resize, "names": settings.names}
        if kind != "classifier":
            own = {"names": settings.names}
        table = {"type": kind, **table, **{key: value for key, value in own.items() if value is not None}}
        if isinstance(table.get("names"), str):
            table["names"] = os.path.relpath(Path(table["names"]).resolve(), folder)
    table |= {key: value for key in ("device", "precision") if (value := getattr(what, key)) is not None}
    table["max_batch"] = what.batch
    if what.options:
        table["options"] = dict(what.options)
    table["pipeline"] = {"max_batch": what.batch}
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in model.stem) or "model"
    single, served = row.latency, row.best_throughput
    figures = [f"p50 {single.value:.3g} ms"] if single else []
    figures += [f"{served.value:.4g} images/s"] if served else []
    head = [
        f"infersdk tune, for {found.objective}: {', '.join(figures)}, batch {what.batch}",
        f"on {found.report.machine['processor']}, {found.report.machine['cores']} cores"
        + "".join(f", {gpu}" for gpu in found.report.machine["gpus"]),
        f"{ran.get('backend')} {ran.get('version')}, {ran.get('precision')} on {ran.get('device')}",
        f"accuracy: {found.accuracy}",
        f"{len(found.tried)} candidates ran in {found.seconds:.0f} s; {len(found.failed)} cannot run here, "
        f"{len(found.dropped)} lose too much accuracy, {len(found.untried)} were not reached",
    ]
    return "".join(f"# {line}\n" for line in head) + "\n" + _toml(name, table)


def _toml(name: str, table: dict[str, Any]) -> str:
    """A table of plain values and tables of such, which is all that there is to write here."""
    import json

    # JSON's strings, numbers, bools and arrays of them are TOML's, too.
    lines = [f"[models.{name}]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for key, inner in table.items():
        if isinstance(inner, dict):
            lines += ["", f"[models.{name}.{key}]", *(f"{k} = {json.dumps(v)}" for k, v in inner.items())]
    return "\n".join(lines) + "\n"
