"""Layout of the graph of a model, and the modules of its nodes.

The graph is drawn in ranks, with each node below its inputs (Sugiyama, Tagawa and Toda, *Methods for visual
understanding of hierarchical system structures*, 1981). Long graphs continue in further columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .report import LayerReport, LayerRow

__all__ = ["Box", "Drawing", "draw_graph", "label_of", "main_node", "module_path"]

WIDTH = 1080.0
_HEIGHT, _RANK = 42.0, 56.0  # of a box; distance between ranks
_QUANTIZATION = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
_WEIGHTED = ("Conv", "ConvTranspose", "ConvInteger", "Gemm", "MatMul", "MatMulInteger")
_GUTTER = 26.0  # between columns
_WIDEST = 180.0
_RANKS_IN_COLUMN = 26
_MOST_COLUMNS = 4
_SWEEPS = 4


@dataclass(frozen=True)
class Box:
    """The rectangle of a row of the report, in pixels. `row` is its position in `rows`."""

    row: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Drawing:
    """Boxes, edges as SVG paths, and the total height."""

    boxes: list[Box]
    edges: list[str]
    height: float


def draw_graph(report: LayerReport) -> Drawing:
    """Lays out the rows that have nodes."""
    rows = [i for i, row in enumerate(report.rows) if row.nodes]
    edges = _edges(report, rows)
    ranks = _ordered(_ranks(rows, edges), edges)
    columns = min(_MOST_COLUMNS, max(1, math.ceil(len(ranks) / _RANKS_IN_COLUMN)))
    length = math.ceil(len(ranks) / columns) if ranks else 1
    width = (WIDTH - _GUTTER * (columns - 1)) / columns
    boxes: dict[int, Box] = {}
    column_of: dict[int, int] = {}
    for number, rank in enumerate(ranks):
        column, line = divmod(number, length)
        left, part = column * (width + _GUTTER), width / len(rank)
        size = min(_WIDEST, part - 4)
        for index, row in enumerate(rank):
            x = left + part * (index + 0.5) - size / 2
            boxes[row] = Box(row, round(x, 1), line * _RANK + 8, round(size, 1), _HEIGHT)
            column_of[row] = column
    paths = [
        _path(boxes[source], boxes[target], None if column_of[source] == column_of[target]
              else column_of[target] * (width + _GUTTER) - _GUTTER / 2, width)
        for source, target in edges
    ]  # fmt: skip
    return Drawing(list(boxes.values()), paths, length * _RANK + 8)


def _edges(report: LayerReport, rows: list[int]) -> list[tuple[int, int]]:
    """Pairs of a row and a row that reads its results, without edges against the order of the nodes."""
    row_of = {node: i for i in rows for node in report.rows[i].nodes}
    result = {
        (row_of[node], row_of[taker])
        for node in row_of
        for taker in report.graph.after(node)
        if taker in row_of and row_of[taker] != row_of[node]
    }
    first = {i: report.rows[i].nodes[0] for i in rows}
    return sorted((a, b) for a, b in result if first[a] < first[b])


def _ranks(rows: list[int], edges: list[tuple[int, int]]) -> list[list[int]]:
    """Assigns each row to a rank below those of its inputs."""
    above: dict[int, list[int]] = {}
    for source, target in edges:
        above.setdefault(target, []).append(source)
    rank: dict[int, int] = {}
    for row in rows:  # in the order of their first nodes
        rank[row] = 1 + max((rank[source] for source in above.get(row, ())), default=-1)
    result: list[list[int]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
    for row in rows:
        result[rank[row]].append(row)
    return result


def _ordered(ranks: list[list[int]], edges: list[tuple[int, int]]) -> list[list[int]]:
    """Orders the rows of each rank by the mean position of their neighbours, in several sweeps."""
    joined: dict[int, list[int]] = {}
    for source, target in edges:
        joined.setdefault(target, []).append(source)
        joined.setdefault(source, []).append(target)
    at = {row: (i + 0.5) / len(rank) for rank in ranks for i, row in enumerate(rank)}
    for _ in range(_SWEEPS):
        for rank in ranks:
            rank.sort(key=lambda row: sum(at[o] for o in joined.get(row, [row])) / len(joined.get(row, [row])))
            for i, row in enumerate(rank):
                at[row] = (i + 0.5) / len(rank)
    return ranks


def _path(source: Box, target: Box, gutter: float | None, width: float) -> str:
    """The path from the bottom of a box to the top of another. Paths between columns pass through `gutter`."""
    x1, y1 = source.x + source.width / 2, source.y + source.height
    x2, y2 = target.x + target.width / 2, target.y
    if gutter is not None:
        g = round(gutter, 1)
        return (
            f"M{x1:.1f},{y1:.1f}C{x1:.1f},{y1 + 14:.1f},{g},{y1 + 14:.1f},{g},{y1 - 10:.1f}"
            f"L{g},{y2 + 10:.1f}C{g},{y2 - 14:.1f},{x2:.1f},{y2 - 14:.1f},{x2:.1f},{y2:.1f}"
        )
    bow = 0.0 if y2 - y1 < _RANK else math.copysign(min(width * 0.42, 40 + (y2 - y1) * 0.25), x2 - x1 or 1)
    reach = max(7.0, (y2 - y1) * 0.4)
    return f"M{x1:.1f},{y1:.1f}C{x1 + bow:.1f},{y1 + reach:.1f},{x2 + bow:.1f},{y2 - reach:.1f},{x2:.1f},{y2:.1f}"


def module_path(report: LayerReport, row: LayerRow) -> tuple[str, ...]:
    """The modules of a row by the name of its main node: `("model.22", "cv2.0", "conv", "Conv")`.

    Names without modules are grouped by operator.
    """
    node = report.nodes[main_node(report, row)]
    parts = tuple(part for part in node.name.split("/") if part)
    return parts if len(parts) > 1 else (node.operator, node.name)


def main_node(report: LayerReport, row: LayerRow) -> int:
    """The node that names a row: its first one with weights, or else its first one that does not quantise."""
    operators = {node: report.nodes[node].operator for node in row.nodes}
    weighted = (node for node in row.nodes if operators[node] in _WEIGHTED)
    others = (node for node in row.nodes if operators[node] not in _QUANTIZATION)
    return next(weighted, next(others, row.nodes[0]))


def label_of(report: LayerReport, row: LayerRow) -> tuple[str, str]:
    """The name of a row's layer and its operators: `("model.2/cv1/conv", "Conv + Mul")`."""
    path = module_path(report, row)
    operators = [report.nodes[node].operator for node in row.nodes]
    shown = [one for one in operators if one not in _QUANTIZATION]
    name = path[1:] if path[0] in operators else path[:-1] if not shown or path[-1] in operators else path
    return "/".join(name), " + ".join(dict.fromkeys(shown or operators))
