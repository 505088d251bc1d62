"""Measures combinations, each in a process of its own, turn by turn.

All processes of a group are loaded and warm, and wait. In each round every combination takes its turn, in an order that
is drawn anew: whatever the machine does else falls on all of them alike. A group is as many combinations as fit the
memory; usually that is all.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import msgspec

from ..errors import ConfigError, InferSDKError
from ..infer import model_file
from .energy import NOT_MEASURABLE
from .machine import Contention, available_bytes, describe_machine, total_contention
from .plan import BenchSettings, Combination
from .report import Accuracy, Energy, Loading, Memory, Report, Row, Way
from .statistics import median_of_rounds, percentile_of_rounds
from .workload import ENERGY_WAYS

__all__ = ["Progress", "bench", "expected_seconds"]

#: Called with the stage, how much of everything is done (0 to 1), and the combination.
Progress = Callable[[str, float, str], None]
#: Seconds that starting a process, loading and a first run take, and what is measured once at the end, about: for the
#: estimate of the time alone.
STARTING, FINISHING = 2.5, 2.0
#: A group is closed when less than this share of the memory that was there is left, or of a GPU's memory.
RESERVE = 0.25


def bench(
    combinations: Sequence[Combination],
    settings: BenchSettings | None = None,
    *,
    accuracy: bool = True,
    loading: bool = True,
    alive: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Measures each combination. One that cannot run is a row with its reason.

    Args:
        combinations: see `combine()`.
        accuracy: whether to measure that, too.
        loading: whether to load twice where the backend keeps something of a load: with nothing kept, and then with it.
            Otherwise models are loaded once, as an application would, with the cache that it would use.
        alive: so many processes at a time at most; None is as many as the memory holds.
        progress: called with what is being done.

    Returns:
        The report. Ctrl-C (KeyboardInterrupt) ends the measuring; the report then says `interrupted` and has what was
        measured until then.

    Raises:
        ConfigError, ModelNotFoundError: a model file or the data is not there.
    """
    settings = settings or BenchSettings()
    _check(combinations, settings)
    started = perf_counter()
    with tempfile.TemporaryDirectory(prefix="infersdk-bench-") as folder:
        session = _Session(combinations, settings, Path(folder), accuracy, alive or len(combinations), progress)
        session.loading = loading
        interrupted = False
        try:
            session.measure()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            session.end()
        rows = [entry.row(interrupted=interrupted) for entry in session.entries]
    return Report(
        rows=rows, settings=settings, machine=describe_machine(), models=session.models,
        created=datetime.datetime.now(datetime.timezone.utc), seconds=perf_counter() - started, interrupted=interrupted,
    )  # fmt: skip


def expected_seconds(
    combinations: Sequence[Combination], settings: BenchSettings, *, accuracy: bool = True, loading: bool = True
) -> float:
    """About how long `bench()` will take: the turns are known, loading and warming up are not."""
    each = _starting(settings, loading) + settings.rounds * _turn(settings) + (FINISHING if accuracy else 0.0)
    return len(combinations) * each


def _starting(settings: BenchSettings, loading: bool) -> float:
    return (2 if loading else 1) * STARTING + min(settings.warmup, 2.0)


def _turn(settings: BenchSettings) -> float:
    return len(settings.ways or ("engine", "single", "pipelined")) * settings.time / settings.rounds


def _check(combinations: Sequence[Combination], settings: BenchSettings) -> None:
    """What is wrong with all of it, rather than with one combination."""
    if not combinations:
        raise ConfigError("there is nothing to measure")
    for combination in combinations:
        model_file(combination.model)
    if settings.data is None and (settings.annotations or settings.labels):
        raise ConfigError("annotations and labels are of images: give their folder as data")
    if settings.annotations and settings.labels:
        raise ConfigError("give annotations (detection) or labels (classification), not both")
    if settings.annotations is not None:
        from ..accuracy import read_coco
        from ..accuracy.detection import coco_evaluator

        read_coco(settings.annotations, str(settings.data))
        coco_evaluator()
    elif settings.labels is not None:
        from ..accuracy import read_labels

        read_labels(str(settings.data), None if settings.labels == "folder" else settings.labels)
    elif settings.data is not None:
        place = Path(settings.data)
        if not place.exists():
            raise ConfigError(f"no data at {str(place)!r}")
        if place.is_dir() and not any(file.is_file() for file in place.rglob("*")):
            raise ConfigError(f"the folder {str(place)!r} is empty: it has neither images nor arrays")


class _FailedError(Exception):
    """A combination cannot go on; the text is the reason."""

    def __init__(self, reason: str, kind: str = "error") -> None:
        super().__init__(reason)
        self.kind = kind


#: A worker finds what we have found, also in a folder that has another `infersdk` in it.
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from infersdk.bench.worker import main; main()"


class _Process:
    """The other end of `worker.py`. It has a process group of its own: Ctrl-C is for us alone."""

    def __init__(self, folder: Path, timeout: float) -> None:
        self._timeout = timeout
        self._errors = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(sys.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, start_new_session=True,
        )  # fmt: skip
        self._rest = b""

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        """What it answers.

        Raises:
            _FailedError: it cannot do that, has died, or takes too long.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **order}).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, OSError):
            raise self._death() from None
        answer: dict[str, Any] = json.loads(self._line(do))
        if not answer.pop("ok"):
            raise _FailedError(answer["reason"], answer["kind"])
        return answer

    def _line(self, do: str) -> bytes:
        assert self._process.stdout is not None
        until, channel = monotonic() + self._timeout, self._process.stdout.fileno()
        while b"\n" not in self._rest:
            if not select.select([channel], [], [], max(until - monotonic(), 0.0))[0]:
                self.end()
                raise _FailedError(f"{do} took longer than {self._timeout:g} s, and was stopped")
            part = os.read(channel, 1 << 20)
            if not part:
                raise self._death()
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _death(self) -> _FailedError:
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        if code == -signal.SIGKILL:
            how += " (out of memory?)"
        return _FailedError(f"its process {how}" + (f": {said[-1][:300]}" if said else ""))

    def leave(self, patience: float = 30.0) -> None:
        """Ends it in its own time: what a runtime keeps for the next load it may write at its end."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        self.end()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class _Entry:
    """A combination on its way through."""

    def __init__(self, combination: Combination) -> None:
        self.combination = combination
        self.process: _Process | None = None
        self.reason = "it was not its turn yet when the measuring was interrupted"
        self.failed = False
        self.complete = False
        self.loaded: dict[str, Any] = {}
        self.prepared: dict[str, Any] = {}
        self.loading: Loading | None = None
        self.turns: dict[str, list[dict[str, Any]]] = {}
        self.accuracy: Accuracy | None = None
        self.memory: Memory | None = None

    def fail(self, error: _FailedError) -> None:
        self.failed, self.reason = True, self._advice(error)
        self.end()

    def _advice(self, error: _FailedError) -> str:
        what, text = self.combination, str(error)
        if error.kind == "precision" and what.precision == "int8":
            file = Path(what.model)
            text += (
                f". An INT8 file is a model of its own: infersdk quantize {file.name} --data FOLDER -o "
                f"{file.stem}.int8.onnx, and then infersdk bench {file.name} {file.stem}.int8.onnx"
            )
        return text

    def end(self) -> None:
        if self.process is not None:
            self.process.end()
            self.process = None

    # ---- what came of it ----

    def row(self, *, interrupted: bool) -> Row:
        row = Row(name=self.combination.name, combination=self.combination, status="ok")
        if self.failed or not self.turns:
            row.status, row.reason = "failed", self.reason
        elif not self.complete:
            row.status = "partial"
            row.reason = "interrupted" if interrupted else "not all rounds were run"
        row.loading, row.accuracy, row.memory = self.loading, self.accuracy, self.memory
        row.notes = [*self.loaded.get("notes", ()), *self.prepared.get("notes", ())]
        if self.loaded:
            names = ("backend", "version", "device", "precision", "layers", "concurrency")
            row.ran = {name: self.loaded[name] for name in names} | {"kind": self.prepared.get("kind")}
        row.ways = {way: self._way(way, turns) for way, turns in self.turns.items()}
        row.stages_ms = self._stages(row)
        row.energy = self._energy()
        parts = [msgspec.convert(t["contention"], Contention) for turns in self.turns.values() for t in turns]
        row.contention = total_contention(parts)
        return row

    def _way(self, way: str, turns: list[dict[str, Any]]) -> Way:
        samples = [[1e3 * latency for latency in turn["latencies"]] for turn in turns]
        warm = self.prepared["warmup"][way]
        return Way(
            throughput=median_of_rounds([turn["images"] / turn["seconds"] for turn in turns]),
            latency_ms={f"p{q}": percentile_of_rounds(samples, q) for q in (50, 90, 99)},
            requests=sum(turn["requests"] for turn in turns), outliers=sum(turn["outliers"] for turn in turns),
            steady=warm["steady"], warmup_seconds=warm["seconds"],
            slots=self.prepared["slots"] if way == "pipelined" else None,
        )  # fmt: skip

    def _stages(self, row: Row) -> dict[str, float]:
        turns = self.turns.get("single", [])
        names = list(turns[0]["stages"]) if turns else []
        medians = {n: 1e3 * median_of_rounds([turn["stages"][n] for turn in turns]).value for n in names}
        if "whole" in medians:  # on a device with a stream
            # The engine alone runs on what lies on the device. What is left is reading, copies, preprocessing and
            # postprocessing, wherever they are done, less what of them goes on beside the engine.
            engine = row.ways["engine"].latency_ms["p50"] if "engine" in row.ways else None
            if engine is None:
                return {"whole": medians["whole"]}
            alone = engine.value
            return {"engine": alone, "around the engine": max(medians["whole"] - alone, 0.0)}
        return medians

    def _energy(self) -> Energy | None:
        way = next((way for way in ENERGY_WAYS if self.turns.get(way)), None)
        if way is None:
            return None
        turns = self.turns[way]
        unknown = next((turn for turn in turns if not turn["watts"]), None)
        if unknown is not None:
            source = unknown["energy_source"]
            if not source.startswith(NOT_MEASURABLE):
                source += f" of {unknown['seconds']:.2g} s: give more --time"
            return Energy(images_per_joule=None, source=source)
        source = turns[0]["energy_source"]
        found = median_of_rounds([turn["images"] / (turn["watts"] * turn["seconds"]) for turn in turns])
        return Energy(images_per_joule=found, source=source, way=way)


class _Session:
    """One call of `bench()`."""

    def __init__(
        self, combinations: Sequence[Combination], settings: BenchSettings, folder: Path, accuracy: bool, alive: int,
        progress: Progress | None,
    ) -> None:  # fmt: skip
        self.entries = [_Entry(combination) for combination in combinations]
        self._settings, self._folder, self._wants_accuracy, self._alive = settings, folder, accuracy, alive
        self._progress = progress or (lambda stage, share, detail: None)
        self.loading = True
        self._plain = msgspec.to_builtins(settings)
        self._infos = {model: _info(model) for model in dict.fromkeys(c.model for c in combinations)}
        self.models = [_described(model, info) for model, info in self._infos.items()]
        self._references: dict[str, Path | str] = {}  # by model: its outputs, or why there are none
        self._measured: dict[str, Accuracy] = {}  # by model and side: the same for every batch
        self._reference_process: _Process | None = None
        self._done = 0.0  # of the expected seconds

    def measure(self) -> None:
        waiting = list(self.entries)
        while waiting:
            group = self._start(waiting)
            waiting = waiting[len(group) :]
            self._take_turns(group)
            for entry in group:
                self._finish(entry)

    def end(self) -> None:
        for entry in self.entries:
            entry.end()
        if self._reference_process is not None:
            self._reference_process.end()

    def _report(self, stage: str, entry: _Entry) -> None:
        combinations = [entry.combination for entry in self.entries]
        whole = expected_seconds(combinations, self._settings, accuracy=self._wants_accuracy, loading=self.loading)
        self._progress(stage, min(self._done / whole, 1.0), entry.combination.name)

    # ---- starting ----

    def _start(self, waiting: list[_Entry]) -> list[_Entry]:
        """The next group: started, loaded and warm."""
        group: list[_Entry] = []
        there = available_bytes()
        for entry in waiting:
            left = available_bytes()
            running = sum(e.process is not None for e in group)
            full = there is not None and left is not None and left < RESERVE * there
            full |= any(e.prepared.get("device_free_share", 1.0) < RESERVE for e in group if e.process is not None)
            if running and (full or running >= self._alive):
                break
            group.append(entry)
            self._report("loading", entry)
            try:
                self._load(entry)
            except _FailedError as error:
                entry.fail(error)
                self._done += self._settings.rounds * _turn(self._settings)
            self._done += _starting(self._settings, self.loading)
        return group

    def _load(self, entry: _Entry) -> None:
        order: dict[str, Any] = {
            "combination": msgspec.to_builtins(entry.combination), "settings": self._plain,
        }  # fmt: skip
        if self.loading:
            order["cache"] = str(self._folder / f"cache{self.entries.index(entry)}")
        entry.process = _Process(self._folder, self._settings.timeout)
        entry.loaded = entry.process.ask("load", **order)
        if self.loading:
            cold, cached = entry.loaded["seconds"], None
            first, again = entry.process.ask("first_run")["seconds"], None
            if entry.loaded["keeps"]:
                entry.process.leave()
                entry.process = _Process(self._folder, self._settings.timeout)
                entry.loaded = entry.process.ask("load", **order)
                cached, again = entry.loaded["seconds"], entry.process.ask("first_run")["seconds"]
            entry.loading = Loading(
                import_seconds=entry.loaded["import_seconds"], cold_seconds=cold, cached_seconds=cached,
                cold_first_run_seconds=first, cached_first_run_seconds=again,
            )  # fmt: skip
        entry.prepared = entry.process.ask("prepare")

    # ---- the rounds ----

    def _take_turns(self, group: list[_Entry]) -> None:
        seconds, rounds = self._settings.time / self._settings.rounds, self._settings.rounds
        order = random.Random(self._settings.seed)
        for number in range(1, rounds + 1):
            running = [entry for entry in group if entry.process is not None]
            order.shuffle(running)
            for entry in running:
                self._report(f"round {number} of {rounds}", entry)
                assert entry.process is not None
                try:
                    turns = {way: entry.process.ask("turn", way=way, seconds=seconds) for way in entry.prepared["ways"]}
                except _FailedError as error:
                    entry.fail(error)
                    self._done += (rounds - number + 1) * _turn(self._settings)
                    continue
                self._done += _turn(self._settings)
                for way, turn in turns.items():
                    entry.turns.setdefault(way, []).append(turn)
        for entry in group:
            entry.complete = not entry.failed

    # ---- what is measured once ----

    def _finish(self, entry: _Entry) -> None:
        if entry.process is None:
            return
        try:
            entry.memory = msgspec.convert(entry.process.ask("memory"), Memory)
            if self._wants_accuracy:
                self._report("accuracy", entry)
                entry.accuracy = self._accuracy(entry)
        except _FailedError as error:
            entry.fail(error)
        self._done += FINISHING if self._wants_accuracy else 0.0
        entry.end()

    def _accuracy(self, entry: _Entry) -> Accuracy:
        what = entry.combination
        key = f"{what.model}\0{what.side}\0{what.options}"
        if key in self._measured:
            return self._measured[key]
        assert entry.process is not None
        labelled = self._settings.annotations is not None or self._settings.labels is not None
        metric = "agreement"
        if labelled:
            metric = "mAP" if self._settings.annotations is not None else "top1"
        try:
            if labelled:
                answer = entry.process.ask("accuracy")
            else:
                label, outputs = self._reference(what.model)
                answer = entry.process.ask("agreement", path=str(outputs), reference=label)
            found = msgspec.convert(answer, Accuracy)
        except _FailedError as error:
            found = Accuracy(metric=metric, value=None, note=str(error))
        self._measured[key] = found
        return found

    def _reference(self, model: str) -> tuple[str, Path]:
        """The outputs that a model's are held against: those of the first of the models with the same inputs and
        outputs and as many parameters, as an INT8 file has them, in FP32 on ONNX Runtime; and what to call it."""
        info = self._infos[model]
        first = next((other for other in self._infos if _alike(self._infos[other], info)), model)
        label = f"{Path(first).name} on onnxruntime/fp32"
        if first not in self._references:
            self._references[first] = self._make_reference(first, info)
        outputs = self._references[first]
        if isinstance(outputs, str):
            raise _FailedError(f"{label} gives nothing to compare with: {outputs}")
        return label, outputs

    def _make_reference(self, model: str, info: Any) -> Path | str:
        batch = 1
        if info is not None:
            batch = next((spec.fixed_batch for spec in info.inputs if spec.fixed_batch is not None), 1)
        what = Combination(model=model, backend="onnxruntime", device="cpu", precision="fp32", batch=batch)
        path = self._folder / f"reference{len(self._references)}.npz"
        self._reference_process = process = _Process(self._folder, self._settings.timeout)
        # As short as can be: it is not measured.
        quick = self._plain | {"time": 1e-3, "rounds": 1, "warmup": 1e-3}
        try:
            process.ask("load", combination=msgspec.to_builtins(what), settings=quick)
            process.ask("prepare")
            process.ask("outputs", path=str(path))
        except _FailedError as error:
            return str(error)
        finally:
            process.end()
            self._reference_process = None
        return path


def _info(model: str) -> Any:
    """What an ONNX file says of itself; None for other kinds, and damaged ones, of which the rows will tell."""
    from ..graph import onnx_info

    try:
        return onnx_info(model)
    except InferSDKError:
        return None


def _described(model: str, info: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"path": model, "name": Path(model).name, "bytes": Path(model).stat().st_size}
    if info is not None:
        found |= {"precision": info.precision, "parameters": info.parameters, "inputs": [str(s) for s in info.inputs]}
    return found


def _alike(one: Any, other: Any) -> bool:
    """Whether two files can be the same network: quantising adds scales and zero points, a few in a hundred."""
    if one is None or other is None:
        return one is other
    ends = [[(spec.name, spec.shape) for spec in (*info.inputs, *info.outputs)] for info in (one, other)]
    return ends[0] == ends[1] and abs(one.parameters - other.parameters) <= 0.1 * max(one.parameters, 1)
