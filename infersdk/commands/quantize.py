"""`infersdk quantize`: an INT8 model out of an FP32 one and images."""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from .. import models, quant
from ..core.files import atomic_write, check_output, image_files
from ..core.model_source import ModelSource
from ..errors import BackendError, CalibrationError, ConfigError
from ..graph.files import files_of, size_of
from ..loading.registry import backend_class, list_backends
from ..pages import require_packages
from ..quant.ranges import PERCENTILE
from .common import add_options, check_report_files, console, new_file, print_json, print_table, print_text, report_file
from .progress import show_progress
from .wrapper_options import add_wrapper_options, wrapper_files, wrapper_settings

if TYPE_CHECKING:
    from ..models.vision import VisionModel
    from ..quant import Plan, Workflow
    from ..quant.workflow import OpenWrapper


DESCRIPTION = (
    "Calibrates a model with images and writes it with 8-bit layers, in the form that suits the "
    "backend. At the end it compares the two: their results on images, and their speed here. The exit code is 1 "
    "when --max-drop or --max-score-shift is not kept."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="the ONNX file, FP32")
    parser.add_argument("--data", type=Path, nargs="+", metavar="FOLDER", help="folders of images, or images")
    parser.add_argument("-o", "--output", type=new_file, help="by default the model's name with .int8.onnx")
    parser.add_argument("--limit", type=int, metavar="N", help="of the images, N spread evenly (default: all)")
    parser.add_argument(
        "--target", choices=("onnxruntime", "openvino", "tensorrt", "tensorrt-rtx", "portable"),
        help="the form of the file; portable runs everywhere, less accurately and fast (default: that of --backend)",
    )  # fmt: skip
    group = parser.add_argument_group("calibration")
    group.add_argument(
        "--method", choices=("auto", "mse", "entropy", "minmax", "percentile"), default="auto",
        help="auto (the default) takes the one of several whose results agree best with FP32",
    )  # fmt: skip
    group.add_argument("--percentile", type=float, help=f"for that method (default: {PERCENTILE})")
    group.add_argument(
        "--bias-correction", action=argparse.BooleanOptionalAction,
        help="let biases make up for the rounding of weights (default: auto compares)",
    )  # fmt: skip
    group.add_argument(
        "--table", type=Path, help="a calibration table or TensorRT cache: read if it is there, else written"
    )
    group.add_argument(
        "--tensorrt-cache", type=report_file, metavar="FILE", help="write TensorRT's calibration cache, too"
    )
    group = parser.add_argument_group("accuracy")
    group.add_argument(
        "--exclude", action="append", default=[], metavar="NODE", help="leave in floating point; repeatable"
    )
    group.add_argument(
        "--max-drop", type=float, default=25.0, metavar="PERCENT",
        help="leave layers in floating point where results agree less with FP32, until they agree to within this; 100 "
        "leaves none (default: %(default)g)",
    )  # fmt: skip
    group.add_argument(
        "--max-score-shift", type=float, metavar="X",
        help="also until the scores of boxes or classes change by at most X on average, such as 0.02",
    )  # fmt: skip
    group.add_argument("--layers", action="store_true", help="list the layers that can be quantised, and do nothing")
    group = parser.add_argument_group("the wrapper, which preprocesses and is measured")
    add_wrapper_options(parser, group)
    group.add_argument(
        "--backend", default="onnxruntime", help="the runtime that runs and measures the file (default: %(default)s)"
    )
    add_options(group, "--device")
    group.add_argument(
        "--report", type=report_file, metavar="HTML",
        help="a page with each layer's error, range and times, and other targets",
    )  # fmt: skip
    add_options(parser, "--json")


def run(arguments: argparse.Namespace) -> int:
    for name, low in (("limit", 1), ("max_score_shift", 0)):
        value = getattr(arguments, name)
        if value is not None and not value >= low:
            raise ConfigError(f"--{name.replace('_', '-')} is a number from {low}, not {value}")
    if arguments.percentile is not None and arguments.method != "percentile":
        raise ConfigError(f"--percentile {arguments.percentile:g} needs --method percentile")
    files = files_of(ModelSource.of(arguments.model))  # checks the path first
    output = arguments.output or arguments.model.with_suffix(".int8.onnx")
    check_output(arguments.model, output, *files)
    check_report_files(
        output, arguments.table, arguments.tensorrt_cache, arguments.report,
        inputs=[*files, *(arguments.data or ()), *wrapper_files(arguments)],
    )  # fmt: skip
    target = arguments.target or quant.scheme_of_backend(arguments.backend).name
    if arguments.layers:
        _list(quant.plan(arguments.model, target, exclude=arguments.exclude), as_json=arguments.json)
        return 0
    table = _known_table(arguments)
    if not arguments.data and (table is None or arguments.max_score_shift is not None):
        raise ConfigError(
            "--data is missing: give the images for calibration and measurement, or an existing --table, which is used "
            "without measurement"
        )
    if arguments.report:
        if not arguments.data:
            raise ConfigError("--report needs --data: layers are measured with images")
        require_packages()
    work = quant.Workflow(
        arguments.model,
        _images(arguments.data or [], arguments.limit),
        lambda path: _wrapper(arguments, path),
        target=target,
        method=arguments.method,
        percentile=PERCENTILE if arguments.percentile is None else arguments.percentile,
        bias_correction=arguments.bias_correction,
        exclude=arguments.exclude,
        max_drop=arguments.max_drop,
        max_score_shift=arguments.max_score_shift,
        table=table,
    )
    try:
        with show_progress(quiet=arguments.json) as progress:
            work.run(output, stage=progress.stage)
            if arguments.report:
                others = _other_targets(arguments, target)
                page = quant.quantization_report(work, others, stage=progress.stage)
                atomic_write(arguments.report, page.encode())
    except KeyboardInterrupt:
        _keep(work, arguments.table or output.with_suffix(".calibration.json"))
        raise
    assert work.table is not None
    if arguments.table and table is None:
        work.table.save(arguments.table)
    if arguments.tensorrt_cache:
        work.table.save_tensorrt_cache(arguments.tensorrt_cache)
    if arguments.json:
        print_json(_summary(work))
    else:
        _show(arguments, work)
    return 0 if work.search is None or work.search.reached else 1


def _known_table(arguments: argparse.Namespace) -> Any:
    if not arguments.table or not arguments.table.exists():
        return None
    table = quant.CalibrationTable.load(arguments.table)
    if arguments.method not in ("auto", table.method):
        raise ConfigError(
            f"{str(arguments.table)!r} was made by {table.method}; it cannot be used for {arguments.method}"
        )
    if arguments.percentile not in (None, table.percentile):
        raise ConfigError(
            f"{str(arguments.table)!r} was made with the percentile {table.percentile}; it cannot be used for "
            f"{arguments.percentile:g}"
        )
    return table


def _keep(work: Workflow, file: Path) -> None:
    """Writes the calibration of an interrupted command, and reports it on stderr."""
    table = work.table
    if table is None and work.seen is not None:
        table = work.candidates[0].table(work.seen)  # interrupted while the ranges were chosen
    if work.made is not None:
        text = f"written: {work.made.path}; not measured to the end"
    elif table is not None:
        table.save(file)
        text = f"written: {file}, the calibration by {table.method}; --table {file} goes on from there"
    else:
        text = "nothing is written: the calibration was not complete"
    console(stderr=True).print(text, soft_wrap=True, markup=False)


# ---- images and wrappers ----


def _images(places: Sequence[Path], limit: int | None) -> list[Path]:
    result: list[Path] = []
    for place in places:
        if not place.exists():
            raise ConfigError(f"no data at {str(place)!r}")
        inside = image_files(place) if place.is_dir() else [place]
        if not inside:
            raise CalibrationError(f"there are no images in {str(place)!r}")
        result += inside
    count = min(limit or len(result), len(result))
    return [result[i * len(result) // count] for i in range(count)]


def _other_targets(arguments: argparse.Namespace, target: str) -> list[tuple[str, OpenWrapper]]:
    """The other targets with installed backends, each with a function that opens a wrapper."""
    result: list[tuple[str, OpenWrapper]] = []
    for backend in list_backends():
        if backend != target and backend in quant.SCHEMES:
            with contextlib.suppress(BackendError):
                backend_class(backend).declaration.probe()
                result.append((backend, functools.partial(_wrapper, arguments, backend=backend)))
    return result


def _wrapper(arguments: argparse.Namespace, path: Path, *, backend: str | None = None) -> VisionModel[Any]:
    """The wrapper for a model file, by --type or by its outputs; on another backend than --backend if it is given."""
    on, device = (backend, None) if backend else (arguments.backend, arguments.device)
    return models.load(path, on, device=device, type=arguments.type, **wrapper_settings(arguments))


# ---- output ----


def _list(planned: Plan, *, as_json: bool) -> None:
    operators = {name: node.op_type for name, node in planned.nodes_by_name.items()}
    rows = [(name, operators[name], "") for name in planned.layers]
    left = {**planned.left, **dict.fromkeys(planned.excluded, "it is excluded")}
    rows += [(name, operators[name], f"left in floating point: {why}") for name, why in left.items()]
    if as_json:
        print_json([{"name": name, "operator": operator, "note": note} for name, operator, note in rows])
        return
    title = f"{len(planned.layers)} layers can be quantised for {planned.scheme.name}"
    print_table(("layer", "operator", ""), rows, title)


def _summary(work: Workflow) -> dict[str, Any]:
    made, table, search, speed = work.made, work.table, work.search, work.speed
    assert made is not None
    assert table is not None
    data: dict[str, Any] = {
        "output": str(made.path),
        "target": made.record.target,
        "method": table.method,
        "percentile": table.percentile,
        "bias_correction": made.record.bias_correction,
        "methods": {name: result.percent for name, result in work.choice.agreements.items()} if work.choice else {},
        "samples": table.samples,
        "layers": len(made.layers),
        "floating": list(made.floating),
        "agreement": work.agreement.percent if work.agreement else None,
        "score_shift": work.agreement.score_shift if work.agreement and work.agreement.shifts else None,
        "measured": len(work.compared) if work.agreement else 0,
        "decode_head": dict(zip(("fp32", "int8"), work.decode_heads, strict=True)) if work.decode_heads else None,
    }
    if speed is not None:
        data["speed"] = {
            "backend": speed.backend,
            "device": speed.device,
            "fp32_ms": round(speed.fp32, 3),
            "int8_ms": round(speed.int8, 3),
            "ratio": round(speed.ratio, 3),
        }
    if search is not None:
        data["search"] = {
            "reached": search.reached,
            "floating": list(search.exclude),
            "front": [
                {"floating": list(step.floating), "agreement": step.percent, "cost_ms": step.cost}
                for step in search.front
            ],
        }
    return data


def _show(arguments: argparse.Namespace, work: Workflow) -> None:
    made, table, speed = work.made, work.table, work.speed
    assert made is not None
    assert table is not None
    if work.choice is not None:
        result = work.choice.agreements.items()
        print_text("agreement by method: " + ", ".join(f"{name} {one.percent:.1f}%" for name, one in result))
    if work.search is not None and len(work.search.steps) > 1:
        _show_search(work)
    size, before = (size_of(ModelSource.of(path)) for path in (made.path, arguments.model))
    floating = f", {len(made.floating)} in floating point" if made.floating else ""
    correction = ", biases corrected" if made.record.bias_correction else ""
    print_text(
        f"{made.path}, for {made.record.target}: {size:,} bytes ({before / size:.1f} times smaller), "
        f"{len(made.layers)} layers in INT8{floating}; {table.method}{correction}, {table.samples} samples"
    )
    if (agreement := work.agreement) is not None:
        shift = f"; scores shift by {agreement.score_shift:+.4f}" if agreement.shifts else ""
        print_text(f"results agree with FP32 by {agreement.percent:.1f}% on {len(work.compared)} images{shift}")
        if work.search is not None and not work.search.reached:
            limits = f"--max-drop {arguments.max_drop:g}"
            if arguments.max_score_shift is not None:
                limits += f" --max-score-shift {arguments.max_score_shift:g}"
            print_text(Text.assemble((f"{limits} is not kept", "red"), "; this is the best that was tried"))
    if speed is not None:
        _show_decoding(work)
        figures = f"FP32 {speed.fp32:.2f} ms, INT8 {speed.int8:.2f} ms a run on {speed.backend}, {speed.device}"
        if speed.ratio < 1:
            slower = f"INT8 is slower than FP32 here, by {1 / speed.ratio:.2f} times"
            print_text(f"{slower}: {figures}; try another --target or backend", "yellow")
        else:
            print_text(f"INT8 is {speed.ratio:.2f} times as fast here: {figures}")


def _show_decoding(work: Workflow) -> None:
    """Explains whether the compared runs of a detector include the decoding of boxes."""
    heads = work.decode_heads
    if heads is None or "native" not in heads:
        return
    text = "boxes are decoded natively, as models.load() loads both files; runs are of the networks in front of that"
    if heads[0] != heads[1]:
        text = f"boxes are decoded by: {heads[0]} (FP32), {heads[1]} (INT8); one of the runs has the decoding in it"
    print_text(text)


def _show_search(work: Workflow) -> None:
    assert work.search is not None
    rows = []
    for step in work.search.front:
        cost = "" if step.cost is None else f"{step.cost:.2f}"
        chosen = "chosen" if step.floating == work.search.exclude else ""
        rows.append((str(len(step.floating)), f"{step.percent:.2f}%", cost, chosen))
    print_table((">layers", ">agreement", ">ms more", ""), rows, "effect and cost of layers in floating point")
    for name in work.search.exclude:
        print_text(f"in floating point: {name}")
