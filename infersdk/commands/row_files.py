"""Rows of results: lines of JSON on stdout and in a file, and a table of values separated by commas."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from ..core.files import atomic_path, make_folder
from ..errors import OutputError
from .common import json_text, plain

__all__ = ["Emit", "row_files"]

#: Takes one row: of an image, of a frame, or a summary.
Emit: TypeAlias = Callable[[dict[str, Any]], None]


@contextmanager
def row_files(json_lines: Path | None, csv_file: Path | None, *, to_stdout: bool) -> Iterator[Emit | None]:
    """A function that writes a row at once; None if the rows go nowhere.

    Args:
        json_lines: a file that gets each row as a line of JSON. One that exists is replaced.
        csv_file: a file that gets a line for each result of a row.

    Raises:
        OutputError: a file cannot be written.
    """
    with ExitStack() as stack:
        emits: list[Emit] = []
        if to_stdout:
            emits.append(_print)
        if json_lines is not None:
            emits.append(stack.enter_context(_json_lines(json_lines)))
        if csv_file is not None:
            emits.append(stack.enter_context(_csv_lines(csv_file)))

        def emit(row: dict[str, Any]) -> None:
            for one in emits:
                one(row)

        yield emit if emits else None


def _print(row: dict[str, Any]) -> None:
    sys.stdout.write(json_text(row) + "\n")
    sys.stdout.flush()  # a program that reads the results of a camera gets each at once


@contextmanager
def _json_lines(path: Path) -> Iterator[Emit]:
    with _open(path) as file:

        def emit(row: dict[str, Any]) -> None:
            with _writing(path):
                file.write(json.dumps(plain(row), ensure_ascii=False) + "\n")
                file.flush()

        yield emit


@contextmanager
def _csv_lines(path: Path) -> Iterator[Emit]:
    """A line for each result. Columns that appear later are added at the end; then the file is written again. Without
    a result, the file has only the columns of an image or a frame.
    """
    columns: dict[str, None] = {}
    header = 0  # columns of the first line
    place: dict[str, Any] = {"source": None}
    try:
        with _open(path) as file:
            writer = csv.writer(file)

            def emit(row: dict[str, Any]) -> None:
                nonlocal header, place
                if (name := row.get("image") or row.get("stream")) is None:  # a summary
                    return
                place = {"source": name} | {key: row[key] for key in ("frame", "time", "clock") if key in row}
                for result in row.get("results", ()):
                    cells = place | dict(_flat("", result))
                    columns.update(dict.fromkeys(cells))
                    with _writing(path):
                        if not header:
                            header = len(columns)
                            writer.writerow(columns)
                        writer.writerow([cells.get(column, "") for column in columns])
                        file.flush()

            try:
                yield emit
            finally:
                if not header:
                    with _writing(path):
                        writer.writerow(place)
    finally:  # also after Ctrl-C, the usual end for a camera
        if len(columns) > header:
            _write_again(path, columns)


def _write_again(path: Path, columns: Collection[str]) -> None:
    """The same lines with these columns, of which the file has the first ones."""
    if not path.is_file():  # a pipe
        raise OutputError(f"{str(path)!r} is no file, and later results have further columns; give a file")
    csv.field_size_limit(2**31 - 1)  # a cell may hold many polygons; the default refuses more than 131,072 characters
    with (
        _writing(path),
        atomic_path(path) as sibling,
        path.open(encoding="utf-8", newline="") as written,  # closed before the replacement, as Windows requires
        open(sibling, "w", encoding="utf-8", newline="") as file,
    ):
        lines, again = csv.reader(written), csv.writer(file)
        next(lines)  # the columns
        again.writerow(columns)
        again.writerows([cell for _, cell in zip_longest(columns, line, fillvalue="")] for line in lines)


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A value in cells: `xyxy.0`, `mask.size.0`. Lists of lists are one cell of JSON: their lengths differ."""
    if isinstance(value, dict):
        items: Any = value.items()
    elif isinstance(value, list) and not any(isinstance(one, (list, dict)) for one in value):
        items = enumerate(value)
    else:
        yield name, json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value
        return
    for key, inner in items:
        yield from _flat(f"{name}.{key}" if name else str(key), inner)


@contextmanager
def _open(path: Path) -> Iterator[TextIO]:
    with _writing(path):
        make_folder(path.parent)
        file = path.open("w", encoding="utf-8", errors="backslashreplace", newline="")
    try:
        yield file
    finally:
        with _writing(path):  # it writes the rest
            file.close()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror}") from None
