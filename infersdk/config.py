"""Configuration: checked structs out of TOML, YAML, JSON or a dict.

An application's file names its models; which backend runs them is one line of it::

    [models.detector]
    type = "yolov5"
    path = "yolov5n.onnx"          # relative to this file
    backend = "onnxruntime"        # the line to change
    conf = 0.25

    [models.detector.options]      # the backend's own
    threads = 2

`infersdk.models.create(read("app.toml"))` makes the wrappers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from .errors import ConfigError

if TYPE_CHECKING:
    import os

__all__ = ["convert", "read"]

T = TypeVar("T")

_READERS = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}


def convert(data: Mapping[str, Any], kind: type[T], what: str) -> T:
    """`data` as a struct of type `kind`; numbers as text and the like are not taken.

    Args:
        what: what the data is, for the message.

    Raises:
        ConfigError: names the field at fault, what it holds and what it may hold.
    """
    try:
        return msgspec.convert(dict(data), kind)
    except msgspec.ValidationError as error:
        fields = ", ".join(f.name for f in msgspec.structs.fields(kind)) if issubclass(kind, msgspec.Struct) else ""
        outermost = "unknown field" in str(error) and " - at " not in str(error)
        hint = f". Known are: {fields or 'none'}" if outermost else _choices(kind, str(error))
        raise ConfigError(f"{what}: {error}{hint}") from None


def _choices(kind: type[Any], message: str) -> str:
    """The valid values, where msgspec says "Invalid enum value 'x' - at `$.a.b[0]`" and no more."""
    match = re.fullmatch(r"Invalid enum value .* - at `\$(.*)`", message, re.DOTALL)
    if match is None:
        return ""
    found: list[Any] = [msgspec.inspect.type_info(kind)]
    for step in re.findall(r"\.(\w+)|\[[^]]*\]", match[1]):
        found = [inner for info in found for inner in _inside(info, step)]
    values = [value for info in found for one in _members(info) for value in getattr(one, "values", ())]
    return f"; use one of {', '.join(map(repr, values))}" if values else ""


def _members(info: Any) -> tuple[Any, ...]:
    """The types of a union; of any other type the type itself."""
    return info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)


def _inside(info: Any, step: str) -> list[Any]:
    """The types of the field `step`, or of the items where it is empty."""
    found: list[Any] = []
    for one in _members(info):
        if step:
            found += [field.type for field in getattr(one, "fields", ()) if field.encode_name == step]
        else:
            items = getattr(one, "item_types", None) or (
                getattr(one, "item_type", None),
                getattr(one, "value_type", None),
            )
            found += [item for item in items if item is not None]
    return found


def read(source: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as a dict: from a file (by its suffix .toml, .yaml, .yml or .json), or a mapping as it is.

    Relative `path` entries of a file are made relative to its folder.

    Raises:
        ConfigError: no such file, an unknown suffix, or a syntax error (with its place).
    """
    if isinstance(source, Mapping):
        return dict(source)
    file = Path(source)
    kind = _READERS.get(file.suffix.lower())
    if kind is None:
        raise ConfigError(f"{str(file)!r}: a configuration ends in {', '.join(_READERS)}, not in {file.suffix!r}")
    try:
        text = file.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character
        reason = getattr(error, "strerror", error)
        raise ConfigError(f"cannot read the configuration {str(file)!r}: {reason}") from None
    try:
        data = getattr(msgspec, kind).decode(text)
    except ImportError:
        raise ConfigError(f'{str(file)!r}: reading YAML needs PyYAML: pip install "infersdk[yaml]"') from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(file)!r}: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{str(file)!r}: a configuration is a table of names, not a {type(data).__name__}")
    _anchor_paths(data, file.resolve().parent)
    return data


def _anchor_paths(data: dict[str, Any], folder: Path) -> None:
    for key, value in data.items():
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                _anchor_paths(inner, folder)
        if key in ("path", "names") and isinstance(value, str):
            data[key] = str(folder / value)
