"""Text for people: control characters are escaped, lists of numbers in JSON stay on one line, sizes have units.

Names of classes, nodes and files, metadata, and messages of libraries are text of a model, a file or a client. Written
raw, an escape sequence in it changes the terminal, and a line break forges a line of a log.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from ..errors import ConfigError

__all__ = ["HEX_32", "json_text", "logger", "parse_size", "printable", "size_text", "without_password"]

#: 32 bytes, hexadecimal: a SHA-256 or a public key.
HEX_32 = re.compile("[0-9a-f]{64}")
#: Control characters, line separators, characters that change the direction of text, and lone surrogates.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, *, lines: bool = False) -> str:
    """The text with control characters as escapes that JSON has, too: `\\u001b`.

    Args:
        lines: keep line breaks and tabs.
    """
    if text.isprintable():
        return text

    def escaped(found: re.Match[str]) -> str:
        character = found[0]
        if lines and character in "\n\t":
            return character
        return _SHORT.get(character) or f"\\u{ord(character):04x}"

    return _UNSAFE.sub(escaped, text)


def without_password(address: str) -> str:
    """The address as messages show it."""
    return re.sub(r"^([\w+.-]+://)[^/?#]*@", r"\1***@", address)


class _Escaping(logging.Filter):
    """Makes the message and the traceback of a record printable, whatever handler writes them."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = printable(record.getMessage()), ()
        if record.exc_info and not record.exc_text:  # handlers write this text, and format no other
            record.exc_text = printable(logging.Formatter().formatException(record.exc_info), lines=True)
        return True


_escaping = _Escaping()


def logger(name: str) -> logging.Logger:
    """The logger of this name. Its messages are made printable before a handler gets them."""
    found = logging.getLogger(name)
    found.addFilter(_escaping)  # once: a filter that is there is not added again
    return found


def json_text(data: Any, *, indent: int | None = None, **options: Any) -> str:
    """`json.dumps()`; with an indent, lists without dicts and lists in them take one line each, such as boxes.

    Args:
        options: of `json.dumps()`.
    """
    import json

    if indent is None:
        return json.dumps(data, **options)

    def lines(value: Any, margin: str) -> str:
        inner = margin + " " * indent
        if isinstance(value, dict) and value:
            rows = [f"{json.dumps({key: 0}, **options)[1:-2]}{lines(one, inner)}" for key, one in value.items()]
            return "{\n" + ",\n".join(inner + row for row in rows) + f"\n{margin}}}"
        if isinstance(value, (list, tuple)) and any(isinstance(one, (dict, list, tuple)) for one in value):
            return "[\n" + ",\n".join(inner + lines(one, inner) for one in value) + f"\n{margin}]"
        return json.dumps(value, **options)

    return lines(data, "")


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_size(text: str | int, what: str) -> int:
    """Bytes, from a number or a text such as `"10GB"` (powers of 1000) or `"512MiB"` (powers of 1024).

    Raises:
        ConfigError: the text is not a size, or one of 2**63 bytes or more; `what` names it in the message.
    """
    size: float
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        size = text
    elif match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", str(text).lower()):
        size = float(match[1]) * _UNITS[match[2] or ""]
    else:
        raise ConfigError(f'{what} is a number of bytes, or a text such as "10GB" or "512MiB", not {text!r}')
    if size >= 2**63:
        raise ConfigError(f"{what} is {text!r}; a number of bytes is less than 2**63")
    return int(size)


def size_text(nbytes: int) -> str:
    """A size for messages, `"181.9 MB"`, in powers of 1000 as `parse_size()` reads it."""
    for unit in ("GB", "MB", "kB"):
        scale = _UNITS[unit[0].lower()]
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} bytes"
