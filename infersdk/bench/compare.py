"""Compares two reports: changes beyond the noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from .plan import SCENARIOS, BenchSettings
from .statistics import Estimate, ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .report import Report, Row

__all__ = ["Change", "Comparison", "compare_reports"]

#: The minimum relevant change: by a factor of 1 + this, up or down.
THRESHOLD = 0.03
#: The figures with rounds: the path of each, and the verdicts on a larger and a smaller one.
_SPEEDS = {
    **{f"{name} images/s": (f"scenarios.{name}.throughput", "faster", "slower") for name in SCENARIOS},
    **{
        f"{name} {percentile} ms": (f"scenarios.{name}.latency_ms.{percentile}", "slower", "faster")
        for name in ("single_stream", "multi_stream")
        for percentile in ("p50", "p99")
    },
    "cold start s": ("cold_start.seconds", "slower", "faster"),
}
#: The settings of the model and its data.
_SETTINGS = (
    "type", "wrapper", "latency_bound_ms", "data", "annotations", "labels", "shapes", "seed", "from_files",
    "max_samples",
)  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One figure of one combination, before and now.

    Attributes:
        row: the name of the combination.
        figure: what changed: `"single_stream p50 ms"`, `"offline images/s"`, `"mAP"`, ...
        old, new: its values; None where it has none.
        ratio: new over old, with its 95 % interval; None for figures without rounds.
        verdict: `"same"`, `"faster"`, `"slower"`, `"better"`, `"worse"`, `"more"`, `"less"`, `"unsure"` (too few
            rounds), `"runs now"`, `"fails now"`, `"new"` or `"gone"`.
    """

    row: str
    figure: str
    old: float | None
    new: float | None
    ratio: Estimate | None
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """The result of `compare_reports()`.

    Attributes:
        other_machine: the facts about the machine and its packages that differ.
        other_settings: the settings of the model and its data that differ, and the names of model files of another
            size, precision, number of parameters, or with other inputs.
    """

    changes: tuple[Change, ...]
    other_machine: tuple[str, ...]
    other_settings: tuple[str, ...] = ()

    @property
    def moved(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.verdict not in ("same", "unsure"))

    @property
    def slower(self) -> tuple[Change, ...]:
        """Changes to slower speed beyond the noise, and combinations and requested scenarios that no longer run."""
        return tuple(change for change in self.changes if change.verdict in ("slower", "fails now"))


def compare_reports(old: Report, new: Report, *, threshold: float = THRESHOLD) -> Comparison:
    """Compares each combination of `new` with the one of that name in `old`.

    A speed has changed if the 95 % interval of the ratio of the medians excludes 1, and the ratio is at least
    1 + `threshold`, or at most 1 / (1 + `threshold`). The interval comes from resampling the rounds of both reports;
    each needs five or more rounds. It covers only the noise within a report, not differences such as the temperature of
    the machine.
    """
    before = {row.name: row for row in old.rows}
    after = {row.name: row for row in new.rows}
    changes: list[Change] = []
    for name, row in after.items():
        changes += _row(name, before.get(name), row, threshold, new.settings)
    changes += [Change(name, "", None, None, None, "gone") for name in before if name not in after]
    keys = ("processor", "cores", "gpus", "system", "governor", "simd", "python", "infersdk", "packages")
    other = tuple(key for key in keys if old.machine.get(key) != new.machine.get(key))
    settings = [key for key in _SETTINGS if getattr(old.settings, key) != getattr(new.settings, key)]
    before_files = {one.name: one for one in old.models}
    settings += [
        one.name for one in new.models
        if one != msgspec.structs.replace(before_files.get(one.name, one), path=one.path)
    ]  # fmt: skip
    return Comparison(tuple(changes), other, tuple(settings))


def _row(name: str, old: Row | None, new: Row, threshold: float, settings: BenchSettings) -> list[Change]:
    if old is None:
        return [Change(name, "", None, None, None, "new")]
    if old.status == "failed" or new.status == "failed":
        verdict = "same" if old.status == new.status else "fails now" if new.status == "failed" else "runs now"
        return [Change(name, "", None, None, None, verdict)]
    result = []
    for figure, (path, *more_is) in _SPEEDS.items():
        before, after = old.at(path), new.at(path)
        if before is not None and after is not None:
            result.append(_speed(name, figure, before, after, threshold, more_is))
        elif before is not None or after is not None:
            scenario = path.split(".")[1]
            requested = scenario in (settings.scenarios or SCENARIOS)
            requested &= scenario != "server" or settings.latency_bound_ms is not None
            fails = scenario in old.scenarios and scenario not in new.scenarios and requested
            result.append(_one_sided(name, figure, before and before.value, after and after.value, fails=fails))
    kept = [row.at("scenarios.server.keeps_bound") for row in (old, new)]
    if None not in kept and kept[0] != kept[1]:
        verdict = "runs now" if kept[1] else "fails now"
        result.append(Change(name, "server keeps its bound", float(kept[0]), float(kept[1]), None, verdict))
    metrics = dict.fromkeys(row.accuracy.metric for row in (old, new) if row.accuracy)
    for metric in metrics:
        one, two = old.accuracy_by(metric), new.accuracy_by(metric)
        if one is not None and two is not None:
            # Accuracy is not random. Smaller differences are rounding errors.
            verdict = "same" if abs(two - one) < 1e-5 else "better" if two > one else "worse"
            result.append(Change(name, metric, one, two, None, verdict))
        elif one is not None or two is not None:
            result.append(_one_sided(name, metric, one, two))
    if old.memory and new.memory:
        one, two = float(old.memory.host_peak_bytes), float(new.memory.host_peak_bytes)
        verdict = "same" if abs(two / one - 1) < max(threshold, 0.05) else "more" if two > one else "less"
        result.append(Change(name, "host MB", one / 1e6, two / 1e6, None, verdict))
    return result


def _one_sided(name: str, figure: str, old: float | None, new: float | None, *, fails: bool = False) -> Change:
    """A figure that one of the reports does not have."""
    return Change(name, figure, old, new, None, "new" if old is None else "fails now" if fails else "gone")


def _speed(
    name: str, figure: str, old: Estimate, new: Estimate, threshold: float, more_is: Sequence[str]
) -> Change:  # fmt: skip
    change = ratio(new, old)
    if change.low is None or change.high is None:
        verdict = "unsure"
    elif change.low > 1 and change.value >= 1 + threshold:
        verdict = more_is[0]
    elif change.high < 1 and change.value <= 1 / (1 + threshold):
        verdict = more_is[1]
    else:
        verdict = "same"
    return Change(name, figure, old.value, new.value, change, verdict)
