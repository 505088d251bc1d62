"""Receiving requests from an ASGI server, and sending responses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import RequestError, Status, retry_after
from ..workers import in_worker
from .messages import HEADER_LENGTH, Request, Response, check_json_size, decompress

if TYPE_CHECKING:
    from ..settings import ServerSettings

__all__ = ["Bodies", "Receive", "Scope", "Send", "cancel_on_disconnect", "request_of", "send_refusal", "send_response"]

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Bodies:
    """Reads the bodies of requests, within the limits of a server."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._held = 0  # bytes of the requests in progress

    async def read(self, request: Request, receive: Receive) -> None:
        """Reads the whole body of a request.

        Raises:
            RequestError: it is too long or too slow, or the limit of all bodies is reached.
            asyncio.CancelledError: the client has disconnected.
        """
        settings = self._settings
        length = int(request.headers.get(b"content-length", b"0"))  # h11 has checked it
        if length > settings.max_body:
            raise _too_large(settings.max_body)
        self._check_alone(length)
        try:
            request.body = await asyncio.wait_for(self._receive(request, receive), settings.read_timeout)
        except asyncio.TimeoutError:
            raise RequestError(
                f"the body was not complete after {settings.read_timeout:g} s (read_timeout)", Status.TIMEOUT
            ) from None
        if encoding := request.headers.get(b"content-encoding"):
            request.body = await in_worker(
                decompress, request.body, encoding.strip().lower(), settings.max_decompressed
            )
            self._hold(request, len(request.body))
        if request.path.startswith("/v2/") and HEADER_LENGTH not in request.headers:
            check_json_size(len(request.body), settings.max_json, "max_json")

    async def _receive(self, request: Request, receive: Receive) -> bytes:
        limit, count, parts = self._settings.max_body, 0, []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                request.is_gone = True
                raise asyncio.CancelledError
            body = message.get("body", b"")
            request.is_read = not message.get("more_body", False)
            count += len(body)
            if count > limit:
                raise _too_large(limit)
            self._hold(request, len(body))
            parts.append(body)
            if request.is_read:
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def release(self, request: Request) -> None:
        """Releases the body of a finished request."""
        self._held -= request.held

    def _hold(self, request: Request, nbytes: int) -> None:
        """Counts bytes of a body against `max_bodies` until the request ends."""
        limit = self._settings.max_bodies
        self._check_alone(request.held + nbytes)
        if self._held + nbytes > limit:
            raise RequestError(
                f"the requests that the server works on have {limit:,} bytes together, its limit (max_bodies); send "
                "this one again later",
                Status.UNAVAILABLE,
                retry_after(1),
            )
        self._held += nbytes
        request.held += nbytes

    def _check_alone(self, nbytes: int) -> None:
        """Raises RequestError for a body that exceeds `max_bodies` even without other requests."""
        if nbytes > (limit := self._settings.max_bodies):
            raise RequestError(
                f"the body, with its decompressed data, has more than {limit:,} bytes, the limit of all requests "
                "together (max_bodies)",
                Status.TOO_LARGE,
            )


def _too_large(limit: int) -> RequestError:
    return RequestError(f"the body has more than {limit:,} bytes, the limit (max_body)", Status.TOO_LARGE)


def request_of(scope: Scope) -> Request:
    """Parses the head of a request."""
    headers = scope["headers"]
    path = scope["raw_path"].decode("ascii", "replace")  # a %2F in it is part of a name
    if path.startswith(("http://", "https://")):  # absolute form (RFC 9112, 3.2.2)
        path = "/" + path.partition("//")[2].partition("/")[2]
    query, client = scope["query_string"], scope.get("client")
    size = len(path) + len(query) + sum(len(name) + len(value) for name, value in headers)
    address = f"{client[0]}:{client[1]}" if client else ""
    return Request(scope["method"], path, query, dict(headers), address, len(headers), size)


async def cancel_on_disconnect(request: Request, receive: Receive, task: asyncio.Task[Any] | None) -> None:
    """Cancels a request when its client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    request.is_gone = True
    if task is not None:
        task.cancel()


async def send_refusal(request: Request, response: Response, receive: Receive, send: Send, limit: float) -> None:
    """Sends the response to a request whose body was not read, and closes the connection.

    The rest of the body is discarded for up to `limit` seconds, so that the client receives the response. A client that
    waits for `100 Continue` sends no body.
    """
    rest = None
    waits = b"expect" in request.headers and not request.held
    if not waits and response.status != Status.TIMEOUT.http:
        rest = asyncio.ensure_future(_throw_away(receive))
        await asyncio.sleep(0)
        if rest.done() and b"transfer-encoding" not in request.headers:  # the whole body was received
            rest.result()
            await send_response(response, send)
            return
    response.closes = True
    try:
        await send_response(response, send, more=True)
        if rest is not None:
            await asyncio.wait([rest], timeout=limit)
        await send({"type": "http.response.body", "body": b""})
    finally:
        if rest is not None:
            rest.cancel()


async def _throw_away(receive: Receive) -> None:
    while (await receive()).get("more_body"):  # the message of a disconnection has no such field
        pass


async def send_response(response: Response, send: Send, *, more: bool = False) -> None:
    """Sends a response. With `more` the caller sends the end of the body; the connection stays open until then."""
    headers = [
        (b"content-type", response.content_type.encode()),
        (b"content-length", str(response.nbytes).encode()),
        *((name.encode(), value.encode()) for name, value in response.headers),
        *([(b"connection", b"close")] if response.closes else []),
    ]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    *first, last = response.parts or [b""]
    for part in first:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": last, "more_body": more})
