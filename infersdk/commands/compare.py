"""`infersdk compare`: compares the outputs or the accuracy of backends, precisions and files."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ..accuracy.compare import CompareReport, Difference, Loader, SideReport, Tolerance, compare
from ..errors import ConfigError
from ..loading.registry import load
from ..loading.samples import random_inputs, read_samples
from .accuracy import add_task_arguments, check_task_arguments, contenders, run_gate
from .common import add_options, given_settings, names, print_json, print_table, print_text, shapes_of

if TYPE_CHECKING:
    from ..accuracy import Contender

DESCRIPTION = (
    "Runs a model on the same inputs on several backends, and candidates to take its place, and "
    "measures each against the first: by its outputs, or with --task by its accuracy on labelled images. "
    "The exit code is 1 when one is outside the tolerance, or drops by more than is allowed."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path)
    parser.add_argument("candidates", nargs="*", metavar="CANDIDATE", help="as --candidate")
    parser.add_argument(
        "--candidate", action="append", default=[], metavar="[BACKEND=]FILE",
        help="another file of the model, quantised say, on each of --backends or on one of its own; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--backends", type=names, metavar="NAME,NAME",
        help="each as name, name@device or name/precision; the first, with the model, is the reference "
        "(default: onnxruntime,openvino; with candidates onnxruntime)",
    )  # fmt: skip
    data = parser.add_argument_group("inputs")
    data.add_argument("--data", type=Path, metavar="FOLDER", help=".npy, .npz, tensor files or images")
    add_options(data, "--batch")
    data.add_argument("--seed", type=int, help="of random inputs, without --data (default: 0)")
    add_options(data, "--shape")
    limits = parser.add_argument_group("tolerance", "|other - reference| <= atol + rtol * |reference| for each element")
    limits.add_argument("--atol", type=float, help=f"(default: {Tolerance.atol})")
    limits.add_argument("--rtol", type=float, help=f"(default: {Tolerance.rtol})")
    limits.add_argument("--cosine", type=float, help=f"1 - cosine of each output (default: {Tolerance.cosine})")
    parser.add_argument("--layers", action="store_true", help="find the first layer whose results differ")
    add_task_arguments(parser)
    add_options(parser, "--json")


def run(arguments: argparse.Namespace) -> int:
    check_task_arguments(arguments)
    batch, seed, data = arguments.batch, arguments.seed, arguments.data
    if batch is not None and batch < 1:
        raise ConfigError(f"--batch is a whole number from 1, not {batch}")
    if seed is not None and seed < 0:
        raise ConfigError(f"--seed is a whole number from 0, not {seed}")
    if arguments.task is not None:
        return run_gate(arguments)
    if seed is not None and data:
        raise ConfigError("--seed is for random inputs, without --data")
    shapes = shapes_of(arguments)
    report = compare(
        arguments.model,
        _sides(arguments),
        lambda specs: (
            read_samples(data, specs, batch=batch, shapes=shapes)
            if data
            else [random_inputs(specs, batch=batch, seed=seed or 0, shapes=shapes)]
        ),
        tolerance=Tolerance(**given_settings(arguments, ("atol", "rtol", "cosine"))),
        layers=arguments.layers,
    )
    if arguments.json:
        print_json(_plain(report))
    else:
        _show(report, layers=arguments.layers)
    return 0 if report.agrees else 1


def _sides(arguments: argparse.Namespace) -> list[str] | dict[str, str | Loader]:
    """The model and the candidates on each backend."""
    result = contenders(arguments)
    model = str(arguments.model)
    if all(contender.model == model for contender in result):
        return [contender.side for contender in result]
    if arguments.layers:
        raise ConfigError("--layers looks into one model on several backends; leave the candidates out")
    if len(set(result)) < len(result):
        raise ConfigError("two of the contenders are the same: " + ", ".join(c.label for c in result))
    sides: dict[str, str | Loader] = {}
    for contender in result:
        label = contender.side if contender.model == model else f"{contender.model} on {contender.side}"
        sides[label] = contender.side if contender.model == model else _loader(contender)
    return sides


def _loader(contender: Contender) -> Loader:
    return lambda file: load(contender.model, **contender.arguments())


def _plain(report: CompareReport) -> dict[str, Any]:
    """The report for JSON, with its derived values."""
    data = dataclasses.asdict(report)
    for entry, side in zip(data["sides"], report.sides, strict=True):
        entry |= {"agrees": side.agrees}
        entry["first_layer"] = dataclasses.asdict(side.first_layer) if side.first_layer else None
    return data | {"agrees": report.agrees}


def _show(report: CompareReport, *, layers: bool) -> None:
    runs = f"{report.samples} input{'s' if report.samples > 1 else ''}"
    rows = ((side.name, output.name, *_cells(output)) for side in report.sides for output in side.outputs)
    columns = ("backend", "output", ">max abs", ">max rel", ">cosine", ">argmax", "outside", "")
    print_table(columns, rows, f"{report.model}: against {report.reference}, {runs}")
    for side in report.sides if layers else ():
        if not side.agrees:
            print_text(_layers(side))


def _cells(found: Difference) -> tuple[str | Text, ...]:
    verdict = Text("agrees", "green") if found.within else Text("differs", "red")
    if found.note:
        return "", "", "", "", found.note, verdict
    argmax = "" if found.argmax is None else f"{found.argmax:.2%}"
    numbers = (f"{number:.3g}" for number in (found.max_abs, found.max_rel, found.cosine))
    return *numbers, argmax, f"{found.outside:,}", verdict


def _layers(side: SideReport) -> str:
    unseen = f" ({side.unseen} values could not be compared)" if side.unseen else ""
    first = side.first_layer
    if first is None:
        return (
            f"{side.name}: each of {len(side.layers)} layers agrees once its result is exposed; "
            f"the difference comes from how the runtime fuses them{unseen}"
        )
    result = first.difference
    what = result.note or f"max abs {result.max_abs:.3g}, {result.outside:,} of {result.elements:,} elements outside"
    return (
        f"{side.name} differs from layer {len(side.layers)}: {first.operator} {first.node!r}, "
        f"value {result.name!r}: {what}{unseen}"
    )
