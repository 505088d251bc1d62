"""The report as one HTML file that opens without a network: figures, plots and the whole table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..pages import draw, render
from .report import STAGES, Report, Row, ScenarioResult

if TYPE_CHECKING:
    from .statistics import Estimate

__all__ = ["html_report"]

_NONE = ("–", "")

#: Rows that ran, each with its number in the table.
Numbered = Sequence[tuple[int, Row]]


def html_report(report: Report) -> str:
    """The page.

    Raises:
        BackendUnavailableError: Jinja2 or vl-convert is not installed.
    """
    measured = [(i, row) for i, row in enumerate(report.rows, 1) if row.scenarios]
    series = {name: i for i, name in enumerate(dict.fromkeys(_series(row) for _, row in measured))}
    metric = next(iter(report.metrics), "")
    plots = [_throughput_latency(measured, series), _stages(measured), _accuracy_speed(measured, series, metric)]
    return render(
        Path(__file__).with_name("report.html.j2"),
        report.as_dict(),
        names=", ".join(dict.fromkeys(Path(row.combination.model).name for row in report.rows)),
        when=report.created.strftime("%Y-%m-%d %H:%M UTC"), combinations=len(report.rows),
        seconds=f"{report.seconds:.0f}", settings=report.settings, facts=_facts(report), remarks=report.remarks(),
        tiles=_tiles(measured, metric), plots=[plot for plot in plots if plot is not None],
        table=_table(report, series),
        failures=[
            {"number": i, "name": row.name, "reason": row.reason}
            for i, row in enumerate(report.rows, 1)
            if row.status != "ok"
        ],
    )  # fmt: skip


def _facts(report: Report) -> list[str]:
    machine = report.machine
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB" if machine.get("memory_bytes") else ""
    facts = [
        f"{machine['processor']}, {machine['cores']} cores", memory, *machine["gpus"], f"SIMD {machine['simd']}",
        machine["system"], f"Python {machine['python']}", f"infersdk {machine['infersdk']}",
        *(f"{name} {version}" for name, version in machine["packages"].items()),
    ]  # fmt: skip
    return [fact for fact in facts if fact]


def _series(row: Row) -> str:
    """The key of a colour: file, backend, device and precision, as reported by the runtime."""
    return f"{Path(row.combination.model).stem} · {row.target}"


def _label(row: Row) -> str:
    return f"{Path(row.combination.model).stem} · {row.label}"


def _number(value: float, digits: int = 4) -> str:
    """Rounded to so many digits, with thousands apart."""
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:.4g}"


def _interval(found: Estimate) -> str:
    return "" if found.low is None else f" ({found.low:,.4g} to {found.high:,.4g})"


def _tiles(measured: Numbered, metric: str) -> list[dict[str, Any]]:
    """The best row of each measure; of accuracy by this metric."""
    wanted: list[tuple[str, str, int, Callable[[float], str], str]] = [
        ("highest throughput", "best_throughput.value", 1, _number, "images/s"),
        ("lowest latency", "latency.value", -1, lambda v: f"{v:.3g}", "ms"),
        ("highest server rate", "scenarios.server.rate", 1, _number, "requests/s"),
        ("fastest cold start", "cold_start.seconds.value", -1, lambda v: f"{v:.3g}", "s"),
        ("best accuracy", "accuracy", 1, lambda v: f"{v:.4f}", metric),
        ("least host memory", "memory.host_peak_bytes", -1, lambda v: f"{v / 1e6:,.0f}", "MB"),
        ("most efficient", "energy.images_per_joule.value", 1, lambda v: f"{v:.3g}", "images/J"),
    ]
    tiles = []
    for title, path, sign, text, unit in wanted:
        if path == "accuracy" and metric == "agreement":  # no accuracy: the reference always agrees with itself
            continue
        values = ((i, row, row.accuracy_by(metric) if path == "accuracy" else row.at(path)) for i, row in measured)
        result = [(sign * value, i, row) for i, row, value in values if value is not None]
        if path == "scenarios.server.rate":
            result = [entry for entry in result if entry[2].at("scenarios.server.keeps_bound")]
        if not result:
            continue
        value, i, row = max(result, key=lambda entry: (entry[0], -entry[1]))
        tiles.append({
            "title": title, "value": text(sign * value), "unit": unit, "number": i, "label": _label(row),
        })  # fmt: skip
    return tiles


# ---- plots ----


#: The mark and the name of each scenario.
_MARKS = {
    "single_stream": ({"hollow": True, "shape": "circle"}, "one call after another"),
    "multi_stream": ({"hollow": True, "shape": "circle"}, "one call after another"),
    "offline": ({"hollow": False, "shape": "circle"}, "offline"),
    "server": ({"hollow": False, "shape": "square"}, "as a server"),
}


def _throughput_latency(measured: Numbered, series: dict[str, int]) -> dict[str, Any] | None:
    points = []
    for i, row in measured:
        for name, (look, what) in _MARKS.items():
            result = row.scenarios.get(name)
            p50 = result.latency_ms.get("p50") if result else None
            if result is None or p50 is None:
                continue
            points.append({
                "x": p50.value, "x_low": p50.low, "x_high": p50.high, "y": result.throughput.value,
                "y_low": result.throughput.low, "y_high": result.throughput.high, "number": i,
                "series": series[_series(row)], "tip": f"{i}  {_label(row)}\n{what}\n{_figures(result)}", **look,
            })  # fmt: skip
    if not points:
        return None
    server = any("server" in row.scenarios for _, row in measured)
    return {
        "title": "Throughput against latency",
        "text": "Up and to the left is better. Rings: one call after another, of a whole batch. Discs: offline, under "
        "full load, where a request waits for the others. "
        + ("Squares: requests at random, at the highest rate that keeps the bound. " if server else "")
        + "Both axes are logarithmic; lines are 95 % intervals.",
        "svg": draw(
            "scatter", {"points": points}, x_title="median latency of a request, ms", y_title="images a second"
        ),
        "legend": list(series.items()),
    }  # fmt: skip


def _figures(result: ScenarioResult) -> str:
    """The text of a mark."""
    p50 = result.latency_ms["p50"]
    assert p50 is not None
    lines = [
        f"{result.throughput.value:,.4g} images/s{_interval(result.throughput)}",
        f"p50 {p50.value:.4g} ms{_interval(p50)}"
        + "".join(f", {q} {e.value:.4g}" for q in ("p90", "p99") if (e := result.latency_ms.get(q)) is not None),
    ]
    if result.slots:
        lines.append(f"{result.slots} requests in the pipeline")
    if result.rate is not None:
        kept = {True: "keeps", False: "does not keep", None: "too few requests to judge"}[result.keeps_bound]
        lines.append(f"{result.rate:.4g} requests a second: {kept} {result.bound_ms:g} ms for 99 %")
    return "\n".join(lines)


def _stages(measured: Numbered) -> dict[str, Any] | None:
    seen = [name for name in STAGES if any(row.stages_ms.get(name) for _, row in measured)]
    rows = [(i, row) for i, row in measured if row.stages_ms]
    if not rows:
        return None
    parts = [
        {
            "bar": f"{i}  {row.label}", "series": STAGES.index(name), "value": value,
            "tip": f"{i}  {_label(row)}\n{name}: {value:.4g} ms an image",
        }
        for i, row in rows
        for name in seen
        for value in [row.stages_ms.get(name, 0.0) / row.combination.batch]
    ]  # fmt: skip
    return {
        "title": "Where the time goes",
        "text": "Milliseconds an image, one call after another: the time of a call divided by its batch. On the "
        "processor images are prepared in the input itself, without copies. On a GPU each call is timed as a whole: "
        "engine is the time of the network alone.",
        "svg": draw("stacked_bars", {"parts": parts}, height=30 * len(rows) + 60, x_title="ms an image"),
        "legend": [(name, STAGES.index(name)) for name in seen],
    }


_METRICS = {
    "mAP": "COCO mAP, IoU 0.5 to 0.95",
    "mask_mAP": "COCO mAP of masks",
    "OKS_mAP": "COCO mAP of keypoints",
    "mIoU": "mean IoU of classes",
    "top1": "top-1",
    "agreement": "cosine similarity to FP32",
}


def _accuracy_speed(measured: Numbered, series: dict[str, int], metric: str) -> dict[str, Any] | None:
    points = []
    for i, row in measured:
        speed, accuracy, value = row.best_throughput, row.accuracy, row.accuracy_by(metric)
        if speed is None or accuracy is None or value is None:
            continue
        tip = f"{i}  {_label(row)}\n{metric} {value:.5f}, {accuracy.images} samples\n"
        tip += f"{speed.value:,.4g} images/s{_interval(speed)}"
        if accuracy.reference:
            tip += f"\nagainst {accuracy.reference}"
        points.append({
            "x": speed.value, "x_low": speed.low, "x_high": speed.high, "y": value, "y_low": None,
            "y_high": None, "number": i, "series": series[_series(row)], "hollow": False, "shape": "circle", "tip": tip,
        })  # fmt: skip
    if not points:
        return None
    agreement = metric == "agreement"
    return {
        "title": "Accuracy against speed",
        "text": "Up and to the right is better."
        + (" Without labels, accuracy is the similarity of the outputs to those in FP32." if agreement else ""),
        "svg": draw(
            "scatter", {"points": points}, scales={"y": "linear"}, height=240, y_limit=1.0, y_air=0.005,
            x_title="images a second (offline if possible)", y_title=_METRICS[metric],
        ),
        "legend": list(series.items()),
    }  # fmt: skip


# ---- the table ----


def _table(report: Report, series: dict[str, int]) -> dict[str, Any]:
    cells = [_cells(row, report.metrics) if row.scenarios else {} for row in report.rows]
    every = next(filter(None, cells), {})
    heads = [head for head in every if any(own and own[head] != _NONE for own in cells)]
    rows: list[dict[str, Any]] = []
    for i, (row, own) in enumerate(zip(report.rows, cells, strict=True), 1):
        if own:
            disturbed = row.contention is not None and row.contention.disturbed
            rows.append({
                "number": i, "series": series[_series(row)], "label": _label(row), "disturbed": disturbed,
                "cells": [own[head] for head in heads],
            })  # fmt: skip
        else:
            rows.append({"number": i, "label": _label(row), "cells": None})
    return {"heads": ["", "combination", *heads], "rows": rows}


_KEPT = {True: "", False: "not kept", None: "too few"}


def _cells(row: Row, metrics: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The text of each cell, and its small text, by the head of its column."""
    rate, start = row.at("scenarios.server.rate"), row.cold_start
    accuracies = {metric: row.accuracy_by(metric) for metric in metrics}
    host, device = row.at("memory.host_peak_bytes"), row.at("memory.device_peak_bytes")
    kept = _KEPT[row.at("scenarios.server.keeps_bound")]
    uncached = f"{start.uncached_seconds:.2f} uncached" if start is not None and start.uncached_seconds else ""
    return {
        "p50 ms": _value(row.at("stream.latency_ms.p50")),
        "p90": _value(row.at("stream.latency_ms.p90")),
        "p99": _value(row.at("stream.latency_ms.p99")),
        "images/s one by one": _value(row.at("stream.throughput")),
        "images/s offline": _value(row.at("scenarios.offline.throughput")),
        "engine alone, images/s": _value(row.at("scenarios.engine.throughput")),
        "server, requests/s": (_number(rate), kept) if rate else _NONE,
        **{name: _NONE if value is None else (f"{value:.4f}", "") for name, value in accuracies.items()},
        "host MB": (f"{host / 1e6:,.0f}", "") if host else _NONE,
        "device MB": (f"{device / 1e6:,.0f}", "") if device else _NONE,
        "images/J": _value(row.at("energy.images_per_joule")),
        "cold start s": (f"{start.seconds.value:.2f}", uncached) if start is not None else _NONE,
        "load cold s": _loaded(row.at("loading.cold_seconds"), row.at("loading.cold_first_run_seconds")),
        "cached s": _loaded(row.at("loading.cached_seconds"), row.at("loading.cached_first_run_seconds")),
    }


def _loaded(seconds: float | None, first_run: float | None) -> tuple[str, str]:
    if seconds is None:
        return _NONE
    return f"{seconds:.2f}", "" if first_run is None else f"+ {first_run:.2g}"


def _value(found: Estimate | None) -> tuple[str, str]:
    if found is None:
        return _NONE
    if found.low is None or found.high is None:
        return _number(found.value), ""
    return _number(found.value), f"± {_number((found.high - found.low) / 2, 2)}"
