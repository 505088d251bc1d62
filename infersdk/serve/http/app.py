"""The ASGI application: routing, authentication, compression and the access log."""

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
from .exchange import Bodies, cancel_on_disconnect, request_of, send_refusal, send_response
from .infer_codec import read_request, write_response
from .messages import HEADER_LENGTH, LONG, Request, Response, accepted_encoding, compress, error_response, json_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ..access_log import AccessLog
    from ..authentication import Authentication
    from ..messages import InferRequest
    from ..service import InferenceService
    from ..tracing import RequestTrace, Tracing
    from .exchange import Receive, Scope, Send

__all__ = ["Application", "Handler", "Route", "route"]

Handler: TypeAlias = "Callable[..., Awaitable[Response]]"
Route: TypeAlias = "tuple[str, re.Pattern[str], Handler]"


def route(method: str, pattern: str, handler: Handler) -> Route:
    """A route; the named groups of the pattern are arguments of the handler."""
    return method, re.compile(pattern), handler


class Application:
    """The HTTP interface of a server.

    Args:
        routes: routes besides those of the protocol.
        tracing: creates spans of inference requests.
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
        self._bodies = Bodies(service.settings)
        self._routes = [*ProtocolHandlers(service).routes(), *routes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        if scope["type"] != "http":
            return
        started = perf_counter()
        request = request_of(scope)
        refused: RequestError | None = None
        trace = self._start_trace(request)
        try:
            response = await self._respond(request, receive)
        except asyncio.CancelledError:
            _uncancel()
            if request.is_gone:
                refused = RequestError("the client went away", Status.CANCELLED)
            else:
                refused = RequestError("the server ends; the request was not complete in time", Status.UNAVAILABLE)
            response = error_response(refused)
        except Exception as error:
            known = as_request_error(error)  # the traceback of `error` keeps the body in memory
            refused = RequestError(known.message, known.status, known.retry_after)
            response = error_response(refused)
        self._bodies.release(request)
        if trace is not None:
            request.notes["trace_id"] = trace.trace_id
            trace.end(refused, {"http.response.status_code": response.status, **_attributes(request.notes)})
        try:
            if request.is_read:
                await send_response(response, send)
            elif not request.is_gone:
                await send_refusal(request, response, receive, send, self._service.settings.read_timeout)
        finally:
            self._log.write("http", request.method, request.path, response.status, perf_counter() - started,
                            received=len(request.body), sent=response.nbytes, client=request.client,
                            error="" if refused is None else refused.message, **request.notes)  # fmt: skip

    def _start_trace(self, request: Request) -> RequestTrace | None:
        """Starts the span of an inference request."""
        if self._tracing is None or not request.path.endswith(("/infer", "/predict")):
            return None
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.items()}
        attributes = {"http.request.method": request.method, "url.path": request.path}
        return self._tracing.start(f"{request.method} {request.path}", carrier, attributes)

    async def _respond(self, request: Request, receive: Receive) -> Response:
        self._check_headers(request)
        handler, arguments = self._find(request)
        self._authentication.check_http(request.path, request.headers)
        await self._bodies.read(request, receive)
        watcher = asyncio.ensure_future(cancel_on_disconnect(request, receive, asyncio.current_task()))
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
                f"{request.path[:200]} takes {' and '.join(allowed)}, not {request.method[:20]}", Status.METHOD
            )
        raise RequestError(f"there is nothing at {request.path[:200]!r}", Status.NOT_FOUND)

    def _check_headers(self, request: Request) -> None:
        if b"transfer-encoding" in request.headers and b"content-length" in request.headers:
            raise RequestError(  # a proxy may have used the other length
                "a request has either Content-Length or Transfer-Encoding, and this one has both"
            )
        settings = self._service.settings
        if request.header_count > settings.max_headers or request.header_bytes > settings.max_header_bytes:
            raise RequestError(
                f"the head of a request has at most {settings.max_header_bytes:,} bytes (max_header_bytes) in "
                f"{settings.max_headers} headers (max_headers), and this one has {request.header_bytes:,} in "
                f"{request.header_count}",
                Status.HEADERS,
            )


def _uncancel() -> None:
    """Clears the cancellation of the running task."""
    task = asyncio.current_task()
    if task is not None and hasattr(task, "uncancel"):  # since Python 3.11
        task.uncancel()


_MODEL = r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?"
_REGIONS = r"/v2/(?P<kind>system|cuda)sharedmemory(?:/region/(?P<name>[^/]+))?"


class ProtocolHandlers:
    """The endpoints of the protocol and of Triton's extensions."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """The routes in the order of matching, the most frequent first."""
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
            raise RequestError("Inference-Header-Content-Length is a number of bytes")
        service = self._service
        service.repository.find(name, version)  # reports an unknown model before a damaged body
        header_length = None if length is None else int(length)
        asked, binary = await read_request(request.body, header_length, name, version, service)
        request.notes = _notes(asked)
        response = await service.infer(asked)
        parts, header_length = await write_response(asked, response, binary, service.settings.max_elements)
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
        raise RequestError(f"model {name!r} is not ready")

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
        parameters.pop("unload_dependents", None)  # models have no dependents
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
            raise RequestError("a region is registered with its name in the path, and with key, offset and byte_size")
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
    """The handle, device and size of a CUDA region."""
    handle, device, size = body.get("raw_handle"), body.get("device_id", 0), body.get("byte_size")
    text = handle.get("b64") if isinstance(handle, dict) else None
    if not name or not isinstance(text, str) or type(device) is not int or type(size) is not int:
        raise RequestError(
            'a CUDA region is registered with its name in the path, and with raw_handle: {"b64": TEXT}, device_id and '
            "byte_size"
        )
    try:
        return base64.b64decode(text, validate=True), device, size
    except ValueError:
        raise RequestError("raw_handle has text of base64 in b64; it cannot be decoded") from None


def _parameters(request: Request) -> dict[str, Any]:
    parameters = request.json().get("parameters") or {}
    if not isinstance(parameters, dict):
        raise RequestError("parameters is a JSON object")
    return parameters


def _attributes(notes: Mapping[str, Any]) -> dict[str, Any]:
    return {"infersdk.model": notes["model"]} if "model" in notes else {}


def _notes(request: InferRequest) -> dict[str, Any]:
    notes = {"model": request.model}
    if request.id:
        notes["id"] = request.id
    return notes
