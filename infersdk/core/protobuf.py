"""Reading protobuf messages field by field, without a parser.

A field is its number and wire type in a varint, then a varint, 8 bytes, a length and bytes, or 4 bytes.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

__all__ = ["byte_fields", "varint"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def byte_fields(data: bytes | mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields of bytes (texts, bytes and messages) of a message in `data[start:end]`: number, start, end.

    Raises:
        ValueError: it is no message.
    """
    while start < end:
        tag, start = varint(data, start, end)
        kind = tag & 7
        if kind == _VARINT:
            _, start = varint(data, start, end)
        elif kind == _BYTES:
            length, start = varint(data, start, end)
            if start + length > end:
                raise ValueError("a field is longer than its message")
            yield tag >> 3, start, start + length
            start += length
        elif kind in (_FIXED64, _FIXED32):
            start += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"there is no wire type {kind}")


def varint(data: bytes | mmap.mmap, at: int, end: int) -> tuple[int, int]:
    """A number, and where it ends.

    Raises:
        ValueError: it is cut off, or longer than 10 bytes.
    """
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number is cut off")
