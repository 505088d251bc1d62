"""`infersdk segment`: the class of each pixel of an image."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, UnsupportedModelError
from .common import (
    add_backend_arguments,
    add_json_argument,
    add_source_arguments,
    add_wrapper_arguments,
    backend_arguments,
    console,
    given_settings,
    print_json,
    require_model,
    save_image,
    stage_line,
    stages,
    wrapper_arguments,
)
from .sources import Images, drawn_paths, find_sources

if TYPE_CHECKING:
    from ..models import ClassMap, ClassMaps, Timings

#: The settings of the wrapper that have a flag of their own.
_SETTINGS = ("preset", "threshold")


def register(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "segment",
        help="tell the class of each pixel",
        description="Prints how much of each image belongs to each class, or tints the pixels. For masks of single "
        "objects: infersdk detect.",
    )
    add_source_arguments(parser, "an image, a folder of images, a pattern ('*.jpg') or an address (https://...)")
    parser.add_argument("--model", type=Path, help="the model file")
    add_wrapper_arguments(parser)
    parser.add_argument(
        "--preset", choices=("imagenet", "caffe", "inception", "unit"), help="how the network wants its pixels"
    )
    parser.add_argument("--threshold", type=float, help="probability that a single class exceeds (default: 0.5)")
    parser.add_argument("-o", "--output", type=Path, help="tint the image: a file for one source, a folder for several")
    parser.add_argument("--opacity", type=float, default=0.5, help="of the colours, 0 to 1 (default: %(default)s)")
    add_backend_arguments(parser)
    add_json_argument(parser)
    parser.set_defaults(func=run)


def run(arguments: argparse.Namespace) -> int:
    from ..models import ClassMap, ClassMaps, load

    require_model(arguments)
    if not 0 <= arguments.opacity <= 1:
        raise ConfigError(f"--opacity is {arguments.opacity}; use 0 to 1")
    sources = find_sources(arguments.sources, recursive=arguments.recursive, videos=False)
    targets = drawn_paths(sources, arguments.output)
    settings = given_settings(arguments, _SETTINGS)
    with load(arguments.model, **wrapper_arguments(arguments), **settings, **backend_arguments(arguments)) as model:
        if not issubclass(model.result_type(), (ClassMap, ClassMaps)):
            raise UnsupportedModelError(
                f"{model.network.model.name} is a model for {type(model).__name__}, which gives no class for each "
                "pixel; use infersdk detect or infersdk classify"
            )
        images = Images(sources, targets)
        for one in images:
            name, target, result = one.source.name, one.target, one.run(model)
            if target is not None:
                save_image(result.draw(one.image, opacity=arguments.opacity), target)
            row = {
                "image": name,
                "size": list(result.size),
                "classes": result.to_dicts(),
                "milliseconds": stages(model.timings),
            }
            images.add(row if target is None else {**row, "output": str(target)})
            if not arguments.json:
                _print_image(name, result, model.timings, target)
    if arguments.json:
        print_json(images.rows)
    return images.end()


def _print_image(name: str, found: ClassMap | ClassMaps, timings: Timings, target: Path | None) -> None:
    from rich.markup import escape
    from rich.table import Table

    rows = found.to_dicts()
    several = any("map" in row for row in rows)
    table = Table(*(["map"] if several else []), "label", "area", title=escape(name), title_justify="left")
    for row in rows:
        table.add_row(*([escape(row["map"])] if several else []), escape(row["label"]), f"{row['area']:.1%}")
    out = console()
    out.print(table)
    note = f"  → {escape(str(target))}" if target is not None else ""
    out.print(f"[dim]{stage_line(timings)}[/dim]{note}\n", soft_wrap=True)
