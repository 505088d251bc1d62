"""Uvicorn's HTTP/1.1 with limits: on headers, on the body, on connections, and on the time that a client takes.

The system writes long bodies straight into the memory that the application gets. Uvicorn's way copies them four times,
which for files of half a megabyte takes longer than all else that a request costs here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from httptools import HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .messages import WHOLE_BODY

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..settings import ServerSettings

__all__ = ["protocol_factory"]

#: Bytes that are read at a time until a long body begins. Shorter requests are read whole.
_READ = 1 << 16
#: Memory for a body is taken in advance for so many times the bytes that have come: the length is only promised.
_AHEAD = 16
#: Lengths of so many digits are not read, and left to the parser.
_DIGITS = 16


class _Connection(asyncio.BufferedProtocol):
    """What the event loop knows of a connection: where to write what comes next.

    Args:
        http: what it is for.
        scratch: memory of `_READ` bytes. All connections of an event loop share it, since what it writes there is
            taken out before anything else happens.
    """

    def __init__(self, http: _LimitedProtocol, scratch: memoryview) -> None:
        self._http, self._scratch = http, scratch
        self.connection_made = http.connection_made  # type: ignore[method-assign]
        self.connection_lost = http.connection_lost  # type: ignore[method-assign]
        self.pause_writing = http.pause_writing  # type: ignore[method-assign]
        self.resume_writing = http.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        http = self._http
        return self._scratch if http.body is None else http.rest_of_body()

    def buffer_updated(self, nbytes: int) -> None:
        http = self._http
        if http.body is None:
            http.data_received(bytes(self._scratch[:nbytes]))
        else:
            http.body_received(nbytes)

    def eof_received(self) -> None:
        self._http.eof_received()


class _LimitedProtocol(HttpToolsProtocol):  # type: ignore[misc]
    """One connection. The application gets the body in one piece, when the client has sent all of it: one that is
    refused while it still sends does not see the answer.
    """

    limits: ServerSettings

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._chunks: list[bytes] = []
        #: What has come of a long body, and room for more; None unless the rest of one comes next.
        self.body: bytearray | None = None
        self._view: memoryview | None = None  # of that
        self._length = self._received = self._header_count = self._header_bytes = 0
        self._refused = self._in_message = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self._refuse(503, f"the server has {self.limits.max_connections} connections, the most that it takes")
            return
        self._start_read_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)
        self.parser = None
        self._chunks.clear()
        self.body = self._view = None

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._read_timer is None and not self._in_message:
            self._start_read_timer()
        super().data_received(data)
        if self._in_message and self._length > self._received > 0 and not self._refused:
            self._begin_body()

    # ---- long bodies ----

    def rest_of_body(self) -> memoryview:
        """Where the rest of the body goes."""
        assert self.body is not None
        if self._received == len(self.body):  # here nothing else looks at it, and it may grow
            self._view = None
            self.body += bytes(min(self._length, _AHEAD * self._received) - self._received)
        if self._view is None:
            self._view = memoryview(self.body)
        return self._view[self._received :]

    def _begin_body(self) -> None:
        """From here on the rest of the body goes to memory of its own, past the parser."""
        self.body = bytearray(min(self._length, _AHEAD * self._received))
        self.body[: self._received] = b"".join(self._chunks)
        self._chunks = []

    def body_received(self, nbytes: int) -> None:
        """So many bytes were written into `rest_of_body()`."""
        assert self.body is not None
        self._received += nbytes
        if self._received < self._length:
            return
        self.scope[WHOLE_BODY], self.body, self._view = self.body, None, None
        self.parser = HttpRequestParser(self)  # the old one waits for the body
        self.on_message_complete()

    # ---- what the parser finds ----

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_message = True
        self._chunks, self._received, self._length = [], 0, 0
        self._header_count = self._header_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count_header(len(url), 0)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header(len(name) + len(value), 1)
        super().on_header(name, value)
        if self.headers[-1][0] == b"content-length" and value.isdigit() and len(value) < _DIGITS:
            length = int(value)
            self._length = length if length <= self.limits.max_body else 0

    def _count_header(self, nbytes: int, count: int) -> None:
        self._header_bytes += nbytes
        self._header_count += count
        if self._header_bytes > self.limits.max_header_bytes or self._header_count > self.limits.max_headers:
            raise _HeadersTooLargeError

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            return
        if (
            self._received <= self.limits.max_body
        ):  # of a larger one the rest is not kept, and the application sees that
            self._chunks.append(body)
        self._received += len(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        self._stop_timer("_read_timer")
        self._deliver()
        super().on_message_complete()

    def _deliver(self) -> None:
        self.cycle.body = b"".join(self._chunks)  # not a bytearray: it is not copied once more
        self._chunks = []
        self.cycle.more_body = False
        self.cycle.message_event.set()

    # ---- time ----

    def _start_read_timer(self) -> None:
        self._stop_timer("_read_timer")
        self._read_timer = self.loop.call_later(self.limits.read_timeout, self._read_too_slow)

    def _read_too_slow(self) -> None:
        self._read_timer = None
        if self.cycle is None or not self.cycle.response_started:
            self._refuse(408, f"the request was not complete after {self.limits.read_timeout:g} s")
        else:  # it has its answer, and sends still
            self.transport.abort()
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.get_write_buffer_size() and self._write_timer is None:
            self._write_timer = self.loop.call_later(self.limits.read_timeout, self._write_too_slow)

    def _write_too_slow(self) -> None:
        """The client does not read its answer."""
        self._write_timer = None
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.limits.read_timeout, self._write_too_slow)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_timer("_write_timer")

    def _stop_timers(self) -> None:
        self._stop_timer("_read_timer")
        self._stop_timer("_write_timer")

    def _stop_timer(self, name: str) -> None:
        timer = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)

    # ---- refusals that come before there is a request ----

    def send_400_response(self, msg: str) -> None:
        if self._header_bytes > self.limits.max_header_bytes or self._header_count > self.limits.max_headers:
            self._refuse(
                431,
                f"the headers of a request have at most {self.limits.max_header_bytes:,} bytes in "
                f"{self.limits.max_headers} lines",
            )
        else:
            self._refuse(400, "this is not a valid HTTP/1.1 request")

    def _refuse(self, status: int, message: str) -> None:
        self._refused = True
        body = b'{"error":"%s"}' % message.encode()
        names = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}
        head = f"HTTP/1.1 {status} {names.get(status, 'Service Unavailable')}\r\ncontent-type: application/json\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()


class _HeadersTooLargeError(Exception):
    """Ends the parser, which makes an error of its own of it."""


def protocol_factory(limits: ServerSettings) -> Callable[..., asyncio.BaseProtocol]:
    """What makes the protocol of each connection, with these limits."""
    kind = type("LimitedProtocol", (_LimitedProtocol,), {"limits": limits})
    scratch = memoryview(bytearray(_READ))
    return lambda **named: _Connection(kind(**named), scratch)
