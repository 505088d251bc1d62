"""`infersdk serve`: the models of a configuration over HTTP and gRPC."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..core.text import logger
from ..serve import Server
from .common import given_settings, print_text

DESCRIPTION = (
    "Serves the models of a configuration by the Open Inference Protocol v2, as KServe and Triton "
    "speak it. The table [server] has all settings; those below go before it. SIGTERM and Ctrl-C end it when the "
    "requests that run have ended."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="a TOML, YAML or JSON file with a table for each model")
    parser.add_argument("--host", help="the address to listen on (default: 127.0.0.1; 0.0.0.0 is all)")
    parser.add_argument("--http-port", type=int, metavar="N", help="default: 8000; 0 takes a free one")
    parser.add_argument("--grpc-port", type=int, metavar="N", help="default: 8001; 0 takes a free one")


def run(arguments: argparse.Namespace) -> int:
    for name in ("uvicorn.error", "asyncio", "grpc._server", "grpc._cython.cygrpc"):
        logger(name)  # their tracebacks quote requests, too
    server = Server(arguments.config, **given_settings(arguments, ("host", "http_port", "grpc_port")))
    server.repository.report = _report
    server.run(_report_ports, owns_process=True)
    return 0


def _report(line: str) -> None:
    print_text(line)
    sys.stdout.flush()


def _report_ports(server: Server) -> None:
    scheme = "http" if server.settings.certificate is None else "https"
    for name, port in ((f"HTTP: {scheme}://", server.http_port), ("gRPC: ", server.grpc_port)):
        if port is not None:
            _report(name + server.settings.address(port))
