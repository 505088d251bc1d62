"""`infersdk classify`: what an image shows."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedModelError
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
    stage_line,
    stages,
    wrapper_arguments,
)
from .sources import Images, find_sources

if TYPE_CHECKING:
    from ..models import Classifications, Timings

#: The settings of the wrapper that have a flag of their own.
_SETTINGS = (
    "preset", "framing", "interpolation", "resize", "crop", "scale", "mean", "std", "input_order", "top_k",
)  # fmt: skip


def register(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "classify", help="tell what images show", description="Prints the best classes of each image."
    )
    add_source_arguments(parser, "an image, a folder of images, a pattern ('*.jpg') or an address (https://...)")
    parser.add_argument("--model", type=Path, help="the model file")
    add_wrapper_arguments(parser)
    parser.add_argument("--top-k", type=int, default=5, help="classes an image (default: %(default)s)")
    group = parser.add_argument_group("preprocessing", "y = (x * scale - mean) / std for each channel")
    group.add_argument(
        "--preset",
        choices=("imagenet", "caffe", "inception", "unit"),
        help="scale, mean, std and order of the channels (default: the model's metadata, else imagenet)",
    )
    group.add_argument("--framing", choices=("crop", "stretch"), help="resize and crop the centre, or stretch")
    group.add_argument(
        "--interpolation", choices=("bilinear", "bicubic"), help="as OpenCV's bilinear (default), or Pillow's bicubic"
    )
    group.add_argument("--scale", type=float, help="of pixels, which are 0 to 255")
    group.add_argument("--mean", type=_triple, metavar="R,G,B", help="a number, or one for each channel")
    group.add_argument("--std", type=_triple, metavar="R,G,B", help="a number, or one for each channel")
    group.add_argument("--input-order", choices=("rgb", "bgr"), help="the channels that the network takes")
    group.add_argument("--resize", type=int, help="the shorter side before the centre crop (default: crop * 256 / 224)")
    group.add_argument("--crop", type=int, help="the side of the crop, for models that leave it open (default: 224)")
    add_backend_arguments(parser)
    add_json_argument(parser)
    parser.set_defaults(func=run)


def _triple(text: str) -> tuple[float, ...]:
    numbers = tuple(float(part) for part in text.split(","))
    if len(numbers) not in (1, 3):
        raise argparse.ArgumentTypeError(f"{text!r} is neither one number nor three")
    return numbers * 3 if len(numbers) == 1 else numbers


def run(arguments: argparse.Namespace) -> int:
    from ..models import Classifier, load

    require_model(arguments)
    sources = find_sources(arguments.sources, recursive=arguments.recursive, videos=False)
    settings = given_settings(arguments, _SETTINGS)
    with load(arguments.model, **wrapper_arguments(arguments), **settings, **backend_arguments(arguments)) as model:
        if not isinstance(model, Classifier):
            raise UnsupportedModelError(
                f"{model.network.model.name} is a model for {type(model).__name__}, which gives no classes for a whole "
                "image; use infersdk detect"
            )
        images = Images(sources)
        for one in images:
            name, result = one.source.name, one.run(model)
            images.add({"image": name, "classes": result.to_dicts(), "milliseconds": stages(model.timings)})
            if not arguments.json:
                _print_image(name, result, model.timings)
    if arguments.json:
        print_json(images.rows)
    return images.end()


def _print_image(name: str, found: Classifications, timings: Timings) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("label", "score", title=escape(name), title_justify="left")
    for best in found:
        table.add_row(escape(best.label), f"{best.score:.4f}")
    out = console()
    out.print(table)
    out.print(f"[dim]{stage_line(timings)}[/dim]\n")
