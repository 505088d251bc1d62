"""`infersdk classify`: what an image shows."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .common import (
    add_backend_arguments,
    add_json_argument,
    backend_arguments,
    console,
    print_json,
    stage_line,
    stages,
)


def register(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "classify", help="tell what images show", description="Tells the best classes of each image."
    )
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE")
    parser.add_argument("--model", type=Path, help="the model file (default: the packaged classifier of digits)")
    parser.add_argument("--names", type=Path, help="a text file with a class name a line (default: the model's own)")
    parser.add_argument(
        "--preset",
        choices=("imagenet", "caffe", "inception", "unit"),
        help="how pixels are normalised (default: imagenet)",
    )
    parser.add_argument(
        "--resize", type=int, help="the shorter side before the centre crop (default: crop * 256 / 224)"
    )
    parser.add_argument("--top-k", type=int, default=5, help="classes an image (default: %(default)s)")
    add_backend_arguments(parser)
    add_json_argument(parser)
    parser.set_defaults(func=run)


def run(arguments: argparse.Namespace) -> int:
    from rich.markup import escape
    from rich.table import Table

    from ..data import CLASSIFIER, CLASSIFIER_SETTINGS
    from ..models import Classifier

    settings: dict[str, Any] = {} if arguments.model else dict(CLASSIFIER_SETTINGS)
    settings |= {k: v for k in ("preset", "resize") if (v := getattr(arguments, k)) is not None}
    with Classifier(
        arguments.model or CLASSIFIER,
        names=arguments.names,
        top_k=arguments.top_k,
        **settings,
        **backend_arguments(arguments),
    ) as model:
        rows = []
        for image in arguments.images:
            found = model(image)
            rows.append(
                {
                    "image": str(image),
                    "classes": [best.to_dict() for best in found],
                    "milliseconds": stages(model.timings),
                }
            )
            if not arguments.json:
                table = Table("label", "score", title=escape(str(image)), title_justify="left")
                for best in found:
                    table.add_row(escape(best.label), f"{best.score:.4f}")
                out = console()
                out.print(table)
                out.print(f"[dim]{stage_line(model.timings)}[/dim]\n")
    if arguments.json:
        print_json(rows)
    return 0
