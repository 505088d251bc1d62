"""A server with small models, and clients of both protocols."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from served_requests import PROTOCOLS, SHARED_MEMORY, client_of, serving

from infersdk.errors import BackendUnavailableError
from infersdk.serve.server import require_packages

#: Those of the clients and the models. `require_packages()` knows those of the server.
NEEDED = ("tritonclient.http", "onnx", "onnxruntime")


def missing() -> str:
    """The first package that is not there, with the reason; empty if all are."""
    try:
        require_packages()
    except BackendUnavailableError as error:
        return str(error)
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
    """A server of these models."""
    limits = {"max_body": 8 << 20, "max_decompressed": 16 << 20}
    with serving(tables, shared_memory_prefix=SHARED_MEMORY, model_control=True, **limits) as running:
        yield running


@pytest.fixture
def serve() -> Iterator[Callable[..., Any]]:
    """`serving()`, whose servers end with the test."""
    with ExitStack() as stack:
        yield lambda *models, **settings: stack.enter_context(serving(*models, **settings))


@pytest.fixture
def grpc(server: Any) -> Iterator[Any]:
    """A client over gRPC."""
    with client_of(server, "grpc") as client:
        yield client


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def client(server: Any, protocol: str) -> Iterator[Any]:
    """A client over either protocol."""
    with client_of(server, protocol) as one:
        yield one
