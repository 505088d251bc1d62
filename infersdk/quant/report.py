"""The report of a quantisation as an HTML page: the error and time of each layer, and the reasons for FP32 layers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ..errors import BackendError, ConfigError, ModelError, OutOfMemoryError
from ..pages import draw, render, require_packages
from .layer_errors import layer_errors
from .observe import ImageInputs
from .quantize import input_ranges
from .ranges import PERCENTILE
from .workflow import OpenWrapper, Stage, Workflow, silent_stage

if TYPE_CHECKING:
    from ..graph.quantization import QuantizationRecord

__all__ = ["quantization_report"]

_INT8, _FLOATING = 0, 1
#: The number of images for layer errors.
_MEASURED = 4


@dataclass(frozen=True)
class _LayerRow:
    """A layer in the report."""

    name: str
    operator: str
    error: float | None  # of its result if only this layer is in INT8; None if it is not quantised
    low: float | None  # the range of its input; None if it is not quantised
    high: float | None
    fp32_ms: float | None  # None if the runtime does not report times
    int8_ms: float | None
    reason: str  # why it stays in floating point, or ""


def quantization_report(
    work: Workflow, targets: Iterable[tuple[str, OpenWrapper]] = (), *, stage: Stage | None = None
) -> str:
    """The report of a finished workflow as an HTML page.

    Args:
        work: the workflow, whose layers are measured with some of its images.
        targets: other targets to compare, each with a function that opens a wrapper on its backend.
        stage: shows the progress.

    Raises:
        ConfigError: the workflow has not run or has no images.
        BackendUnavailableError: Jinja2 or vl-convert is not installed.
    """
    require_packages()
    if work.table is None or work.made is None or not work.compared:
        raise ConfigError("a report needs a finished workflow with images")
    show = stage or silent_stage
    with show("measuring layers"):
        rows = _layer_rows(work)
    others = []
    for target, open_wrapper in targets:
        with show(f"comparing target {target}"):
            others.append(_other_target(work, target, open_wrapper))
    plots = [_errors(rows), _times(rows), _front(work)]
    record = work.made.record
    return render(
        Path(__file__).with_name("report.html.j2"),
        {"record": structs.asdict(record), "layers": [asdict(row) for row in rows]},
        name=work.made.path.name, target=record.target, summary=_summary(record), tiles=_tiles(work),
        plots=[plot for plot in plots if plot is not None], heads=_HEADS, rows=_table(rows),
        targets=others,
    )  # fmt: skip


def _layer_rows(work: Workflow) -> list[_LayerRow]:
    """Measures the layers of the model; returns a row for each."""
    assert work.table is not None
    reasons = {**work.planned.left, **dict.fromkeys(work.planned.excluded, "it is excluded")}
    final = work.planned
    if work.search is not None and work.search.exclude:
        final = final.without(work.search.exclude)
        reasons |= dict.fromkeys(work.search.exclude, "the limits need it")
    with work.open_wrapper(work.model) as wrapper:
        errors = layer_errors(work.planned, work.table, ImageInputs(wrapper, work.compared[:_MEASURED]))
        times = work.layer_times(wrapper, final)
    ranges = input_ranges(final, work.table)
    rows = []
    for name in work.planned.functions:
        low, high = ranges.get(name, (None, None))
        rows.append(_LayerRow(
            name, work.planned.nodes_by_name[name].op_type, errors.get(name), low, high,
            times[0].get(name) if times else None, times[1].get(name) if times else None, reasons.get(name, ""),
        ))  # fmt: skip
    return rows


def _other_target(work: Workflow, target: str, open_wrapper: OpenWrapper) -> dict[str, str]:
    """Quantises for another target with the method of the table and compares the result with FP32 on its backend.

    Returns:
        A row of the table of targets. Its note is the reason if the file cannot be created or run on this machine.
    """
    table = work.table
    assert table is not None
    row = {"target": target, "agreement": "–", "shift": "–", "speed": "–", "note": ""}
    try:
        other = Workflow(
            work.model, work.images, open_wrapper, target=target, method=table.method,
            percentile=table.percentile or PERCENTILE, bias_correction=table.bias_correction,
            exclude=work.planned.excluded, max_drop=100,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            other.run(Path(folder, "int8.onnx"))
    except (BackendError, ModelError, OutOfMemoryError) as error:
        return {**row, "note": str(error)}
    if other.agreement is None:
        return row
    row["agreement"] = f"{other.agreement.percent:.1f} %"
    if other.agreement.shifts:
        row["shift"] = f"{other.agreement.score_shift:+.4f}"
    if other.speed is not None:
        row["speed"] = f"{other.speed.ratio:.2f}"
    return row


def _summary(record: QuantizationRecord) -> str:
    method = record.method if record.percentile is None else f"{record.method} {record.percentile:g}"
    correction = ", biases corrected" if record.bias_correction else ""
    return (
        f"{record.layers} layers in INT8, {record.floating} in floating point · ranges by {method}{correction} · "
        f"{record.samples} images"
    )


def _tiles(work: Workflow) -> list[dict[str, str]]:
    tiles = []
    if work.agreement is not None:
        count = f"{len(work.compared)} images"
        tiles.append(_tile("results agree with FP32", f"{work.agreement.percent:.1f}", "%", count))
        if work.agreement.shifts:
            tiles.append(
                _tile("scores shift by", f"{work.agreement.score_shift:+.4f}", "", "mean over matched results")
            )
    if (speed := work.speed) is not None:
        label = f"FP32 {speed.fp32:.2f} ms, INT8 {speed.int8:.2f} ms on {speed.backend}, {speed.device}"
        if work.decode_heads is not None and "native" in work.decode_heads:
            label += "; without the native decoding of boxes"
        tiles.append(_tile("speed", f"{speed.ratio:.2f}", "times FP32", label))
    if work.choice is not None:
        agreements = work.choice.agreements.items()
        label = ", ".join(f"{name} {result.percent:.1f} %" for name, result in agreements)
        tiles.append(_tile("method", work.choice.candidate.name, "", label))
    return tiles


def _tile(title: str, value: str, unit: str, label: str) -> dict[str, str]:
    return {"title": title, "value": value, "unit": unit, "label": label}


def _errors(rows: Sequence[_LayerRow]) -> dict[str, Any] | None:
    result = [(i, row, row.error) for i, row in enumerate(rows, 1) if row.error]
    if not result:
        return None
    least = min(error for _, _, error in result) / 2
    columns = [
        {
            "number": i, "place": 0, "value": error, "least": least, "series": _series(row),
            "tip": f"{i}  {row.name}\n{error:.2e}",
        }
        for i, row, error in result
    ]  # fmt: skip
    return {
        "title": "Error of each layer",
        "text": "The error of the layer's result in INT8, on a logarithmic axis. Which layers stay in floating point "
        "depends on the results of the model, not on these errors.",
        "svg": draw("columns", {"columns": columns}, scales={"y": "log"}, x_title="layer", y_title="Σ(y−y′)² / Σy²"),
        "legend": [("in INT8", _INT8), ("left in floating point for the limits", _FLOATING)],
    }


def _times(rows: Sequence[_LayerRow]) -> dict[str, Any] | None:
    columns = [
        {
            "number": i, "place": place, "value": spent, "least": 0, "series": series,
            "tip": f"{i}  {row.name}\n{word} model: {spent:.3g} ms",
        }
        for i, row in enumerate(rows, 1)
        for place, (word, spent, series) in enumerate((("FP32", row.fp32_ms, 2), ("quantised", row.int8_ms, _INT8)))
        if spent is not None
    ]  # fmt: skip
    if not columns:
        return None
    return {
        "title": "Time of each layer",
        "text": "Times from the profile of the runtime. Fused layers count for one of them, so a layer may show no "
        "time.",
        "svg": draw("columns", {"columns": columns}, groups=2, x_title="layer", y_title="ms"),
        "legend": [("FP32", 2), ("quantised", _INT8)],
    }


def _front(work: Workflow) -> dict[str, Any] | None:
    if work.search is None or len(work.search.front) < 2 or any(step.cost is None for step in work.search.front):
        return None
    none = dict.fromkeys(("x_low", "x_high", "y_low", "y_high"))
    points = [
        {
            "x": step.cost, "y": step.percent, **none, "number": len(step.floating), "hollow": False, "shape": "circle",
            "series": _FLOATING if step.floating == work.search.exclude else _INT8,
            "tip": f"{len(step.floating)} layers in floating point\n{step.percent:.2f} % for {step.cost:.2f} ms",
        }
        for step in work.search.front
    ]  # fmt: skip
    return {
        "title": "Agreement for the time it costs",
        "text": "Each point is a file with that number of layers in floating point; no tried file is better in both.",
        "svg": draw(
            "scatter", {"points": points}, scales={"x": "linear", "y": "linear"}, height=240, air=0.05, y_air=0.005,
            y_limit=100.0, x_title="ms more than with all layers in INT8", y_title="agreement with FP32, %",
        ),
        "legend": [("tried", _INT8), ("chosen", _FLOATING)],
    }  # fmt: skip


_HEADS = ("", "layer", "operator", "error", "range of the input", "FP32 ms", "quantised ms", "floating point because")


def _table(rows: Sequence[_LayerRow]) -> list[dict[str, Any]]:
    def text(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    return [
        {
            "number": i, "series": _series(row), "name": row.name,
            "cells": [
                row.operator, text(row.error, ".2e"),
                "–" if row.low is None else f"{row.low:.4g} to {row.high:.4g}",
                text(row.fp32_ms, ".3f"), text(row.int8_ms, ".3f"), row.reason,
            ],
        }
        for i, row in enumerate(rows, 1)
    ]  # fmt: skip


def _series(row: _LayerRow) -> int:
    return _FLOATING if row.reason else _INT8
