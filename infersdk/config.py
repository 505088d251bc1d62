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
        hint = f". Known are: {fields or 'none'}" if outermost else ""
        raise ConfigError(f"{what}: {error}{hint}") from None


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
