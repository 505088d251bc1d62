"""`infersdk layers`: the layers of a model in a runtime, with their times."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ..errors import ConfigError
from ..layers import LayerReport, LayerRow, ProfileSettings, list_built, profile, write_page, write_trace
from ..layers.text import nodes_of, operators_of, side_cells, summary
from ..pages import require_packages
from .common import (
    add_options,
    backend_options,
    check_report_files,
    custom_ops_of,
    names,
    print_json,
    print_table,
    print_text,
    report_file,
    shapes_of,
)

#: Rows of the table, unless --all is given.
_ROWS = 30


DESCRIPTION = (
    "Runs a model with the runtime's profiler, and shows, for the nodes of the original model, which "
    "layers compute them, how, and in what time. Two backends are shown side by side."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="an ONNX file, or another that the backend reads; or an engine")
    parser.add_argument(
        "--backends", type=names, default="onnxruntime", metavar="NAME,NAME",
        help="one or several, each as name, name@device or name/precision (default: %(default)s)",
    )  # fmt: skip
    add_options(parser, "--option", "--custom-ops")
    parser.add_argument("--original", type=Path, metavar="FILE", help="the ONNX file that an engine was built from")
    parser.add_argument(
        "--compute-capability", metavar="X.Y",
        help="with tensorrt-rtx: build for that GPU, which need not be here, and list the layers without times",
    )  # fmt: skip
    parser.add_argument(
        "--synchronize", action="store_true",
        help="on a GPU with onnxruntime: wait for each kernel, so that a layer's time is the GPU's",
    )  # fmt: skip
    runs = parser.add_argument_group("runs")
    runs.add_argument("--runs", type=int, default=20, metavar="N", help="that are timed (default: %(default)s)")
    runs.add_argument("--warm-up", type=int, default=5, metavar="N", help="before those (default: %(default)s)")
    add_options(runs, "--batch", "--shape")
    runs.add_argument("--seed", type=int, default=0, help="of the random inputs (default: %(default)s)")
    output = parser.add_argument_group("output")
    output.add_argument("--sort", choices=("order", "time"), default="order", help="of the rows (default: %(default)s)")
    output.add_argument("--all", action="store_true", help=f"all rows, not {_ROWS}")
    output.add_argument(
        "--html", type=report_file, metavar="FILE", help="write a page: the graph, a flame, and the table"
    )
    output.add_argument("--trace", type=report_file, metavar="FILE", help="write a trace for https://ui.perfetto.dev")
    add_options(output, "--json")


def run(arguments: argparse.Namespace) -> int:
    if arguments.synchronize:
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"  # read when CUDA starts: nothing has started it yet
    check_report_files(arguments.html, arguments.trace, inputs=[arguments.model, arguments.original])
    if arguments.html is not None:
        require_packages()
    report = _report(arguments)
    if arguments.html is not None:
        write_page(report, arguments.html)
    if arguments.trace is not None:
        write_trace(report, arguments.trace)
    if arguments.json:
        print_json(report.plain())
    else:
        _show(report, arguments)
    return 0


def _report(arguments: argparse.Namespace) -> LayerReport:
    settings = ProfileSettings(
        runs=arguments.runs, warm_up=arguments.warm_up, batch=arguments.batch, seed=arguments.seed,
        shapes=shapes_of(arguments), options=backend_options(arguments.option),
    )  # fmt: skip
    targets = arguments.backends
    if arguments.compute_capability is None:
        custom_ops = custom_ops_of(arguments)
        return profile(arguments.model, targets, settings, original=arguments.original, custom_ops=custom_ops)
    if len(targets) > 1:
        raise ConfigError("--compute-capability lists the layers of one backend; name tensorrt-rtx alone")
    return list_built(arguments.model, targets[0], arguments.compute_capability, settings)


def _show(report: LayerReport, arguments: argparse.Namespace) -> None:
    for side in report.sides:
        print_text(f"{side.name}: {side.backend} {side.version}, {side.precision} on {side.device}")
        timing = [side.profile.timing] if side.is_timed else []
        for line in (side.explanation(), *timing, *summary(report, side)[1]):
            print_text(f"  {line}")
    rows = list(report.rows)
    if arguments.sort == "time":
        rows.sort(key=lambda row: -max((spent or 0.0 for spent in row.seconds), default=0.0))
    shown = rows if arguments.all else rows[:_ROWS]
    _print_rows(report, shown)
    if len(shown) < len(rows):
        print_text(f"{len(rows) - len(shown)} more rows: --all shows them, --sort time the longest first")
    for path in (arguments.html, arguments.trace):
        if path is not None:
            print_text(f"{path} written")


def _print_rows(report: LayerReport, shown: list[LayerRow]) -> None:
    columns, rows = ["nodes", "operators"], []
    for side in report.sides:
        columns += [side.name, "format", ">ms", ">%"]
    for row in shown:
        cells = [nodes_of(report, row), operators_of(report, row)]
        for number, side in enumerate(report.sides):
            cells += side_cells(side, row, number)
        rows.append(cells)
    print_table(columns, rows, report.model)
