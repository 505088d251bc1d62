"""The tables of `infersdk bench`: a report, and the changes between two reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .common import console, print_table, print_text

if TYPE_CHECKING:
    from ..bench import Report, Row
    from ..bench.compare import Comparison
    from ..bench.statistics import Estimate

__all__ = ["show", "show_changes"]

_NONE = "–"
#: Scenarios of the network alone; they have columns where they are asked for.
_OF_NETWORKS = ("engine", "engine_parallel")


def show(report: Report) -> None:
    """The report as a table, and its remarks."""
    settings = report.settings
    names = list(dict.fromkeys(Path(row.combination.model).name for row in report.rows))
    title = f"{settings.rounds} rounds, {settings.time:g} s for each scenario; medians, ± half of their 95 % interval"
    table = Table(
        title=escape(f"{names[0]}: {title}" if len(names) == 1 else title), title_justify="left", box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0), pad_edge=False,
    )  # fmt: skip
    table.add_column("combination", overflow="fold", min_width=26)
    optional = _optional_columns(report)
    metrics = report.metrics or ["accuracy"]
    for name in ("p50 ms", "p90", "p99", "one by one\nimages/s", "offline\nimages/s", *metrics, "MB", *optional):
        table.add_column(name, justify="right", no_wrap=True)
    last = None
    for row in report.rows:
        name = Path(row.combination.model).name
        if len(names) > 1 and name != last:
            table.add_section()
            table.add_row(f"[bold]{escape(name)}[/bold]")
            last = name
        label = escape(row.label)
        if row.scenarios:
            table.add_row(label, *_cells(row, metrics), *(optional[name](row) for name in optional))
        else:
            table.add_row(label, "[red]fails[/red]")
    console().print(table)
    machine = report.machine
    print_text(f"{machine['system']}, {machine['processor']}, {machine['cores']} cores")
    reasons: dict[str, list[str]] = {}
    for row in report.rows:
        if row.status != "ok":
            reasons.setdefault(f"{row.status}: {row.reason}", []).append(row.name)
    for reason, rows in reasons.items():
        print_text(Text.assemble((", ".join(rows), "red"), f" {reason}"))
    for line in report.remarks():
        print_text(line, "yellow")


def _optional_columns(report: Report) -> dict[str, Callable[[Row], str]]:
    """The optional columns of this report, each with a function for its cells."""
    asked = report.settings.scenarios or ()  # by default, the columns are those of calls and requests
    columns: dict[str, Callable[[Row], str]] = {
        **{f"{name}\np50 ms": _figure(f"scenarios.{name}.latency_ms.p50") for name in _OF_NETWORKS if name in asked},
        **{f"{name}\nimages/s": _figure(f"scenarios.{name}.throughput") for name in _OF_NETWORKS if name in asked},
        "server\nrequests/s": _server,
        "start s": lambda row: _number(row.at("cold_start.seconds"), interval=False),
        "images/J": _figure("energy.images_per_joule"),
    }
    return {name: cell for name, cell in columns.items() if any(cell(row) != _NONE for row in report.rows)}


def _figure(path: str) -> Callable[[Row], str]:
    """A function for the cells of a column with a field of a row."""
    return lambda row: _number(row.at(path))


def _cells(row: Row, metrics: list[str]) -> Iterator[str]:
    for percentile in ("p50", "p90", "p99"):
        yield _number(row.at(f"stream.latency_ms.{percentile}"), interval=percentile == "p50")
    yield _number(row.at("stream.throughput"))
    yield _number(row.at("scenarios.offline.throughput"))
    for metric in metrics:
        accuracy = row.accuracy_by(metric)
        yield _NONE if accuracy is None else f"{accuracy:.4f}"
    host, device = map(row.at, ("memory.host_peak_bytes", "memory.device_peak_bytes"))
    memory = _NONE if host is None else f"{host / 1e6:.0f}"
    yield f"{memory} + {device / 1e6:.0f}" if device else memory


def _server(row: Row) -> str:
    result = row.scenarios.get("server")
    if result is None or result.rate is None:
        return _NONE
    kept = {True: "", False: " not kept", None: " too few"}[result.keeps_bound]
    return f"{result.rate:.4g}{kept}"


def _number(found: Estimate | None, *, interval: bool = True) -> str:
    if found is None:
        return _NONE
    digits = 0 if found.value >= 1000 else 1 if found.value >= 100 else 2 if found.value >= 1 else 3
    text = f"{found.value:.{digits}f}"
    if interval and found.low is not None and found.high is not None and found.value:
        text += f" ±{(found.high - found.low) / 2 / found.value:.0%}"
    return text


def show_changes(found: Comparison, threshold: float) -> None:
    if other := (*found.other_machine, *found.other_settings):
        print_text(f"not the same machine, versions, settings or files: {', '.join(other)}", "yellow")
    rows: list[tuple[str | Text, ...]] = []
    colours = {"slower": "red", "worse": "red", "fails now": "red", "more": "yellow", "gone": "yellow"}
    for change in found.moved:
        colour = colours.get(change.verdict, "green")
        both = ("" if value is None else f"{value:.4g}" for value in (change.old, change.new))
        ratio = change.ratio
        text = "" if ratio is None else f"{ratio.value:.3f}"
        if ratio is not None and ratio.low is not None:
            text += f" ({ratio.low:.3f} to {ratio.high:.3f})"
        rows.append((change.row, change.figure, *both, text, Text(change.verdict, colour)))
    if rows:
        title = f"changes; those of speed are beyond the noise, and by a factor of {1 + threshold:g} at least"
        print_table(("combination", "figure", ">old", ">new", ">new / old (95 %)", ""), rows, title)
    same = sum(change.verdict == "same" for change in found.changes)
    unsure = sum(change.verdict == "unsure" for change in found.changes)
    print_text(
        f"{len(found.moved)} moved, {same} did not" + (f", {unsure} with too few rounds to judge" if unsure else "")
    )
