"""`infersdk quantize`: an INT8 model out of an FP32 one and images."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._files import image_files
from ..errors import CalibrationError, ConfigError
from .common import add_json_argument, add_wrapper_arguments, console, print_json, wrapper_arguments
from .progress import ProgressReporter, show_progress, sigterm_interrupts

if TYPE_CHECKING:
    from ..models.vision import VisionModel
    from ..quant import CalibrationTable, ImageInputs, Observations, QuantizedGraph, SearchReport, Speed

#: Images that results are compared on, and that are kept from calibration where there are enough.
_MEASURED = 32


def register(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "quantize",
        help="make an INT8 model with images of yours",
        description="Calibrates a model with images and writes it with 8-bit layers, for all backends. At the end it "
        "compares the two: their results on images, and their speed here. The exit code is 1 when --max-drop is not "
        "reached.",
    )
    parser.add_argument("model", type=Path, help="the ONNX file, FP32")
    parser.add_argument("--data", type=Path, nargs="+", metavar="FOLDER", help="folders of images, or images")
    parser.add_argument("-o", "--output", type=Path, help="by default the model's name with .int8.onnx")
    parser.add_argument("--limit", type=int, metavar="N", help="of the images, N spread evenly (default: all)")
    group = parser.add_argument_group("calibration")
    group.add_argument(
        "--method",
        choices=("auto", "entropy", "minmax", "percentile"),
        help="auto (the default) tries all on what was observed, and takes the one whose results agree best with FP32",
    )
    group.add_argument("--percentile", type=float, default=99.999, help="for that method (default: %(default)s)")
    group.add_argument(
        "--table", type=Path, help="a calibration table or TensorRT cache: read if it is there, else written"
    )
    group.add_argument("--tensorrt-cache", type=Path, metavar="FILE", help="write TensorRT's calibration cache, too")
    group = parser.add_argument_group("layers")
    group.add_argument(
        "--exclude", action="append", default=[], metavar="NODE", help="leave in floating point; repeatable"
    )
    group.add_argument("--max-drop", type=float, metavar="PERCENT", help="find the layers to leave out for this loss")
    group.add_argument(
        "--placement",
        choices=("all", "inputs"),
        default="all",
        help="quantise between layers too, or what enters them alone (default: %(default)s)",
    )
    group.add_argument("--layers", action="store_true", help="list the layers that can be quantised, and do nothing")
    group = parser.add_argument_group("the wrapper, which preprocesses and is measured")
    add_wrapper_arguments(group)
    group.add_argument("--preset", help="of a classifier: imagenet, caffe, inception or unit")
    group.add_argument("--resize", type=int, help="of a classifier: the shorter side before the crop")
    group.add_argument("--backend", default="onnxruntime", help="what results and speed are of (default: %(default)s)")
    group.add_argument("--device", help="cpu, cuda:0, ... (default: the backend's own)")
    add_json_argument(parser)
    parser.set_defaults(func=run)


def run(arguments: argparse.Namespace) -> int:
    from .. import quant
    from ..quant.graph import plan

    if arguments.limit is not None and arguments.limit < 1:
        raise ConfigError(f"--limit is a whole number from 1, not {arguments.limit}")
    planned = plan(arguments.model, exclude=arguments.exclude, placement=arguments.placement)
    if arguments.layers:
        _list(planned, as_json=arguments.json)
        return 0
    table = None
    if arguments.table and arguments.table.exists():
        table = quant.CalibrationTable.load(arguments.table)
        table.check(arguments.model)
        if arguments.method not in (None, "auto", table.method):
            raise ConfigError(
                f"{str(arguments.table)!r} was made by {table.method}; it cannot be used for {arguments.method}"
            )
    if not arguments.data and (table is None or arguments.max_drop is not None):
        raise ConfigError(
            "--data names the images to calibrate and measure with; a --table alone does without a search"
        )
    work = _Work(output=arguments.output or arguments.model.with_suffix(".int8.onnx"), table=table)
    with sigterm_interrupts() as interruption:
        try:
            with show_progress(quiet=arguments.json) as progress:
                _quantize(arguments, work, progress)
        except KeyboardInterrupt:
            _keep(arguments, work)
            raise interruption.kind from None
    _tell(arguments, work)
    return 1 if work.report is not None and not work.report.reached else 0


@dataclass
class _Work:
    """What has been done so far.

    Attributes:
        seen: what calibration observed, before a table is made of it.
        methods: the agreement by method where several were tried.
        measured: images that results are compared on.
    """

    output: Path
    table: CalibrationTable | None = None
    seen: Observations | None = None
    methods: dict[str, float] = field(default_factory=dict)
    report: SearchReport | None = None
    made: QuantizedGraph | None = None
    agreement: float | None = None
    speed: Speed | None = None
    measured: int = 0


def _quantize(arguments: argparse.Namespace, work: _Work, progress: ProgressReporter) -> None:
    from .. import quant

    calibrating, measuring = _split(_images(arguments.data or [], arguments.limit))
    work.measured = len(measuring)
    with contextlib.ExitStack() as stack:
        inputs = None
        wrapper = stack.enter_context(_wrapper(arguments, arguments.model)) if arguments.data else None
        reference = None
        if wrapper is not None:
            reference = wrapper(measuring)
            inputs = quant.ImageInputs(wrapper, measuring, batch=1)
        if work.table is None:
            assert wrapper is not None
            _calibrate(arguments, work, wrapper, calibrating, measuring, reference, progress)
            assert work.table is not None
            if arguments.table:
                work.table.save(arguments.table)
        if arguments.tensorrt_cache:
            work.table.save_tensorrt_cache(arguments.tensorrt_cache)
        if arguments.max_drop is not None:
            assert inputs is not None
            work.report = _search(arguments, work.table, inputs, measuring, reference, progress)
        left = (*arguments.exclude, *(work.report.exclude if work.report else ()))
        work.made = quant.quantize(
            arguments.model, work.output, work.table, exclude=left, placement=arguments.placement
        )
        if inputs is not None:
            with progress.stage("comparing results"):
                work.agreement = _agreement(arguments, work.made.path, measuring, reference)
            with progress.stage("comparing speed"):
                work.speed = quant.compare_speed(
                    arguments.model, work.made.path, inputs, backend=arguments.backend, device=arguments.device
                )


def _keep(arguments: argparse.Namespace, work: _Work) -> None:
    """Writes what was measured before an interruption, and says so on stderr."""
    out = console(stderr=True)
    if work.made is not None:
        out.print(f"written: {work.made.path}; not measured to the end", soft_wrap=True, markup=False)
        return
    table = work.table
    if table is None and work.seen is not None:
        # The methods were still being compared: the default of those that a table can be made by.
        table = work.seen.table("entropy" if work.seen.histograms else "minmax", arguments.percentile)
    if table is None:
        out.print("nothing is written: the calibration was not complete")
        return
    file = arguments.table or work.output.with_suffix(".calibration.json")
    table.save(file)
    text = f"written: {file}, the calibration by {table.method}; --table {file} goes on from there"
    out.print(text, soft_wrap=True, markup=False)


# ---- images and wrappers ----


def _images(places: Sequence[Path], limit: int | None) -> list[Path]:
    found: list[Path] = []
    for place in places:
        if not place.exists():
            raise ConfigError(f"no data at {str(place)!r}")
        inside = image_files(place) if place.is_dir() else [place]
        if not inside:
            raise CalibrationError(f"there are no images in {str(place)!r}")
        found += inside
    count = min(limit or len(found), len(found))
    return [found[i * len(found) // count] for i in range(count)]


def _split(images: list[Path]) -> tuple[list[Path], list[Path]]:
    """Those to calibrate with, and those to measure on: where there are enough, up to 32 of them are kept apart."""
    if len(images) < 32:
        return images, images[:_MEASURED]
    step = max(4, len(images) // _MEASURED)
    measuring = images[::step][:_MEASURED]
    apart = set(measuring)
    return [p for p in images if p not in apart], measuring


def _wrapper(arguments: argparse.Namespace, path: Path) -> VisionModel[Any]:
    """The wrapper for the model: as asked for, or by its output."""
    from .. import models
    from ..registry import load

    infer = load(path, arguments.backend, device=arguments.device)
    try:
        own = {key: value for key in ("preset", "resize") if (value := getattr(arguments, key)) is not None}
        return models.load(infer, **wrapper_arguments(arguments), **own)
    except BaseException:
        infer.close()
        raise


def _agreement(arguments: argparse.Namespace, path: Path, images: Sequence[Path], reference: Any) -> float:
    from ..quant import agreement

    with _wrapper(arguments, path) as model:
        return agreement(reference, model(list(images)))


# ---- the steps ----


def _calibrate(
    arguments: argparse.Namespace,
    work: _Work,
    wrapper: VisionModel[Any],
    images: Sequence[Path],
    measuring: Sequence[Path],
    reference: Any,
    progress: ProgressReporter,
) -> None:
    """Sets the table of `work`, and the agreement by method where several are tried."""
    from .. import quant

    method = arguments.method or "auto"
    passes = 1 if method == "minmax" else 2
    with progress.stage(f"calibrating on {len(images)} images", passes * len(images)) as advance:
        seen = work.seen = quant.observe(
            arguments.model,
            quant.ImageInputs(wrapper, images),
            histograms=method != "minmax",
            progress=lambda step, done: advance(done + (len(images) if step == "histograms" else 0)),
        )
    if method != "auto":
        work.table = seen.table(method, arguments.percentile)
        return
    with progress.stage("trying methods", 4) as advance:
        work.table, work.methods = quant.best_method(
            arguments.model,
            seen,
            lambda path: _agreement(arguments, path, measuring, reference),
            exclude=arguments.exclude,
            placement=arguments.placement,
            progress=lambda step, done, of: advance(done),
        )


def _search(
    arguments: argparse.Namespace,
    table: CalibrationTable,
    inputs: ImageInputs,
    images: Sequence[Path],
    reference: Any,
    progress: ProgressReporter,
) -> SearchReport:
    from .. import quant

    with progress.stage("searching layers", 100) as advance:
        return quant.search(
            arguments.model,
            table,
            inputs,
            lambda path: _agreement(arguments, path, images, reference),
            arguments.max_drop,
            exclude=arguments.exclude,
            placement=arguments.placement,
            progress=lambda step, done, of: advance(80 * done // of if step == "rank" else 90),
        )


# ---- the report ----


def _list(planned: Any, *, as_json: bool) -> None:
    from rich.table import Table

    operators = {node.name: node.op_type for node in planned.model.graph.node}
    rows = [(name, operators[name], "") for name in planned.layers]
    rows += [(name, operators[name], f"left in floating point: {why}") for name, why in planned.left.items()]
    if as_json:
        print_json([{"name": name, "operator": operator, "note": note} for name, operator, note in rows])
        return
    table = Table("layer", "operator", "", title=f"{len(planned.layers)} layers can be quantised", title_justify="left")
    for row in rows:
        table.add_row(*row)
    console().print(table)


def _tell(arguments: argparse.Namespace, work: _Work) -> None:
    made, table, report, speed = work.made, work.table, work.report, work.speed
    assert made is not None
    assert table is not None
    if arguments.json:
        data: dict[str, Any] = {
            "output": str(made.path),
            "method": table.method,
            "percentile": table.percentile,
            "methods": work.methods,
            "samples": table.samples,
            "layers": len(made.layers),
            "floating": list(made.floating),
            "agreement": work.agreement,
            "measured": work.measured if work.agreement is not None else 0,
        }
        if speed is not None:
            data["speed"] = {
                "backend": speed.backend,
                "device": speed.device,
                "fp32_ms": round(speed.fp32, 3),
                "int8_ms": round(speed.int8, 3),
                "ratio": round(speed.ratio, 3),
            }
        if report is not None:
            data["search"] = {
                "reached": report.reached,
                "baseline": report.baseline,
                "steps": [{"floating": n, "metric": metric} for n, metric in report.steps],
                "layers": [{"name": c.name, "error": c.error, "floating": c.floating} for c in report.layers],
            }
        print_json(data)
        return
    from rich.markup import escape

    out = console()
    if work.methods:
        out.print("agreement by method: " + ", ".join(f"{name} {value:.1f}%" for name, value in work.methods.items()))
    if report is not None:
        _show_search(report, arguments.max_drop)
    size, before = made.path.stat().st_size, arguments.model.stat().st_size
    floating = f", {len(made.floating)} in floating point" if made.floating else ""
    out.print(
        f"{escape(str(made.path))}: {size:,} bytes ({before / size:.1f} times smaller), "
        f"{len(made.layers)} layers in INT8{floating}; {table.method}, {table.samples} samples",
        soft_wrap=True,
    )
    if work.agreement is not None:
        out.print(f"results agree with FP32 by {work.agreement:.1f}% on {work.measured} images")
    if speed is not None:
        figures = f"FP32 {speed.fp32:.2f} ms, INT8 {speed.int8:.2f} ms a run on {speed.backend}, {speed.device}"
        if speed.ratio < 1:
            slower = f"INT8 is slower than FP32 here, by {1 / speed.ratio:.2f} times"
            out.print(f"[yellow]{slower}: {figures}; try --placement or another backend[/yellow]", soft_wrap=True)
        else:
            out.print(f"INT8 is {speed.ratio:.2f} times as fast here: {figures}", soft_wrap=True)


def _show_search(report: SearchReport, max_drop: float) -> None:
    from rich.markup import escape
    from rich.table import Table

    out = console()
    if report.layers:
        shown = max(10, len(report.exclude))
        table = Table(title=f"the costliest of {len(report.layers)} layers", title_justify="left")
        table.add_column("layer", overflow="fold")
        table.add_column("operator")
        table.add_column("noise alone", justify="right")
        table.add_column("")
        for cost in report.layers[:shown]:
            note = "floating point" if cost.floating else ""
            table.add_row(escape(cost.name), cost.operator, f"{cost.error:.2e}", note)
        out.print(table)
    for count, metric in report.steps:
        out.print(f"{count} layers in floating point: {metric:.2f}%, a drop of {report.baseline - metric:.2f}")
    if not report.reached:
        out.print(f"[red]a drop of {max_drop:g} is not reached[/red]; the best of these is taken")
