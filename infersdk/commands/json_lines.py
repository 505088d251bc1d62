"""Rows as lines of JSON, on stdout and into a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from ..errors import OutputError
from .common import json_text

__all__ = ["Emit", "json_lines"]

#: Takes one row.
Emit: TypeAlias = Callable[[dict[str, Any]], None]


@contextmanager
def json_lines(path: Path | None, *, to_stdout: bool) -> Iterator[Emit | None]:
    """A function that writes a row as a line, at once; None if the rows go nowhere.

    Args:
        path: a file that gets the lines; one that exists is replaced.

    Raises:
        OutputError: the file cannot be written.
    """
    file = None if path is None else _open(path)
    if file is None and not to_stdout:
        yield None
        return

    def emit(row: dict[str, Any]) -> None:
        if to_stdout:
            sys.stdout.write(json_text(row) + "\n")
            sys.stdout.flush()  # a program that reads the results of a camera gets each at once
        if file is not None:
            try:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()
            except OSError as error:
                raise OutputError(f"cannot write {str(path)!r}: {error.strerror}") from None

    try:
        yield emit
    finally:
        if file is not None:
            file.close()


def _open(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror}") from None
