"""The gRPC server: the calls of the protocol, with limits and an access log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from ...errors import ConfigError
from ..errors import RequestError, Status, as_request_error, shortened
from ..workers import in_worker
from .infer_codec import read_request, response_message

if TYPE_CHECKING:
    from ..access_log import AccessLog
    from ..service import InferenceService
    from ..tracing import RequestTrace

__all__ = ["open_grpc"]

#: The fields of a response in the form of protobuf's JSON; None is a response without fields.
_Fields: TypeAlias = "dict[str, Any] | None"
_SERVICE = "inference.GRPCInferenceService"
_TRACED = ("ModelInfer", "ModelStreamInfer")
#: Bytes of a message besides its tensors.
_OVERHEAD = 1 << 16
#: Concurrent requests of one stream.
_STREAM_AHEAD = 64
#: Messages up to this size are parsed in the thread of the event loop.
_QUICK_NBYTES = 256 << 10
#: Seconds that clients get to close idle connections.
_GOODBYE = 0.3
#: Maximum bytes of an error message in trailers.
_LONGEST_MESSAGE = 4096
_PRINTABLE = "".join(map(chr, range(32, 127))).replace("%", "")


async def open_grpc(
    service: InferenceService, log: AccessLog, max_connections: int
) -> tuple[int, Callable[[], Awaitable[None]]]:
    """Opens the port. Returns its number, and a function that closes it after the running calls. Connections beyond
    `max_connections` are closed.

    Raises:
        ConfigError: the port cannot be opened.
    """
    settings = service.settings
    handlers = _Calls(service, log)
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", settings.max_body + _OVERHEAD),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", settings.max_header_bytes),
            ("grpc.so_reuseport", 0),
            ("grpc.max_allowed_incoming_connections", max_connections),
            ("grpc.max_concurrent_streams", settings.max_connections),
            ("grpc.max_connection_idle_ms", int(settings.keep_alive * 1000)),
            ("grpc.server_handshake_timeout_ms", int(settings.read_timeout * 1000)),
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", int(settings.read_timeout * 1000)),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
        ],
        maximum_concurrent_rpcs=settings.max_connections,
    )
    server.add_generic_rpc_handlers((handlers,))
    address = settings.address(settings.grpc_port)
    try:
        if settings.certificate is None or settings.private_key is None:
            port = server.add_insecure_port(address)
        else:
            with open(settings.private_key, "rb") as key, open(settings.certificate, "rb") as chain:
                credentials = grpc.ssl_server_credentials([(key.read(), chain.read())])
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise ConfigError(f"server: cannot listen on {address}: {error}") from None
    await server.start()

    async def close() -> None:
        """Refuses new connections and requests, and waits `drain` seconds for running calls."""
        stopping = asyncio.ensure_future(server.stop(settings.drain))
        try:
            await handlers.end(settings.drain)
            await asyncio.wait([stopping], timeout=_GOODBYE)  # clients close their connections
            await server.stop(None)  # closes connections without any data
        finally:
            await stopping

    return int(port), close


class _Calls:
    """The handlers of all calls: authentication, errors, access log and traces."""

    def __init__(self, service: InferenceService, log: AccessLog) -> None:
        self._service, self._log = service, log
        self._running = set[asyncio.Task[Any]]()
        self._readers = set[asyncio.Task[None]]()  # of open streams
        self._ending = False
        #: The handler of each call, by its path.
        self._handlers: dict[str, Any] = {
            f"/{_SERVICE}/ModelInfer": grpc.unary_unary_rpc_method_handler(self._infer),
            f"/{_SERVICE}/ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self._stream_infer),
            # grpc.health.v1, as Kubernetes asks it: the message `status: SERVING` or `NOT_SERVING`, encoded.
            "/grpc.health.v1.Health/Check": grpc.unary_unary_rpc_method_handler(self._wrap("Check", self._health)),
        }
        for name, call in _other_calls(service).items():
            handler = self._wrap(name, _decoded(name, call))
            self._handlers[f"/{_SERVICE}/{name}"] = grpc.unary_unary_rpc_method_handler(handler)

    def service(self, details: Any) -> Any:
        """The handler of a call, as in `grpc.GenericRpcHandler`. Called before the message is received."""
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)  # the task ends with the call
        task.add_done_callback(self._running.discard)
        handler = self._handlers.get(details.method)
        if handler is None or not self._service.authentication.needs_key:
            return handler
        metadata = {key.encode(): text.encode() for key, text in details.invocation_metadata if isinstance(text, str)}
        name = details.method.rpartition("/")[2]
        try:
            self._service.authentication.check(name, metadata)
        except RequestError as error:
            return self._refusal(name, error)
        return handler

    def _refusal(self, name: str, refused: RequestError) -> Any:
        """A handler that refuses a call without reading its message."""

        async def refuse(messages: Any) -> None:
            raise refused

        return grpc.stream_unary_rpc_method_handler(self._wrap(name, refuse))

    async def end(self, drain: float) -> None:
        """Ends streams after their received requests, and waits at most `drain` seconds for all calls."""
        self._ending = True
        for reader in self._readers:
            reader.cancel()
        if self._running:
            await asyncio.wait(list(self._running), timeout=drain)

    async def _health(self, request: bytes) -> bytes:
        return b"\x08\x01" if self._service.ready else b"\x08\x02"

    def _wrap(self, name: str, call: Callable[[Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        async def handler(request: Any, context: Any) -> Any:
            return await self._answer(name, context, call(request), {})

        return handler

    async def _infer(self, message: bytes, context: Any) -> bytes:
        notes: dict[str, Any] = {"received": len(message)}
        run = self._run(message, context.time_remaining(), notes)
        result: bytes = await self._answer("ModelInfer", context, run, notes)
        return result

    async def _run(
        self, message: bytes, remaining: float | None, notes: dict[str, Any], *, streamed: bool = False
    ) -> bytes:
        """The encoded response to an encoded request, as a call or a stream has it. `notes` gets fields of the access
        log.
        """
        large = len(message) > _QUICK_NBYTES
        request = await in_worker(read_request, message, self._service, remaining, notes, when=large)
        async with self._service.infer(request) as response:
            answer = response_message(response)
            if streamed:
                answer.parameters["triton_final_response"].bool_param = True  # as Triton's: a request has one response
                answer = service_pb2.ModelStreamInferResponse(infer_response=answer)
            encoded: bytes = answer.SerializeToString()
        notes["sent"] = len(encoded)
        return encoded

    async def _answer(self, name: str, context: Any, call: Awaitable[Any], notes: dict[str, Any]) -> Any:
        """The result of a call; a failed one is aborted."""
        result, refused = await self._recorded(name, context, call, notes)
        return result if refused is None else await _abort(context, refused)

    async def _recorded(
        self, name: str, context: Any, call: Awaitable[Any], notes: dict[str, Any]
    ) -> tuple[Any, RequestError | None]:
        """The result of a call or its error, which is written to the access log and, for inference, to the traces."""
        started = perf_counter()
        trace = self._start_trace(name, context) if name in _TRACED else None
        refused: RequestError | None = None
        try:
            return await call, None
        except asyncio.CancelledError:
            refused = RequestError("the client went away", Status.CANCELLED)
            raise
        except Exception as error:
            refused = as_request_error(error)
            return None, refused
        finally:
            status, message = ("OK", "") if refused is None else (refused.status.grpc, refused.message)
            if trace is not None:
                trace.end(refused, notes, {"rpc.grpc.status": status})
            if self._log.enabled:  # the peer takes a call into gRPC
                self._log.write("grpc", "POST", f"/{_SERVICE}/{name}", status, perf_counter() - started, error=message,
                                client=context.peer(), **notes)  # fmt: skip

    def _start_trace(self, name: str, context: Any) -> RequestTrace | None:
        """Starts the span of an inference request."""
        if (tracing := self._service.tracing) is None:
            return None
        metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        attributes = {"rpc.system": "grpc", "rpc.service": _SERVICE, "rpc.method": name}
        return tracing.start(f"{_SERVICE}/{name}", metadata, attributes)

    async def _stream_infer(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Responds in the order of the requests, which run concurrently. A failed request does not end the stream."""
        answers: asyncio.Queue[asyncio.Future[bytes] | None] = asyncio.Queue(_STREAM_AHEAD)

        async def read() -> None:
            try:
                async for message in messages:
                    answer = asyncio.ensure_future(self._stream_answer(message, context))
                    try:
                        await answers.put(answer)
                    except BaseException:  # the stream ended while the queue was full
                        answer.cancel()
                        raise
            finally:
                await answers.put(None)

        reader = asyncio.ensure_future(read())
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)
        try:
            while (answer := await answers.get()) is not None:
                yield await answer
            if self._ending:
                await _abort(context, RequestError("the server ends", Status.UNAVAILABLE))
        finally:
            reader.cancel()
            while not answers.empty():
                if (left := answers.get_nowait()) is not None:
                    left.cancel()

    async def _stream_answer(self, message: bytes, context: Any) -> bytes:
        notes: dict[str, Any] = {"received": len(message)}
        run = self._run(message, None, notes, streamed=True)
        result, refused = await self._recorded("ModelStreamInfer", context, run, notes)
        if refused is not None:
            answer = service_pb2.ModelStreamInferResponse(error_message=refused.message)
            answer.infer_response.id = notes.get("id", "")
            result = answer.SerializeToString()
        encoded: bytes = result
        return encoded


def _decoded(name: str, call: Callable[[Any], _Fields | Awaitable[None]]) -> Callable[[bytes], Awaitable[bytes]]:
    """Decodes the request and encodes the response; gRPC would respond to damaged messages with an exception's text."""
    request_class, response_class = (getattr(service_pb2, name + kind) for kind in ("Request", "Response"))

    async def run(message: bytes) -> bytes:
        if len(message) > _QUICK_NBYTES:
            raise RequestError(
                f"the message has {len(message):,} bytes, and at most {_QUICK_NBYTES:,} are taken", Status.TOO_LARGE
            )
        try:
            request = request_class.FromString(message)
        except DecodeError:
            raise RequestError(f"the message is not an encoded {name}Request") from None
        fields = call(request)
        if isinstance(fields, Awaitable):
            await fields
            fields = None
        encoded: bytes = ParseDict(fields or {}, response_class()).SerializeToString()
        return encoded

    return run


async def _abort(context: Any, error: RequestError) -> Any:
    message = error.message
    # Trailers encode a byte other than printable ASCII in three characters; clients refuse trailers above 8 KiB.
    if len(quote(message, safe=_PRINTABLE, errors="replace")) > _LONGEST_MESSAGE:
        message = shortened(message, _LONGEST_MESSAGE // 12)
    await context.abort(getattr(grpc.StatusCode, error.status.grpc), message, tuple(error.headers))


def _other_calls(service: InferenceService) -> dict[str, Callable[[Any], _Fields | Awaitable[None]]]:
    """The calls except inference: a function from the request to the fields of the response, for each."""
    regions = service.regions
    return {
        "ServerLive": lambda request: {"live": True},
        "ServerReady": lambda request: {"ready": service.ready},
        "ServerMetadata": lambda request: service.server_metadata(),
        "ModelReady": lambda request: {"ready": service.model_ready(request.name, request.version)},
        "ModelMetadata": lambda request: service.model_metadata(request.name, request.version),
        "ModelConfig": lambda request: {"config": service.model_config(request.name, request.version)},
        "ModelStatistics": lambda request: {"model_stats": service.statistics(request.name, request.version)},
        "RepositoryIndex": lambda request: {"models": service.index(_of_server(request).ready)},
        "RepositoryModelLoad": lambda request: service.load(_of_server(request).model_name, dict(request.parameters)),
        "RepositoryModelUnload": lambda request: service.unload(_of_server(request).model_name),
        "SystemSharedMemoryStatus": lambda request: _by_name(regions.status(request.name)),
        "SystemSharedMemoryRegister": lambda request: regions.register(
            request.name, request.key, request.offset, request.byte_size
        ),
        "SystemSharedMemoryUnregister": lambda request: regions.unregister(request.name),
        "CudaSharedMemoryStatus": lambda request: _by_name(regions.status(request.name, cuda=True)),
        "CudaSharedMemoryRegister": lambda request: regions.register_cuda(
            request.name, request.raw_handle, request.device_id, request.byte_size
        ),
        "CudaSharedMemoryUnregister": lambda request: regions.unregister(request.name, cuda=True),
        "TraceSetting": lambda request: _traces(service.triton_settings("trace", request.settings, request.model_name)),
        "LogSettings": lambda request: _logs(service.triton_settings("log", request.settings)),
    }


def _of_server(request: Any) -> Any:
    """A request about the models, unless it names a repository."""
    if request.repository_name:
        raise RequestError(
            f"repository_name {request.repository_name!r} is not supported: a server has one repository; leave it out",
            Status.UNIMPLEMENTED,
        )
    return request


def _by_name(regions: list[dict[str, Any]]) -> _Fields:
    return {"regions": {region["name"]: region for region in regions}}


def _traces(settings: dict[str, Any]) -> _Fields:
    lists = {name: value if isinstance(value, list) else [value] for name, value in settings.items()}
    return {"settings": {name: {"value": value} for name, value in lists.items()}}


def _logs(settings: dict[str, Any]) -> _Fields:
    kinds = {bool: "bool_param", int: "uint32_param", str: "string_param"}
    return {"settings": {name: {kinds[type(value)]: value} for name, value in settings.items()}}
