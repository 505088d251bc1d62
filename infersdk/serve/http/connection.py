"""Uvicorn's HTTP/1.1 connection with further limits; h11 parses.

It limits the number of connections and the time to receive the head of a request. It accepts empty lines before a
request, and clients that close their sending side before they receive the response.
"""

from __future__ import annotations

import asyncio
import http
from typing import TYPE_CHECKING, Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...core.text import logger

if TYPE_CHECKING:
    from ..settings import ServerSettings

__all__ = ["Connection", "Connections"]

_log = logger("infersdk.serve")

#: Seconds between two log lines about refused connections.
_LOG_INTERVAL = 10.0


class Connections:
    """The limit on the open connections of a server, and its log line."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.refused = 0
        self._logged = float("-inf")

    def refuse(self, now: float) -> str:
        """Counts a refused connection; returns the message for its client."""
        self.refused += 1
        message = f"the server has {self.limit:,} open connections, its limit (max_connections)"
        if now - self._logged >= _LOG_INTERVAL:
            self._logged = now
            _log.warning("HTTP: %s; %d connections were refused so far", message, self.refused)
        return message


class Connection(H11Protocol):  # type: ignore[misc]
    """One connection of a client."""

    conn: h11.Connection

    def __init__(self, *args: Any, limits: ServerSettings, open_connections: Connections, **named: Any) -> None:
        super().__init__(*args, **named)
        self._limits, self._open = limits, open_connections
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False  # the client has closed its sending side

    @property
    def _busy(self) -> bool:
        """Whether a request is in progress."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self._open.limit:
            self._refuse(503, self._open.refuse(self.loop.time()))
        else:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.conn.their_state is h11.MUST_CLOSE:
            return  # data after `Connection: close` is ignored; h11 would raise an error
        super().data_received(data)
        if self._timer is None and not self._busy and not self.transport.is_closing():
            self._start_timer()

    def eof_received(self) -> bool:
        """Keeps the connection open for the response of a complete request. TLS cannot be half-closed."""
        self._ended = True
        return self._busy and not self.cycle.more_body and self.scheme == "http"

    def handle_events(self) -> None:
        if self.conn.their_state is h11.IDLE:
            self._drop_empty_lines()
        super().handle_events()
        if self._busy:
            self._stop_timer()

    def _drop_empty_lines(self) -> None:
        """Ignores empty lines before a request (RFC 9112, 2.2), which h11 refuses."""
        waiting = self.conn.trailing_data[0]
        if waiting.startswith((b"\r", b"\n")):
            self.conn = h11.Connection(h11.SERVER, self._limits.max_header_bytes)
            if rest := waiting.lstrip(b"\r\n"):
                self.conn.receive_data(rest)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._ended and not self._busy:
            self.transport.close()

    # ---- time ----

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self._limits.read_timeout, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self.conn.trailing_data[0]:
            self._refuse(408, f"the head of the request was not complete after {self._limits.read_timeout:g} s")
        else:
            self.transport.close()

    # ---- responses without a handler ----

    def send_400_response(self, msg: str) -> None:
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self._refuse(400, "this is not a valid HTTP/1.1 request, or its head is too long")
        else:
            self.transport.close()  # the rest of a refused request is invalid

    def _refuse(self, status: int, message: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        body = msgspec.json.encode({"error": message})
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        response = h11.Response(status_code=status, headers=headers, reason=http.HTTPStatus(status).phrase)
        is_head = self._busy and self.scope["method"] == "HEAD"
        if self._busy:  # respond to this request
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        for event in (response, h11.Data(data=b"" if is_head else body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.close()
