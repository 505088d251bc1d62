"""Requests to a server, over either protocol, for the tests."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

PROTOCOLS = ("http", "grpc")
#: The prefix of the shared memory of test servers, which needs Linux.
SHARED_MEMORY = "/" if sys.platform == "linux" else None


@contextlib.contextmanager
def serving(models: Mapping[str, Any], **settings: Any) -> Iterator[Any]:
    """A server of these models, on free ports and without a log of requests."""
    from infersdk.serve import Server

    own = {"http_port": 0, "grpc_port": 0, "access_log": False, **settings}
    with Server({"models": models, "server": own}).start() as running:
        yield running


class ServerProcess(NamedTuple):
    """A server in a process of its own, and its ports."""

    process: subprocess.Popen[str]
    http_port: int
    grpc_port: int  # 0 without gRPC


@contextlib.contextmanager
def serving_process(
    models: Mapping[str, Any],
    folder: Path,
    *,
    log: Any = None,
    environment: Mapping[str, str] | None = None,
    **settings: Any,
) -> Iterator[ServerProcess]:
    """As `serving()`, by `infersdk serve` in a process of its own.

    Args:
        folder: for the configuration.
        log: a file for its stderr.
        environment: variables of the process, besides those of this one.
    """
    own = {"http_port": 0, "grpc_port": 0, "access_log": False, **settings}
    (folder / "app.json").write_text(json.dumps({"models": models, "server": own}))
    process = subprocess.Popen(
        [sys.executable, "-m", "infersdk", "serve", str(folder / "app.json")], stdout=subprocess.PIPE, stderr=log,
        text=True, env={**os.environ, "COLUMNS": "200", **(environment or {})},
    )  # fmt: skip
    try:
        ports = {"HTTP": 0, "gRPC": 0}
        last = "HTTP" if own["grpc_port"] is None else "gRPC"
        assert process.stdout is not None
        for line in process.stdout:
            kind, _, address = line.partition(": ")
            if kind in ports:
                ports[kind] = int(address.rsplit(":", 1)[1])
            if kind == last:
                break
        assert ports[last], "the server did not start"
        yield ServerProcess(process, *ports.values())
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def triton(protocol: str) -> Any:
    """The module of tritonclient for a protocol."""
    return importlib.import_module(f"tritonclient.{protocol}")


def client_of(server: Any, protocol: str) -> Any:
    """A client of a server."""
    return triton(protocol).InferenceServerClient(f"127.0.0.1:{getattr(server, f'{protocol}_port')}")


def inputs_of(
    protocol: str, arrays: Mapping[str, Any], datatypes: Mapping[str, str] | str, **options: Any
) -> list[Any]:
    """The inputs of a request of tritonclient."""
    module, inputs = triton(protocol), []
    for name, array in arrays.items():
        datatype = datatypes if isinstance(datatypes, str) else datatypes[name]
        inputs.append(module.InferInput(name, list(array.shape), datatype))
        inputs[-1].set_data_from_numpy(array, **options)
    return inputs


class Answer(NamedTuple):
    """What a server answered over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    port: int, path: str, body: Any = None, *, method: str | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """One request over HTTP; `body` as bytes, or as what is sent as JSON."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data,
        dict(headers or {}),
        method=method or ("GET" if data is None else "POST"),
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return Answer(answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read())


def simple_body(rows: int = 1, **fields: Any) -> dict[str, Any]:
    """The JSON of a request to the model `simple`."""
    data = np.arange(rows * 16).tolist()
    inputs = [
        {"name": "INPUT0", "shape": [rows, 16], "datatype": "INT32", "data": data},
        {"name": "INPUT1", "shape": [rows, 16], "datatype": "INT32", "data": [1] * (rows * 16)},
    ]
    return {"inputs": inputs, **fields}


def binary_body(datatype: str, shape: list[int], data: bytes, **fields: Any) -> tuple[bytes, dict[str, str]]:
    """A request over HTTP whose input `INPUT0` is behind the JSON: its body and headers."""
    entry = {"name": "INPUT0", "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [entry], **fields}).encode()
    return head + data, {"Inference-Header-Content-Length": str(len(head))}
