"""The file format of bundles: a ZIP file of which each byte follows from its entries.

The reader does not search a directory. It computes all headers from the manifest, and compares them with the file: a
file with a changed, missing or additional byte outside of the entries is refused. Other programs read the file as ZIP.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from ..errors import BundleFormatError, OutputError

__all__ = ["ALIGNMENT", "FIRST", "check_headers", "first_entry", "read_entries", "write_entries"]

#: The name of the first entry.
FIRST = "bundle.json"
#: The data of each entry begins at a multiple of this many bytes, so that weights can be used where they are mapped.
ALIGNMENT = 64
#: Maximum size of the manifest, in bytes.
_LARGEST_MANIFEST = 16 << 20
#: Maximum size of a file: ZIP has 32 bits for sizes and offsets.
_LARGEST_FILE = 0xFFFFFFFF

_LOCAL, _DIRECTORY, _END = struct.Struct("<4s5H3I2H"), struct.Struct("<4s6H3I5H2I"), struct.Struct("<4s4H2IH")
_VERSION, _DATE, _MODE = 20, 0x21, 0o100644 << 16  # ZIP 2.0; 1 January 1980; a regular file
#: The extra field that pads a header, as `zipalign` of Android writes it: an identifier and a length.
_PADDING, _PADDING_ID = struct.Struct("<2H"), 0xD935


def _data_at(name: str, at: int) -> int:
    """The offset of the data of an entry whose header is at the offset `at`."""
    end = at + _LOCAL.size + len(name) + _PADDING.size
    return end + -end % ALIGNMENT


def _pieces(contents: Mapping[str, bytes]) -> Iterator[tuple[int, bytes]]:
    """All bytes of a file but the data of its entries: each piece with its offset. The last one ends the file."""
    at, directory = 0, b""
    for name, data in contents.items():
        text, size, crc32 = name.encode("ascii"), len(data), zlib.crc32(data)
        data_at = _data_at(name, at)
        if data_at + size > _LARGEST_FILE:
            raise OutputError(f"a bundle has at most 4 GiB, and {name!r} ends behind that")
        padding = data_at - at - _LOCAL.size - len(text) - _PADDING.size
        fields = 0, 0, 0, _DATE, crc32, size, size, len(text)
        extra = _PADDING.pack(_PADDING_ID, padding) + bytes(padding)
        yield at, _LOCAL.pack(b"PK\3\4", _VERSION, *fields, len(extra)) + text + extra
        directory += _DIRECTORY.pack(b"PK\1\2", _VERSION, _VERSION, *fields, 0, 0, 0, 0, _MODE, at) + text
        at = data_at + size
    count = len(contents)
    yield at, directory + _END.pack(b"PK\5\6", 0, 0, count, count, len(directory), at, 0)


def write_entries(file: BinaryIO, contents: Mapping[str, bytes]) -> None:
    """Writes a file with these entries.

    Raises:
        OutputError: it would have more than 4 GiB.
    """
    for (_, piece), data in zip(_pieces(contents), (*contents.values(), b""), strict=True):
        file.write(piece)
        file.write(data)


def first_entry(file: BinaryIO) -> bytes:
    """The data of the first entry.

    Raises:
        BundleFormatError: the file does not begin as a bundle does, or is too short.
    """
    header = file.read(_LOCAL.size + len(FIRST))
    if len(header) < _LOCAL.size:
        raise BundleFormatError(f"it has {len(header)} bytes and is no bundle")
    magic, *_, size, _, _, _ = _LOCAL.unpack_from(header)
    if magic != b"PK\3\4" or header[_LOCAL.size :] != FIRST.encode():
        raise BundleFormatError(f"it does not begin with the entry {FIRST!r} and is no bundle")
    if size > _LARGEST_MANIFEST:
        raise BundleFormatError(f"its manifest has {size:,} bytes; it was changed")
    return read_entries(file, {FIRST: size})[FIRST]


def read_entries(file: BinaryIO, sizes: Mapping[str, int]) -> dict[str, bytes]:
    """The data of entries of these sizes.

    Raises:
        BundleFormatError: the file is shorter than these, or larger than any bundle.
    """
    at, end = 0, os.fstat(file.fileno()).st_size
    contents: dict[str, bytes] = {}
    for name, size in sizes.items():
        at = _data_at(name, at)
        if at + size > min(end, _LARGEST_FILE):
            raise BundleFormatError(f"it has {end:,} bytes, and {name!r} ends at {at + size:,}; it was cut, or changed")
        file.seek(at)
        contents[name] = file.read(size)
        at += size
    return contents


def check_headers(file: BinaryIO, contents: Mapping[str, bytes]) -> None:
    """Raises BundleFormatError if a byte outside of these entries is not the one that they imply."""
    for at, piece in _pieces(contents):
        file.seek(at)
        if file.read(len(piece)) != piece:
            raise BundleFormatError(f"it was changed: the headers from byte {at:,} on are not those of its manifest")
    if file.read(1):
        raise BundleFormatError("it was changed: other bytes follow its last entry")
