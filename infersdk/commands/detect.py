"""`infersdk detect`: boxes in images and videos."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .common import (
    add_backend_arguments,
    add_json_argument,
    backend_arguments,
    console,
    json_text,
    print_json,
    save_image,
    stage_line,
    stages,
)
from .detect_video import detect_video, is_stream, is_video

if TYPE_CHECKING:
    from ..models import Detections

#: Frames that a model on the processor has under way at most.
SIDE_BY_SIDE = 8


def register(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "detect",
        help="find objects in images and videos",
        description="Finds objects in images and videos, and tells or draws them.",
    )
    parser.add_argument(
        "sources", nargs="+", metavar="SOURCE", help="an image, a video, a URL (rtsp://...) or a camera (/dev/video0)"
    )
    parser.add_argument("--model", type=Path, help="the model file (default: the packaged detector of digits)")
    parser.add_argument(
        "--type", default="auto", choices=("auto", "yolov5", "yolov8", "yolox"), help="the head's layout"
    )
    parser.add_argument(
        "--legacy", action="store_true", help="with --type yolox: the weights are of its first release (0.1.0)"
    )
    parser.add_argument("--names", type=Path, help="a text file with a class name a line (default: the model's own)")
    parser.add_argument("--conf", type=float, default=0.25, help="score that a box must exceed (default: %(default)s)")
    parser.add_argument("--iou", type=float, default=0.45, help="overlap above which NMS drops (default: %(default)s)")
    parser.add_argument("--max-det", type=int, default=300, help="boxes an image at most (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, help="draw the boxes: a file for one source, a folder for several")
    add_backend_arguments(parser)
    add_json_argument(parser)
    parser.set_defaults(func=run)


def run(arguments: argparse.Namespace) -> int:
    from rich.markup import escape

    from ..data import DETECTOR
    from ..models import detector

    if arguments.legacy and arguments.type != "yolox":
        raise ConfigError(f"--legacy goes with --type yolox, not with {arguments.type!r}")
    targets = _targets(arguments.sources, arguments.output)
    videos = [is_video(source) for source in arguments.sources]
    backend = backend_arguments(arguments)
    serving = _share_processor(backend, live=any(map(is_stream, arguments.sources))) if any(videos) else {}
    with detector(
        arguments.model or DETECTOR,
        type=arguments.type,
        names=arguments.names,
        conf=arguments.conf,
        iou=arguments.iou,
        max_det=arguments.max_det,
        **({"legacy": True} if arguments.legacy else {}),
        **backend,
    ) as model:
        if serving:
            model.configure_pipeline(**serving)
        rows = []
        for image, target, video in zip(arguments.sources, targets, videos, strict=True):
            if video:
                detect_video(model, image, target, as_json=arguments.json)
                continue
            found = model(image)
            if target is not None:
                save_image(found.draw(image), target)
            row = {
                "image": image,
                "size": list(found.size),
                "detections": [box.to_dict() for box in found],
                "dropped": found.stats.dropped_candidates + found.stats.dropped_detections,
                "milliseconds": stages(model.timings),
            }
            if target is not None:
                row["output"] = str(target)
            if any(videos) and arguments.json:  # a line a frame, and so a line an image
                print(json_text(row))
            rows.append(row)
            if not arguments.json:
                print_detections(found, image)
                note = f"  → {escape(str(target))}" if target is not None else ""
                console().print(f"[dim]{stage_line(model.timings)}[/dim]{note}\n")
    if arguments.json and not any(videos):
        print_json(rows)
    return 0


def _share_processor(backend: dict[str, Any], *, live: bool) -> dict[str, Any]:
    """On the processor the model runs beside decoding, drawing and encoding: what is quickest then, unless told.

    Returns:
        Settings of the model's pipeline.
    """
    from ..ops.batch import available_processors
    from ..registry import backend_class

    if (backend["device"] or backend_class(backend["backend"]).default_device) != "cpu":
        return {}
    if backend["max_batch"] is None:
        backend["max_batch"] = 1  # one image's results stay in the caches
    if backend["backend"] == "onnxruntime":
        backend.setdefault("allow_spinning", False)  # idle threads would spin on cores that have work
        if not live:
            # Frames side by side, each on few threads: none of them waits for another that drawing has held up. Live
            # images would come later that way.
            cores = available_processors()
            threads = backend.setdefault("threads", max(1, cores // SIDE_BY_SIDE))
            if isinstance(threads, int) and 0 < threads < cores:
                return {"instances": min(cores // threads, SIDE_BY_SIDE)}
    elif backend["backend"] == "openvino" and not live and "streams" not in backend:
        backend.setdefault("performance_hint", "throughput")
    return {}


def _targets(sources: list[str], output: Path | None) -> list[Path | None]:
    """Where the drawing of each goes."""
    if output is None:
        return [None] * len(sources)
    if len(sources) == 1 and output.suffix and not output.is_dir():
        return [output]
    if output.suffix:
        raise ConfigError(f"-o {str(output)!r} is one file, but there are {len(sources)} sources; give a folder")
    return [output / _name(source) for source in sources]


def _name(source: str) -> str:
    """The file name for what is drawn: of a stream or camera, one that can be a file's."""
    if "://" in source or source.startswith("/dev/"):
        return f"{re.sub(r'[^A-Za-z0-9]+', '_', source).strip('_')}.mp4"
    return Path(source).name


def print_detections(found: Detections, title: str) -> None:
    """A table of the boxes; says so when limits left some out."""
    from rich.markup import escape
    from rich.table import Table

    title = escape(title)
    table = Table(title=title, title_justify="left")
    for name, justify in (("label", "left"), ("score", "right"), ("left, top, right, bottom", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for box in found:
        table.add_row(escape(box.label), f"{box.score:.3f}", ", ".join(f"{edge:.1f}" for edge in box.xyxy))
    out = console()
    out.print(table if len(found) else f"{title}: nothing found")
    if found.stats.dropped_detections or found.stats.dropped_candidates:
        out.print(
            f"[yellow]{found.stats.dropped_detections} more boxes were left out by --max-det, "
            f"{found.stats.dropped_candidates} candidates before NMS[/yellow]"
        )
