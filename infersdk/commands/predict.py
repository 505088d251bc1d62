"""`infersdk predict`: any model on images, videos and cameras."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

from ..config import model_table, read
from ..core.text import without_password
from ..errors import ConfigError, ImageError, VideoError
from ..models import ImageModel, Tiled, create, load
from ..models.composed.base import require_boxes
from ..models.configuration import COMPOSITIONS
from .common import (
    STAGES,
    add_backend_options,
    add_options,
    backend_arguments,
    backend_options,
    check_report_files,
    given_settings,
    print_json,
    print_text,
    report_file,
    size,
    stage_line,
    stages,
)
from .predict_video import as_result, predict_videos
from .row_files import row_files
from .sources import Source, drawn_paths, find_sources
from .stderr import say
from .window import Window
from .wrapper_options import add_wrapper_options, configuration_of, wrapper_files, wrapper_settings

DESCRIPTION = (
    "Runs a model of any task on images, videos and cameras. Prints the results, draws them, or writes "
    "them as JSON or CSV."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "infersdk predict SOURCE [SOURCE ...] --model FILE [options]"
    parser.add_argument(
        "sources", nargs="+", metavar="SOURCE", help="an image, a video, a folder of them, a pattern ('*.jpg'), an "
        "address (https://..., rtsp://...) or a camera (/dev/video0)",
    )  # fmt: skip
    parser.add_argument(
        "--model", metavar="FILE", help="the model file; or a configuration (.toml, .yaml, .json), app.toml:detector "
        "where it has several models",
    )  # fmt: skip
    parser.add_argument("--recursive", action="store_true", help="search folders with all folders below them")
    group = parser.add_argument_group("results")
    group.add_argument("-o", "--output", type=Path, metavar="PATH", help="draw the results: a file for one source, a "
                       "folder for several")  # fmt: skip
    group.add_argument("--show", action="store_true", help="show the drawn results in a window; q closes it")
    add_options(group, "--json")
    group.add_argument(
        "--json-lines", type=report_file, metavar="FILE", help="write a line of JSON for each image and frame"
    )
    group.add_argument("--csv", type=report_file, metavar="FILE", help="write a line for each result, such as a box")
    group = parser.add_argument_group("videos")
    group.add_argument("--track", action="store_true", help="number the objects of videos, from frame to frame")
    group.add_argument(
        "--give-up", type=float, metavar="SECONDS",
        help="how long to reconnect to a camera or stream that failed (default: 60)",
    )  # fmt: skip
    group = parser.add_argument_group("large images", "run the model on tiles, and on the whole image too")
    group.add_argument("--tile", type=size, metavar="N|WIDTHxHEIGHT", help="the size of a tile in pixels")
    group.add_argument("--overlap", type=float, metavar="X", help="of tiles, as a share of a side (default: 0.2)")
    group.add_argument("--merge", metavar="{nms,union,weighted}", help="how to merge the boxes of overlapping tiles "
                       "(default: nms)")  # fmt: skip
    add_backend_options(parser)
    add_wrapper_options(parser)


def run(arguments: argparse.Namespace) -> int:
    sources = find_sources(arguments.sources, recursive=arguments.recursive)
    targets = drawn_paths(sources, arguments.output)
    inputs: list[str | Path] = [source.name for source in sources]
    model = arguments.model or ""
    inputs += [(configuration_of(model) or [model])[0], *wrapper_files(arguments)]
    check_report_files(arguments.json_lines, arguments.csv, *set(targets), inputs=inputs)
    videos = [(source, target) for source, target in zip(sources, targets, strict=True) if source.is_video]
    if arguments.track and len(videos) < len(sources):
        raise ConfigError("--track follows objects from frame to frame; give videos alone")
    if arguments.give_up is not None and not videos:
        raise ConfigError("--give-up is about cameras and streams; there is no video among the sources")
    _refuse_double([source.name for source, _ in videos])
    rows: list[dict[str, Any]] = []
    skipped: list[Exception] = []

    def skip(error: Exception) -> None:
        """Reports a source that cannot be read. Raises other errors, and the error of an only source."""
        if len(sources) == 1 or not isinstance(error, (ImageError, VideoError)):
            raise error
        say(str(error))
        skipped.append(error)

    with ExitStack() as stack:
        window = stack.enter_context(Window()) if arguments.show else None
        model = stack.enter_context(_open(arguments, only_videos=len(videos) == len(sources)))
        runner = _in_tiles(model, arguments)
        to_stdout = bool(arguments.json and videos)
        emit = stack.enter_context(row_files(arguments.json_lines, arguments.csv, to_stdout=to_stdout))
        for source, target in zip(sources, targets, strict=True):
            if not source.is_video:
                row = _predict_image(runner, source, target, skip, window, quiet=arguments.json)
                if arguments.json and not to_stdout:
                    rows.append(row)
                if emit is not None:
                    emit(row)
        errors = []
        if videos:
            if arguments.track:
                require_boxes(model)
            errors = predict_videos(
                runner, videos, emit, window, quiet=arguments.json, track=arguments.track, **_reading(arguments, model)
            )
    if arguments.json and not to_stdout:
        print_json(rows)
    for error in errors:
        skip(error)
    if not skipped:
        return 0
    say(f"{len(skipped)} of {len(sources)} sources could not be read, and were skipped")
    return 2 if len(skipped) == len(sources) else 1


def _refuse_double(names: list[str]) -> None:
    shown = [without_password(name) for name in names]
    if double := next((name for name in shown if shown.count(name) > 1), None):
        raise ConfigError(f"two streams are called {double!r}; give each video and camera once")


def _open(arguments: argparse.Namespace, *, only_videos: bool) -> ImageModel[Any]:
    """The model of the command line."""
    settings = wrapper_settings(arguments)
    if only_videos:
        settings.pop("decode", None)  # of JPEG files; frames are decoded by `Streams`
    if (named := _table(arguments)) is not None:
        name, table = named
        return _create(name, {**table, **settings}, arguments)
    if arguments.model is None:
        raise ConfigError("no model to run: infersdk predict ... --model model.onnx; infersdk demo needs none")
    return load(arguments.model, type=arguments.type, **settings, **backend_arguments(arguments))


def _table(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]] | None:
    """The name and the table of a model that a configuration describes, or `--type ocr`; None for a model file."""
    if (found := configuration_of(arguments.model or "")) is not None:
        path, name = found
        if arguments.type is not None:
            raise ConfigError(f"--type {arguments.type}: the configuration {str(path)!r} has the type; leave it out")
        configuration = read(path)
        table = dict(model_table(configuration, name))
        return name or next(iter(configuration["models"])), table
    if arguments.type != "ocr":
        return None
    if arguments.model is not None or not {"detection", "recognition"} <= wrapper_settings(arguments).keys():
        raise ConfigError("--type ocr has two or three model files: --detection, --recognition and --orientation")
    return "ocr", {"type": "ocr"}


def _create(name: str, table: dict[str, Any], arguments: argparse.Namespace) -> ImageModel[Any]:
    """The model of a table, with the backend of the command line where it is given."""
    given = given_settings(arguments, ("backend", "device", "precision", "max_batch"))
    if table.get("type") in [*COMPOSITIONS] and (flags := [*given, *(["option"] if arguments.option else [])]):
        flag = flags[0].replace("_", "-")
        raise ConfigError(f"--{flag}: {name} is a composition; set it in the tables of its models in {arguments.model}")
    table |= given
    options = backend_options(arguments.option, table.get("backend", "onnxruntime"))
    if options:
        table["options"] = {**table.get("options", {}), **options}
    return create({"models": {name: table}})[name]


def _in_tiles(model: ImageModel[Any], arguments: argparse.Namespace) -> ImageModel[Any]:
    """The model, or with `--tile` the model on tiles."""
    settings = given_settings(arguments, ("overlap", "merge"))
    if isinstance(model, Tiled) and (settings or arguments.tile is not None):
        raise ConfigError(f"{arguments.model} is a model on tiles already; change tile, overlap and merge in that file")
    if arguments.tile is None:
        if settings:
            raise ConfigError(f"--{min(settings)} is about tiles; give their size with --tile")
        return model
    return Tiled(model, tile=arguments.tile, **settings)  # type: ignore[arg-type]


def _predict_image(
    model: ImageModel[Any],
    source: Source,
    target: Path | None,
    skip: Callable[[Exception], None],
    window: Window | None,
    *,
    quiet: bool,
) -> dict[str, Any]:
    """Runs the model on an image; returns its row of the results."""
    start = perf_counter()
    try:
        image = source.read()
    except ImageError as error:
        skip(error)
        return {"image": source.name, "error": str(error)}
    before, read = model.timings, perf_counter()
    result = as_result(model(image))
    spent = {} if model.timings is before else stages(model.timings)  # a composition of models has no stages
    spent |= {"read": round((read - start) * 1e3, 3), "total": round((perf_counter() - start) * 1e3, 3)}
    milliseconds = {name: spent[name] for name in STAGES if name in spent}
    if target is not None:
        result.save(target, image)
    if window is not None:
        window.show(source.name, result.draw(image), wait=True)
    row = {
        "image": source.name,
        "size": list(image.size),
        "task": model.task,
        "results": result.to_dicts(),
        "milliseconds": milliseconds,
    }
    if target is not None:
        row["output"] = str(target)
    if not quiet:
        note = "" if target is None else f"  → {target}"
        print_text(f"{source.name}: {stage_line(milliseconds)}{note}")
        print_text(textwrap.indent(result.summary(), "  "))
    return row


def _reading(arguments: argparse.Namespace, model: ImageModel[Any]) -> dict[str, Any]:
    """The settings of `Streams`."""
    decode = wrapper_settings(arguments).get("decode", "cpu")
    if decode == "gpu" and model.details.image_device is None:
        device = model.details.networks[0].device
        raise ConfigError(f"--decode gpu: the model is on {device}; give it a GPU by --backend and --device")
    if decode == "gpu" and arguments.tile is not None:
        raise ConfigError(
            "--decode gpu gives frames in NV12, which are not cut into tiles; use --decode cpu with --tile"
        )
    return {
        "give_up_after": 60.0 if arguments.give_up is None else arguments.give_up, "decode": decode,
        "device": str(model.details.image_device or "cuda:0"),
    }  # fmt: skip
