"""`infersdk build`: an engine file out of an ONNX model."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import ConfigError

__all__ = ["register"]


def register(subparsers: Any) -> None:
    """Adds `build` to the subcommands of `infersdk`."""
    parser = subparsers.add_parser(
        "build",
        help="build a TensorRT engine file from an ONNX model",
        description="Builds an engine file, with its manifest beside it. TensorRT-RTX needs no GPU for it.",
    )
    parser.add_argument("model", help="the ONNX file")
    parser.add_argument("-o", "--output", help="the engine file; by default the model's name with .engine")
    parser.add_argument("--backend", choices=("tensorrt", "tensorrt-rtx"), default="tensorrt")
    parser.add_argument(
        "--compute-capability",
        metavar="8.6,8.9",
        default="",
        help="GPUs to build for (tensorrt-rtx); by default all that it supports from 8.0 on",
    )
    parser.add_argument("--device", help="the GPU that tensorrt builds on and for (default: cuda:0)")
    parser.add_argument("--precision", choices=("fp32", "fp16", "bf16", "int8"), help="by default the model's own")
    parser.add_argument("--max-batch", type=int, metavar="N", help="the largest batch (default: 1)")
    parser.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="NAME=MIN:OPT:MAX",
        help="the shapes of an input, as images=1x3x320x320:1x3x640x640:4x3x640x640; may be repeated",
    )
    parser.add_argument("--workspace", metavar="2GB", help="the most scratch memory that a kernel may ask for")
    parser.add_argument("--optimization-level", type=int, choices=range(6), help="0 builds quickly, 5 runs quickly")
    parser.add_argument("--plugin", action="append", default=[], metavar="LIBRARY", help="plugins to load first")
    parser.add_argument("--json", action="store_true", help="print the manifest as JSON, and no progress")
    parser.set_defaults(func=_build)


def _build(arguments: argparse.Namespace) -> int:
    build = importlib.import_module("infersdk.backends.tensorrt").build  # the core knows backends as strings alone
    if arguments.max_batch is not None and arguments.max_batch < 1:
        raise ConfigError(f"--max-batch is a whole number from 1, not {arguments.max_batch}")
    output = arguments.output or str(Path(arguments.model).with_suffix(".engine"))
    options: dict[str, Any] = {
        "profiles": dict(_profile(text) for text in arguments.profile),
        "workspace": arguments.workspace,
        "optimization_level": arguments.optimization_level,
        "plugins": arguments.plugin,
    }
    with _bar(arguments.json, f"Building {Path(output).name}") as progress:
        manifest = build(
            arguments.model,
            output,
            backend=arguments.backend,
            compute_capabilities=arguments.compute_capability,
            device=arguments.device,
            precision=arguments.precision,
            max_batch=arguments.max_batch,
            progress=progress,
            **options,
        )
    if arguments.json:
        print(json.dumps({"path": str(Path(output).absolute()), **json.loads(manifest.text())}, indent=2))
        return 0
    details = manifest.details
    on = " and ".join(details["capabilities"]) or "8.0 and later"
    print(
        f"{output}: {manifest.nbytes:,} bytes, {details['precision']}, {manifest.backend} {details['version']}, "
        f"compute capability {on}, built in {details['build_seconds']:.1f} s"
    )
    return 0


def _profile(text: str) -> tuple[str, dict[str, list[int]]]:
    """`images=1x3x320x320:1x3x640x640:4x3x640x640` as a name and its range; one shape stands for all three."""
    name, _, ranges = text.rpartition("=")
    try:
        shapes = [[int(d) for d in shape.split("x")] for shape in ranges.split(":")]
    except ValueError:
        shapes = []
    if len(shapes) == 1:
        shapes *= 3
    if not name or len(shapes) != 3:
        raise ConfigError(f"--profile is NAME=MIN:OPT:MAX with shapes like 1x3x640x640, not {text!r}")
    return name, dict(zip(("min", "opt", "max"), shapes, strict=True))


@contextmanager
def _bar(quiet: bool, title: str) -> Iterator[Callable[[str, float], None] | None]:
    """A progress bar on stderr, where that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[phase]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=1.0, phase="")
        yield lambda phase, fraction: bar.update(task, completed=fraction, phase=phase)
