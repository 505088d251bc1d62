"""Class names: from a list, a file, a built-in data set, or the metadata of the model."""

from __future__ import annotations

import ast
import os
import threading
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import msgspec

from ..core.files import read_regular
from ..data import CLASS_NAMES
from ..errors import ConfigError, nearest

__all__ = ["class_names", "find_classes", "names_of_file", "python_literal"]

#: The largest file of class names, in bytes.
MAX_BYTES = 16 << 20

_lock = threading.Lock()


def class_names(names: Sequence[str] | str | os.PathLike[str]) -> tuple[str, ...]:
    """The names by class_id.

    Args:
        names: the names in order; a text file of UTF-8 with one name in each line; or `"coco"` or `"imagenet"`. Blank
            lines at the end do not count.
    """
    if isinstance(names, (str, os.PathLike)):
        path = CLASS_NAMES.get(names, names) if isinstance(names, str) else names
        try:
            lines = read_regular(path, MAX_BYTES).decode("utf-8-sig").rstrip().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            built_in = f"; built in are {', '.join(CLASS_NAMES)}" if isinstance(error, FileNotFoundError) else ""
            raise ConfigError(f"cannot read the class names in {os.fspath(names)!r}: {reason}{built_in}") from None
        stripped = tuple(line.strip() for line in lines)
        if "" in stripped:
            raise ConfigError(
                f"line {stripped.index('') + 1} of the class names in {os.fspath(names)!r} is blank, and each line is "
                "the name of a class; delete the line, or write a name"
            )
        return stripped
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"names is a list of strings, the path of a text file, or one of {', '.join(CLASS_NAMES)}, not {names!r}"
        )
    return tuple(names)


def names_of_file(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """The names by class_id in the metadata of a model, as Ultralytics' exporters write them: `{0: 'person', 1:
    'bicycle'}`, `['person', 'bicycle']`, or the same in JSON; `()` for anything else.
    """
    text = metadata.get("names", "")
    for parse in (python_literal, msgspec.json.decode):
        try:
            result = parse(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(result, dict):
            try:
                numbered = {int(key): str(value) for key, value in result.items()}
            except (TypeError, ValueError):
                return ()
            # A name for each number up to the largest; one that is missing is called by its number.
            return tuple(numbered.get(i, str(i)) for i in range(min(max(numbered, default=-1) + 1, 1 << 20)))
        if isinstance(result, (list, tuple)):
            return tuple(map(str, result))
    return ()


def find_classes(
    classes: int | str | Sequence[int | str] | None, names: Sequence[str], count: int | None
) -> tuple[int, ...] | None:
    """The numbers of the classes that a setting names, ascending; None for all.

    Args:
        classes: names or numbers; a number may be text, where no class has that name.
        names: by class_id; empty where the model has none.
        count: the number of classes; None where it is not known yet.
    """
    if classes is None:
        return None
    wanted = (classes,) if isinstance(classes, (int, Integral, str)) else classes
    count = count if count is not None else len(names) or None
    result: set[int] = set()
    for entry in wanted:
        if isinstance(entry, str) and entry in names:
            result |= {number for number, name in enumerate(names) if name == entry}
            continue
        if isinstance(entry, str) and not entry.isdecimal():
            some = f"; its first classes are {', '.join(names[:10])}" if names else "; its classes have numbers alone"
            raise ConfigError(f"classes: the model has no class {entry!r}{nearest(entry, names) or some}")
        number = int(entry)
        if number < 0 or (count is not None and number >= count):
            last = f", from 0 to {count - 1}" if count is not None else ""
            raise ConfigError(f"classes: the model has no class number {number}; use those that it has{last}")
        result.add(number)
    if not result:
        raise ConfigError("classes is empty; give one or more, or leave it out for all classes")
    return tuple(sorted(result))


def python_literal(text: str) -> Any:
    """The value of a literal: a number, a string, a list, a dict.

    One thread at a time: CPython 3.11 counts how deep a tree is for all threads together, and raises SystemError in one
    of two that parse (its issue 106905).

    Raises:
        ValueError, SyntaxError, MemoryError, RecursionError: it is none.
    """
    with _lock:
        return ast.literal_eval(text)
