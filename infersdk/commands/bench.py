"""`infersdk bench`: speed, accuracy, memory and energy on each backend, in each precision, with each batch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec

from ..bench import BenchSettings, Report, bench, combine, read_report
from ..bench.compare import THRESHOLD, compare_reports
from ..bench.page import html_report
from ..bench.plan import usable_backends
from ..config import convert
from ..core.files import atomic_write
from ..errors import ConfigError, OutputError
from ..pages import require_packages
from .bench_tables import show, show_changes
from .common import (
    add_options,
    backend_options,
    check_report_files,
    names,
    numbers,
    precisions,
    print_json,
    print_text,
    report_file,
    shapes_of,
)
from .progress import show_progress
from .wrapper_options import add_wrapper_options, wrapper_files, wrapper_settings

__all__ = ["add_measuring_arguments", "measuring_settings"]


DESCRIPTION = (
    "Measures each model on each backend in each precision with each batch, every combination in a "
    "process of its own and all of them in each round, with 95 % intervals. What cannot run is listed with its "
    "reason. With --compare the exit code is 1 when something got slower beyond the noise."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", nargs="*", type=Path, metavar="MODEL", help="one or several files, such as FP32 and INT8"
    )
    group = parser.add_argument_group("combinations")
    group.add_argument(
        "--backends", type=names, metavar="NAME,NAME",
        help="each as name, name@device or name/precision (default: all that are installed and find a device)",
    )  # fmt: skip
    group.add_argument(
        "--precision", type=precisions, default=(None,), metavar="FP32,INT8",
        help="fp32, fp16, bf16, int8 (default: as the model is)",
    )  # fmt: skip
    group.add_argument("--batch", type=numbers, default=(1,), metavar="1,8,32", help="images in a run (default: 1)")
    group.add_argument("--threads", type=int, default=0, metavar="N", help="of each backend (default: its own choice)")
    add_options(group, "--option")
    add_measuring_arguments(parser)
    group = parser.add_argument_group("measuring")
    group.add_argument(
        "--time", type=float, default=5.0, metavar="S",
        help="seconds for each scenario, over all rounds (default: %(default)g)",
    )  # fmt: skip
    group.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="number of rounds that share the time (default: 5)"
    )
    group.add_argument(
        "--warmup", type=float, default=10.0, metavar="S",
        help="maximum seconds of warm-up, for times that do not become steady (default: %(default)g)",
    )  # fmt: skip
    group.add_argument(
        "--scenarios", type=names, metavar="NAME,NAME",
        help="engine, engine_parallel, single_stream, multi_stream, offline, server (default: all that a combination "
        "can run; server only with --latency-bound)",
    )  # fmt: skip
    group.add_argument(
        "--latency-bound", type=float, metavar="MS", dest="latency_bound_ms",
        help="scenario server: find the highest rate at which 99 %% of the requests end within MS milliseconds",
    )  # fmt: skip
    group.add_argument(
        "--starts", type=int, default=3, metavar="N", help="cold starts of each combination (default: %(default)s)"
    )
    group.add_argument("--no-accuracy", dest="accuracy", action="store_false", help="leave accuracy and agreement out")
    group = parser.add_argument_group("results")
    group.add_argument(
        "-o", "--output", type=report_file, metavar="FILE.json", help="all figures, as docs/bench-schema.md says"
    )
    group.add_argument("--csv", type=report_file, metavar="FILE", help="a line for each combination")
    group.add_argument("--html", type=report_file, metavar="FILE", help="a report with plots, in one file")
    group.add_argument("--compare", type=Path, nargs=2, metavar=("OLD.json", "NEW.json"), help="compare two reports")
    group.add_argument(
        "--min-change", type=float, metavar="X",
        help="with --compare: a change is a factor of 1 + X at least, up or down (default: 0.03)",
    )  # fmt: skip
    add_options(parser, "--json")


def add_measuring_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the data, the labels and the wrapper."""
    group = parser.add_argument_group("model and data")
    group.add_argument("--data", metavar="FOLDER", help="images or arrays (default: the packaged image, or random)")
    group.add_argument("--annotations", metavar="JSON", help="boxes of the images in COCO's format: accuracy is mAP")
    group.add_argument(
        "--labels", metavar="FILE", nargs="?", const="folder",
        help="a folder of label maps, NAME.png for each image: accuracy is mean IoU; "
        "or top-1: an image and its label a line; without FILE by a folder for each class, or by the "
        "number that each file's name begins with",
    )  # fmt: skip
    add_options(group, "--shape")
    group.add_argument("--from-files", action="store_true", help="read the images from their files each time")
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of random inputs, arrivals and the order in a round"
    )
    group = parser.add_argument_group("the wrapper (--type arrays: the network alone)")
    add_wrapper_options(parser, group, other_types=["arrays"])


def measuring_settings(arguments: argparse.Namespace, *more: str) -> BenchSettings:
    """The settings from the options of `add_measuring_arguments`, and from `more` options."""
    names = ("type", "data", "annotations", "labels", "from_files", "seed", *more)
    given: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    given["wrapper"] = wrapper_settings(arguments)
    given["shapes"] = {name: list(sizes) for name, sizes in shapes_of(arguments).items()}
    return convert(given, BenchSettings, "the measurement")


def run(arguments: argparse.Namespace) -> int:
    if arguments.compare is not None:
        return _compare(arguments)
    if not arguments.models:
        raise ConfigError("no model to measure: infersdk bench model.onnx")
    if arguments.min_change is not None:
        raise ConfigError("--min-change goes with --compare")
    inputs = [*arguments.models, arguments.annotations, arguments.labels, *wrapper_files(arguments)]
    check_report_files(arguments.output, arguments.csv, arguments.html, inputs=inputs)
    if arguments.html is not None:
        require_packages()  # before anything is measured
    targets = arguments.backends or usable_backends()
    combinations = combine(
        arguments.models, targets, precisions=arguments.precision, batches=arguments.batch,
        options=backend_options(arguments.option), threads=arguments.threads,
    )  # fmt: skip
    settings = measuring_settings(arguments, "time", "rounds", "warmup", "starts", "latency_bound_ms", "scenarios")
    with show_progress(quiet=arguments.json) as progress:
        report = bench(combinations, settings, accuracy=arguments.accuracy, progress=progress.report)
    _write(report, arguments)
    if report.interrupted:
        raise KeyboardInterrupt  # the exit code of the command line, after the results are written
    return 0 if any(row.status == "ok" for row in report.rows) else 4


def _write(report: Report, arguments: argparse.Namespace) -> None:
    """Writes the requested files, and prints the report. Then raises OutputError for a file that cannot be written."""
    files = (arguments.output, Report.json), (arguments.csv, Report.csv), (arguments.html, html_report)
    written: list[Path] = []
    failed: OutputError | None = None
    for path, form in files:  # before printing, which fails where the output is closed
        if path is not None:
            try:
                written.append(atomic_write(path, form(report)))
            except OutputError as error:
                failed = failed or error
    if arguments.json:
        print_json(report.as_dict())
    else:
        show(report)
        for path in written:
            print_text(f"written: {path}")
    if failed is not None:
        raise failed


def _compare(arguments: argparse.Namespace) -> int:
    if arguments.models:
        raise ConfigError("--compare takes two reports and measures nothing; leave the models out")
    threshold = THRESHOLD if arguments.min_change is None else arguments.min_change
    if not 0 <= threshold < 1:
        raise ConfigError(f"--min-change is a number from 0 to 1, such as 0.03, not {threshold:g}")
    old, new = (read_report(path) for path in arguments.compare)
    result = compare_reports(old, new, threshold=threshold)
    if arguments.json:
        print_json({**msgspec.to_builtins(result), "slower": bool(result.slower), "threshold": threshold})
    else:
        show_changes(result, threshold)
    return 1 if result.slower else 0
