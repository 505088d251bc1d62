"""`infersdk ocr`: the text in images."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .common import (
    add_backend_arguments,
    add_json_argument,
    add_source_arguments,
    backend_arguments,
    console,
    print_json,
    save_image,
)
from .sources import Images, drawn_paths, find_sources

if TYPE_CHECKING:
    from ..models import TextLines


def register(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "ocr", help="read the text in images", description="Reads the text in images, by the networks of PaddleOCR."
    )
    add_source_arguments(parser, "an image, a folder of images, a pattern ('*.jpg') or an address (https://...)")
    parser.add_argument("--det", type=Path, required=True, help="the network that finds lines")
    parser.add_argument("--rec", type=Path, required=True, help="the network that reads them")
    parser.add_argument("--cls", type=Path, help="the network that tells which lines are upside down")
    parser.add_argument("--text-score", type=float, help="score that a line must reach (default: 0.5)")
    parser.add_argument("-o", "--output", type=Path, help="draw the lines: a file for one image, a folder for several")
    parser.add_argument("--font", type=Path, metavar="FILE", help="for the text (default: one that has the letters)")
    add_backend_arguments(parser)
    add_json_argument(parser)
    parser.set_defaults(func=run)


def run(arguments: argparse.Namespace) -> int:
    from ..models import OCR

    sources = find_sources(arguments.sources, recursive=arguments.recursive, videos=False)
    targets = drawn_paths(sources, arguments.output)
    backend = backend_arguments(arguments)
    if backend.pop("max_batch") is not None:
        raise ConfigError("--max-batch: how many lines are read together is decided by their lengths; leave it out")
    if arguments.text_score is not None:
        backend["text_score"] = arguments.text_score
    images = Images(sources, targets)
    with OCR(arguments.det, arguments.rec, arguments.cls, **backend) as reader:
        for one in images:
            name, target, result = one.source.name, one.target, one.run(reader)
            if target is not None:
                save_image(result.draw(one.image, font=arguments.font), target)
            row = {
                "image": name,
                "size": list(result.size),
                "lines": result.to_dicts(),
                "dropped": result.dropped,
            }
            images.add(row if target is None else {**row, "output": str(target)})
            if not arguments.json:
                _print_image(name, result, target)
    if arguments.json:
        print_json(images.rows)
    return images.end()


def _print_image(name: str, found: TextLines, target: Path | None) -> None:
    out = console()
    out.print(f"{name}: {len(found)} lines" if len(found) else f"{name}: no text", style="bold", markup=False)
    for line in found:
        out.print(f"{line.score:.3f}  {line.text}", markup=False, highlight=False)
    if found.dropped:
        out.print(f"{found.dropped} more lines were less certain than --text-score", style="yellow")
    if target is not None:
        out.print(f"→ {target}", markup=False, soft_wrap=True)
