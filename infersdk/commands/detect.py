"""`infersdk detect`: boxes in pictures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .common import (
    add_backend_arguments,
    add_json_argument,
    backend_arguments,
    console,
    print_json,
    save_picture,
    stage_line,
    stages,
)

if TYPE_CHECKING:
    from ..models import Detections


def register(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "detect", help="find objects in pictures", description="Finds objects in pictures and tells or draws them."
    )
    parser.add_argument("pictures", nargs="+", type=Path, metavar="PICTURE")
    parser.add_argument("--model", type=Path, help="the model file (default: the packaged detector of digits)")
    parser.add_argument(
        "--type", default="auto", choices=("auto", "yolov5", "yolov8", "yolox"), help="the head's layout"
    )
    parser.add_argument("--names", type=Path, help="a text file with a class name a line (default: the model's own)")
    parser.add_argument("--conf", type=float, default=0.25, help="score that a box must exceed (default: %(default)s)")
    parser.add_argument("--iou", type=float, default=0.45, help="overlap above which NMS drops (default: %(default)s)")
    parser.add_argument("--max-det", type=int, default=300, help="boxes a picture at most (default: %(default)s)")
    parser.add_argument(
        "-o", "--output", type=Path, help="draw the boxes: a file for one picture, a folder for several"
    )
    add_backend_arguments(parser)
    add_json_argument(parser)
    parser.set_defaults(func=run)


def run(arguments: argparse.Namespace) -> int:
    from ..data import DETECTOR
    from ..models import detector

    targets = _targets(arguments.pictures, arguments.output)
    with detector(
        arguments.model or DETECTOR,
        type=arguments.type,
        names=arguments.names,
        conf=arguments.conf,
        iou=arguments.iou,
        max_det=arguments.max_det,
        **backend_arguments(arguments),
    ) as model:
        rows = []
        for picture, target in zip(arguments.pictures, targets, strict=True):
            found = model(picture)
            if target is not None:
                save_picture(found.draw(picture), target)
            row = {
                "picture": str(picture),
                "size": list(found.size),
                "detections": [box.as_dict() for box in found],
                "dropped": found.stats.dropped_candidates + found.stats.dropped_detections,
                "milliseconds": stages(model.timings),
            }
            if target is not None:
                row["output"] = str(target)
            rows.append(row)
            if not arguments.json:
                print_detections(found, str(picture))
                note = f"  → {target}" if target is not None else ""
                console().print(f"[dim]{stage_line(model.timings)}[/dim]{note}\n")
    if arguments.json:
        print_json(rows)
    return 0


def _targets(pictures: list[Path], output: Path | None) -> list[Path | None]:
    """Where each picture's drawing goes."""
    if output is None:
        return [None] * len(pictures)
    if len(pictures) == 1 and output.suffix and not output.is_dir():
        return [output]
    if output.suffix:
        raise ConfigError(f"-o {str(output)!r} is one file, but there are {len(pictures)} pictures; give a folder")
    return [output / picture.name for picture in pictures]


def print_detections(found: Detections, title: str) -> None:
    """A table of the boxes; says so when limits left some out."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name, justify in (("label", "left"), ("score", "right"), ("left, top, right, bottom", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for box in found:
        table.add_row(box.label, f"{box.score:.3f}", ", ".join(f"{edge:.1f}" for edge in box.xyxy))
    out = console()
    out.print(table if len(found) else f"{title}: nothing found")
    if found.stats.dropped_detections or found.stats.dropped_candidates:
        out.print(
            f"[yellow]{found.stats.dropped_detections} more boxes were left out by --max-det, "
            f"{found.stats.dropped_candidates} candidates before NMS[/yellow]"
        )
