"""The report as one HTML file that opens without a network: figures, plots and the whole table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from .page import SCRIPT, STYLE
from .svg import Bar, Mark, number, scatter, stacked_bars

if TYPE_CHECKING:
    from .report import Report, Row
    from .statistics import Estimate

__all__ = ["html_report"]

_STAGES = ("read", "preprocess", "copy", "engine", "postprocess", "around the engine", "whole")


def html_report(report: Report, remarks: Sequence[str] = ()) -> str:
    """The page.

    Args:
        remarks: what a reader should know, a line each (`Report.remarks()`).
    """
    measured = [(i, row) for i, row in enumerate(report.rows, 1) if row.ways]
    colours = {side: i for i, side in enumerate(dict.fromkeys(_series(row) for _, row in measured))}
    names = ", ".join(dict.fromkeys(Path(row.combination.model).name for row in report.rows))
    parts = [
        _head(report, names),
        "".join(f'<p class="remark">{escape(line)}</p>' for line in remarks),
        _tiles(measured),
        _throughput_latency(measured, colours),
        _stages(measured),
        _accuracy_speed(measured, colours),
        _table(report, colours),
        _failures(report),
        _method(report),
    ]
    data = json.dumps(report.as_dict(), ensure_ascii=False).replace("</", "<\\/")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>infersdk bench: {escape(names)}</title><style>{STYLE}</style></head><body><main>"
        + "\n".join(part for part in parts if part)
        + f'</main><div id="tip" hidden></div><script type="application/json" id="data">{data}</script>'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _series(row: Row) -> str:
    """What shares a colour: file, backend and precision; where it really ran."""
    ran = row.ran or {}
    place = f"{ran.get('backend')} {ran.get('precision')}"
    if ran.get("device") not in (None, "cpu"):
        place += f" on {ran['device']}"
    return f"{Path(row.combination.model).stem} · {place}"


def _label(row: Row) -> str:
    what = row.combination
    told = {**({"threads": what.threads} if what.threads else {}), **what.options}
    return f"{_series(row)}, batch {what.batch}" + "".join(f", {key} {value}" for key, value in told.items())


def _head(report: Report, names: str) -> str:
    machine = report.machine
    gigabytes = f"{machine['memory_bytes'] / 2**30:.0f} GiB" if machine.get("memory_bytes") else ""
    facts = [
        f"{machine['processor']}, {machine['cores']} cores", gigabytes, *machine["gpus"],
        f"SIMD {machine['simd']}", machine["system"], f"Python {machine['python']}", f"infersdk {machine['infersdk']}",
        *(f"{name} {version}" for name, version in machine["packages"].items()),
    ]  # fmt: skip
    chips = "".join(f"<li>{escape(fact)}</li>" for fact in facts if fact)
    when = report.created.strftime("%Y-%m-%d %H:%M UTC")
    return (
        f'<header><button id="theme" type="button" aria-label="light or dark">◐</button><p class="brand">infersdk bench'
        f'</p><h1>{escape(names)}</h1><p class="sub">{when} · {len(report.rows)} combinations · '
        f"{report.settings.rounds} rounds · {report.seconds:.0f} s</p><ul class=chips>{chips}</ul></header>"
    )


def _tiles(measured: Sequence[tuple[int, Row]]) -> str:
    """The best of each measure, as far as the intervals allow to name one."""

    def speed(row: Row) -> float | None:
        return row.best_throughput.value if row.best_throughput else None

    def quick(row: Row) -> float | None:
        return -row.latency.value if row.latency else None

    def small(row: Row) -> float | None:
        return -row.memory.host_peak_bytes if row.memory else None

    def thrifty(row: Row) -> float | None:
        return row.energy.images_per_joule.value if row.energy and row.energy.images_per_joule else None

    def good(row: Row) -> float | None:
        # That one agrees best with itself is no news.
        return row.accuracy.value if row.accuracy and row.accuracy.metric != "agreement" else None

    wanted: list[tuple[str, Callable[[Row], float | None], Callable[[float], str]]] = [
        ("highest throughput", speed, lambda v: f"{number(float(f'{v:.4g}'))} <small>images/s</small>"),
        ("lowest latency", quick, lambda v: f"{-v:.3g} <small>ms</small>"),
        ("best accuracy", good, lambda v: f"{v:.4f}"),
        ("least host memory", small, lambda v: f"{-v / 1e6:,.0f} <small>MB</small>"),
        ("most efficient", thrifty, lambda v: f"{v:.3g} <small>images/J</small>"),
    ]
    tiles = []
    for title, key, text in wanted:
        found = [(value, i, row) for i, row in measured if (value := key(row)) is not None]
        if not found:
            continue
        value, i, row = max(found, key=lambda entry: (entry[0], -entry[1]))
        shown = text(value)
        if title == "best accuracy" and row.accuracy is not None:
            shown += f" <small>{escape(row.accuracy.metric)}</small>"
        tiles.append(
            f'<div class="tile"><p>{title}</p><b>{shown}</b><span>{_badge(i)} {escape(_label(row))}</span></div>'
        )
    return f'<section class="tiles">{"".join(tiles)}</section>' if tiles else ""


def _badge(index: int) -> str:
    return f'<i class="badge">{index}</i>'


def _range(found: Estimate) -> tuple[float, float] | None:
    return None if found.low is None or found.high is None else (found.low, found.high)


def _throughput_latency(measured: Sequence[tuple[int, Row]], colours: dict[str, int]) -> str:
    marks = []
    for i, row in measured:
        for name, hollow, what in (("single", True, "one call after another"), ("pipelined", False, "pipelined")):
            way = row.ways.get(name)
            p50 = way.latency_ms.get("p50") if way else None
            if way is None or p50 is None:
                continue
            tip = (
                f"{i}  {_label(row)}\n{what}\n{way.throughput.value:,.4g} images/s{_plus_minus(way.throughput)}\n"
                f"p50 {p50.value:.4g} ms{_plus_minus(p50)}"
                + "".join(f", {q} {e.value:.4g}" for q in ("p90", "p99") if (e := way.latency_ms.get(q)) is not None)
                + (f"\n{way.slots} requests in the pipeline" if way.slots else "")
            )
            marks.append(
                Mark(
                    p50.value, way.throughput.value, i, colours[_series(row)], tip, hollow, _range(p50),
                    _range(way.throughput),
                )
            )  # fmt: skip
    if not marks:
        return ""
    return _figure(
        "Throughput against latency",
        "Up and to the left is better. Rings: one call after another, of a whole batch. Discs: pipelined, under full "
        "load, where a request waits for the others. Both axes are logarithmic; lines are 95 % intervals.",
        scatter(marks, "median latency of a request, ms", "images a second"),
        _legend(colours),
    )


def _plus_minus(found: Estimate) -> str:
    return "" if found.low is None or found.high is None else f" ({found.low:,.4g} to {found.high:,.4g})"


def _legend(colours: dict[str, int]) -> str:
    return "".join(f'<li><i class="key s{c % 8}"></i>{escape(side)}</li>' for side, c in colours.items())


def _stages(measured: Sequence[tuple[int, Row]]) -> str:
    seen = [name for name in _STAGES if any(row.stages_ms.get(name) for _, row in measured)]
    bars = []
    for i, row in measured:
        if not row.stages_ms:
            continue
        batch = row.combination.batch
        parts = [
            (
                row.stages_ms.get(name, 0.0) / batch, _STAGES.index(name),
                f"{i}  {_label(row)}\n{name}: {row.stages_ms.get(name, 0.0) / batch:.4g} ms an image",
            )
            for name in seen
        ]  # fmt: skip
        bars.append(Bar(f"{i}  {_place(row)}", parts))
    if not bars:
        return ""
    keys = {name: _STAGES.index(name) for name in seen}
    return _figure(
        "Where the time goes",
        "Milliseconds an image, one call after another: the time of a call over its batch. On the processor nothing is "
        "copied: images are prepared in the input itself. On a GPU only the end of a call is waited for: engine is "
        "what the network takes alone, the rest is around it.",
        stacked_bars(bars, "ms an image", label_width=max(190, *(7 * len(bar.label) for bar in bars))),
        _legend(keys),
    )


def _place(row: Row) -> str:
    ran = row.ran or {}
    on = "" if ran.get("device") in (None, "cpu") else f"@{ran['device']}"
    return f"{ran.get('backend')}{on} {ran.get('precision')} batch {row.combination.batch}"


def _accuracy_speed(measured: Sequence[tuple[int, Row]], colours: dict[str, int]) -> str:
    marks, metrics = [], []
    for i, row in measured:
        speed, accuracy = row.best_throughput, row.accuracy
        if speed is None or accuracy is None or accuracy.value is None:
            continue
        metrics.append(accuracy.metric)
        tip = f"{i}  {_label(row)}\n{accuracy.metric} {accuracy.value:.5f}, {accuracy.images} samples\n"
        tip += f"{speed.value:,.4g} images/s{_plus_minus(speed)}"
        if accuracy.reference:
            tip += f"\nagainst {accuracy.reference}"
        marks.append(Mark(speed.value, accuracy.value, i, colours[_series(row)], tip, x_range=_range(speed)))
    if not marks:
        return ""
    metric = metrics[0]
    told = {
        "mAP": "COCO mAP, IoU 0.5 to 0.95",
        "top1": "top-1",
        "agreement": "cosine similarity to FP32",
    }[metric]
    return _figure(
        "Accuracy against speed",
        "Up and to the right is better. "
        + ("No labelled images were given: this is how alike the outputs are." if metric == "agreement" else ""),
        scatter(marks, "images a second (pipelined where it can be)", told, log_y=False, height=320, y_most=1.0),
        _legend(colours),
    )


def _figure(title: str, text: str, plot: str, legend: str) -> str:
    return (
        f'<section class="card"><h2>{title}</h2><p class="sub">{text}</p><figure>{plot}</figure>'
        f'<ul class="legend">{legend}</ul></section>'
    )


# ---- the table ----


def _table(report: Report, colours: dict[str, int]) -> str:
    heads = (
        "", "combination", "p50 ms", "p90", "p99", "images/s one by one", "images/s pipelined",
        "engine alone, images/s", "accuracy", "host MB", "device MB", "images/J", "load cold s", "cached s",
    )  # fmt: skip
    lines = []
    for i, row in enumerate(report.rows, 1):
        if not row.ways:
            what = row.combination
            name = f"{escape(Path(what.model).stem)} · {escape(what.side)}, batch {what.batch}"
            lines.append(
                f'<tr class="failed"><td>{_badge(i)}</td><td>{name}</td><td colspan="{len(heads) - 2}">fails</td></tr>'
            )
            continue
        cells = "".join(f"<td>{cell}</td>" for cell in _cells(row))
        mark = f'<i class="key s{colours[_series(row)] % 8}"></i>'
        disturbed = row.contention is not None and row.contention.disturbed
        told = ' <span class="flag" data-tip="The machine was busy with other things meanwhile">disturbed</span>'
        lines.append(
            f"<tr><td>{_badge(i)}</td><td>{mark}{escape(_label(row))}{told if disturbed else ''}</td>{cells}</tr>"
        )
    head = "".join(f"<th>{title}</th>" for title in heads)
    return (
        '<section class="card"><h2>All figures</h2><p class="sub">Medians of the rounds; ± is half of the 95 % '
        "interval. – stands for what could not be had, or is of too few requests. Device MB is the most at the end of "
        "a step; + at loading is the first run.</p>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
        "</section>"
    )


def _cells(row: Row) -> list[str]:
    single, pipelined, engine = (row.ways.get(name) for name in ("single", "pipelined", "engine"))
    found = [_value(single.latency_ms.get(q) if single else None) for q in ("p50", "p90", "p99")]
    found += [_value(way.throughput if way else None) for way in (single, pipelined, engine)]
    accuracy, memory, loading = row.accuracy, row.memory, row.loading
    known = accuracy is not None and accuracy.value is not None
    found.append(f"{accuracy.value:.4f}" if accuracy is not None and known else "–")
    found.append(f"{memory.host_peak_bytes / 1e6:,.0f}" if memory else "–")
    device = memory.device_peak_bytes if memory else None
    found.append(f"{device / 1e6:,.0f}" if device else "–")
    found.append(_value(row.energy.images_per_joule if row.energy else None))
    if loading is None:
        return [*found, "–", "–"]
    found.append(_loaded(loading.cold_seconds, loading.cold_first_run_seconds))
    found.append(_loaded(loading.cached_seconds, loading.cached_first_run_seconds))
    return found


def _loaded(seconds: float | None, first_run: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds:.2f}" + ("" if first_run is None else f"<small>+ {first_run:.2g}</small>")


def _value(found: Estimate | None) -> str:
    if found is None:
        return "–"
    text = number(float(f"{found.value:.4g}"))
    if found.low is not None and found.high is not None:
        text += f"<small>± {number(float(f'{(found.high - found.low) / 2:.2g}'))}</small>"
    return text


def _failures(report: Report) -> str:
    lines = [
        f"<li>{_badge(i)} <b>{escape(row.name)}</b><br>{escape(row.reason)}</li>"
        for i, row in enumerate(report.rows, 1)
        if row.status != "ok"
    ]
    if not lines:
        return ""
    return (
        f'<section class="card"><h2>What did not run, and why</h2><ul class="reasons">{"".join(lines)}</ul></section>'
    )


def _method(report: Report) -> str:
    settings = report.settings
    return (
        '<section class="card method"><h2>How it was measured</h2><p>Each combination ran in a process of its own. All '
        f"were loaded and warmed up until three windows in a row were within 5 % of each other ({settings.warmup:g} s "
        f"at most), and then took turns: {settings.rounds} rounds, in an order drawn anew for each, "
        f"{settings.time / settings.rounds:.3g} s for each way to run. A figure is the median of the rounds, its "
        "interval the 95 % interval of 2,000 resamplings of the rounds. Percentiles of latency are of all requests "
        "together, and told where at least one request lies beyond them. Memory is the peak of the whole "
        "process.</p></section>"
    )
