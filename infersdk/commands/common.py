"""What several subcommands share: the arguments that choose a backend, tables, JSON, and saving images."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _text
from .._files import atomic_path
from .._text import printable
from ..errors import ConfigError, nearest

if TYPE_CHECKING:
    from PIL import Image
    from rich.console import Console

    from ..custom_ops import CustomOp
    from ..models import Timings

__all__ = [
    "add_backend_arguments",
    "add_custom_ops_argument",
    "add_json_argument",
    "add_source_arguments",
    "add_wrapper_arguments",
    "backend_arguments",
    "backend_options",
    "console",
    "custom_ops_of",
    "given_settings",
    "json_text",
    "key_values",
    "plain",
    "print_json",
    "require_model",
    "save_image",
    "stage_line",
    "stages",
    "wrapper_arguments",
]


def add_source_arguments(parser: argparse.ArgumentParser, what: str) -> None:
    """SOURCE ..., --recursive."""
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help=what)
    parser.add_argument("--recursive", action="store_true", help="search folders with all folders below them")


def require_model(arguments: argparse.Namespace) -> None:
    """Raises ConfigError without --model."""
    if arguments.model is None:
        raise ConfigError(
            f"no model to run: infersdk {arguments.command} ... --model model.onnx; infersdk demo needs none"
        )


def add_backend_arguments(parser: argparse.ArgumentParser) -> None:
    """--backend, --device, --precision, --max-batch, --option."""
    group = parser.add_argument_group("backend")
    group.add_argument("--backend", default="onnxruntime", help="what runs the model (default: %(default)s)")
    group.add_argument("--device", help="cpu, cuda:0, ... (default: the backend's own)")
    group.add_argument("--precision", help="fp32, fp16, bf16 or int8 (default: as the model was written)")
    group.add_argument("--max-batch", type=int, metavar="N", help="images that go through together at most")
    group.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one of the backend's own options; repeatable",
    )


def backend_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `add_backend_arguments` took, as keyword arguments of `load()` and the wrappers."""
    return {
        "backend": arguments.backend,
        "device": arguments.device,
        "precision": arguments.precision,
        "max_batch": arguments.max_batch,
        **backend_options(arguments.option, arguments.backend),
    }


def backend_options(entries: Iterable[str], backend: str | None = None) -> dict[str, Any]:
    """The KEY=VALUE of each `--option`.

    Raises:
        ConfigError: an entry has another form, or names an argument of `load()`, such as `device`; or `backend` is
            given and has no such option.
        BackendError: `backend` is not known, or not available here.
    """
    options = key_values("--option", entries)
    for key in options:
        if key in _ARGUMENTS:
            raise ConfigError(f"--option {key}: {_ARGUMENTS[key]}")
    if options and backend is not None:
        from ..registry import backend_class

        known = backend_class(backend).Options.__struct_fields__
        for key in options:
            if key not in known:
                raise ConfigError(
                    f"--option {key}: backend {backend!r} has no such option; it has {', '.join(known)}"
                    f"{nearest(key, known)}"
                )
    return options


#: What `load()` takes beside the options of a backend, and how the command line says it.
_ARGUMENTS = {
    "path": "the model is an argument of its own",
    "backend": "use --backend",
    "device": "use --device",
    "precision": "use --precision",
    "max_batch": "use --max-batch",
    "while_building": "set it in a configuration, or in Python: infersdk.load(..., while_building=...)",
}


def key_values(flag: str, entries: Iterable[str]) -> dict[str, Any]:
    """The KEY=VALUE of each entry of a flag; values as JSON where they are that, else as text.

    Raises:
        ConfigError: an entry has another form, a number has more than 64 bits, or a value is nested too deeply.
    """
    values: dict[str, Any] = {}
    for entry in entries:
        key, sign, text = entry.partition("=")
        if not sign or not key.isidentifier():
            raise ConfigError(f"{flag} {entry!r} is not of the form KEY=VALUE, such as threads=2")
        try:
            value = json.loads(text)
        except RecursionError:
            raise ConfigError(f"{flag} {key}: its value is nested too deeply") from None
        except ValueError:  # no JSON, or a number of thousands of digits
            value = text
        for number in _integers(value):
            if not -(2**63) <= number < 2**63:
                raise ConfigError(f"{flag} {key}: {number} has more than 64 bits")
        values[key] = value
    return values


def _integers(value: Any) -> Iterator[int]:
    """Those in a value of JSON."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _integers(inner)


def add_wrapper_arguments(parser: argparse._ActionsContainer) -> None:
    """--type, --names, --setting: which wrapper reads the model, and how."""
    parser.add_argument("--type", metavar="NAME", help="the wrapper, yolov5 for instance (default: by the file)")
    parser.add_argument("--names", type=Path, help="a text file with a class name a line (default: the model's own)")
    parser.add_argument(
        "--setting",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one of the wrapper's own settings, legacy=true for a YOLOX of the first release; repeatable",
    )


def wrapper_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `add_wrapper_arguments` took, as keyword arguments of `models.load()`."""
    settings = key_values("--setting", arguments.setting)
    for key in settings:
        if key in vars(arguments) or key in _ARGUMENTS:
            raise ConfigError(f"--setting {key}: {_ARGUMENTS.get(key) or 'use --' + key.replace('_', '-')}")
    given = {"type": arguments.type, "names": arguments.names, **settings}
    return {key: value for key, value in given.items() if value is not None}


def given_settings(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The values of those options that the command line gives, by name."""
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def add_custom_ops_argument(parser: argparse._ActionsContainer) -> None:
    """--custom-ops: operators of one's own, for models that use them."""
    parser.add_argument(
        "--custom-ops", action="append", default=[], metavar="MODULE:CLASS",
        help="an operator that the model uses and no installed package declares; repeatable",
    )  # fmt: skip


def custom_ops_of(arguments: argparse.Namespace) -> list[type[CustomOp]]:
    """The classes that `--custom-ops` names; modules are found in the current folder, too.

    Raises:
        ConfigError: an entry has another form, or there is no such module or class.
    """
    import importlib

    result = []
    for entry in arguments.custom_ops:
        module, sign, name = entry.partition(":")
        if not (module and sign and name):
            raise ConfigError(f"--custom-ops {entry!r} is not of the form MODULE:CLASS, my_operators:HardSwish say")
        if "" not in sys.path and os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            result.append(getattr(importlib.import_module(module), name))
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"--custom-ops {entry!r}: {error}") from None
    return result


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for machines instead of tables")


def print_json(data: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json_text(data, indent=2) + "\n")


def json_text(data: Any, indent: int | None = None) -> str:
    """For stdout: letters as they are where its encoding has them all, else by their numbers."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    return printable(_text.json_text(data, indent=indent, ensure_ascii=encoding != "utf8"), lines=True)


def plain(value: Any) -> Any:
    """As JSON takes it: infinities and NaN, which it has not, as text."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def console(*, stderr: bool = False, width: int = 1000) -> Console:
    """A rich console that escapes control characters; progress goes to stderr, so that stdout stays clean for results.

    Args:
        width: of a file or pipe, which has no edge at which to break lines and cut tables off.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Output(Console):
        def on_broken_pipe(self) -> None:
            """rich would exit with 1, which is the code of a check that failed."""
            raise  # noqa: PLE0704 - called where the BrokenPipeError is handled

        def render_str(self, text: str, **options: Any) -> Any:
            """A str, such as a cell, before its width is measured."""
            return super().render_str(printable(text, lines=True), **options)

        def render(self, renderable: Any, options: Any = None) -> Iterator[Any]:
            """Whatever else is printed, such as a `Text`."""
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(printable(segment.text, lines=True), segment.style)

    made = Output(stderr=stderr, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = width
    return made


def stages(timings: Timings) -> dict[str, float]:
    """Milliseconds by stage."""
    names = ("read", "preprocess", "infer", "postprocess", "total")
    return {name: round(getattr(timings, name) * 1e3, 3) for name in names}


def stage_line(timings: Timings) -> str:
    return ", ".join(f"{name} {value:.2f} ms" for name, value in stages(timings).items())


def save_image(image: Image.Image, path: str | os.PathLike[str]) -> Path:
    """Writes an image in the format of its suffix; nothing half-written is left behind.

    Raises:
        OutputError: it cannot be written there.
    """
    with atomic_path(path) as sibling:
        image.save(sibling)
    return Path(path)
