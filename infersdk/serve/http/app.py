"""The ASGI application: routing, authentication, compression and the access log."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from ..errors import RequestError, Status, as_request_error
from ..workers import in_worker
from .exchange import Bodies, cancel_on_disconnect, request_of, send_refusal, send_response
from .infer_codec import read_request, write_response
from .messages import HEADER_LENGTH, LONG, Request, Response, Route, accepted_encoding, compress, error_response
from .page import page_routes
from .predict import predict_routes

if TYPE_CHECKING:
    from ..access_log import AccessLog
    from ..service import InferenceService
    from ..tracing import RequestTrace
    from .exchange import Receive, Scope, Send

__all__ = ["Application"]


class Application:
    """The HTTP interface of a server."""

    def __init__(self, service: InferenceService, log: AccessLog) -> None:
        self._service, self._log = service, log
        self._bodies = Bodies(service.settings)
        routes = [*protocol_routes(service), *predict_routes(service), *page_routes(service)]
        self._routes = [(method, re.compile(pattern), handler) for method, pattern, handler in routes]

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
            refused = RequestError(known.message, known.status, known.headers)
            response = error_response(refused)
        self._bodies.release(request)
        if trace is not None:
            trace.end(refused, request.notes, {"http.response.status_code": response.status})
        response.closes = self._service.stopping
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
        if (tracing := self._service.tracing) is None or not request.path.endswith(("/infer", "/predict")):
            return None
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.items()}
        attributes = {"http.request.method": request.method, "url.path": request.path}
        return tracing.start(f"{request.method} {request.path}", carrier, attributes)

    async def _respond(self, request: Request, receive: Receive) -> Response:
        self._check_headers(request)
        handler, arguments = self._find(request)
        self._service.authentication.check(request.path, request.headers)
        await self._bodies.read(request, receive)
        watcher = asyncio.ensure_future(cancel_on_disconnect(request, receive, asyncio.current_task()))
        try:
            value = handler(request, **arguments)
            if isinstance(value, Awaitable):
                value = await value
        finally:
            watcher.cancel()
        if not isinstance(value, Response):
            return Response(200, [] if value is None else [msgspec.json.encode(value)])
        encoding = accepted_encoding(request.headers.get(b"accept-encoding", b"")) if value.may_compress else ""
        if not encoding:
            return value
        return await in_worker(compress, value, encoding, when=value.nbytes > LONG)

    def _find(self, request: Request) -> tuple[Callable[..., Any], Mapping[str, str]]:
        allowed = []
        for method, pattern, handler in self._routes:
            if (match := pattern.fullmatch(request.path)) is None:
                continue
            if method == request.method:
                return handler, {key: unquote(value) for key, value in match.groupdict().items() if value is not None}
            allowed.append(method)
        if allowed:
            raise RequestError(
                f"{request.path[:200]} takes {' and '.join(allowed)}, not {request.method[:20]}",
                Status.METHOD,
                [("allow", ", ".join(allowed))],
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


_MODEL = r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[0-9]+))?"
_STORED = r"/v2/repository/models/(?P<name>[^/]+)"
_REGIONS = r"/v2/(?:system|(?P<cuda>cuda))sharedmemory(?:/region/(?P<name>[^/]+))?"


class _Handle(msgspec.Struct):
    b64: bytes


class _CudaPlace(msgspec.Struct):
    """The body of a request that registers a region of a CUDA device."""

    raw_handle: _Handle
    byte_size: int
    device_id: int = 0


class _HostPlace(msgspec.Struct):
    """The body of a request that registers a region of the host."""

    key: str
    byte_size: int
    offset: int = 0


class _Control(msgspec.Struct):
    """The body of a request that loads or unloads a model."""

    parameters: dict[str, Any] | None = None


class _Index(msgspec.Struct):
    """The body of a request for the index: whether it lists only ready models."""

    ready: bool = False


def protocol_routes(service: InferenceService) -> list[Route]:
    """The routes of the protocol and of Triton's extensions in the order of matching, the most frequent first."""
    regions = service.regions

    async def infer(request: Request, name: str, version: str = "") -> Response:
        length = request.headers.get(HEADER_LENGTH)
        if length is not None and (not length.isdigit() or len(length) > 18):
            raise RequestError("Inference-Header-Content-Length is a number of bytes")
        service.repository.find(name, version)  # reports an unknown model before a damaged body
        header_length = None if length is None else int(length)
        asked, binary = await read_request(request.body, header_length, name, version, service)
        request.notes = {"model": asked.model, "id": asked.id}
        async with service.infer(asked) as response:
            parts, header_length = await write_response(asked, response, binary, service.settings.max_elements)
        if header_length is None:
            return Response(200, parts, may_compress=True)
        headers = [("inference-header-content-length", str(header_length))]
        return Response(200, parts, "application/octet-stream", headers, may_compress=True)

    def model_ready(request: Request, **model: str) -> None:
        if not service.model_ready(**model):
            raise RequestError(f"model {model['name']!r} is not ready")

    def unload(request: Request, name: str) -> Awaitable[None]:
        request.json(_Control)  # `unload_dependents` has no effect: models have no dependents
        return service.unload(name)

    def register(request: Request, cuda: str = "", name: str = "") -> None:
        if cuda:
            place = request.json(_CudaPlace)
            regions.register_cuda(name, place.raw_handle.b64, place.device_id, place.byte_size)
        else:
            part = request.json(_HostPlace)
            regions.register(name, part.key, part.offset, part.byte_size)

    def traces(request: Request, name: str = "") -> dict[str, Any]:
        return service.triton_settings("trace", request.json(dict), name)

    def logs(request: Request) -> dict[str, Any]:
        return service.triton_settings("log", request.json(dict))

    return [
        ("POST", rf"{_MODEL}/infer", infer),
        ("GET", r"/v2/health/live", lambda request: None),
        ("GET", r"/v2/health/ready", lambda request: Response(200 if service.ready else 400)),
        ("GET", r"/v2/?", lambda request: service.server_metadata()),
        ("GET", rf"/v2/models/stats|{_MODEL}/stats", lambda request, **of: {"model_stats": service.statistics(**of)}),
        ("GET", _MODEL, lambda request, **model: service.model_metadata(**model)),
        ("GET", rf"{_MODEL}/ready", model_ready),
        ("GET", rf"{_MODEL}/config", lambda request, **model: _config_json(service.model_config(**model))),
        ("POST", r"/v2/repository/index", lambda request: service.index(request.json(_Index).ready)),
        ("POST", rf"{_STORED}/load", lambda request, name: service.load(name, request.json(_Control).parameters or {})),
        ("POST", rf"{_STORED}/unload", unload),
        ("GET", rf"{_REGIONS}/status", lambda request, **region: regions.status(**region)),
        ("POST", rf"{_REGIONS}/register", register),
        ("POST", rf"{_REGIONS}/unregister", lambda request, **region: regions.unregister(**region)),
        *((method, r"/v2(?:/models/(?P<name>[^/]+))?/trace/setting", traces) for method in ("GET", "POST")),
        *((method, r"/v2/logging", logs) for method in ("GET", "POST")),
    ]


def _config_json(fields: dict[str, Any]) -> dict[str, Any]:
    """The message `ModelConfig` as Triton writes it: with all fields, and with numbers as numbers."""
    from google.protobuf.json_format import MessageToDict, ParseDict
    from tritonclient.grpc import model_config_pb2

    config = ParseDict(fields, model_config_pb2.ModelConfig())
    plain = MessageToDict(config, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return _numbers(config.DESCRIPTOR, plain)


def _numbers(descriptor: Any, value: dict[str, Any]) -> dict[str, Any]:
    """Protobuf writes numbers of 64 bits as text; here they become numbers again."""
    for name, inner in value.items():
        field = descriptor.fields_by_name[name]
        if field.message_type is not None:
            if field.message_type.GetOptions().map_entry:
                continue
            for one in inner if isinstance(inner, list) else [inner]:
                _numbers(field.message_type, one)
        elif field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
            value[name] = [int(one) for one in inner] if isinstance(inner, list) else int(inner)
    return value
