"""The report of a measurement: its structure, and as JSON and CSV. docs/bench-schema.md describes the file."""

from __future__ import annotations

import csv
import datetime
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..errors import ConfigError
from .machine import Contention
from .plan import SCENARIOS, BenchSettings, Combination
from .statistics import Estimate

if TYPE_CHECKING:
    import os

__all__ = [
    "SCHEMA", "Accuracy", "ColdStart", "Energy", "Loading", "Memory", "RefusedRate", "Report", "Row", "ScenarioResult",
    "read_report",
]  # fmt: skip

#: Increases when a field is removed or changes its meaning, not with new fields.
SCHEMA = 1
#: The stages of a call, in the order of a report.
STAGES = ("read", "preprocess", "copy", "engine", "postprocess", "around the engine", "whole")


class RefusedRate(msgspec.Struct, frozen=True, kw_only=True):
    """A rate of the scenario `"server"` whose requests did not keep the bound: `late` of `requests` took longer."""

    rate: float
    requests: int
    late: int


class ScenarioResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a combination in one scenario; see `infersdk.bench.scenarios`.

    Attributes:
        throughput: images (rows) a second.
        latency_ms: `"p50"`, `"p90"` and `"p99"` of a request, in milliseconds; None with too few requests for it.
        requests: how many were timed in all.
        outliers: how many of them took far longer than the rest (Tukey's outer fence, round by round).
        steady: whether the times were steady when the warm-up ended, rather than its time limit reached.
        warmup_seconds: how long it took.
        slots: of `"offline"`: the requests in the pipeline at a time.
        rate: of `"server"`: requests a second that arrived on average. The figures are of this rate alone.
        bound_ms: of `"server"`: the bound that 99 % of the requests have to keep.
        late: of `"server"`: how many of the requests took longer.
        keeps_bound: of `"server"`: whether at most 1 % were late; None with fewer than 100 requests and fewer than
            three late ones.
        refused: of `"server"`: higher rates of earlier rounds, which did not keep the bound.
    """

    throughput: Estimate
    latency_ms: dict[str, Estimate | None]
    requests: int
    outliers: int
    steady: bool
    warmup_seconds: float
    slots: int | None = None
    rate: float | None = None
    bound_ms: float | None = None
    late: int | None = None
    keeps_bound: bool | None = None
    refused: list[RefusedRate] = []


class Loading(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from the file to a model that is loaded; in fresh processes, without the import of the runtime.

    Attributes:
        import_seconds: of the runtime, and on a GPU the start of CUDA.
        cold_seconds: without the cache of the backend; TensorRT builds its engine.
        cached_seconds: with the cache of the backend; None for one without a cache.
        cold_first_run_seconds, cached_first_run_seconds: of the first run after each, with the copies in and out:
            TensorRT-RTX compiles its kernels there, and keeps them too. None where it is unknown.
    """

    import_seconds: float
    cold_seconds: float
    cached_seconds: float | None
    cold_first_run_seconds: float | None = None
    cached_first_run_seconds: float | None = None


class ColdStart(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from the start of a process to its first result, as an application has them; files are in the page cache.

    Attributes:
        seconds: total, with the cache of the backend.
        stages: seconds by stage, medians: `"interpreter"`, `"import"`, `"load"`, `"first result"`.
        uncached_seconds: once without the cache of the backend; TensorRT builds its engine.
    """

    seconds: Estimate
    stages: dict[str, float]
    uncached_seconds: float | None = None


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """How good the results are.

    Attributes:
        metric: `"mAP"` (COCO, IoU 0.5 to 0.95), `"top1"`, or without labelled images `"agreement"`: the minimum
            cosine similarity of an output with that of `reference`. It is 0 where one of them alone has NaN or an
            infinity.
        value: of the metric, 0 to 1; None where it could not be measured, for the reason in `note`.
        figures: further figures that belong to it.
        images: how many images or samples were used.
        reference: what outputs were compared with.
    """

    metric: str
    value: float | None
    figures: dict[str, float] = {}
    images: int = 0
    reference: str | None = None
    note: str = ""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory in bytes.

    Attributes:
        host_peak_bytes: peak of the whole process, including Python and the runtime.
        host_model_bytes: growth since the import of the runtime and the start of CUDA.
        device_peak_bytes: peak of the GPU memory at the ends of steps (loading, warm-up, a round), without memory freed
            within a step; None on a processor.
        device_source: the method of its measurement.
    """

    host_peak_bytes: int
    host_model_bytes: int
    device_peak_bytes: int | None
    device_source: str = ""


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """Images a joule in the scenario `scenario`; None with the reason in `source`."""

    images_per_joule: Estimate | None
    source: str
    scenario: str | None = None


class Row(msgspec.Struct, kw_only=True):
    """One combination and its results.

    Attributes:
        status: `"ok"`; `"failed"`, for the `reason`; `"partial"`: interrupted, with fewer rounds than requested.
        code: of the error in `reason`, such as `"IFS204"`; `""` for errors of other packages.
        ran: backend, version, device, precision and layers, read back from the runtime, and the wrapper: its `kind`,
            and what decodes its boxes (`decode_head`).
        stages_ms: milliseconds by stage of one call (`"single_stream"` or `"multi_stream"`): the medians.
    """

    name: str
    combination: Combination
    status: Literal["ok", "failed", "partial"]
    reason: str = ""
    code: str = ""
    ran: dict[str, Any] | None = None
    loading: Loading | None = None
    cold_start: ColdStart | None = None
    scenarios: dict[str, ScenarioResult] = {}
    stages_ms: dict[str, float] = {}
    accuracy: Accuracy | None = None
    memory: Memory | None = None
    energy: Energy | None = None
    contention: Contention | None = None
    notes: list[str] = []

    @property
    def target(self) -> str:
        """Backend, device and precision as reported by the runtime, or as requested: `onnxruntime@cuda:0 fp32`."""
        ran = self.ran
        if ran is None:
            return str(self.combination.target)
        on = "" if ran["device"] == "cpu" else f"@{ran['device']}"
        return f"{ran['backend']}{on} {ran['precision']}"

    @property
    def label(self) -> str:
        """The combination in short, as it ran: `onnxruntime fp32 batch 8 threads=2`."""
        what = self.combination
        return f"{self.target} batch {what.batch}" + "".join(f" {key}={value}" for key, value in what.settings.items())

    def at(self, path: str) -> Any:
        """A field by its path, such as `"memory.host_peak_bytes"`; None where a part of the path is missing."""
        value: Any = self
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
        return value

    def accuracy_by(self, metric: str) -> float | None:
        """The accuracy by this metric, which need not be that of the row; None if it was not measured."""
        own = self.accuracy
        return None if own is None else own.value if own.metric == metric else own.figures.get(metric)

    @property
    def stream(self) -> ScenarioResult | None:
        """One call after another: `"single_stream"`, or with a batch above 1 `"multi_stream"`."""
        return self.scenarios.get("single_stream") or self.scenarios.get("multi_stream")

    @property
    def best_throughput(self) -> Estimate | None:
        """Images a second: offline, or else one call after another."""
        result = self.scenarios.get("offline") or self.stream
        return result.throughput if result is not None else None

    @property
    def latency(self) -> Estimate | None:
        """Milliseconds of one call, with nothing else to do: the median."""
        return self.stream.latency_ms.get("p50") if self.stream is not None else None


class ModelFile(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A model file; the last three are absent for other formats than ONNX and for damaged files."""

    path: str
    name: str
    bytes: int
    precision: str | None = None
    parameters: int | None = None
    inputs: list[str] | None = None


class Report(msgspec.Struct, kw_only=True):
    """All of a measurement."""

    kind: str = "infersdk-bench"
    schema: int = SCHEMA
    rows: list[Row]
    settings: BenchSettings
    machine: dict[str, Any]
    models: list[ModelFile]
    created: datetime.datetime
    seconds: float
    interrupted: bool = False

    @property
    def metrics(self) -> list[str]:
        """The metrics of accuracy that rows have; first the one by which most rows can be compared."""
        result = dict.fromkeys(row.at("accuracy.metric") for row in self.rows if row.at("accuracy.value") is not None)
        return sorted(result, key=lambda metric: -sum(row.accuracy_by(metric) is not None for row in self.rows))

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it: infinities and NaN become null."""
        result: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return result

    def json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode() + "\n"

    def csv(self) -> str:
        """A line for each combination; figures without their intervals."""
        out = io.StringIO()
        lines = [_flat(row) for row in self.rows]
        writer = csv.DictWriter(out, list(lines[0]) if lines else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return out.getvalue()

    def remarks(self) -> list[str]:
        """Notes for readers of the figures, a line each."""
        found: list[str] = []
        measured = [row for row in self.rows if row.status != "failed"]
        if self.interrupted:
            found.append("interrupted: the figures are of the rounds until then")
        if disturbed := [row for row in measured if row.contention and row.contention.disturbed]:
            parts = [
                text.format(worst)
                for name, text in _DISTURBANCES.items()
                if (worst := max(row.at(f"contention.{name}") or 0.0 for row in disturbed))
            ]
            found.append(
                f"the machine had other load during {len(disturbed)} of {len(measured)} combinations "
                f"(at worst {', '.join(parts)}): they were slower than on an idle machine"
            )
        unsteady = [
            f"{row.name} ({name})" for row in measured for name, result in row.scenarios.items() if not result.steady
        ]
        if unsteady:
            more = f" and {len(unsteady) - 3} more" if len(unsteady) > 3 else ""
            found.append(f"not steady when the warm-up ended: {', '.join(unsteady[:3])}{more}")
        found += self._server_remarks(measured)
        sources = {row.energy.source for row in measured if row.energy and row.energy.images_per_joule is None}
        found += [f"images/J: {source}" for source in sorted(sources)]
        for note in dict.fromkeys(note for row in measured for note in row.notes):
            found.append(note)
        notes = {row.accuracy.note for row in measured if row.accuracy and row.accuracy.note}
        found += [f"accuracy: {note}" for note in sorted(notes)]
        return found

    @staticmethod
    def _server_remarks(measured: list[Row]) -> list[str]:
        result = []
        for row in measured:
            server = row.scenarios.get("server")
            if server is None or server.keeps_bound:
                continue
            if server.keeps_bound is None:
                why = f"{server.requests} requests are too few to judge 1 % of them: give more --time"
            else:
                why = f"{server.late} of {server.requests} requests took longer than {server.bound_ms:g} ms: not kept"
            result.append(f"{row.name} as a server at {server.rate:.3g} requests a second: {why}")
        return result


#: The fields of `Contention` that disturb a measurement, each with the text of a remark.
_DISTURBANCES = {
    "others": "{:.0%} of the processors used by other processes",
    "steal": "{:.1%} by other machines of the host",
    "throttled": "throttled by the control group for {:.1f} s",
}
#: The columns of the CSV file after those of the combination, each with the path of its field.
_COLUMNS = {
    **{
        column: path
        for name in SCENARIOS
        for column, path in (
            (f"{name}_images_per_second", f"scenarios.{name}.throughput.value"),
            *((f"{name}_{q}_ms", f"scenarios.{name}.latency_ms.{q}.value") for q in ("p50", "p90", "p99")),
        )
    },
    "server_rate": "scenarios.server.rate", "server_keeps_bound": "scenarios.server.keeps_bound",
    **{f"stage_{stage.replace(' ', '_')}_ms": f"stages_ms.{stage}" for stage in STAGES},
    "metric": "accuracy.metric", "accuracy": "accuracy.value", "host_peak_bytes": "memory.host_peak_bytes",
    "device_peak_bytes": "memory.device_peak_bytes", "images_per_joule": "energy.images_per_joule.value",
    "cold_seconds": "loading.cold_seconds", "cached_seconds": "loading.cached_seconds",
    "cold_first_run_seconds": "loading.cold_first_run_seconds",
    "cached_first_run_seconds": "loading.cached_first_run_seconds", "cold_start_seconds": "cold_start.seconds.value",
    "uncached_start_seconds": "cold_start.uncached_seconds", "disturbed": "contention.disturbed",
}  # fmt: skip


def _flat(row: Row) -> dict[str, Any]:
    what, ran = row.combination, row.ran or {}
    return {
        "model": what.model, "backend": what.target.backend, "device": ran.get("device") or what.target.device,
        "precision": ran.get("precision") or what.target.precision, "batch": what.batch,
        "threads": what.threads or None,
        "options": json.dumps(what.options) if what.options else None, "status": row.status, "reason": row.reason,
    } | {column: row.at(path) for column, path in _COLUMNS.items()}  # fmt: skip


def read_report(path: str | os.PathLike[str]) -> Report:
    """Reads a report from its JSON file.

    Raises:
        ConfigError: there is no file, it is damaged, or of another schema.
    """
    file = Path(path)
    try:
        data = msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read the report {str(file)!r}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{str(file)!r} is not JSON that can be read: {error}") from None
    if not isinstance(data, dict) or data.get("kind") != "infersdk-bench":
        raise ConfigError(f"{str(file)!r} is not a report of `infersdk bench`; give a file of `infersdk bench -o`")
    if data.get("schema") != SCHEMA:
        raise ConfigError(f"{str(file)!r} has schema {data.get('schema')}, and this infersdk reads {SCHEMA}; update it")
    try:
        return msgspec.convert(data, Report)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{str(file)!r} is damaged: {error}") from None
