"""The file format of bundles: a ZIP file of which each byte follows from its entries.

The reader does not search a directory. It computes all headers from the manifest, and compares them with the file: a
file with a changed, missing or additional byte outside of the entries is refused. Other programs read the file as ZIP.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from ..errors import BundleFormatError, OutputError
from .manifest import FIRST, Part

__all__ = ["ALIGNMENT", "first_entry", "pieces", "read_entries"]

#: The data of each entry begins at a multiple of this many bytes, so that weights can be used where they are mapped.
ALIGNMENT = 64
#: Maximum size of the manifest, in bytes.
_LARGEST_MANIFEST = 16 << 20
#: Maximum size and number of entries of a file: ZIP has 32 bits for sizes and offsets, and 16 for the number.
_LARGEST_FILE, _MOST_ENTRIES = 0xFFFFFFFF, 0xFFFF

_LOCAL, _DIRECTORY, _END = struct.Struct("<4s5H3I2H"), struct.Struct("<4s6H3I5H2I"), struct.Struct("<4s4H2IH")
_VERSION, _DATE, _MODE = 20, 0x21, 0o100644 << 16  # ZIP 2.0; 1 January 1980; a regular file
#: The extra field that pads a header, as `zipalign` of Android writes it: an identifier and a length.
_PADDING, _PADDING_ID = struct.Struct("<2H"), 0xD935


def _header(name: bytes, part: Part, at: int) -> bytes:
    """The local header of an entry at the offset `at`, with the padding in front of its data."""
    padding = -(at + _LOCAL.size + len(name) + _PADDING.size) % ALIGNMENT
    extra = _PADDING.pack(_PADDING_ID, padding) + bytes(padding)
    fields = _VERSION, 0, 0, 0, _DATE, part.crc32, part.size, part.size, len(name), len(extra)
    return _LOCAL.pack(b"PK\3\4", *fields) + name + extra


def pieces(entries: Mapping[str, Part]) -> Iterator[tuple[int, bytes]]:
    """All bytes of the file but the data of the entries: each piece with its offset. The last one ends the file.

    Args:
        entries: by name, in the order of the file.

    Raises:
        OutputError: the file would be larger than 4 GiB, or have more than 65,535 entries.
    """
    if len(entries) > _MOST_ENTRIES:
        raise OutputError(f"a bundle has at most {_MOST_ENTRIES:,} entries, not {len(entries):,}; pack fewer samples")
    at, directory = 0, bytearray()
    for name, part in entries.items():
        encoded = name.encode("ascii")
        header = _header(encoded, part, at)
        if at + len(header) + part.size > _LARGEST_FILE:
            raise OutputError(f"a bundle has at most 4 GiB; with {name!r} it is larger")
        yield at, header
        fields = _VERSION, _VERSION, 0, 0, 0, _DATE, part.crc32, part.size, part.size, len(encoded), 0, 0, 0, 0, _MODE
        directory += _DIRECTORY.pack(b"PK\1\2", *fields, at) + encoded
        at += len(header) + part.size
    count = len(entries)
    yield at, bytes(directory) + _END.pack(b"PK\5\6", 0, 0, count, count, len(directory), at, 0)


def first_entry(file: BinaryIO) -> bytes:
    """The data of the first entry. Raises BundleFormatError for a file that does not begin as a bundle does."""
    header = file.read(_LOCAL.size)
    if len(header) < _LOCAL.size:
        raise BundleFormatError(f"it has {len(header)} bytes, so it is not a bundle")
    magic, *_, size, _, name_length, extra_length = _LOCAL.unpack(header)
    if magic != b"PK\3\4" or file.read(name_length) != FIRST.encode():
        raise BundleFormatError(f"it does not begin with the entry {FIRST!r}, so it is not a bundle")
    file.seek(extra_length, os.SEEK_CUR)
    data = file.read(size) if size <= _LARGEST_MANIFEST else b""
    if len(data) != size:
        raise BundleFormatError(
            f"its manifest has {size:,} bytes, and the file has {_size_of(file):,}; it was cut, or changed"
        )
    return data


def read_entries(file: BinaryIO, entries: Mapping[str, Part]) -> dict[str, io.BytesIO]:
    """The data of each entry. All other bytes of the file are compared with those that the entries imply.

    Raises:
        BundleFormatError: the file has another size or other headers.
    """
    try:
        parts = list(pieces(entries))
    except OutputError as error:
        raise BundleFormatError(f"its manifest is wrong: {error}") from None
    size, end = _size_of(file), parts[-1][0] + len(parts[-1][1])
    if size != end:
        raise BundleFormatError(f"it has {size:,} bytes, and its manifest describes {end:,}; it was cut, or changed")
    file.seek(0)
    result: dict[str, io.BytesIO] = {}
    for (at, piece), name in zip(parts, (*entries, None), strict=True):
        if file.read(len(piece)) != piece:
            raise BundleFormatError(f"it was changed: the headers from byte {at:,} on are not those of its manifest")
        if name is not None:
            result[name] = io.BytesIO(file.read(entries[name].size))
    return result


def _size_of(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size
