"""Sizes in bytes as people write them."""

from __future__ import annotations

import re

from ..errors import ConfigError

__all__ = ["parse_size", "size_text"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_size(text: str | int, what: str) -> int:
    """Bytes, from a number or a text such as `"10GB"` (powers of 1000) or `"512MiB"` (powers of 1024).

    Raises:
        ConfigError: the text is not a size; `what` names it in the message.
    """
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", str(text).lower())
    if match is None:
        raise ConfigError(f'{what} is a number of bytes, or a text such as "10GB" or "512MiB", not {text!r}')
    return int(float(match[1]) * _UNITS[match[2] or ""])


def size_text(nbytes: int) -> str:
    """A size for messages, `"181.9 MB"`, in powers of 1000 as `parse_size()` reads it."""
    for unit in ("GB", "MB", "kB"):
        scale = _UNITS[unit[0].lower()]
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} bytes"
