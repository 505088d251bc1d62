"""A server with small models, and clients of both protocols."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NEEDED = (
    *("uvicorn", "h11", "uvloop", "grpc", "tritonclient.grpc", "tritonclient.http", "orjson", "jinja2"),
    *("prometheus_client", "python_multipart", "onnx", "onnxruntime"),
)


def missing() -> str:
    """The first package that is not there, with the reason; empty if all are."""
    for package in NEEDED:
        try:
            importlib.import_module(package)
        except ImportError as error:
            return f'{package} ({error}): pip install "infersdk[cpu,serve,test]"'
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without the packages of the server its tests skip."""
    if reason := missing():
        here = Path(__file__).resolve().parent
        for item in items:
            if here in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=f"the tests of the server need {reason}"))


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The table `models` of a configuration with the networks of `serve_models`."""
    import serve_models

    folder: Path = tmp_path_factory.mktemp("served")
    return serve_models.write_all(folder)


@pytest.fixture(scope="session")
def server(tables: dict[str, Any]) -> Iterator[Any]:
    """A server of these models, on free ports."""
    from infersdk.serve import Server

    settings = {
        "http_port": 0, "grpc_port": 0, "shared_memory_prefix": "/", "model_control": True, "access_log": False,
        "max_body": 8 << 20, "max_decompressed": 16 << 20,
    }  # fmt: skip
    with Server({"models": tables, "server": settings}).start() as running:
        yield running


@pytest.fixture
def http(server: Any) -> Iterator[Any]:
    """A client over HTTP."""
    import tritonclient.http

    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
        yield client


@pytest.fixture
def grpc(server: Any) -> Iterator[Any]:
    """A client over gRPC."""
    import tritonclient.grpc

    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        yield client
