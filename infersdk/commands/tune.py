"""`infersdk tune`: the backend, precision, threads, streams and batch that suit a model best on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.text import Text

from ..bench.candidates import candidates
from ..bench.plan import usable_backends
from ..bench.tune import Tuned, tune
from ..bench.tuned_file import tuned_toml
from ..core.files import atomic_write
from ..core.model_source import ModelSource
from ..errors import ConfigError
from .bench import add_measuring_arguments, measuring_settings
from .bench_tables import show
from .common import add_options, names, new_file, numbers, precisions, print_json, print_text
from .progress import show_progress

DESCRIPTION = (
    "Tries backends, precisions, threads, streams and batches within a time budget, the better half of "
    "them ever longer, and writes the winner as a configuration that infersdk.load() and infersdk.models.create() "
    "take."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="the file; after it others, such as INT8")
    parser.add_argument("--objective", choices=("latency", "throughput"), default="latency", help="(default: latency)")
    parser.add_argument(
        "--max-drop", type=float, default=0.01, metavar="X", help="accuracy that may be lost, 0 to 1 (default: 0.01)"
    )
    parser.add_argument(
        "--budget", type=float, default=300.0, metavar="SECONDS",
        help="time for the whole search (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument("-o", "--output", type=new_file, default="tuned.toml", help="(default: %(default)s)")
    group = parser.add_argument_group("candidates")
    group.add_argument(
        "--backends", type=names, metavar="NAME,NAME", help="(default: all that are installed and find a device)"
    )
    group.add_argument(
        "--precision", type=precisions, default=(None, "bf16", "fp16"), metavar="FP32,BF16",
        help="(default: the model's own, bf16 and fp16)",
    )  # fmt: skip
    group.add_argument(
        "--batch", type=numbers, metavar="1,8,32", help="(default: 1 for latency, 1 to 32 for throughput)"
    )
    group.add_argument(
        "--threads", type=numbers, metavar="1,2", help="(default: the backend's choice, all cores, half of them)"
    )
    add_measuring_arguments(parser)
    add_options(parser, "--json")


def run(arguments: argparse.Namespace) -> int:
    for model in arguments.models:
        ModelSource.of(model)
    if arguments.output.suffix.lower() != ".toml":
        raise ConfigError(
            f"{str(arguments.output)!r}: the configuration is written as TOML; give a name that ends in .toml"
        )
    for what, given, least in (("--batch", arguments.batch, 1), ("--threads", arguments.threads, 0)):
        if given and min(given) < least:
            raise ConfigError(f"{what} takes whole numbers from {least}, not {min(given)}")
    settings = measuring_settings(arguments)
    search = candidates(
        arguments.models, arguments.backends or usable_backends(),
        objective=arguments.objective, precisions=arguments.precision,
        batches=arguments.batch, threads=arguments.threads,
    )  # fmt: skip
    with show_progress(quiet=arguments.json) as progress:
        result = tune(
            search, settings, objective=arguments.objective, max_drop=arguments.max_drop, budget=arguments.budget,
            progress=progress.report,
        )  # fmt: skip
    text = tuned_toml(result, settings, arguments.output)
    atomic_write(arguments.output, text)
    if arguments.json:
        print_json(_plain(result, arguments.output))
    else:
        _show(result, text, arguments.output)
    if result.interrupted:
        raise KeyboardInterrupt  # the exit code of the command line, after the results are written
    return 0


def _plain(found: Tuned, output: Path) -> dict[str, Any]:
    return {
        "output": str(output), "objective": found.objective, "best": found.best.name, "accuracy": found.accuracy,
        "seconds": found.seconds, "interrupted": found.interrupted, "tried": [name for name, _ in found.tried],
        "dropped": found.dropped, "failed": found.failed, "untried": found.untried, "final": found.report.as_dict(),
    }  # fmt: skip


def _show(found: Tuned, text: str, output: Path) -> None:
    show(found.report)
    for what, given in (("cannot run here", found.failed), ("not accurate, or not measured", found.dropped)):
        reasons: dict[str, list[str]] = {}
        for name, reason in given.items():
            reasons.setdefault(reason, []).append(name)
        for reason, which in reasons.items():
            count = f" and {len(which) - 1} more" if len(which) > 1 else ""
            print_text(f"{what}: {which[0]}{count}: {reason}", "dim")
    if found.untried:
        print_text(f"{len(found.untried)} candidates were not reached: give more --budget", "yellow")
    print_text(Text.assemble((found.best.name, "bold"), f", written to {output}:\n"))
    print_text(text)
