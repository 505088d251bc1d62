"""HTTP requests and responses, as the handlers see them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import RequestError, Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["WHOLE_BODY", "Request", "Response", "compress", "decompress", "error_response", "json_response"]

#: Under this name the scope of a request has its body, where that was read into memory of its own; see `http.protocol`.
WHOLE_BODY = "infersdk.body"
#: Less than this is sent as it is: compression would save nothing.
_SMALL = 512


@dataclass(slots=True)
class Request:
    """A request with its whole body.

    Attributes:
        headers: by name in lower case; of a name that comes twice the last one.
        query: what stands behind the question mark, undecoded.
    """

    method: str
    path: str
    query: bytes
    headers: Mapping[bytes, bytes]
    body: bytes | bytearray
    client: str = ""
    #: For the access log: what the handler knows of the request.
    notes: dict[str, Any] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; an empty one where there is none.

        Raises:
            RequestError: it is anything else.
        """
        if not self.body:
            return {}
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


def decompress(body: bytes | bytearray, encoding: bytes, limit: int) -> bytes | bytearray:
    """A body as it was before `Content-Encoding`.

    Raises:
        RequestError: the encoding is unknown, the data is damaged, or there is more of it than `limit` bytes.
    """
    if encoding in (b"", b"identity"):
        return body
    if encoding not in (b"gzip", b"deflate"):
        raise RequestError(
            Status.MEDIA_TYPE, f"unknown Content-Encoding {encoding.decode('latin-1')!r}; use gzip, deflate or none"
        )
    decoder = zlib.decompressobj(wbits=zlib.MAX_WBITS | (16 if encoding == b"gzip" else 0))
    try:
        data = decoder.decompress(body, limit + 1)
    except zlib.error as error:
        raise RequestError(Status.INVALID, f"the body cannot be decompressed: {error}") from None
    if len(data) > limit:
        raise RequestError(
            Status.TOO_LARGE, f"the body has more than {limit:,} bytes after decompression, the most that is taken"
        )
    if not decoder.eof or decoder.unused_data:
        raise RequestError(Status.INVALID, "the compressed body is cut off, or followed by other data")
    return data


def compress(response: Response, accepted: bytes) -> Response:
    """The response compressed as the client accepts it, where that is worth it."""
    names = {name.strip().split(b";")[0] for name in accepted.lower().split(b",")}
    encoding = "gzip" if b"gzip" in names else "deflate" if b"deflate" in names else ""
    if not encoding or response.nbytes < _SMALL:
        return response
    encoder = zlib.compressobj(level=1, wbits=zlib.MAX_WBITS | (16 if encoding == "gzip" else 0))
    data = b"".join([*map(encoder.compress, response.parts), encoder.flush()])
    headers = [*response.headers, ("content-encoding", encoding)]
    return Response(response.status, [data], response.content_type, headers)
