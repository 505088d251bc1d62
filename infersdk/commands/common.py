"""Shared parts of the subcommands: backend options, tables and JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from ..config import check_values
from ..core import text as _text
from ..core.files import IMAGE_SUFFIXES, VIDEO_SUFFIXES, is_read_only
from ..core.text import printable
from ..errors import ConfigError, InferSDKError, OutputError, nearest
from ..loading.registry import option_names

if TYPE_CHECKING:
    from rich.text import Text

    from ..custom_ops import CustomOp
    from ..models import Timings

#: The stages of a call.
STAGES = ("read", "preprocess", "infer", "postprocess", "total")

#: Columns of text in tables are not narrower than this number of characters, unless they are shorter.
_LEAST_WIDTH = 6
_REPEATABLE: dict[str, Any] = {"action": "append", "default": []}
#: Options of several commands, with their arguments of `add_argument()`.
_OPTIONS: dict[str, dict[str, Any]] = {
    "--backend": {"help": "the runtime, or auto for the fastest here (default: onnxruntime)"},
    "--device": {"help": "cpu, cuda:0, ... (default: the backend's own)"},
    "--precision": {"help": "fp32, fp16, bf16 or int8 (default: as the model was written)"},
    "--max-batch": {"type": int, "metavar": "N", "help": "maximum batch size"},
    "--option": {**_REPEATABLE, "metavar": "KEY=VALUE", "help": "one of the backend's own options; repeatable"},
    "--batch": {"type": int, "metavar": "N", "help": "the size of a free first axis (default: 1)"},
    "--shape": {
        **_REPEATABLE, "metavar": "NAME=N,N,...", "help": "of an input with other free axes; repeatable",
    },
    "--custom-ops": {
        **_REPEATABLE, "metavar": "MODULE:CLASS",
        "help": "an operator that the model uses and no installed package declares; repeatable",
    },
    "--key": {"help": "of an encrypted bundle: env:NAME, file:PATH or command:LINE"},
    "--trust": {"metavar": "PEM", "help": "the public key that must have signed the bundle"},
    "--json": {"action": "store_true", "help": "print JSON for machines instead of tables"},
}  # fmt: skip


def add_options(parser: argparse._ActionsContainer, *flags: str) -> None:
    """Adds options that several commands have."""
    for flag in flags:
        parser.add_argument(flag, **_OPTIONS[flag])


def add_backend_options(parser: argparse.ArgumentParser) -> None:
    """The options of `backend_arguments()`."""
    group = parser.add_argument_group("backend")
    add_options(group, "--backend", "--device", "--precision", "--max-batch", "--option")


def backend_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of `add_backend_options` as keyword arguments of `load()` and the wrappers."""
    backend = "onnxruntime" if arguments.backend is None else arguments.backend
    return {
        "backend": backend,
        "device": arguments.device,
        "precision": arguments.precision,
        "max_batch": arguments.max_batch,
        **backend_options(arguments.option, backend),
    }


def backend_options(entries: Iterable[str], backend: str | None = None) -> dict[str, Any]:
    """The KEY=VALUE of each `--option`; values are JSON, or else text.

    Raises:
        ConfigError: an entry has another form or a wrong value, or names an argument of `load()`, such as `device`.
            Or `backend` is given and has no such option.
        BackendError: `backend` is not known, or not available here.
    """
    options: dict[str, Any] = {}
    for key, text in named_values("--option", entries, "KEY=VALUE, such as threads=2").items():
        try:
            value = json.loads(text)
        except RecursionError:
            raise ConfigError(f"--option {key}: its value is nested too deeply") from None
        except ValueError:  # no JSON, or a number of thousands of digits
            value = text
        try:
            check_values(value)
        except ValueError as error:
            raise ConfigError(f"--option {key}: {error}") from None
        if key in _ARGUMENTS:
            raise ConfigError(f"--option {key}: {_ARGUMENTS[key]}")
        if backend is not None and key not in (known := option_names(backend)):
            raise ConfigError(
                f"--option {key}: backend {backend!r} has no such option; it has {', '.join(known)}"
                f"{nearest(key, known)}"
            )
        options[key] = value
    return options


#: Arguments of `load()` that are not options of a backend, with their options on the command line.
_ARGUMENTS = {
    "path": "the model is an argument of its own",
    "backend": "use --backend",
    "device": "use --device",
    "precision": "use --precision",
    "max_batch": "use --max-batch",
    "while_building": "set it in a configuration, or in Python: infersdk.load(..., while_building=...)",
}


def named_values(
    flag: str, entries: Iterable[str], form: str, parse: Callable[[str], Any] | None = None
) -> dict[str, Any]:
    """The values of NAME=VALUE entries.

    Args:
        form: of an entry, for messages.
        parse: reads a value, which contains no `=`; ValueError for one of another form. None: values are text.

    Raises:
        ConfigError: an entry has another form, or a name occurs twice.
    """
    texts: dict[str, str] = {}
    values = {}
    for entry in entries:
        name, _, text = entry.rpartition("=") if parse else entry.partition("=")
        if name in texts:
            raise ConfigError(f"{flag} {name} is given twice: {texts[name]!r} and {text!r}; give one of them")
        try:
            if not name or not text:
                raise ValueError
            texts[name], values[name] = text, parse(text) if parse else text
        except ValueError:
            raise ConfigError(f"{flag} {entry!r} is not of the form {form}") from None
    return values


def names(text: str) -> list[str]:
    """The type of an argument `NAME,NAME`."""
    if not (found := [name for name in text.split(",") if name]):
        raise argparse.ArgumentTypeError(f"{text!r} has no name in it")
    return found


def precisions(text: str) -> list[str]:
    """The type of an argument `FP32,INT8`."""
    return [name.strip().lower() for name in text.split(",")]


def numbers(text: str, kind: type[int | float] = int) -> tuple[Any, ...]:
    """The type of an argument `1,8,32`."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        form = "1,8,32" if kind is int else "0.5,0.25,0.1"
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form {form}") from None


def new_file(text: str) -> Path:
    """The type of an argument that names a file. One that cannot be written is refused before the work, not when it is
    done.
    """
    if os.path.isdir(Path(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; give the name of a file")
    file = Path(os.path.realpath(text))
    if is_read_only(file):
        raise argparse.ArgumentTypeError(f"{text!r} is read-only; make it writable, or give another name")
    folder = next(one for one in file.parents if os.path.exists(one))  # those below it are made
    special = os.path.exists(file) and not os.path.isfile(file)  # such as /dev/stdout
    if not special and not os.path.isdir(folder):
        raise OutputError(f"cannot write {text!r}: {str(folder)!r} is not a folder")
    if not special and not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write {text!r}: no file can be made in {str(folder)!r}; give another name")
    return Path(text)


def report_file(text: str) -> Path:
    """As `new_file()`, without names of images, videos and models: `--csv bus.jpg` would overwrite a source."""
    if Path(text).suffix.lower() in (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES, ".onnx"):
        raise argparse.ArgumentTypeError(f"{text!r} is the name of an image, a video or a model; give another name")
    return new_file(text)


def check_report_files(*files: Path | None, inputs: Iterable[str | Path | None] = ()) -> None:
    """Raises ConfigError if a file to write is an input, or two of them are the same."""
    if not any(files):
        return  # a working directory that was deleted has no paths to compare
    read, written = {os.path.realpath(file) for file in inputs if file}, set()
    for name in (os.path.realpath(file) for file in files if file is not None):
        if name in read:
            raise ConfigError(f"{name!r} is an input, too; write to another file")
        if name in written:
            raise ConfigError(f"two results go to {name!r}; give each a file of its own")
        written.add(name)


def size(text: str) -> tuple[int, int]:
    """The type of an argument `640` or `640x480`: width and height."""
    width, both, height = text.lower().partition("x")
    try:
        return int(width), int(height if both else width)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; use 640 or 640x480") from None


def shapes_of(arguments: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """The shapes of `--shape`, by input."""
    return named_values("--shape", arguments.shape, "NAME=1,3,640,640", lambda text: tuple(map(int, text.split(","))))


def given_settings(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The options given on the command line, by name."""
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def custom_ops_of(arguments: argparse.Namespace) -> list[type[CustomOp]]:
    """The classes that `--custom-ops` names; modules are found in the current folder, too.

    Raises:
        ConfigError: an entry has another form, there is no such module or class, or the module fails.
    """
    result = []
    for entry in arguments.custom_ops:
        module, sign, name = entry.partition(":")
        if not (module and sign and name):
            raise ConfigError(f"--custom-ops {entry!r} is not of the form MODULE:CLASS, my_operators:HardSwish say")
        if "" not in sys.path and os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            result.append(getattr(importlib.import_module(module), name))
        except InferSDKError:
            raise
        except Exception as error:  # the module may raise any
            raise ConfigError(f"--custom-ops {entry!r}: {type(error).__name__}: {error}") from None
    return result


def print_json(data: Any) -> None:
    """Prints one JSON document to stdout."""
    sys.stdout.write(json_text(data, indent=2) + "\n")


def json_text(data: Any, indent: int | None = None) -> str:
    """JSON for stdout: non-ASCII characters are escaped unless stdout is UTF-8, and infinities and NaN are text."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    return printable(_text.json_text(plain(data), indent=indent, ensure_ascii=encoding != "utf8"), lines=True)


def plain(value: Any) -> Any:
    """Replaces infinities and NaN by text for JSON."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def console(*, stderr: bool = False, width: int = 1000) -> Console:
    """A rich console that escapes control characters; progress goes to stderr, so that stdout stays clean for results.
    For a file or pipe it has `width`, which is large, so that lines are not broken.
    """

    class Output(Console):
        def on_broken_pipe(self) -> None:
            """rich would exit with 1, which is the code of a check that failed."""
            raise  # noqa: PLE0704 - called where the BrokenPipeError is handled

        def render_str(self, text: str, **options: Any) -> Any:
            """Escapes a str before its width is measured."""
            return super().render_str(printable(text, lines=True), **options)

        def render(self, renderable: Any, options: Any = None) -> Iterator[Any]:
            """Escapes any other renderable, such as a `Text`."""
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(printable(segment.text, lines=True), segment.style)

    made = Output(stderr=stderr, highlight=False)
    if (not made.is_terminal and "COLUMNS" not in os.environ) or not made.width:  # COLUMNS=0 is unknown
        made.width = width
    return made


def print_text(text: str | Text, style: str | None = None) -> None:
    """Prints text to stdout without markup, and without further line breaks."""
    console().print(text, style=style, markup=False, soft_wrap=True)


def print_table(columns: Iterable[str], rows: Iterable[Iterable[str | Text]], title: str = "") -> None:
    """Prints a table to stdout, without markup.

    Args:
        columns: the titles. One of numbers begins with `>`; it is aligned to the right and not broken.
        rows: the cells; a `Text` has a style.
    """
    table = Table(title=escape(title) or None, title_justify="left")
    for name in columns:
        if name.startswith(">"):
            table.add_column(escape(name[1:]), justify="right", no_wrap=True)
        else:
            table.add_column(escape(name), overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) if isinstance(cell, str) else cell for cell in row))
    out = console()
    unlimited = out.options.update(width=1000)
    for column in table.columns:
        widest = max(out.measure(cell, options=unlimited).maximum for cell in (column.header, *column.cells))
        column.min_width = widest if column.no_wrap else min(widest, _LEAST_WIDTH)
    # A terminal that is narrower breaks the lines of the table, not the numbers in it.
    out.width = max(out.width, 1 + sum((column.min_width or 0) + 3 for column in table.columns))
    out.print(table)


def stages(timings: Timings) -> dict[str, float]:
    """Milliseconds by stage."""
    return {name: round(getattr(timings, name) * 1e3, 3) for name in STAGES}


def stage_line(milliseconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f} ms" for name, value in milliseconds.items())
