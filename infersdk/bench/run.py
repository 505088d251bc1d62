"""Measures combinations in rounds, each combination in its own process.

All processes of a group stay loaded and warm. Each round measures every combination once, in a new random order, so
that other load on the machine affects all of them equally. A group has as many combinations as fit into memory.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import random
import tempfile
from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

from ..core.model_source import ModelSource
from ..errors import ConfigError, InferSDKError
from ..graph.files import size_of
from ..loading.registry import check_backend
from .cold_start import cold_start
from .combination_run import CombinationRun
from .machine import available_bytes, describe_machine
from .plan import BenchSettings, Combination, check_files, checked
from .report import Accuracy, Loading, ModelFile, Report
from .worker_process import StepError, TimeUpError, WorkerProcess

__all__ = ["Progress", "bench"]

#: Called with the stage, the completed share (0 to 1) and the combination.
Progress = Callable[[str, float, str], None]
#: A group is complete when less than this share of the initial memory, or of a GPU's memory, is available.
RESERVE = 0.25


def bench(
    combinations: Sequence[Combination],
    settings: BenchSettings | None = None,
    *,
    accuracy: bool = True,
    loading: bool = True,
    alive: int | None = None,
    budget: float | None = None,
    reference: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Measures each combination. A combination that cannot run becomes a row with the reason.

    Args:
        combinations: see `combine()`.
        accuracy: whether to measure accuracy.
        loading: whether to measure loading and the cold start; for backends with a cache without and with it.
            Otherwise models are loaded once, with the cache that an application would use.
        alive: maximum number of processes at a time; None is as many as fit into memory.
        budget: seconds after which measuring ends. The rows have the results until then.
        reference: the model file whose outputs all others are compared with; None is for each file the first one that
            is like it.
        progress: called before each step.

    Returns:
        The report. Ctrl-C (KeyboardInterrupt) ends measuring; the report is then `interrupted`, with the results until
        then.

    Raises:
        ConfigError, ModelNotFoundError: a model file or the data does not exist, a value is wrong, or settings
            contradict each other.
        BackendNotFoundError: a backend does not exist. One that is not installed becomes a row.
    """
    settings = checked(settings or BenchSettings(), BenchSettings)
    combinations = [checked(combination, Combination) for combination in combinations]
    if budget is not None and (not isinstance(budget, Real) or math.isnan(budget)):
        raise ConfigError(f"a budget is a number of seconds, not {budget!r}")
    metric = _check(combinations, settings, reference)
    started = perf_counter()
    with tempfile.TemporaryDirectory(prefix="infersdk-bench-", ignore_cleanup_errors=True) as folder:
        end_time = None if budget is None else monotonic() + budget
        session = _Session(
            combinations, settings, Path(folder), accuracy, loading, end_time, reference, progress, metric
        )
        interrupted = False
        try:
            with contextlib.suppress(TimeUpError):
                session.measure(alive or len(combinations))
        except KeyboardInterrupt:
            interrupted = True
        finally:
            session.end()
        rows = [run.finish(interrupted=interrupted) for run in session.runs]
    return Report(
        rows=rows, settings=settings, machine=describe_machine(), models=session.models,
        created=datetime.datetime.now(datetime.timezone.utc), seconds=perf_counter() - started, interrupted=interrupted,
    )  # fmt: skip


def _check(combinations: Sequence[Combination], settings: BenchSettings, reference: str | None) -> str | None:
    """Checks what all combinations share; returns the metric of labelled images, or None without labels."""
    if not combinations:
        raise ConfigError("there is nothing to measure")
    for combination in combinations:
        check_backend(combination.target.backend)
        ModelSource.of(combination.model)
    if reference is not None:
        ModelSource.of(reference)
    check_files(combinations)
    if settings.scenarios and "server" in settings.scenarios and settings.latency_bound_ms is None:
        raise ConfigError(
            "the scenario 'server' needs the latency that its requests have to keep: --latency-bound, latency_bound_ms"
        )
    labelled = settings.annotations or settings.labels
    if settings.type == "arrays" and (settings.from_files or (settings.wrapper and not labelled)):
        ignored = ["from_files"] if settings.from_files else list(settings.wrapper)
        raise ConfigError(f"type 'arrays' measures the network alone, without {', '.join(ignored)}; leave that out")
    if settings.data is None and labelled:
        raise ConfigError("annotations and labels are of images: give their folder as data")
    if settings.annotations and settings.labels:
        raise ConfigError("give annotations (boxes, masks, keypoints) or labels (classes, class maps), not both")
    if settings.annotations is not None or settings.labels is not None:
        from ..accuracy import labelled_task

        return labelled_task(str(settings.data), annotations=settings.annotations, labels=settings.labels).metric
    if settings.data is not None:
        data = Path(settings.data)
        if not data.exists():
            raise ConfigError(f"no data at {str(data)!r}")
        if data.is_dir() and not any(file.is_file() for file in data.rglob("*")):
            raise ConfigError(f"the folder {str(data)!r} is empty: it has neither images nor arrays")
    return None


class _Session:
    """One call of `bench()`."""

    def __init__(
        self, combinations: Sequence[Combination], settings: BenchSettings, folder: Path, accuracy: bool, loading: bool,
        end_time: float | None, reference: str | None, progress: Progress | None, metric: str | None,
    ) -> None:  # fmt: skip
        self._end_time, self._first, self._metric = end_time, reference, metric
        self.runs = [CombinationRun(combination, settings) for combination in combinations]
        self._settings, self._folder = settings, folder
        self._wants_accuracy, self._wants_loading = accuracy, loading
        self._progress = progress or (lambda stage, share, detail: None)
        self._infos = {model: _info(model) for model in dict.fromkeys(c.model for c in combinations)}
        self.models = [_described(model, info) for model, info in self._infos.items()]
        self._measured: dict[str, Accuracy] = {}  # by model and target: the same for every batch
        self._steps, self._done = len(combinations) * (1 + settings.rounds + accuracy), 0

    def measure(self, alive: int) -> None:
        waiting = list(self.runs)
        while waiting:
            group = self._start(waiting, alive)
            waiting = waiting[len(group) :]
            self._run_rounds(group)
            for run in group:
                self._finish(run)

    def end(self) -> None:
        for run in self.runs:
            run.end()

    def _report(self, stage: str, run: CombinationRun) -> None:
        """Reports the next step: loading, a round, or measuring accuracy."""
        self._progress(stage, self._done / self._steps, run.combination.name)
        self._done += 1

    # ---- starting ----

    def _start(self, waiting: list[CombinationRun], alive: int) -> list[CombinationRun]:
        """Starts, loads and warms up the next group."""
        group: list[CombinationRun] = []
        at_first = available_bytes()
        for run in waiting:
            left = available_bytes()
            running = sum(r.process is not None for r in group)
            full = at_first is not None and left is not None and left < RESERVE * at_first
            full |= any(r.prepared.get("device_free_share", 1.0) < RESERVE for r in group if r.process is not None)
            if running and (full or running >= alive):
                break
            group.append(run)
            self._report("loading", run)
            try:
                self._load(run)
            except StepError as error:
                run.fail(error)
        return group

    def _load(self, run: CombinationRun) -> None:
        order: dict[str, Any] = {"combination": run.combination, "settings": self._settings}
        if self._wants_loading:
            order["cache"] = str(self._folder / f"cache{self.runs.index(run)}")
        run.process = WorkerProcess(self._folder, self._settings.timeout, self._end_time)
        run.loaded = run.process.ask("load", **order)
        if self._wants_loading:
            cold, cached = run.loaded["seconds"], None
            first, again = run.process.ask("first_run")["seconds"], None
            if run.loaded["keeps"]:
                run.process.leave()
                run.process = WorkerProcess(self._folder, self._settings.timeout, self._end_time)
                run.loaded = run.process.ask("load", **order)
                cached, again = run.loaded["seconds"], run.process.ask("first_run")["seconds"]
            run.row.loading = Loading(
                import_seconds=run.loaded["import_seconds"], cold_seconds=cold, cached_seconds=cached,
                cold_first_run_seconds=first, cached_first_run_seconds=again,
            )  # fmt: skip
        run.prepared = run.process.ask("prepare")
        if not run.prepared["scenarios"]:
            raise StepError("; ".join(("it can run in none of the requested scenarios", *run.prepared["notes"])))

    def _cold_start(self, run: CombinationRun, number: int) -> None:
        """Measures one cold start in each of the first rounds; in the first also one without the cache."""
        settings = self._settings
        order = {
            "model": run.combination.model, "type": run.prepared["kind"], "wrapper": settings.wrapper,
            "arguments": run.loaded["arguments"], "options": run.loaded["options"], "image": run.prepared["image"],
            "batch": run.combination.batch, "shapes": settings.shapes_of(run.combination.batch),
        }  # fmt: skip
        try:
            if run.loaded["keeps"] and number == 1 and "cache_dir" not in run.combination.options:
                empty = self._folder / f"uncached{self.runs.index(run)}"
                options = {**run.loaded["options"], "cache_dir": str(empty)}
                run.uncached = cold_start({**order, "options": options}, settings.timeout)
            run.starts.append(cold_start(order, settings.timeout))
        except StepError as error:
            run.row.notes.append(f"no cold start: {error}")

    # ---- the rounds ----

    def _run_rounds(self, group: list[CombinationRun]) -> None:
        seconds, rounds = self._settings.time / self._settings.rounds, self._settings.rounds
        order = random.Random(self._settings.seed)
        for number in range(1, rounds + 1):
            starts = self._wants_loading and number <= self._settings.starts
            running = [run for run in group if run.process is not None]
            order.shuffle(running)
            for run in running:
                self._report(f"round {number} of {rounds}", run)
                assert run.process is not None
                try:
                    result = {
                        scenario: run.process.ask("measure", scenario=scenario, seconds=seconds)
                        for scenario in run.prepared["scenarios"]
                    }
                except StepError as error:
                    run.fail(error)
                    continue
                for scenario, measurement in result.items():
                    run.measurements.setdefault(scenario, []).append(measurement)
                if starts:
                    self._cold_start(run, number)

    # ---- accuracy and memory ----

    def _finish(self, run: CombinationRun) -> None:
        if run.process is None:
            return
        try:
            run.row.memory = run.process.ask("memory")
            if self._wants_accuracy:
                self._report("accuracy", run)
                run.row.accuracy = self._accuracy(run)
        except StepError as error:
            run.fail(error)
        run.end()

    def _accuracy(self, run: CombinationRun) -> Accuracy:
        what = run.combination
        key = what.judged_as
        if key in self._measured:
            return self._measured[key]
        assert run.process is not None
        try:
            if self._metric is not None:
                result: Accuracy = run.process.ask("accuracy")
            else:
                result = run.process.ask("agreement", model=self._reference(what.model))
        except StepError as error:
            result = Accuracy(metric=self._metric or "agreement", value=None, note=str(error))
        self._measured[key] = result
        return result

    def _reference(self, model: str) -> str:
        """The model whose outputs those of a model are compared with.

        It is the given reference. Without one, it is the first model with the same inputs, outputs and number of
        parameters, such as the FP32 file of an INT8 file.
        """
        info = self._infos[model]
        return self._first or next((other for other in self._infos if _alike(self._infos[other], info)), model)


def _info(model: str) -> Any:
    """The contents of an ONNX file; None for other formats and damaged files, whose rows have the reason."""
    from ..graph import onnx_info

    try:
        return onnx_info(model)
    except InferSDKError:
        return None


def _described(model: str, info: Any) -> ModelFile:
    file = ModelFile(path=model, name=Path(model).name, bytes=Path(model).stat().st_size)
    with contextlib.suppress(InferSDKError):  # the rows have the reason
        file.bytes = size_of(ModelSource.of(model))
    if info is not None:
        file.precision, file.parameters, file.inputs = info.precision, info.parameters, [str(s) for s in info.inputs]
    return file


def _alike(one: Any, other: Any) -> bool:
    """Whether two files may be the same network; quantisation adds a few per cent of parameters."""
    if one is None or other is None:
        return False
    ends = [[(spec.name, spec.shape) for spec in (*info.inputs, *info.outputs)] for info in (one, other)]
    return ends[0] == ends[1] and abs(one.parameters - other.parameters) <= 0.1 * max(one.parameters, 1)
