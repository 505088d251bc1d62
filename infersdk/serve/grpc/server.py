"""The gRPC server: each call of the protocol's service, with limits and an access log."""

from __future__ import annotations

import asyncio
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ..errors import RequestError, Status, as_request_error
from .calls import ProtocolCalls
from .infer_codec import read_request, write_response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from ..access_log import AccessLog
    from ..authentication import Authentication
    from ..service import InferenceService
    from ..tracing import RequestTrace, Tracing

__all__ = ["open_grpc"]

_SERVICE = "inference.GRPCInferenceService"
#: What messages add to the tensors: names, shapes, the encoding.
_OVERHEAD = 1 << 16


async def open_grpc(
    service: InferenceService, authentication: Authentication, log: AccessLog, tracing: Tracing | None
) -> tuple[int, Callable[[], Awaitable[None]]]:
    """Opens the port; returns it, and what closes it when the calls that run have ended.

    Raises:
        ConfigError: it cannot be listened on.
    """
    import grpc

    settings = service.settings
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", settings.max_body + _OVERHEAD),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", settings.max_header_bytes),
            ("grpc.so_reuseport", 0),
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", int(settings.read_timeout * 1000)),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
        ],
        maximum_concurrent_rpcs=settings.max_connections,
    )
    calls = _Calls(service, authentication, log, tracing)
    server.add_generic_rpc_handlers(calls.handlers())
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
        await server.stop(settings.drain)

    return int(port), close


class _Calls:
    """The calls as gRPC sees them: each is authenticated, answered or refused, and put into the access log."""

    def __init__(
        self, service: InferenceService, authentication: Authentication, log: AccessLog, tracing: Tracing | None
    ) -> None:
        self._service, self._authentication, self._log, self._tracing = service, authentication, log, tracing
        self._plain = ProtocolCalls(service)

    def handlers(self) -> tuple[Any, ...]:
        """What `add_generic_rpc_handlers()` takes."""
        import grpc
        from tritonclient.grpc import service_pb2

        methods: dict[str, Any] = {
            "ModelInfer": grpc.unary_unary_rpc_method_handler(self._infer),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self._stream_infer),
        }
        for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
            if method.name not in methods:
                call = _decoded(getattr(service_pb2, method.input_type.name), getattr(self._plain, _snake(method.name)))
                methods[method.name] = grpc.unary_unary_rpc_method_handler(self._wrap(method.name, call))
        # grpc.health.v1, as Kubernetes asks it: the message `status: SERVING` or `NOT_SERVING`, encoded.
        health = {"Check": grpc.unary_unary_rpc_method_handler(self._wrap("Check", self._health))}
        return (
            grpc.method_handlers_generic_handler(_SERVICE, methods),
            grpc.method_handlers_generic_handler("grpc.health.v1.Health", health),
        )

    async def _health(self, request: bytes) -> bytes:
        return b"\x08\x01" if self._service.ready else b"\x08\x02"

    def _wrap(self, name: str, call: Callable[[Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        async def handler(request: Any, context: Any) -> Any:
            async def answer() -> Any:
                return await call(request)

            return await self._answer(name, context, answer, {})

        return handler

    async def _infer(self, message: bytes, context: Any) -> bytes:
        notes: dict[str, Any] = {"received": len(message)}
        trace = self._start_trace("ModelInfer", context)

        call = partial(self._run, message, context.time_remaining(), notes, {})
        result: bytes = await self._answer("ModelInfer", context, call, notes, trace)
        return result

    def _start_trace(self, name: str, context: Any) -> RequestTrace | None:
        """Begins the span of an inference request."""
        if self._tracing is None:
            return None
        metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        attributes = {"rpc.system": "grpc", "rpc.service": _SERVICE, "rpc.method": name}
        return self._tracing.start(f"{_SERVICE}/{name}", metadata, attributes)

    async def _run(
        self, message: bytes, remaining: float | None, notes: dict[str, Any], parameters: dict[str, bool]
    ) -> bytes:
        request, own = read_request(message, self._service, remaining)
        notes["model"] = request.model
        if request.id:
            notes["id"] = request.id
        response = await self._service.infer(request)
        placed = self._service.place(response, request.outputs)
        if own.get("triton_enable_empty_final_response"):
            parameters = {**parameters, "triton_final_response": True}
        encoded = write_response(response, placed, parameters)
        notes["sent"] = len(encoded)
        return encoded

    async def _answer(
        self,
        name: str,
        context: Any,
        call: Callable[[], Awaitable[Any]],
        notes: dict[str, Any],
        trace: RequestTrace | None = None,
    ) -> Any:
        started = perf_counter()
        refused: RequestError | None = None
        try:
            if self._authentication.needs_key:
                self._authentication.check_grpc(name, dict(context.invocation_metadata()))
            return await call()
        except asyncio.CancelledError:
            refused = RequestError(Status.CANCELLED, "the client went away")
            raise
        except Exception as error:
            refused = as_request_error(error)
        finally:
            self._write(name, context, started, refused, notes, trace)
        return await _abort(context, refused)

    def _write(
        self,
        name: str,
        context: Any,
        started: float,
        refused: RequestError | None,
        notes: dict[str, Any],
        trace: RequestTrace | None,
    ) -> None:
        """Puts a call that has ended into the access log and the traces."""
        status, message = ("OK", "") if refused is None else (refused.status.grpc, refused.message)
        if trace is not None:
            notes["trace_id"] = trace.trace_id
            model = {"infersdk.model": notes["model"]} if "model" in notes else {}
            trace.end(refused, {"rpc.grpc.status": status, **model})
        if self._log.enabled:
            self._log.write("grpc", "POST", f"/{_SERVICE}/{name}", status, perf_counter() - started, error=message,
                            client=context.peer(), **notes)  # fmt: skip

    async def _stream_infer(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Answers in the order of the requests, which run side by side. A failed one does not end the stream."""
        try:
            self._authentication.check_grpc("ModelStreamInfer", dict(context.invocation_metadata()))
        except RequestError as error:
            await _abort(context, error)
        answers: asyncio.Queue[asyncio.Future[bytes] | None] = asyncio.Queue(_STREAM_AHEAD)

        async def read() -> None:
            try:
                async for message in messages:
                    answer = asyncio.ensure_future(self._stream_answer(message, context))
                    try:
                        await answers.put(answer)
                    except BaseException:  # the stream ends while the queue is full
                        answer.cancel()
                        raise
            finally:
                await answers.put(None)

        reader = asyncio.ensure_future(read())
        try:
            while (answer := await answers.get()) is not None:
                yield await answer
        finally:
            reader.cancel()
            while not answers.empty():
                if (left := answers.get_nowait()) is not None:
                    left.cancel()

    async def _stream_answer(self, message: bytes, context: Any) -> bytes:
        from tritonclient.grpc import service_pb2

        started = perf_counter()
        refused: RequestError | None = None
        notes: dict[str, Any] = {"received": len(message)}
        trace = self._start_trace("ModelStreamInfer", context)
        try:
            body = await self._run(message, None, notes, {})
            return _in_stream(body)
        except asyncio.CancelledError:
            refused = RequestError(Status.CANCELLED, "the client went away")
            raise
        except Exception as error:
            refused = as_request_error(error)
            response = service_pb2.ModelStreamInferResponse(error_message=refused.message)
            response.infer_response.id = notes.get("id", "")
            encoded: bytes = response.SerializeToString()
            return encoded
        finally:
            self._write("ModelStreamInfer", context, started, refused, notes, trace)


def _decoded(request_class: Any, call: Callable[[Any], Awaitable[Any]]) -> Callable[[bytes], Awaitable[bytes]]:
    """A call between encoded messages. Not gRPC's own decoding, which answers damaged ones with an exception's text."""

    async def run(message: bytes) -> bytes:
        from google.protobuf.message import DecodeError

        try:
            request = request_class.FromString(message)
        except DecodeError:
            raise RequestError(
                Status.INVALID, f"the message is not an encoded {request_class.DESCRIPTOR.name}"
            ) from None
        encoded: bytes = (await call(request)).SerializeToString()
        return encoded

    return run


#: Requests of one stream that run at a time.
_STREAM_AHEAD = 64


def _in_stream(response: bytes) -> bytes:
    """An encoded `ModelStreamInferResponse` around an encoded `ModelInferResponse`: its field 2."""
    from .wire import encode_length_delimited

    return encode_length_delimited(2, response)


async def _abort(context: Any, error: RequestError) -> Any:
    import grpc

    await context.abort(getattr(grpc.StatusCode, error.status.grpc), error.message, tuple(error.headers))


def _snake(name: str) -> str:
    """`ModelReady` as `model_ready`."""
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")
