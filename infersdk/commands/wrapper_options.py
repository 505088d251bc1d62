"""The settings of a wrapper as options of the command line: `--conf 0.4 --class-agnostic --names coco`.

They come from the annotations of the wrapper; their help comes from the `Args` of its docstring. `--type` or
the model determines the wrapper, so the options are added when the arguments are known.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..bundles.bundle import Bundle
from ..config import model_table, read
from ..core.model_source import ModelSource, is_configuration
from ..errors import UnsupportedModelError, nearest_name
from ..models.configuration import READER_FILES, named_kind
from ..models.declaration import Declared, annotation, unknown_setting
from ..models.loading import is_bundle, named_type, type_of_file
from ..models.ocr import OCR
from ..models.registry import TYPES
from ..models.vision import VisionModel

__all__ = [
    "WrapperOptions",
    "add_wrapper_options",
    "configuration_of",
    "wrapper_files",
    "wrapper_settings",
]

#: Prefix of the parsed settings in the namespace.
_PREFIX = "setting:"


def add_wrapper_options(
    parser: argparse.ArgumentParser, group: argparse._ArgumentGroup | None = None, *, other_types: Sequence[str] = ()
) -> None:
    """`--type`, and an option for each setting of the wrapper.

    Args:
        parser: of a subcommand of `infersdk`. Where it has an option `--model`, the help and the messages are about the
            wrapper for that model.
        group: where the options are listed; None is a group of their own.
        other_types: names that `--type` takes in this command, and that are no wrappers.
    """
    group = group or parser.add_argument_group(
        "wrapper", "Its settings. --help with --model FILE or --type NAME lists all settings of that wrapper."
    )
    group.add_argument("--type", metavar="NAME", help="the wrapper, yolov5 for instance (default: by the file)")
    parser.wrapper_options = WrapperOptions(parser, group, other_types)  # type: ignore[attr-defined]


def wrapper_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that the command line gives, by name."""
    given = vars(arguments).items()
    return {name.removeprefix(_PREFIX): value for name, value in given if name.startswith(_PREFIX)}


def wrapper_files(arguments: argparse.Namespace) -> list[str]:
    """The files among the settings that the command line gives, such as that of the names."""
    return [value for value in wrapper_settings(arguments).values() if isinstance(value, str) and os.path.isfile(value)]


def configuration_of(text: str) -> tuple[Path, str | None] | None:
    """The file of `app.toml:detector` or `app.toml`, and the name of the model; None for a model file."""
    if is_configuration(text):
        return Path(text), None
    file, _, name = text.rpartition(":")
    return (Path(file), name) if is_configuration(file) else None


class WrapperOptions:
    """Adds the options to a parser. See `add_wrapper_options()`."""

    def __init__(
        self, parser: argparse.ArgumentParser, group: argparse._ArgumentGroup, other_types: Sequence[str]
    ) -> None:
        self._parser, self._group, self._other_types = parser, group, other_types
        self._own: frozenset[str] = frozenset()
        self._arguments: Sequence[str] = ()

    def add(self, arguments: Sequence[str]) -> None:
        """Adds the options for these arguments: those of the wrapper that `--type` names, else of all wrappers, of
        which the help shows the common ones.

        Raises:
            ConfigError: there is no such wrapper.
        """
        self._arguments = arguments
        self._own = frozenset(self._parser._option_string_actions)
        wants_help = "-h" in arguments or "--help" in arguments
        kind = self._wrapper(of_file=wants_help)
        if kind is not None and wants_help:
            self._group.title = f"settings of {kind.__name__}"
            self._group.description = None
        kinds: list[type[Declared]] = [VisionModel, *TYPES.values()] if kind is None else [kind]
        for name in READER_FILES if kind is OCR else ():
            self._group.add_argument(
                f"--{name}", dest=_PREFIX + name, metavar="FILE", default=argparse.SUPPRESS, help=_help_texts(OCR)[name]
            )
        names = dict.fromkeys(name for one in kinds for name in one.Settings.__struct_fields__)
        common = VisionModel.Settings.__struct_fields__
        for name in sorted(names, key=lambda name: name in common):  # the wrapper's own come first
            if name not in ("device", "precision", "max_batch", "options"):  # options of each command itself
                self._add(name, [one for one in kinds if name in one.Settings.__struct_fields__], shown_of=kinds[0])

    def refuse(self, flag: str) -> None:
        """Raises ConfigError for an option that is no setting of the wrapper, where the wrapper is known. The parser
        refuses an option that looks like one of the command's own.
        """
        kind = self._wrapper(of_file=True)
        if kind is None:
            return
        name = flag.lstrip("-").replace("-", "_")
        own = {option.lstrip("-") for option in self._own}
        settings = {setting.replace("_", "-") for setting in kind.Settings.__struct_fields__}
        close = nearest_name(name.replace("_", "-"), [*settings, *own])
        if close is None or close in settings:
            raise unknown_setting(kind, name)

    def _wrapper(self, *, of_file: bool) -> type[Declared] | None:
        """The wrapper of `--type` or of a configuration; with `of_file`, of a model file, too. None where the arguments
        name none, or the file alone does not say it.
        """
        first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        for option in {"--type", "--model"} & self._own:
            first.add_argument(option, nargs="?")  # without a value it is an error of the whole parser
        given, _ = first.parse_known_args(self._arguments)
        model = getattr(given, "model", None)
        if given.type is not None:
            return None if given.type in self._other_types else named_kind(given.type)
        if (found := configuration_of(model or "")) is not None:
            return _of_configuration(*found)
        return _of_file(model) if of_file and model else None

    def _add(self, name: str, kinds: Sequence[type[Declared]], *, shown_of: type[Declared]) -> None:
        """Adds one setting of these wrappers. The help shows it where `shown_of` is one of them."""
        option = "--" + name.replace("_", "-")
        if option in self._own:
            return
        members = list(dict.fromkeys(member for kind in kinds for member in _members(annotation(kind, name))))
        text = _help(shown_of, name) if shown_of in kinds else argparse.SUPPRESS
        settings: dict[str, Any] = {"dest": _PREFIX + name, "default": argparse.SUPPRESS, "help": text}
        if bool in members:
            self._group.add_argument(option, action=argparse.BooleanOptionalAction, **settings)
        else:
            self._group.add_argument(option, type=_parser_of(members), metavar=_metavar(members), **settings)


def _of_configuration(path: Path, name: str | None) -> type[Declared] | None:
    table = model_table(read(path), name)
    if is_bundle(table.get("path")):
        return _of_file(table["path"])
    return named_kind(table.get("type"))


def _of_file(model: str) -> type[Declared] | None:
    source = ModelSource.of(model)
    if source.format is not None and source.format.key == "bundle":
        return named_type(Bundle(source).manifest.type)
    if source.format is None or source.format.key != "onnx":
        return None  # only the runtime can describe it
    try:
        return type_of_file(source)
    except UnsupportedModelError:
        return None  # loading decides by a run, or raises


# ---- values ----


def _members(annotation: Any) -> Iterator[Any]:
    """The types of an annotation, of its unions, too, without Annotated; and the values of its Literals."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        yield from inner
    elif origin in (typing.Annotated, typing.Union, types.UnionType):
        for one in inner[:1] if origin is typing.Annotated else inner:
            yield from _members(one)
    elif annotation is not type(None):
        yield annotation


def _first(members: Iterable[Any], kind: type) -> Any:
    """The first of the types that is a subclass of `kind`, but no text; None if there is none."""
    origins = ((one, typing.get_origin(one) or one) for one in members if one is not str)
    return next((one for one, origin in origins if isinstance(origin, type) and issubclass(origin, kind)), None)


def _metavar(members: Sequence[Any]) -> str:
    choices = [one for one in members if isinstance(one, str)]
    if choices and len(members) == len(choices):
        return "{" + ",".join(choices) + "}"
    words = [word for kind, word in ((int, "N"), (float, "X"), (str, "TEXT")) if kind in members]
    if _first(members, os.PathLike) is not None:
        words = ["FILE"]
    if (sequence := _with_commas(members)) is not None:
        inner = "TEXT" if str in _items(sequence) else "X" if "float" in str(sequence) else "N"
        words.append(f"{inner},{inner}")
    elif _first(members, Sequence) is not None:
        words.append("JSON")
    return "|".join(words + choices) or "VALUE"


def _with_commas(members: Sequence[Any]) -> Any:
    """The sequence among the types if its items may be separated by commas; None if its items are sequences, or the
    text may be a path.
    """
    sequence = _first(members, Sequence)
    if _first(members, os.PathLike) is not None or _first(_items(sequence), Sequence) is not None:
        return None
    return sequence


def _items(sequence: Any) -> list[Any]:
    """The types of the items of a sequence."""
    return list(_members((typing.get_args(sequence) or (Any,))[0]))


def _parser_of(members: Sequence[Any]) -> Callable[[str], Any]:
    """A function from the text of an option to its value, which the wrapper checks."""
    sequence = _with_commas(members)

    def scalar(text: str, kinds: Sequence[Any] = members) -> Any:
        if not {int, float, Any}.intersection(kinds):
            return text
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        return text.strip() if value is None else value  # null is text: None would turn a filter off

    def parse(text: str) -> Any:
        if text[:1] in ("[", "{") and not os.path.isfile(text):
            try:
                return json.loads(text)
            except (ValueError, RecursionError) as error:
                raise argparse.ArgumentTypeError(f"{text[:40]!r} is not JSON: {error}") from None
        if sequence is None or "," not in text:
            return scalar(text)
        kinds = _items(sequence)
        return [scalar(part.strip(), kinds) for part in text.split(",") if part.strip()]

    return parse


# ---- help ----


def _help(kind: type[Declared], name: str) -> str:
    text = _help_texts(kind).get(name, "")
    default = next(one.default for one in msgspec.structs.fields(kind.Settings) if one.name == name)
    if default not in (None, msgspec.NODEFAULT) and not isinstance(default, bool):
        text = f"{text.rstrip('.')} (default: {default})"
    return text.replace("%", "%%").strip()


def _help_texts(kind: type[Any]) -> dict[str, str]:
    """The `Args` of the docstrings of a class and its bases, by name."""
    result: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found = re.search(r"^Args:\n((?: .*\n|\n)+)", inspect.cleandoc(base.__doc__ or "") + "\n", re.MULTILINE)
        for entry in re.split(r"\n(?=\w)", textwrap.dedent(found[1])) if found else ():
            names, _, text = entry.partition(":")
            text = " ".join(text.replace("`", "").split())
            result |= {name.strip(): text for name in names.split(",")}
    return result
