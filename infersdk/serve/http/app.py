"""The ASGI application: from a request to its handler, and back."""

from __future__ import annotations

import asyncio
import base64
import re
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from ..errors import RequestError, Status, as_request_error
from ..model_config import as_json
from ..workers import in_worker
from .infer_codec import read_request, write_response
from .messages import (
    HEADER_LENGTH,
    LONG,
    Request,
    Response,
    accepted_encoding,
    check_json_size,
    compress,
    decompress,
    error_response,
    json_response,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence

    from ..access_log import AccessLog
    from ..authentication import Authentication
    from ..messages import InferRequest
    from ..service import InferenceService
    from ..tracing import RequestTrace, Tracing

__all__ = ["Application", "Handler", "Route", "route"]

Handler: TypeAlias = "Callable[..., Awaitable[Response]]"
_Scope: TypeAlias = "MutableMapping[str, Any]"
_Receive: TypeAlias = "Callable[[], Awaitable[MutableMapping[str, Any]]]"
_Send: TypeAlias = "Callable[[MutableMapping[str, Any]], Awaitable[None]]"

#: Bytes of a memoryview that are sent at a time.
_PIECE = 1 << 16

Route: TypeAlias = "tuple[str, re.Pattern[str], Handler]"


def route(method: str, pattern: str, handler: Handler) -> Route:
    """A handler for a method and a path, whose named parts are the handler's arguments."""
    return method, re.compile(pattern), handler


class Application:
    """What a server answers over HTTP.

    Args:
        routes: besides those of the protocol.
        tracing: makes spans of inference requests.
    """

    def __init__(
        self,
        service: InferenceService,
        authentication: Authentication,
        log: AccessLog,
        routes: list[Route],
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing
        self._service, self._authentication, self._log = service, authentication, log
        self._held = 0  # bytes of bodies in memory
        self._routes = [*ProtocolHandlers(service).routes(), *routes]

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """An ASGI application."""
        if scope["type"] != "http":
            return
        started = perf_counter()
        request = _request(scope)
        refused: RequestError | None = None
        trace = self._start_trace(request)
        try:
            response = await self._respond(request, receive)
        except asyncio.CancelledError:
            _uncancel()
            if request.is_gone:
                refused = RequestError(Status.CANCELLED, "the client went away")
            else:
                refused = RequestError(Status.UNAVAILABLE, "the server ends; the request was not complete in time")
            response = error_response(refused)
        except Exception as error:
            known = as_request_error(error)  # its traceback keeps the body in memory
            refused = RequestError(known.status, known.message, known.retry_after)
            response = error_response(refused)
        self._held -= request.held
        if trace is not None:
            request.notes["trace_id"] = trace.trace_id
            trace.end(refused, {"http.response.status_code": response.status, **_attributes(request.notes)})
        try:
            if request.is_read:
                await _send_response(response, send)
            elif not request.is_gone:
                await _send_refusal(request, response, receive, send, self._service.settings.read_timeout)
        finally:
            self._log.write("http", request.method, request.path, response.status, perf_counter() - started,
                            received=len(request.body), sent=response.nbytes, client=request.client,
                            error="" if refused is None else refused.message, **request.notes)  # fmt: skip

    def _start_trace(self, request: Request) -> RequestTrace | None:
        """Begins the span of an inference request."""
        if self._tracing is None or not request.path.endswith(("/infer", "/predict")):
            return None
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.items()}
        attributes = {"http.request.method": request.method, "url.path": request.path}
        return self._tracing.start(f"{request.method} {request.path}", carrier, attributes)

    async def _respond(self, request: Request, receive: _Receive) -> Response:
        self._check_headers(request)
        handler, arguments = self._find(request)
        self._authentication.check_http(request.path, request.headers)
        await self._read_body(request, receive)
        watcher = asyncio.ensure_future(_cancel_on_disconnect(request, receive, asyncio.current_task()))
        try:
            response = await handler(request, **arguments)
        finally:
            watcher.cancel()
        encoding = accepted_encoding(request.headers.get(b"accept-encoding", b"")) if response.may_compress else ""
        if not encoding:
            return response
        return await in_worker(compress, response, encoding, when=response.nbytes > LONG)

    def _find(self, request: Request) -> tuple[Handler, Mapping[str, str]]:
        allowed = []
        for method, pattern, handler in self._routes:
            if (match := pattern.fullmatch(request.path)) is not None:
                if method == request.method:
                    return handler, {
                        key: unquote(value) for key, value in match.groupdict().items() if value is not None
                    }
                allowed.append(method)
        if allowed:
            raise RequestError(
                Status.METHOD, f"{request.path[:200]} takes {' and '.join(allowed)}, not {request.method[:20]}"
            )
        raise RequestError(Status.NOT_FOUND, f"there is nothing at {request.path[:200]!r}")

    def _check_headers(self, request: Request) -> None:
        if b"transfer-encoding" in request.headers and b"content-length" in request.headers:
            raise RequestError(  # another server in front may have taken the other one
                Status.INVALID, "a request has either Content-Length or Transfer-Encoding, and this one has both"
            )
        settings = self._service.settings
        if request.header_count > settings.max_headers or request.header_bytes > settings.max_header_bytes:
            raise RequestError(
                Status.HEADERS,
                f"the head of a request has at most {settings.max_header_bytes:,} bytes (max_header_bytes) in "
                f"{settings.max_headers} headers (max_headers), and this one has {request.header_bytes:,} in "
                f"{request.header_count}",
            )

    async def _read_body(self, request: Request, receive: _Receive) -> None:
        settings = self._service.settings
        # h11 has checked it; it may have leading zeros
        if int(request.headers.get(b"content-length", b"0").lstrip(b"0") or b"0") > settings.max_body:
            raise _too_large(settings.max_body)
        try:
            request.body = await asyncio.wait_for(self._receive_body(request, receive), settings.read_timeout)
        except (TimeoutError, asyncio.TimeoutError):
            raise RequestError(
                Status.TIMEOUT, f"the body was not complete after {settings.read_timeout:g} s (read_timeout)"
            ) from None
        is_json = request.path.startswith("/v2/") and HEADER_LENGTH not in request.headers
        if encoding := request.headers.get(b"content-encoding"):
            limits = [(settings.max_decompressed, "max_decompressed")]
            if is_json:
                limits.append((settings.max_json, "max_json"))
            request.body = await in_worker(decompress, request.body, encoding.strip().lower(), *min(limits))
            self._hold(request, len(request.body))
        if is_json:
            check_json_size(len(request.body), settings.max_json, "max_json")

    async def _receive_body(self, request: Request, receive: _Receive) -> bytes:
        limit, count, parts = self._service.settings.max_body, 0, []
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

    def _hold(self, request: Request, nbytes: int) -> None:
        """Counts bytes of a body that stay in memory until the request ends."""
        limit = self._service.settings.max_bodies
        if self._held + nbytes > limit:
            raise RequestError(
                Status.UNAVAILABLE,
                f"the requests that the server works on have {limit:,} bytes together, its limit (max_bodies); send "
                "this one again later",
                retry_after=1.0,
            )
        self._held += nbytes
        request.held += nbytes


def _request(scope: _Scope) -> Request:
    headers = scope["headers"]
    path = scope["raw_path"].decode("ascii", "replace")  # a %2F in it is part of a name
    if path.startswith(("http://", "https://")):  # as clients of proxies send it (RFC 9112, 3.2.2)
        path = "/" + path.partition("//")[2].partition("/")[2]
    request = Request(scope["method"], path, scope["query_string"], dict(headers), b"")
    if client := scope.get("client"):
        request.client = f"{client[0]}:{client[1]}"
    request.header_count = len(headers)
    request.header_bytes = len(path) + len(request.query) + sum(len(name) + len(value) for name, value in headers)
    return request


def _too_large(limit: int) -> RequestError:
    return RequestError(Status.TOO_LARGE, f"the body has more than {limit:,} bytes, the limit (max_body)")


def _uncancel() -> None:
    """The cancellation of the running task ends here."""
    task = asyncio.current_task()
    if task is not None and hasattr(task, "uncancel"):  # since Python 3.11
        task.uncancel()


async def _cancel_on_disconnect(request: Request, receive: _Receive, task: asyncio.Task[Any] | None) -> None:
    """Cancels the request of a client that has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass
    request.is_gone = True
    if task is not None:
        task.cancel()


async def _send_response(response: Response, send: _Send) -> None:
    await _send_parts(response, send, response.headers, more=False)


async def _send_refusal(request: Request, response: Response, receive: _Receive, send: _Send, limit: float) -> None:
    """Answers a request whose body has not been read, and closes the connection.

    What the client still sends is thrown away for `limit` seconds, so that it sees the answer. One that waits for
    `100 Continue` sends nothing.
    """
    rest = None
    if b"expect" not in request.headers and response.status != Status.TIMEOUT.http:
        rest = asyncio.ensure_future(_throw_away(receive))
        await asyncio.sleep(0)
        if rest.done() and b"transfer-encoding" not in request.headers:  # all of it has come already
            rest.result()
            await _send_response(response, send)
            return
    try:
        await _send_parts(response, send, [*response.headers, ("connection", "close")], more=True)
        if rest is not None:
            await asyncio.wait([rest], timeout=limit)
        await send({"type": "http.response.body", "body": b""})
    finally:
        if rest is not None:
            rest.cancel()


async def _throw_away(receive: _Receive) -> None:
    more = True
    while more:
        message = await receive()
        more = message["type"] == "http.request" and message.get("more_body", False)


async def _send_parts(response: Response, send: _Send, more_headers: Sequence[tuple[str, str]], *, more: bool) -> None:
    headers = [
        (b"content-type", response.content_type.encode()),
        (b"content-length", str(response.nbytes).encode()),
        *((name.encode(), value.encode()) for name, value in more_headers),
    ]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    *first, last = [piece for part in response.parts for piece in _pieces(part)] or [b""]
    for piece in first:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": last, "more_body": more})


def _pieces(part: bytes | memoryview) -> Iterable[bytes | memoryview]:
    """A part of a body as it is sent. h11 copies a memoryview: pieces of it need no large block of memory."""
    if isinstance(part, bytes):
        return [part]
    return [part[start : start + _PIECE] for start in range(0, len(part), _PIECE)]


_MODEL = r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?"
_REGIONS = r"/v2/(?P<kind>system|cuda)sharedmemory(?:/region/(?P<name>[^/]+))?"


class ProtocolHandlers:
    """The endpoints of the protocol and of Triton's extensions."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """In the order in which paths are compared: the most frequent first."""
        return [
            route("POST", rf"{_MODEL}/infer", self.infer),
            route("GET", r"/v2/health/live", self.live),
            route("GET", r"/v2/health/ready", self.ready),
            route("GET", r"/v2/?", self.server_metadata),
            route("GET", r"/v2/models/stats", self.statistics),
            route("GET", _MODEL, self.model_metadata),
            route("GET", rf"{_MODEL}/ready", self.model_ready),
            route("GET", rf"{_MODEL}/config", self.model_config),
            route("GET", rf"{_MODEL}/stats", self.statistics),
            route("POST", r"/v2/repository/index", self.index),
            route("POST", r"/v2/repository/models/(?P<name>[^/]+)/load", self.load),
            route("POST", r"/v2/repository/models/(?P<name>[^/]+)/unload", self.unload),
            route("GET", rf"{_REGIONS}/status", self.region_status),
            route("POST", rf"{_REGIONS}/register", self.register),
            route("POST", rf"{_REGIONS}/unregister", self.unregister),
            route("GET", r"/v2(?:/models/(?P<name>[^/]+))?/trace/setting", self.trace),
            route("POST", r"/v2(?:/models/(?P<name>[^/]+))?/trace/setting", self.trace),
            route("GET", r"/v2/logging", self.logging),
            route("POST", r"/v2/logging", self.logging),
        ]

    async def infer(self, request: Request, name: str, version: str = "") -> Response:
        length = request.headers.get(HEADER_LENGTH)
        if length is not None and (not length.isdigit() or len(length) > 18):
            raise RequestError(Status.INVALID, "Inference-Header-Content-Length is a number of bytes")
        service = self._service
        service.repository.find(name, version)  # an unknown model is said to be that, whatever the body
        header_length = None if length is None else int(length)
        asked, binary = await read_request(request.body, header_length, name, version, service)
        request.notes = _notes(asked)
        response = await service.infer(asked)
        placed = service.place(response, asked.outputs)
        parts, header_length = await write_response(asked, response, placed, binary, service.settings.max_elements)
        if header_length is None:
            return Response(200, parts, may_compress=True)
        headers = [("inference-header-content-length", str(header_length))]
        return Response(200, parts, "application/octet-stream", headers, may_compress=True)

    async def live(self, request: Request) -> Response:
        return Response(200)

    async def ready(self, request: Request) -> Response:
        return Response(200 if self._service.ready else 400)

    async def model_ready(self, request: Request, name: str, version: str = "") -> Response:
        if self._service.model_ready(name, version):
            return Response(200)
        raise RequestError(Status.INVALID, f"model {name!r} is not ready")

    async def server_metadata(self, request: Request) -> Response:
        return json_response(self._service.server_metadata())

    async def model_metadata(self, request: Request, name: str, version: str = "") -> Response:
        return json_response(self._service.model_metadata(name, version))

    async def model_config(self, request: Request, name: str, version: str = "") -> Response:
        return json_response(as_json(self._service.model_config(name, version)))

    async def statistics(self, request: Request, name: str = "", version: str = "") -> Response:
        return json_response({"model_stats": self._service.statistics(name, version)})

    async def index(self, request: Request) -> Response:
        return json_response(self._service.index(only_ready=bool(request.json().get("ready", False))))

    async def load(self, request: Request, name: str) -> Response:
        await self._service.load(name, _parameters(request))
        return Response(200)

    async def unload(self, request: Request, name: str) -> Response:
        parameters = _parameters(request)
        parameters.pop("unload_dependents", None)  # there are no ensembles: no model depends on another
        await self._service.unload(name)
        return Response(200)

    async def region_status(self, request: Request, kind: str, name: str = "") -> Response:
        if kind == "cuda":
            on_devices = self._service.regions.cuda_status(name)
            return json_response(
                [{"name": r.name, "device_id": r.device_id, "byte_size": r.byte_size} for r in on_devices]
            )
        regions = self._service.regions.status(name)
        return json_response(
            [{"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size} for r in regions]
        )

    async def register(self, request: Request, kind: str, name: str = "") -> Response:
        body = request.json()
        if kind == "cuda":
            self._service.regions.register_cuda(name, *_cuda_region(name, body))
            return Response(200)
        key, offset, size = body.get("key"), body.get("offset", 0), body.get("byte_size")
        if not name or not isinstance(key, str) or type(offset) is not int or type(size) is not int:
            raise RequestError(
                Status.INVALID, "a region is registered with its name in the path, and with key, offset and byte_size"
            )
        self._service.regions.register(name, key, offset, size)
        return Response(200)

    async def unregister(self, request: Request, kind: str, name: str = "") -> Response:
        self._service.regions.unregister(name, cuda=kind == "cuda")
        return Response(200)

    async def trace(self, request: Request, name: str = "") -> Response:
        return json_response(self._service.trace_settings(name, request.json() if request.method == "POST" else {}))

    async def logging(self, request: Request) -> Response:
        return json_response(self._service.log_settings(request.json() if request.method == "POST" else {}))


def _cuda_region(name: str, body: Mapping[str, Any]) -> tuple[bytes, int, int]:
    """The handle, the device and the size of a region of a CUDA device."""
    handle, device, size = body.get("raw_handle"), body.get("device_id", 0), body.get("byte_size")
    text = handle.get("b64") if isinstance(handle, dict) else None
    if not name or not isinstance(text, str) or type(device) is not int or type(size) is not int:
        raise RequestError(
            Status.INVALID,
            'a CUDA region is registered with its name in the path, and with raw_handle: {"b64": TEXT}, device_id and '
            "byte_size",
        )
    try:
        return base64.b64decode(text, validate=True), device, size
    except ValueError:
        raise RequestError(Status.INVALID, "raw_handle has text of base64 in b64; it cannot be decoded") from None


def _parameters(request: Request) -> dict[str, Any]:
    parameters = request.json().get("parameters") or {}
    if not isinstance(parameters, dict):
        raise RequestError(Status.INVALID, "parameters is a JSON object")
    return parameters


def _attributes(notes: Mapping[str, Any]) -> dict[str, Any]:
    return {"infersdk.model": notes["model"]} if "model" in notes else {}


def _notes(request: InferRequest) -> dict[str, Any]:
    notes = {"model": request.model}
    if request.id:
        notes["id"] = request.id
    return notes
