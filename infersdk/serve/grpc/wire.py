"""The raw contents and the id of an inference message, kept out of protobuf.

Protobuf copies each `raw_input_contents` twice on its way to Python, and each `raw_output_contents` once on its way
back. Here these fields are cut out of the encoded message as views, and put behind an encoded one. The id, in which
requests differ that are equal otherwise, is cut out, too. Protobuf sees the rest.

Source of the format: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import RequestError, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["encode_length_delimited", "join_message", "split_message"]

#: The numbers of the fields in the protocol's messages. The id has the same one in requests and responses.
_ID, _RAW_INPUT, _RAW_OUTPUT = 3, 7, 6
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_OUTPUT_TAG = bytes([_RAW_OUTPUT << 3 | _LENGTH])
_EMPTY_OUTPUT = _OUTPUT_TAG + b"\0"


def split_message(message: bytes) -> tuple[bytes, str, list[memoryview]]:
    """An encoded `ModelInferRequest` without its id and its raw contents, the id, and the contents, as views of
    `message`.

    Raises:
        RequestError: it is not an encoded message.
    """
    view, end = memoryview(message), len(message)
    kept: list[memoryview] = []
    contents: list[memoryview] = []
    request_id = ""
    at = since = 0
    while at < end:
        start = at
        if (tag := message[at]) < 0x80:  # a byte each, as most are, without two calls
            at += 1
        else:
            tag, at = _read_varint(message, at)
        kind = tag & 7
        if kind == _LENGTH:
            if at < end and (length := message[at]) < 0x80:
                at += 1
            else:
                length, at = _read_varint(message, at)
            if length > end - at:
                raise _damaged()
            field = tag >> 3
            if field in (_RAW_INPUT, _ID):
                kept.append(view[since:start])
                since = at + length
                if field == _RAW_INPUT:
                    contents.append(view[at:since])
                else:
                    request_id = _text(message[at:since])
            at += length
        elif kind == _VARINT:
            _, at = _read_varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
            if at > end:
                raise _damaged()
        else:
            raise _damaged()
    if not kept:
        return message, request_id, contents
    kept.append(view[since:])
    return b"".join(kept), request_id, contents


def join_message(head: bytes, request_id: str, contents: Sequence[memoryview | bytes]) -> bytes:
    """An encoded `ModelInferResponse` with this id and these raw contents."""
    parts: list[memoryview | bytes] = [head]
    if request_id:
        parts.append(encode_length_delimited(_ID, request_id.encode()))
    for content in contents:
        parts += (_OUTPUT_TAG, _varint(len(content)), content) if content else (_EMPTY_OUTPUT,)
    return b"".join(parts)


def encode_length_delimited(number: int, content: bytes) -> bytes:
    """A field of bytes, of text or of a message, encoded."""
    return b"".join((_varint(number << 3 | _LENGTH), _varint(len(content)), content))


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    try:
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
            if shift > 63:
                raise _damaged()
    except IndexError:
        raise _damaged() from None


def _text(encoded: bytes) -> str:
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        raise _damaged() from None


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _damaged() -> RequestError:
    return RequestError(Status.INVALID, "the message is not an encoded ModelInferRequest")
