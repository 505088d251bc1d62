"""Requests to a server, over either protocol, for the tests."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
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
