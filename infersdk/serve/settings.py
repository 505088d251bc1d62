"""The table `server` of a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from ..config import convert

__all__ = ["ServerSettings"]

#: Bytes of memory: up to 1 TiB.
_Bytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
#: Bytes of one message: gRPC counts them in 31 bits.
_Message = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
_Elements = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
#: Up to a day.
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a server listens, and what it takes.

    Attributes:
        name: what it calls itself in its metadata. Some clients expect `"triton"`.
        host: the address that it listens on; `"0.0.0.0"` for all.
        http_port, grpc_port: 0 takes a free one; None does without.
        certificate, private_key: PEM files: both ports speak TLS.
        api_keys: a request needs one of them, as `Authorization: Bearer KEY` or `X-API-Key: KEY`. Live and ready need
            none.
        model_control: whether clients may load and unload the models of the configuration.
        watch: seconds between two looks at the files of the models; a changed one is loaded anew. None never looks.
        shared_memory_prefix: POSIX shared memory that clients may name: what begins with it, such as `"/frames-"`;
            `"/"` is all of it. None refuses all.
        max_queue: requests that wait for a model; more are refused. None is eight times what its pipeline holds, at
            least 64.
        default_deadline: seconds for requests that name none.
        max_body: bytes of a request.
        max_decompressed: bytes of a request after decompression.
        max_bodies: bytes of all HTTP requests that the server works on at a time; more are refused with 503.
        max_json: bytes of JSON in a request, also after decompression.
        max_elements: of tensors as JSON, as typed contents of gRPC and as BYTES in a request; of outputs as JSON in an
            answer.
        max_headers, max_header_bytes: of an HTTP request.
        max_connections: open at a time to each port, fewer where the process may not open so many files; the same
            number of calls at a time over gRPC.
        max_images: in one request.
        max_results: rows of one result, such as boxes. Parameters of requests that limit rows, such as `max_det`, are
            at most that, or what the configuration of the model has.
        read_timeout: seconds that a client may take to send the head of a request, to send its body, and to take a
            part of its answer; over gRPC for its handshake.
        keep_alive: seconds that a connection stays open between requests.
        drain: seconds for requests that run when the server or a model ends.
        access_log: whether each request is written as a line of JSON to stderr.
        traces: whether requests are traced by OpenTelemetry, as its environment variables say (the extra `otel`).
        page: whether `/` shows the page to try the models on.
    """

    name: str = "infersdk"
    host: str = "127.0.0.1"
    http_port: _Port | None = 8000
    grpc_port: _Port | None = 8001
    certificate: str | None = None
    private_key: str | None = None
    api_keys: Sequence[Annotated[str, msgspec.Meta(min_length=8)]] = ()
    model_control: bool = False
    watch: _Seconds | None = None
    shared_memory_prefix: Annotated[str, msgspec.Meta(pattern=r"^/[^/]*$")] | None = None
    max_queue: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] | None = None
    default_deadline: _Seconds | None = None
    max_body: _Message = 64 << 20
    max_decompressed: _Bytes = 256 << 20
    max_bodies: _Bytes = 1 << 30
    max_json: _Bytes = 32 << 20
    max_elements: _Elements = 2_000_000
    max_headers: _Count = 100
    max_header_bytes: Annotated[int, msgspec.Meta(ge=1, le=16 << 20)] = 32 << 10
    max_connections: _Count = 1000
    max_images: _Count = 64
    max_results: _Count = 30_000
    read_timeout: _Seconds = 30.0
    keep_alive: _Seconds = 60.0
    drain: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 30.0
    access_log: bool = True
    traces: bool = False
    page: bool = True

    def address(self, port: int | None) -> str:
        """The host and a port as addresses are written: an IPv6 address is in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{port}"

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> ServerSettings:
        """The settings of a table, checked.

        Raises:
            ConfigError: names the field at fault.
        """
        return convert(table, cls, "server")
