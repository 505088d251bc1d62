"""`infersdk embed`: the vectors of images, and how alike they are."""

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
    stages,
    wrapper_arguments,
)
from .sources import Images, find_sources

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..models import Embedding

#: The settings of the wrapper that have a flag of their own.
_SETTINGS = ("preset", "fit")


def register(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "embed",
        help="tell how alike images are",
        description="Prints the cosine of each pair of images; with --json also the vectors.",
    )
    add_source_arguments(parser, "an image, a folder of images, a pattern ('*.jpg') or an address (https://...)")
    parser.add_argument("--model", type=Path, help="the model file")
    add_wrapper_arguments(parser)
    parser.add_argument(
        "--preset",
        choices=("imagenet", "caffe", "inception", "unit"),
        help="how the network wants its pixels (default: imagenet)",
    )
    parser.add_argument("--fit", choices=("stretch", "letterbox", "crop"), help="onto the input (default: stretch)")
    add_backend_arguments(parser)
    add_json_argument(parser)
    parser.set_defaults(func=run)


def run(arguments: argparse.Namespace) -> int:
    from ..models import Embedder, load

    require_model(arguments)
    sources = find_sources(arguments.sources, recursive=arguments.recursive, videos=False)
    settings = given_settings(arguments, _SETTINGS)
    given = {"type": "embedding", **wrapper_arguments(arguments)}  # the command says what the file may leave open
    with load(arguments.model, **given, **settings, **backend_arguments(arguments)) as model:
        if not isinstance(model, Embedder):
            raise UnsupportedModelError(
                f"{model.network.model.name} is a model for {type(model).__name__}, which gives no vectors"
            )
        images = Images(sources)
        names: list[str] = []
        found: list[Embedding] = []
        for one in images:
            embedding = one.run(model)
            names.append(one.source.name)
            found.append(embedding)
            images.add({
                "image": one.source.name, **embedding.to_dict(),
                "cosines": [embedding.cosine(other) for other in found], "milliseconds": stages(model.timings),
            })  # fmt: skip
    if arguments.json:
        print_json(images.rows)
    else:
        _print_cosines(names, found)
    return images.end()


def _print_cosines(names: Sequence[str], found: Sequence[Embedding]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("image", *(str(number + 1) for number in range(len(names))), title="cosine", title_justify="left")
    for number, (name, embedding) in enumerate(zip(names, found, strict=True)):
        cosines = [f"{embedding.cosine(other):.3f}" for other in found[: number + 1]]
        table.add_row(f"{number + 1} {escape(name)}", *cosines)
    console().print(table)
