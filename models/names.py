"""Class names: from a list, from a file, or from what the model says of itself."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import ConfigError

__all__ = ["class_names"]


def class_names(names: Sequence[str] | str | os.PathLike[str] | None, metadata: Mapping[str, str]) -> tuple[str, ...]:
    """The names by class_id.

    Args:
        names: the names in order; a text file with one a line; or None for the model's own metadata, where Ultralytics'
            exporters write `names` as a dict of number to name. `()` if there are none.

    Raises:
        ConfigError: the file cannot be read, or is no list of names.
    """
    if names is None:
        return _from_metadata(metadata.get("names", ""))
    if isinstance(names, (str, os.PathLike)):
        try:
            lines = Path(names).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the class names in {os.fspath(names)!r}: {error}") from None
        return tuple(line.strip() for line in lines if line.strip())
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"names is a list of strings or the path of a text file, not {names!r}")
    return tuple(names)


def _from_metadata(text: str) -> tuple[str, ...]:
    """`{0: 'person', 1: 'bicycle'}`, `['person', 'bicycle']`, or the same in JSON; `()` for anything else."""
    for parse in (ast.literal_eval, json.loads):
        try:
            found = parse(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(found, dict):
            try:
                numbered = {int(key): str(value) for key, value in found.items()}
            except (TypeError, ValueError):
                return ()
            # A name for each number up to the largest; one that is missing is called by its number.
            return tuple(numbered.get(i, str(i)) for i in range(min(max(numbered, default=-1) + 1, 1 << 20)))
        if isinstance(found, (list, tuple)):
            return tuple(map(str, found))
    return ()
