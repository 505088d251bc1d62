"""`infersdk bench`: speed, accuracy, memory and energy on each backend, in each precision, with each batch."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .common import add_json_argument, backend_options, console, print_json
from .progress import show_progress, sigterm_interrupts

if TYPE_CHECKING:
    from ..bench import BenchSettings, Report, Row
    from ..bench.compare import Comparison
    from ..bench.statistics import Estimate

__all__ = ["add_measuring_arguments", "measuring_settings", "register"]


def register(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "bench",
        help="throughput, latency, accuracy, memory and energy of models on backends",
        description="Measures each model on each backend in each precision with each batch, every combination in a "
        "process of its own and all of them in turn, with 95 % intervals. What cannot run is told with its reason. "
        "With --compare the exit code is 1 when something got slower beyond the noise.",
    )
    parser.add_argument(
        "models", nargs="*", type=Path, metavar="MODEL", help="one or several files: FP32 and INT8, say"
    )
    group = parser.add_argument_group("combinations")
    group.add_argument(
        "--backends",
        metavar="NAME,NAME",
        help="each as name, name@device or name/precision (default: all that are installed and find a device)",
    )
    group.add_argument("--precision", metavar="FP32,INT8", help="fp32, fp16, bf16, int8 (default: as the model is)")
    group.add_argument("--batch", default="1", metavar="1,8,32", help="images in a run (default: %(default)s)")
    group.add_argument("--threads", type=int, default=0, metavar="N", help="of each backend (default: its own choice)")
    group.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one of the backends' own options; repeatable",
    )
    add_measuring_arguments(parser)
    group = parser.add_argument_group("measuring")
    group.add_argument(
        "--time",
        type=float,
        default=5.0,
        metavar="S",
        help="seconds for each way to run, in all (default: %(default)g)",
    )
    group.add_argument("--rounds", type=int, default=5, metavar="N", help="turns that time is cut into (default: 5)")
    group.add_argument("--no-accuracy", action="store_true", help="leave accuracy and agreement out")
    group = parser.add_argument_group("results")
    group.add_argument(
        "-o", "--output", type=Path, metavar="FILE.json", help="all figures, as docs/bench-schema.md says"
    )
    group.add_argument("--csv", type=Path, metavar="FILE", help="a line for each combination")
    group.add_argument("--html", type=Path, metavar="FILE", help="a report with plots, in one file")
    group.add_argument(
        "--compare", type=Path, nargs=2, metavar=("OLD.json", "NEW.json"), help="what moved between two reports"
    )
    group.add_argument("--threshold", type=float, metavar="X", help="with --compare: the least change (default: 0.03)")
    add_json_argument(parser)
    parser.set_defaults(func=run)


def add_measuring_arguments(parser: argparse.ArgumentParser) -> None:
    """What is run, and by what accuracy is measured."""
    group = parser.add_argument_group("model and data")
    group.add_argument(
        "--type",
        metavar="NAME",
        default="auto",
        help="the wrapper, yolov5 for instance; arrays: the network alone (default: by the file)",
    )
    group.add_argument("--data", metavar="FOLDER", help="images or arrays (default: the packaged image, or random)")
    group.add_argument("--annotations", metavar="JSON", help="boxes of the images in COCO's format: accuracy is mAP")
    group.add_argument(
        "--labels",
        metavar="FILE",
        nargs="?",
        const="folder",
        help="accuracy is top-1: an image and its label a line; without FILE by a folder for each class, or by the "
        "number that each file's name begins with",
    )
    group.add_argument(
        "--names", metavar="FILE", help="a text file with a class name a line (default: the model's own)"
    )
    group.add_argument("--preset", choices=("imagenet", "caffe", "inception", "unit"), help="of a classifier's pixels")
    group.add_argument("--resize", type=int, metavar="N", help="of a classifier: the shorter side before the crop")
    group.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=N,N,...",
        help="of an input with other free axes; repeatable",
    )
    group.add_argument("--from-files", action="store_true", help="read the images from their files each time")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of random inputs and of the order of turns")


def measuring_settings(arguments: argparse.Namespace, **more: Any) -> BenchSettings:
    """The settings that `add_measuring_arguments` took."""
    from ..bench import BenchSettings
    from ..config import convert
    from .compare import shape_of

    names = ("type", "data", "annotations", "labels", "names", "preset", "resize", "from_files", "seed")
    given = {name: getattr(arguments, name) for name in names}
    given["shapes"] = {name: list(sizes) for name, sizes in map(shape_of, arguments.shape)}
    return convert({**given, **more}, BenchSettings, "infersdk bench")


def numbers(text: str, what: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{what} {text!r} is not of the form 1,8,32") from None


def run(arguments: argparse.Namespace) -> int:
    if arguments.compare is not None:
        return _compare(arguments)
    if not arguments.models:
        raise ConfigError("no model to measure: infersdk bench model.onnx")
    if arguments.threshold is not None:
        raise ConfigError("--threshold goes with --compare")
    if arguments.html is not None:
        from ..pages import require_packages

        require_packages()  # before anything is measured
    from ..bench import bench, combine
    from ..bench.plan import usable_backends
    from ..bench.run import expected_seconds

    sides = [name for name in (arguments.backends or "").split(",") if name] or usable_backends()
    precisions = [name.strip().lower() or None for name in (arguments.precision or "").split(",")]
    combinations = combine(
        arguments.models, sides, precisions=precisions, batches=numbers(arguments.batch, "--batch"),
        options=backend_options(arguments.option), threads=arguments.threads,
    )  # fmt: skip
    settings = measuring_settings(arguments, time=arguments.time, rounds=arguments.rounds)
    accuracy = not arguments.no_accuracy
    expected = expected_seconds(combinations, settings, accuracy=accuracy)
    with sigterm_interrupts() as interruption:
        with show_progress(quiet=arguments.json, expected=expected) as progress:
            report = bench(combinations, settings, accuracy=accuracy, progress=progress.report)
        _write(report, arguments)
    if report.interrupted:
        raise interruption.kind  # the exit code of the command line, after the results are written
    return 0 if any(row.status == "ok" for row in report.rows) else 4


def _write(report: Report, arguments: argparse.Namespace) -> None:
    """To the files that were asked for, and to stdout."""
    from .._files import atomic_write

    written = []
    if arguments.output is not None:
        written.append(atomic_write(arguments.output, report.json()))
    if arguments.csv is not None:
        written.append(atomic_write(arguments.csv, report.csv()))
    if arguments.html is not None:
        from ..bench.page import html_report

        written.append(atomic_write(arguments.html, html_report(report, report.remarks())))
    if arguments.json:
        print_json(report.as_dict())
    else:
        show(report)
        for path in written:
            console().print(f"written: {path}", soft_wrap=True, markup=False)


# ---- tables ----


def show(report: Report) -> None:
    """The report as a table, with what there is to say about it."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    settings, out = report.settings, console()
    names = list(dict.fromkeys(Path(row.combination.model).name for row in report.rows))
    title = f"{settings.rounds} rounds, {settings.time:g} s for each way; medians, ± half of their 95 % interval"
    table = Table(
        title=escape(f"{names[0]}: {title}" if len(names) == 1 else title), title_justify="left", box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0), pad_edge=False,
    )  # fmt: skip
    table.add_column("combination", overflow="fold", min_width=26)
    for name in ("p50 ms", "p90", "p99", "one by one\nimages/s", "pipelined\nimages/s"):
        table.add_column(name, justify="right", no_wrap=True)
    energy = any(row.energy and row.energy.images_per_joule for row in report.rows)
    metric = next((row.accuracy.metric for row in report.rows if row.accuracy), "accuracy")
    for name in (metric, "MB", *(["images/J"] if energy else [])):
        table.add_column(name, justify="right", no_wrap=True)
    last = None
    for row in report.rows:
        name = Path(row.combination.model).name
        if len(names) > 1 and name != last:
            table.add_section()
            table.add_row(f"[bold]{escape(name)}[/bold]")
            last = name
        label = escape(_side(row))
        if row.ways:
            table.add_row(label, *_cells(row, energy=energy))
        else:
            table.add_row(label, "[red]fails[/red]")
    out.print(table)
    reasons: dict[str, list[str]] = {}
    for row in report.rows:
        if row.status != "ok":
            reasons.setdefault(f"{row.status}: {row.reason}", []).append(row.name)
    for reason, rows in reasons.items():
        out.print(f"[red]{escape(', '.join(rows))}[/red] {escape(reason)}", soft_wrap=True)
    for line in report.remarks():
        out.print(f"[yellow]{escape(line)}[/yellow]", soft_wrap=True)


def _side(row: Row) -> str:
    what, ran = row.combination, row.ran or {}
    told = {**({"threads": what.threads} if what.threads else {}), **what.options}
    place = what.side
    if ran:
        on = "" if ran["device"] == "cpu" else f"@{ran['device']}"
        place = f"{ran['backend']}{on} {ran['precision']}"
    return f"{place} batch {what.batch}" + "".join(f" {key}={value}" for key, value in told.items())


def _cells(row: Row, *, energy: bool) -> Iterator[str]:
    single, pipelined = row.ways.get("single"), row.ways.get("pipelined")
    for percentile in ("p50", "p90", "p99"):
        yield _number(single.latency_ms.get(percentile) if single else None, interval=percentile == "p50")
    yield _number(single.throughput if single else None)
    yield _number(pipelined.throughput if pipelined else None)
    accuracy, memory = row.accuracy, row.memory
    yield "–" if accuracy is None or accuracy.value is None else f"{accuracy.value:.4f}"
    device = memory.device_peak_bytes if memory else None
    host = f"{memory.host_peak_bytes / 1e6:.0f}" if memory else "–"
    yield f"{host} + {device / 1e6:.0f}" if device else host
    if energy:
        yield _number(row.energy.images_per_joule if row.energy else None)


def _number(found: Estimate | None, *, interval: bool = True) -> str:
    if found is None:
        return "–"
    digits = 0 if found.value >= 1000 else 1 if found.value >= 100 else 2 if found.value >= 1 else 3
    text = f"{found.value:.{digits}f}"
    if interval and found.low is not None and found.high is not None and found.value:
        text += f" ±{(found.high - found.low) / 2 / found.value:.0%}"
    return text


# ---- two reports ----


def _compare(arguments: argparse.Namespace) -> int:
    from ..bench import read_report
    from ..bench.compare import THRESHOLD, compare_reports

    if arguments.models:
        raise ConfigError("--compare takes two reports and measures nothing; leave the models out")
    threshold = THRESHOLD if arguments.threshold is None else arguments.threshold
    if not 0 <= threshold < 1:
        raise ConfigError(f"--threshold is a number from 0 to 1, 0.03 say, not {threshold:g}")
    old, new = (read_report(path) for path in arguments.compare)
    found = compare_reports(old, new, threshold=threshold)
    if arguments.json:
        import msgspec

        from .common import plain

        print_json(plain({
            "changes": msgspec.to_builtins(found.changes), "other_machine": found.other_machine,
            "slower": bool(found.slower), "threshold": threshold,
        }))  # fmt: skip
    else:
        _show_changes(found, threshold)
    return 1 if found.slower else 0


def _show_changes(found: Comparison, threshold: float) -> None:
    from rich.markup import escape
    from rich.table import Table

    out = console()
    if found.other_machine:
        out.print(f"[yellow]not the same machine or versions: {', '.join(found.other_machine)}[/yellow]")
    table = Table("combination", "figure", title=f"moved beyond the noise, and by {threshold:.0%} at least")
    for name in ("old", "new", "new / old (95 %)"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column()
    colours = {"slower": "red", "worse": "red", "fails now": "red", "more": "yellow", "gone": "yellow"}
    for change in found.moved:
        colour = colours.get(change.verdict, "green")
        both = ("" if value is None else f"{value:.4g}" for value in (change.old, change.new))
        ratio = change.ratio
        told = "" if ratio is None else f"{ratio.value:.3f}"
        if ratio is not None and ratio.low is not None:
            told += f" ({ratio.low:.3f} to {ratio.high:.3f})"
        table.add_row(escape(change.row), change.figure, *both, told, f"[{colour}]{change.verdict}[/{colour}]")
    if table.row_count:
        out.print(table)
    same = sum(change.verdict == "same" for change in found.changes)
    unsure = sum(change.verdict == "unsure" for change in found.changes)
    out.print(
        f"{len(found.moved)} moved, {same} did not" + (f", {unsure} with too few rounds to tell" if unsure else "")
    )
