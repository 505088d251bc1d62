"""One GET request over HTTP, with limits on its size and on its whole time. The standard library alone."""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import string
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from ..core._lib import lib, text
from ..core.text import without_password
from ..errors import ImageError

__all__ = ["MAX_BYTES", "MAX_SECONDS", "Answer", "get"]

#: The largest body that is read. The largest JPEG file of a camera has about 50 MB.
MAX_BYTES = 100_000_000
#: The longest time that a request takes, from connecting to the last byte, with all redirections. The time in which the
#: system finds the addresses of a host is not limited here.
MAX_SECONDS = 30.0

_CHUNK = 1 << 16


class Answer(NamedTuple):
    """The response of a server.

    Attributes:
        content_type: in lower case and without parameters, as `"image/jpeg"`; empty if the server names none.
        body: None if the content type was not wanted; the body was not read then.
    """

    content_type: str
    body: bytes | None


def get(
    url: str,
    wanted: Callable[[str], bool] = lambda content_type: True,
    *,
    max_bytes: int = MAX_BYTES,
    max_seconds: float = MAX_SECONDS,
) -> Answer:
    """Requests an address, following redirections to http and https alone.

    Args:
        wanted: whether the body is read, by the content type.
        max_bytes: of the body.
        max_seconds: for all of it but finding the addresses of a host. A server that sends a byte now and then does not
            extend it.

    Raises:
        ImageError: there is no answer, its status is an error, or it is beyond a limit.
    """
    shown = without_password(url)
    with _Deadline(max_seconds) as deadline:
        try:
            with contextlib.closing(_opener(deadline).open(_request(url), timeout=max_seconds)) as response:
                content_type = response.headers.get_content_type() if response.headers.get("Content-Type") else ""
                if not wanted(content_type):
                    return Answer(content_type, None)
                body = _body(response, shown, max_bytes)
        except urllib.error.HTTPError as error:
            error.close()
            raise ImageError(f"{shown}: the server answers {error.code} {error.reason}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            if deadline.passed:
                raise ImageError(f"{shown}: no answer within {max_seconds:g} s") from None
            if isinstance(error, ImageError):  # of the body
                raise
            reason = getattr(error, "reason", None) or error
            raise ImageError(f"{shown}: cannot be read: {reason or type(error).__name__}") from None
        if deadline.passed:  # a connection that is shut down looks like the end of a body without a length
            raise ImageError(f"{shown}: no answer within {max_seconds:g} s")
    return Answer(content_type, body)


def _request(url: str) -> urllib.request.Request:
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    path, query = (quote(part, safe=string.punctuation) for part in (parts.path, parts.query))  # as browsers do
    bare = urlunsplit(parts._replace(netloc=host, path=path, query=query))
    request = urllib.request.Request(
        bare, headers={"User-Agent": f"infersdk/{text(lib.ifs_version())}", "Accept": "*/*"}
    )
    if login:  # for this server alone, and none that it redirects to
        token = base64.b64encode(unquote(login).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {token}")
    return request


def _body(response: Any, shown: str, max_bytes: int) -> bytes:
    length = response.length  # None where the server does not say
    if length is not None and length > max_bytes:
        raise ImageError(f"{shown}: has {length:,} bytes; at most {max_bytes:,} are read")
    body = b"".join(_chunks(response, max_bytes + 1))
    if len(body) > max_bytes:
        raise ImageError(f"{shown}: has more than {max_bytes:,} bytes, which is the most that is read")
    if length is not None and len(body) < length:
        raise ImageError(f"{shown}: the connection ended after {len(body):,} of {length:,} bytes")
    return body


def _chunks(response: Any, limit: int) -> Iterator[bytes]:
    """The body in pieces: `read()` of all would reserve `limit` bytes where the server does not say how many come."""
    while limit > 0 and (chunk := response.read(min(_CHUNK, limit))):
        limit -= len(chunk)
        yield chunk


class _Deadline:
    """Makes the connections of a request, and ends them when its time is over: a time limit of sockets is for each
    read."""

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._end_time = time.monotonic() + seconds
        self._sockets: list[socket.socket] = []
        self._guard = threading.Lock()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def connect(self, address: tuple[str, int], *unused: object) -> socket.socket:
        """A connection to the first address of a host that answers. `socket.create_connection()` would give each
        address the whole time."""
        error = OSError(f"{address[0]} has no address")
        for family, kind, protocol, _, where in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            if (left := self._end_time - time.monotonic()) <= 0:
                break
            connection = None
            try:
                connection = socket.socket(family, kind, protocol)
                connection.settimeout(left)
                connection.connect(where)
                with self._guard:
                    self._sockets.append(connection.dup())  # TLS takes the descriptor of the first one
                    if self.passed:
                        _shut_down(connection)
                return connection
            except OSError as failed:
                error = failed
                if connection is not None:
                    connection.close()
        self.passed = self.passed or time.monotonic() >= self._end_time
        raise error

    def _end(self) -> None:
        with self._guard:
            self.passed = True
            for connection in self._sockets:
                _shut_down(connection)

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()
        with self._guard:
            for connection in self._sockets:
                connection.close()


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _opener(deadline: _Deadline) -> urllib.request.OpenerDirector:
    """For http and https, through the proxies of the environment; no file and no FTP, wherever a server redirects."""

    def made(kind: type[http.client.HTTPConnection]) -> Any:
        def make(*args: Any, **options: Any) -> Any:
            connection: Any = kind(*args, **options)
            connection._create_connection = deadline.connect
            return connection

        return make

    class Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
        def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(made(http.client.HTTPConnection), request)

        def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(made(http.client.HTTPSConnection), request)

    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(), Handler(), urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(), urllib.request.HTTPDefaultErrorHandler(), urllib.request.UnknownHandler(),
    ):  # fmt: skip
        opener.add_handler(handler)
    return opener
