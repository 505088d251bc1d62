"""`infersdk detect`: boxes in images and videos."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._http import without_password
from ..device import Device
from ..errors import ConfigError, UnsupportedModelError, VideoError
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
from .detect_video import VideoOptions, detect_videos
from .json_lines import Emit, json_lines
from .sources import Images, SourceImage, drawn_paths, find_sources

if TYPE_CHECKING:
    from ..models import Detections, Tiled, Timings, VisionModel

#: Frames that a model on the processor has under way at most.
SIDE_BY_SIDE = 8


def register(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "detect",
        help="find objects in images and videos",
        description="Finds objects in images and videos, and prints or draws them.",
    )
    add_source_arguments(parser, "an image, a video, a folder of them, a pattern ('*.jpg'), an address (https://..., "
                         "rtsp://...) or a camera (/dev/video0)")  # fmt: skip
    parser.add_argument("--model", type=Path, help="the model file")
    add_wrapper_arguments(parser)
    parser.add_argument("--conf", type=float, help="score that a box must exceed (default: 0.25)")
    parser.add_argument("--iou", type=float, help="overlap above which NMS drops (default: 0.45)")
    parser.add_argument("--max-det", type=int, help="boxes an image at most (default: 300)")
    parser.add_argument(
        "--classes", type=_classes, metavar="NAME,NAME", help="these alone, by their names or numbers: person,car"
    )
    parser.add_argument(
        "--track", action="store_true", help="number the objects of videos, from frame to frame (infersdk[tracking])"
    )
    parser.add_argument(
        "--give-up", type=float, metavar="SECONDS", help="how long a camera or stream that broke off is opened again, "
        "before it counts as failed (default: 60)",
    )  # fmt: skip
    parser.add_argument(
        "--decode", choices=("cpu", "gpu"), help="where videos and JPEG files are decoded (default: cpu); gpu needs a "
        "model on a GPU, and infersdk[nvvideo] for videos, infersdk[gpu-decode] for JPEG files",
    )  # fmt: skip
    tiles = parser.add_argument_group("large images")
    tiles.add_argument(
        "--tile", type=_tile, metavar="SIDE|WIDTHxHEIGHT", help="run on tiles of this size, and on the whole image too"
    )
    tiles.add_argument("--overlap", type=float, help="how far tiles overlap, as a share of a side (default: 0.2)")
    tiles.add_argument("--merge", choices=("nms", "union", "weighted"), help="boxes that several tiles show: keep the "
                       "best (nms, the default), make one around all, or average them")  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, help="draw the boxes: a file for one source, a folder for several")
    parser.add_argument("--font", type=Path, metavar="FILE", help="for the labels (default: one that has the letters)")
    add_backend_arguments(parser)
    add_json_argument(parser)
    parser.add_argument("--json-lines", type=Path, metavar="FILE", help="also write a line of JSON into this file for "
                        "each image and each frame")  # fmt: skip
    parser.set_defaults(func=run)


def _classes(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _tile(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    try:
        return int(width), int(height or width)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; use 640 or 640x480") from None


def _in_tiles(model: VisionModel[Detections], arguments: argparse.Namespace) -> VisionModel[Detections] | Tiled:
    """The model, or with `--tile` the model on tiles."""
    from ..models import Tiled

    settings = given_settings(arguments, ("overlap", "merge"))
    if arguments.tile is None:
        if settings:
            raise ConfigError(f"--{min(settings)} is about tiles; give their size with --tile")
        return model
    return Tiled(model, tile=arguments.tile, **settings)


#: The settings of the wrapper that have a flag of their own.
_SETTINGS = ("conf", "iou", "max_det", "classes")

#: The commands for models that find no boxes, by task.
_OTHERS = {"classify": "classify", "semantic": "segment", "embed": "embed"}


def run(arguments: argparse.Namespace) -> int:
    from ..models import Detections, load

    require_model(arguments)
    sources = find_sources(arguments.sources, recursive=arguments.recursive)
    targets = drawn_paths(sources, arguments.output)
    videos = [(source, target) for source, target in zip(sources, targets, strict=True) if source.is_video]
    if arguments.track and len(videos) < len(sources):
        raise ConfigError("--track follows objects from frame to frame; give videos alone")
    _refuse_double([source.name for source, _ in videos])
    backend = backend_arguments(arguments)
    alone = len(videos) == 1 and videos[0][0].is_live
    serving = _share_processor(backend, live=alone) if videos else {}
    settings = given_settings(arguments, _SETTINGS)
    if len(videos) < len(sources):
        settings |= given_settings(arguments, ["decode"])
    with ExitStack() as stack:
        model = stack.enter_context(load(arguments.model, **wrapper_arguments(arguments), **settings, **backend))
        if not issubclass(model.result_type(), Detections):
            hint = f"; use infersdk {_OTHERS[model.task]}" if model.task in _OTHERS else ""
            raise UnsupportedModelError(
                f"{model.network.model.name} is a model for {type(model).__name__}, which finds no boxes{hint}"
            )
        if serving:
            model.configure_pipeline(**serving)
        runner = _in_tiles(model, arguments)
        to_stdout = bool(arguments.json and videos)
        lines = stack.enter_context(json_lines(arguments.json_lines, to_stdout=to_stdout))
        images = Images(sources, targets, lines)
        for one in images:
            _detect_image(runner, one, images, arguments)
        errors: list[Exception] = []
        if videos:
            options = _video_options(arguments, lines, Device.parse(model.network.device))
            errors = detect_videos(runner, videos, options)
    if arguments.json and not to_stdout:
        print_json(images.rows)
    for error in errors:
        if len(sources) == 1 or not isinstance(error, VideoError):
            raise error
        images.skip(error)
    return images.end()


def _refuse_double(names: list[str]) -> None:
    shown = [without_password(name) for name in names]
    if double := next((name for name in shown if shown.count(name) > 1), None):
        raise ConfigError(f"two streams are called {double!r}; give each video and camera once")


def _video_options(arguments: argparse.Namespace, lines: Emit | None, device: Device) -> VideoOptions:
    decode = arguments.decode or "cpu"
    if decode == "gpu" and device.kind != "cuda":
        raise ConfigError(f"--decode gpu: the model is on {device}; give it a GPU by --backend and --device")
    if decode == "gpu" and arguments.tile is not None:
        raise ConfigError(
            "--decode gpu gives frames in NV12, which are not cut into tiles; use --decode cpu with --tile"
        )
    return VideoOptions(
        quiet=arguments.json, emit=lines, font=arguments.font, track=arguments.track,
        give_up_after=arguments.give_up, decode=decode, device=str(device),
    )  # fmt: skip


def _detect_image(
    model: VisionModel[Detections] | Tiled,
    one: SourceImage,
    images: Images,
    arguments: argparse.Namespace,
) -> None:
    result = one.run(model)
    if one.target is not None:
        save_image(result.draw(one.image, font=arguments.font), one.target)
    images.add(_row(one.source.name, result, model.timings, one.target))
    if not arguments.json:
        _print_image(one.source.name, result, model.timings, one.target)


def _row(name: str, detections: Detections, timings: Timings, target: Path | None) -> dict[str, Any]:
    row = {
        "image": name,
        "size": list(detections.size),
        "detections": detections.to_dicts(),
        "dropped": detections.stats.dropped_candidates + detections.stats.dropped_detections,
        "milliseconds": stages(timings),
    }
    return row if target is None else {**row, "output": str(target)}


def _print_image(name: str, detections: Detections, timings: Timings, target: Path | None) -> None:
    from rich.markup import escape

    print_detections(detections, name)
    note = f"  → {escape(str(target))}" if target is not None else ""
    console().print(f"[dim]{stage_line(timings)}[/dim]{note}\n", soft_wrap=True)


def _share_processor(backend: dict[str, Any], *, live: bool) -> dict[str, Any]:
    """On the processor the model shares the cores with decoding, drawing and encoding: sets what is fastest then, where
    the command does not say it.

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
            # Frames run side by side, each on few threads: drawing one of them does not hold up the others. Live
            # images would come later that way.
            cores = available_processors()
            threads = backend.setdefault("threads", max(1, cores // SIDE_BY_SIDE))
            if isinstance(threads, int) and 0 < threads < cores:
                return {"instances": min(cores // threads, SIDE_BY_SIDE)}
    elif backend["backend"] == "openvino" and not live and "streams" not in backend:
        backend.setdefault("performance_hint", "throughput")
    return {}


def print_detections(detections: Detections, title: str) -> None:
    """A table of the boxes; says so when limits left some out."""
    from rich.markup import escape
    from rich.table import Table

    title = escape(title)
    table = Table(title=title, title_justify="left")
    for name, justify in (("label", "left"), ("score", "right"), ("left, top, right, bottom", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for box in detections:
        table.add_row(escape(box.label), f"{box.score:.3f}", ", ".join(f"{edge:.1f}" for edge in box.xyxy))
    out = console()
    out.print(table if len(detections) else f"{title}: nothing found")
    if detections.stats.dropped_detections or detections.stats.dropped_candidates:
        out.print(
            f"[yellow]{detections.stats.dropped_detections} more boxes were left out by --max-det, "
            f"{detections.stats.dropped_candidates} candidates before NMS[/yellow]"
        )
