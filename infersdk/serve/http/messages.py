"""HTTP requests and responses."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import msgspec

from ..errors import RequestError, Status

__all__ = [
    "HEADER_LENGTH", "LONG", "Request", "Response", "Route", "accepted_encoding", "check_json_size", "compress",
    "decompress", "error_response",
]  # fmt: skip

#: The header with the length of the JSON before the bytes of tensors.
HEADER_LENGTH = b"inference-header-content-length"
#: Longer bodies and responses are processed in a worker thread.
LONG = 1 << 16
#: Shorter responses are not compressed.
_SMALL = 512
#: A weight of `Accept-Encoding`.
_WEIGHT = re.compile(rb"0(\.[0-9]{0,3})?|1(\.0{0,3})?")
_Body = TypeVar("_Body")
#: A method, a pattern of paths, and a handler, whose arguments are the request and the named groups of the pattern. It
#: returns a `Response`, None for one without a body, a value for one with JSON, or an awaitable of these.
Route: TypeAlias = tuple[str, str, Callable[..., Any]]


@dataclass(slots=True)
class Request:
    """A request.

    Attributes:
        headers: by lower-case name; the last one of repeated headers.
        header_count, header_bytes: size of the received head.
        is_read: whether the whole body was received.
        is_gone: whether the client has closed the connection.
        held: bytes that count for `max_bodies`.
    """

    method: str
    path: str
    query: bytes
    headers: Mapping[bytes, bytes]
    client: str
    header_count: int
    header_bytes: int
    body: bytes = b""
    is_read: bool = False
    is_gone: bool = False
    held: int = 0
    #: Fields of the access log set by the handler.
    notes: dict[str, Any] = field(default_factory=dict)

    def json(self, kind: type[_Body]) -> _Body:
        """The JSON object in the body, checked for the fields of this type; an empty body is an empty object."""
        check_json_size(len(self.body), LONG, "the limit of this path")
        try:
            return msgspec.json.decode(self.body or b"{}", type=kind)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise RequestError(f"the JSON in the body is not valid: {error}") from None


@dataclass(slots=True)
class Response:
    """A status, headers, and the parts of the body.

    Attributes:
        may_compress: whether it is compressed if the client accepts that. Triton's clients decompress only responses to
            inference requests.
        closes: whether the connection closes after it, which its headers say (RFC 9112, 9.6).
    """

    status: int
    parts: Sequence[bytes | memoryview] = ()
    content_type: str = "application/json"
    headers: Sequence[tuple[str, str]] = ()
    may_compress: bool = False
    closes: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the body."""
        return sum(len(part) for part in self.parts)


def error_response(error: RequestError) -> Response:
    """The response to a request that failed: `{"error": message}`."""
    return Response(error.status.http, [msgspec.json.encode({"error": error.message})], headers=error.headers)


def check_json_size(nbytes: int, limit: int, name: str) -> None:
    """Raises RequestError for JSON of more bytes than the limit of that name."""
    if nbytes > limit:
        raise RequestError(
            f"the JSON of the request has {nbytes:,} bytes, and {name} is {limit:,}; send tensors as bytes",
            Status.TOO_LARGE,
        )


def decompress(body: bytes, encoding: bytes, limit: int) -> bytes:
    """Decompresses a body to at most `limit` bytes, the setting `max_decompressed`."""
    if encoding in (b"", b"identity"):
        return body
    if encoding not in (b"gzip", b"deflate"):
        raise RequestError(
            f"unknown Content-Encoding {encoding.decode('latin-1')[:50]!r}; use gzip, deflate or none",
            Status.MEDIA_TYPE,
        )
    decoder = zlib.decompressobj(wbits=zlib.MAX_WBITS | (16 if encoding == b"gzip" else 0))
    try:
        data = decoder.decompress(body, limit + 1)
    except zlib.error as error:
        raise RequestError(f"the body cannot be decompressed: {error}") from None
    if len(data) > limit:
        raise RequestError(
            f"the body has more than {limit:,} bytes after decompression, the limit (max_decompressed)",
            Status.TOO_LARGE,
        )
    if not decoder.eof or decoder.unused_data:
        raise RequestError("the compressed body is cut off, or followed by other data")
    return data


def accepted_encoding(header: bytes) -> str:
    """The encoding of a response by `Accept-Encoding`: `"gzip"`, `"deflate"`, or `""` for none (RFC 9110, 12.5.3)."""
    weights: dict[bytes, float] = {}
    for part in header.lower().split(b","):
        name, *parameters = (text.strip() for text in part.split(b";"))
        weight = next((text[2:] for text in parameters if text.startswith(b"q=")), b"1")
        weights[name] = float(weight) if _WEIGHT.fullmatch(weight) else 0.0
    anything = weights.get(b"*", 0.0)
    best = max(("gzip", "deflate"), key=lambda name: weights.get(name.encode(), anything))
    return best if weights.get(best.encode(), anything) > 0 else ""


def compress(response: Response, encoding: str) -> Response:
    """Compresses a response unless it is short."""
    if response.nbytes < _SMALL:
        return response
    encoder = zlib.compressobj(level=1, wbits=zlib.MAX_WBITS | (16 if encoding == "gzip" else 0))
    data = b"".join([*map(encoder.compress, response.parts), encoder.flush()])
    headers = [*response.headers, ("content-encoding", encoding)]
    return Response(response.status, [data], response.content_type, headers)
