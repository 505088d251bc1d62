"""HTTP requests and responses, as the handlers see them."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import RequestError, Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "HEADER_LENGTH", "LONG", "Request", "Response", "accepted_encoding", "check_json_size", "compress", "decompress",
    "error_response", "json_response",
]  # fmt: skip

#: The header with the bytes of JSON in front of the bytes of tensors.
HEADER_LENGTH = b"inference-header-content-length"
#: Bodies and answers of more bytes are parsed, written and compressed in a worker thread.
LONG = 1 << 16
#: Less than this is sent as it is: compression would save nothing.
_SMALL = 512
#: A weight of `Accept-Encoding`.
_WEIGHT = re.compile(rb"0(\.[0-9]{0,3})?|1(\.0{0,3})?")


@dataclass(slots=True)
class Request:
    """A request with its whole body.

    Attributes:
        headers: by name in lower case; of a name that comes twice the last one.
        query: what stands behind the question mark, undecoded.
        header_count, header_bytes: of the head, as it came.
        is_read: whether all of the body has come.
        is_gone: whether the client has closed the connection.
        held: bytes that count for `max_bodies`.
    """

    method: str
    path: str
    query: bytes
    headers: Mapping[bytes, bytes]
    body: bytes
    client: str = ""
    header_count: int = 0
    header_bytes: int = 0
    is_read: bool = False
    is_gone: bool = False
    held: int = 0
    #: For the access log: what the handler knows of the request.
    notes: dict[str, Any] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; an empty one where there is none.

        Raises:
            RequestError: it is anything else.
        """
        if not self.body:
            return {}
        check_json_size(len(self.body), LONG, "the limit of this path")
        try:
            return msgspec.json.decode(self.body, type=dict[str, Any])
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise RequestError(Status.INVALID, f"the body is not a JSON object: {error}") from None


@dataclass(slots=True)
class Response:
    """What goes back: a status, headers, and the parts of the body, which are sent one after another.

    Attributes:
        may_compress: whether it is compressed where the client accepts that. As with Triton inference alone is: its
            clients accept compression everywhere, and decompress there alone.
    """

    status: int
    parts: Sequence[bytes | memoryview] = ()
    content_type: str = "application/json"
    headers: Sequence[tuple[str, str]] = ()
    may_compress: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the body."""
        return sum(len(part) for part in self.parts)


def json_response(value: Any, status: int = 200) -> Response:
    """A response with a value as JSON."""
    return Response(status, [msgspec.json.encode(value)])


def error_response(error: RequestError) -> Response:
    """The response to a request that failed: `{"error": message}`."""
    return Response(error.status.http, [msgspec.json.encode({"error": error.message})], headers=error.headers)


def check_json_size(nbytes: int, limit: int, name: str) -> None:
    """Raises RequestError for JSON of more bytes than the limit of that name."""
    if nbytes > limit:
        raise RequestError(
            Status.TOO_LARGE,
            f"the JSON of the request has {nbytes:,} bytes, and {name} is {limit:,}; send tensors as bytes",
        )


def decompress(body: bytes, encoding: bytes, limit: int, setting: str) -> bytes:
    """A body as it was before `Content-Encoding`.

    Args:
        limit: bytes, of the setting of that name.

    Raises:
        RequestError: the encoding is unknown, the data is damaged, or there is more of it than `limit` bytes.
    """
    if encoding in (b"", b"identity"):
        return body
    if encoding not in (b"gzip", b"deflate"):
        raise RequestError(
            Status.MEDIA_TYPE,
            f"unknown Content-Encoding {encoding.decode('latin-1')[:50]!r}; use gzip, deflate or none",
        )
    decoder = zlib.decompressobj(wbits=zlib.MAX_WBITS | (16 if encoding == b"gzip" else 0))
    try:
        data = decoder.decompress(body, limit + 1)
    except zlib.error as error:
        raise RequestError(Status.INVALID, f"the body cannot be decompressed: {error}") from None
    if len(data) > limit:
        raise RequestError(
            Status.TOO_LARGE, f"the body has more than {limit:,} bytes after decompression, the limit ({setting})"
        )
    if not decoder.eof or decoder.unused_data:
        raise RequestError(Status.INVALID, "the compressed body is cut off, or followed by other data")
    return data


def accepted_encoding(header: bytes) -> str:
    """The encoding of `Accept-Encoding` for an answer: `"gzip"`, `"deflate"`, or `""` for none (RFC 9110, 12.5.3)."""
    weights: dict[bytes, float] = {}
    for part in header.lower().split(b","):
        name, *parameters = (text.strip() for text in part.split(b";"))
        weight = next((text[2:] for text in parameters if text.startswith(b"q=")), b"1")
        weights[name] = float(weight) if _WEIGHT.fullmatch(weight) else 0.0
    anything = weights.get(b"*", 0.0)
    best = max(("gzip", "deflate"), key=lambda name: weights.get(name.encode(), anything))
    return best if weights.get(best.encode(), anything) > 0 else ""


def compress(response: Response, encoding: str) -> Response:
    """The response with this encoding, where that is worth it."""
    if response.nbytes < _SMALL:
        return response
    encoder = zlib.compressobj(level=1, wbits=zlib.MAX_WBITS | (16 if encoding == "gzip" else 0))
    data = b"".join([*map(encoder.compress, response.parts), encoder.flush()])
    headers = [*response.headers, ("content-encoding", encoding)]
    return Response(response.status, [data], response.content_type, headers)
