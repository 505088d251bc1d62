"""The HTML page of a report: the graph coloured by time, a flame graph of the modules, and the table."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.files import atomic_write
from ..pages import draw, render
from .drawing import draw_graph, label_of, module_path
from .text import layout_of, nodes_of, operators_of, side_cells, summary

if TYPE_CHECKING:
    import os

    from .report import LayerReport, LayerRow, LayerSide

__all__ = ["write_page"]

#: The colours of precisions.
_PRECISIONS = {"fp32": 0, "fp16": 2, "bf16": 3, "int8": 4}
_OTHER = 7
#: The maximum number of node names in a tooltip.
_NAMES = 12
_WIDTH_WITH_UNIT = 46  # pixels of a cell that fits a time and its unit
_BAND = 24  # height of a level of the flame graph


def write_page(report: LayerReport, path: str | os.PathLike[str]) -> Path:
    """Writes a self-contained HTML file.

    Raises:
        BackendUnavailableError: Jinja2 or vl-convert is not installed.
        OutputError: the file cannot be written.
    """
    page = render(
        Path(__file__).with_name("layers.html.j2"),
        report.plain(),
        report=report,
        inputs=", ".join(f"{name} {list(shape)}" for name, shape in report.inputs.items()),
        sides=[_side(report, side, number) for number, side in enumerate(report.sides)],
        graph=_graph(report),
        rows=list(_table_rows(report)),
        timed=any(side.is_timed for side in report.sides),
        precisions=[
            (name, series) for name, series in _PRECISIONS.items() if any(s.precisions[name] for s in report.sides)
        ],
    )
    return atomic_write(path, page)


def _side(report: LayerReport, side: LayerSide, number: int) -> dict[str, Any]:
    figures, lines = summary(report, side)
    return {
        "name": side.name,
        "title": f"{side.backend} {side.version}, {side.precision} on {side.device}",
        "figures": figures,
        "lines": lines,
        "agrees": side.agrees,
        "explanation": side.explanation(),
        "timing": side.profile.timing,
        "flame": _flame(report, side, number) if side.layer_seconds else "",
    }


# ---- the graph ----


def _graph(report: LayerReport) -> Any:
    drawing = draw_graph(report)
    longest = [max((row.seconds[n] or 0.0 for row in report.rows), default=0.0) for n in range(len(report.sides))]
    boxes, cells = [], []
    for box in drawing.boxes:
        row = report.rows[box.row]
        rectangle = {"x": box.x, "y": box.y, "width": box.width, "height": box.height}
        name, operators = label_of(report, row)
        boxes.append({**rectangle, "label": name, "operators": operators})
        width = box.width / len(report.sides)
        for number, side in enumerate(report.sides):
            seconds = row.seconds[number]
            cells.append({
                "x": box.x + number * width, "y": box.y, "width": width, "height": box.height,
                "fill": _fill(side, row.layers[number], seconds, longest[number]),
                "tip": _tip(report, row, side, number),
                "text": "" if seconds is None else _short_ms(seconds, unit=width >= _WIDTH_WITH_UNIT),
            })  # fmt: skip
    return draw(
        "layer_graph", {"boxes": boxes, "cells": cells, "edges": [{"path": path} for path in drawing.edges]},
        height=drawing.height,
    )  # fmt: skip


def _short_ms(seconds: float, *, unit: bool) -> str:
    ms = seconds * 1e3
    number = f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}" if ms >= 0.005 else "0"
    return f"{number} ms" if unit else number


def _fill(side: LayerSide, layers: tuple[int, ...], seconds: float | None, longest: float) -> str:
    """A colour between cold and hot by the square root of the time; the colour of the precision if nothing is timed."""
    if not layers:
        return "var(--card)"
    if not side.is_timed:
        series = _PRECISIONS.get(side.layers[layers[-1]].precision, _OTHER)
        return f"color-mix(in oklab, var(--c{series}) 45%, var(--card))"
    return _mix(sqrt((seconds or 0.0) / longest) if longest else 0.0)


def _mix(part: float) -> str:
    return f"color-mix(in oklab, var(--hot) {part:.0%}, var(--cold))"


def _tip(report: LayerReport, row: LayerRow, side: LayerSide, number: int) -> str:
    names = [f"{report.nodes[i].name} ({report.nodes[i].operator})" for i in row.nodes]
    if len(names) > _NAMES:
        names = [*names[:_NAMES], f"and {len(names) - _NAMES} more"]
    lines = [*names, "", side.name]
    layers = [side.layers[i] for i in row.layers[number]]
    if not layers:
        lines.append("no layer")
    for layer in layers[:_NAMES]:
        about = filter(None, (layer.kind, layer.kernel, layer.precision, layout_of(layer), layer.device))
        time = "" if layer.seconds is None else f": {layer.seconds * 1e3:.3g} ms"
        lines.append(", ".join(about) + time)
    return "\n".join(lines)


# ---- the flame graph ----


def _flame(report: LayerReport, side: LayerSide, number: int) -> Any:
    """The tree of modules, with widths by the times of their layers."""
    seconds: dict[tuple[str, ...], float] = {}
    tips: dict[tuple[str, ...], str] = {}
    for row in report.rows:
        spent = row.seconds[number]
        if not spent:
            continue
        path = module_path(report, row) if row.nodes else (nodes_of(report, row),)
        while path in seconds:
            path = (*path[:-1], path[-1] + "'")
        seconds[path] = spent
        tips[path] = _tip(report, row, side, number)
    total, tree = sum(seconds.values()), _tree(seconds)
    longest = max(seconds.values())
    rows = [
        {
            "id": "/".join((side.name, *path)), "parent": "/".join((side.name, *path[:-1])) if path else None,
            "name": path[-1] if path else f"{side.name}: {total * 1e3:.4g} ms",
            "value": seconds.get(path, 0.0), "fill": _mix(sqrt(min(1.0, spent / longest)) if path in seconds else 0.0),
            "tip": f"{'/'.join(path) or side.name}\n{spent * 1e3:.4g} ms, {spent / total:.1%}"
            + (f"\n\n{tips[path]}" if path in tips else ""),
        }
        for path, spent in tree.items()
    ]  # fmt: skip
    depth = max(len(path) for path in tree) + 1
    return draw("flame", {"tree": rows}, height=_BAND * depth)


def _tree(seconds: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """Each path and its parents, with the sums of their times."""
    sums: dict[tuple[str, ...], float] = {}
    for path, spent in seconds.items():
        for end in range(len(path) + 1):
            sums[path[:end]] = sums.get(path[:end], 0.0) + spent
    return sums


# ---- the table ----


def _table_rows(report: LayerReport) -> Iterator[dict[str, Any]]:
    longest = [max((row.seconds[n] or 0.0 for row in report.rows), default=0.0) for n in range(len(report.sides))]
    for row in report.rows:
        cells = []
        for number, side in enumerate(report.sides):
            what, form, time, _ = side_cells(side, row, number)
            share = (row.seconds[number] or 0.0) / longest[number] if longest[number] else 0.0
            cells.append({"what": what, "format": form, "ms": time, "bar": f"{share:.1%}"})
        names = [report.nodes[i].name for i in row.nodes]
        yield {
            "name": nodes_of(report, row), "names": "\n".join(names[:40]), "operators": operators_of(report, row),
            "cells": cells,
        }  # fmt: skip
