"""Texts of a report: figures of a side, names of rows, and table cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..core.executed_layers import ExecutedLayer
    from .report import LayerReport, LayerRow, LayerSide

__all__ = ["layout_of", "nodes_of", "operators_of", "side_cells", "summary"]

_ADDED = {
    "reformat": "added by the runtime: other layouts and types",
    "synchronise": "added by the runtime: waiting between streams",
    "compute": "added by the runtime",
}


def summary(report: LayerReport, side: LayerSide) -> tuple[list[tuple[str, str, str]], list[str]]:
    """The figures of a side (title, value, unit) and further lines."""
    fates = [side.fate(report.graph, i) for i in range(len(report.nodes))]
    owners = [layer for layers in side.layers_of for layer in layers]
    fused = sum(owners.count(layer) > 1 for layer in range(len(side.layers)))
    figures = []
    if side.run_seconds is not None:
        figures.append(("a run", f"{side.run_seconds * 1e3:.4g}", "ms"))
        figures.append(("all layers", f"{side.layer_seconds * 1e3:.4g}", "ms"))
    figures.append(("layers", str(len(side.layers)), f"of {len(report.nodes)} nodes"))
    if side.reformat_share is not None:
        figures.append(("reformatting", f"{side.reformat_share:.1%}", f"{side.reformat_seconds * 1e3:.3g} ms"))
    lines = [
        f"{len(report.nodes)} nodes -> {len(side.layers)} layers, {fused} with several nodes; "
        f"{fates.count('constant')} nodes constant, {fates.count('eliminated')} eliminated"
    ]
    if side.reformat_share is not None:
        lines.append(f"reformatting: {side.reformat_seconds * 1e3:.3g} ms, {side.reformat_share:.1%} of the layers")
    memory = [f"{what} {nbytes / 1e6:.3g} MB" for what, nbytes in side.profile.memory.items()]
    if any(layer.output_bytes for layer in side.layers):
        memory.append(
            f"written by layers in a run {sum(layer.output_bytes or 0 for layer in side.layers) / 1e6:.3g} MB"
        )
    if memory:
        lines.append(f"memory: {', '.join(memory)}")
    precisions = ", ".join(f"{count} in {name}" for name, count in side.precisions.most_common())
    devices = ", ".join(
        f"{count} on {name}" + (f" ({spent / side.layer_seconds:.0%} of the time)" if side.layer_seconds else "")
        for name, (count, spent) in side.devices.items()
        if name
    )
    lines.append("layers: " + "; ".join(filter(None, (precisions, devices))))
    return figures, lines


def nodes_of(report: LayerReport, row: LayerRow) -> str:
    """The name of the first node and the number of further nodes."""
    if not row.nodes:
        return _ADDED[row.added]
    more = f" +{len(row.nodes) - 1}" if len(row.nodes) > 1 else ""
    return report.nodes[row.nodes[0]].name + more


def operators_of(report: LayerReport, row: LayerRow) -> str:
    """The operators, such as `Conv + Sigmoid + Mul`; counted if there are more than four."""
    names = [report.nodes[i].operator for i in row.nodes]
    return " + ".join(names) if len(names) <= 4 else _counted(names)


def _counted(names: list[str]) -> str:
    """Names with counts: `2 Conv, Add`."""
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    return ", ".join(f"{count} {name}" if count > 1 else name for name, count in counts.items())


def side_cells(side: LayerSide, row: LayerRow, number: int) -> tuple[str, str, str, str]:
    """The layers, formats, milliseconds and share of time of a row on a side."""
    layers, seconds = [side.layers[i] for i in row.layers[number]], row.seconds[number]
    what = _counted([layer.kind or layer.name for layer in layers])
    formats = dict.fromkeys(" ".join(filter(None, (layer.precision, layout_of(layer)))) for layer in layers)
    form = ", ".join(filter(None, formats))
    if seconds is None:
        return what or "-", form, "", ""
    share = f"{seconds / side.layer_seconds:.1%}" if side.layer_seconds else ""
    return what, form, f"{seconds * 1e3:.3f}", share


def layout_of(layer: ExecutedLayer) -> str:
    """The layout of the first output that has one."""
    return next((tensor.layout for tensor in layer.outputs if tensor.layout), "")
