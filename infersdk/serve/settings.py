"""The table `server` of a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from ..config import convert
from ..errors import ConfigError

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
    """Addresses, limits and features of a server.

    Attributes:
        name: the name in its metadata. Some clients expect `"triton"`.
        host: the address to listen on; `"0.0.0.0"` for all.
        http_port, grpc_port: 0 selects a free port; None disables the protocol.
        certificate, private_key: PEM files; they enable TLS on both ports.
        api_keys: accepted keys, sent as `Authorization: Bearer KEY` or `X-API-Key: KEY`. Health checks need no key.
        model_control: whether clients may load and unload the models of the configuration.
        watch: seconds between checks of the model files; changed models are reloaded. None disables the checks.
        verify: seconds between checks of the golden samples of bundles. A model whose samples differ is not ready, and
            is reloaded. None checks them on loading alone.
        shared_memory_prefix: prefix of the POSIX shared memory that clients may register, such as `"/frames-"`; `"/"`
            allows any name. None disables shared memory, which needs Linux.
        max_queue: waiting images or rows of a model, with which further requests are refused. The rows of one request
            are admitted together. None is eight times the slots of its pipeline, at least 64.
        default_deadline: deadline in seconds of requests without one.
        max_body: bytes of a request.
        max_decompressed: bytes of a request after decompression.
        max_bodies: total bytes of the HTTP requests in progress; further ones are refused with 503, and a request that
            exceeds it alone with 413.
        max_json: bytes of JSON in a request, also after decompression.
        max_elements: elements of a request in JSON, typed contents of gRPC and BYTES; elements of a response in JSON.
        max_headers, max_header_bytes: limits of an HTTP request.
        max_connections: open connections of each port, and concurrent calls over gRPC; fewer if the process may not
            open as many files.
        max_images: images in one request.
        max_results: rows of one result, such as boxes. It also limits parameters such as `max_det`, unless the
            configuration of the model sets a higher value.
        read_timeout: seconds that a client may take to send the head or the body of a request, or to receive a part of
            the response; over gRPC for the handshake.
        keep_alive: seconds that a connection stays open between requests.
        drain: seconds that running requests get when the server stops or a model is closed.
        access_log: whether each request is logged as a line of JSON to stderr.
        traces: whether OpenTelemetry traces requests; its environment variables configure it (the extra `otel`).
        page: whether `/` serves a page to try the models.
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
    verify: _Seconds | None = None
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

    def __post_init__(self) -> None:
        for number, key in enumerate(self.api_keys, 1):
            if not (key.isascii() and key.isprintable() and key == key.strip()):
                raise ValueError(
                    f"key {number} of api_keys cannot be sent by all clients; use printable ASCII characters, without "
                    "spaces at the ends"
                )

    def address(self, port: int | None) -> str:
        """`host:port`; an IPv6 address is in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{port}"

    @classmethod
    def of(cls, table: Any, **settings: Any) -> ServerSettings:
        """The settings of the table `server`, checked.

        Args:
            settings: go before those of the table.

        Raises:
            ConfigError: names the field at fault.
        """
        if not isinstance(table, Mapping):
            raise ConfigError(f"server is a table of settings, not {table!r}")
        return convert({**table, **settings}, cls, "server")
