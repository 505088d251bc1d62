"""Clients over gRPC that do too much, or nothing."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serve_models
from served_requests import ask, inputs_of, serving, simple_body
from waiting import until

grpc: Any = pytest.importorskip("grpc")
pb: Any = pytest.importorskip("tritonclient.grpc.service_pb2")
#: What a client of HTTP/2 sends first: the preface, and empty settings.
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
SERVICE = "/inference.GRPCInferenceService/"


@pytest.fixture(scope="module")
def strict(tables: dict[str, Any]) -> Iterator[Any]:
    """A server with few connections, which are soon closed."""
    limits = {"max_connections": 10, "keep_alive": 1.0, "read_timeout": 1.0, "api_keys": ["long-enough"]}
    with serving({"simple": tables["simple"]}, **limits) as running:
        yield running


def connect(port: int, hello: bytes = HELLO) -> socket.socket:
    one = socket.create_connection(("127.0.0.1", port), timeout=20)
    one.sendall(hello)
    return one


def is_closed(one: socket.socket, seconds: float) -> bool:
    """Whether the server closes a connection in this time."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        one.settimeout(left)
        try:
            if not one.recv(65536):
                return True
        except TimeoutError:
            return False
        except ConnectionError:
            return True
    return False


def works(port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer = channel.unary_unary(f"{SERVICE}ServerLive")(b"", timeout=20, wait_for_ready=True)
    assert pb.ServerLiveResponse.FromString(answer).live


def test_idle_connections_are_closed(strict: Any) -> None:
    with ExitStack() as held:
        for one in [held.enter_context(connect(strict.grpc_port, hello)) for hello in (HELLO, b"", b"PRI * HTTP")]:
            assert is_closed(one, 20)


def test_more_connections_than_the_limit_are_closed_at_once(strict: Any) -> None:
    with ExitStack() as held:
        ends = [held.enter_context(connect(strict.grpc_port)) for _ in range(30)]
        until(lambda: sum(is_closed(one, 0.02) for one in ends) >= 20)
        assert ask(strict.http_port, "/v2/health/live").status == 200
    works(strict.grpc_port)


def test_a_client_that_is_idle_for_long_calls_again(strict: Any) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{strict.grpc_port}") as channel:
        live = channel.unary_unary(f"{SERVICE}ServerLive")
        assert live(b"", timeout=20)
        time.sleep(1.5)
        assert live(b"", timeout=20)


@pytest.mark.posix
def test_descriptors_are_left_for_http_and_models(tmp_path: Path) -> None:
    program = (
        "import logging, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)); logging.basicConfig();"
        "from infersdk.serve import Server;"
        "Server(sys.argv[1]).run(lambda s: print(s.http_port, s.grpc_port, flush=True))"
    )
    path = serve_models.simple(tmp_path / "simple.onnx")
    table = {"type": "network", "path": str(path), "options": {"threads": 1}}
    own = {"http_port": 0, "grpc_port": 0, "access_log": False, "model_control": True}
    (tmp_path / "app.json").write_text(json.dumps({"models": {"simple": table}, "server": own}))
    command = [sys.executable, "-c", program, str(tmp_path / "app.json")]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        http_port, grpc_port = map(int, running.stdout.readline().split())
        with ExitStack() as held:
            for _ in range(300):
                held.enter_context(connect(grpc_port))
            time.sleep(0.2)
            assert ask(http_port, "/v2/models/simple/infer", simple_body()).status == 200
            assert ask(http_port, "/v2/repository/models/simple/load", b"{}").status == 200
        works(grpc_port)
    finally:
        running.terminate()
        _, err = running.communicate(timeout=60)
    assert "the process may open 256 files (ulimit -n): each port takes at most" in err


def test_a_call_without_a_key_is_refused_before_its_message_comes(strict: Any) -> None:
    never = threading.Event()
    with grpc.insecure_channel(f"127.0.0.1:{strict.grpc_port}") as channel:
        call = channel.stream_unary(f"{SERVICE}ModelInfer").future(iter(lambda: never.wait(30) or b"", True))
        assert call.code() is grpc.StatusCode.UNAUTHENTICATED
    never.set()


@pytest.mark.parametrize("name", ["x" * 100_000, "é" * 100_000, "a" + "\N{GRINNING FACE}" * 10_000 + "\0", "%" * 5000])
def test_errors_that_quote_long_names(server: Any, name: str) -> None:
    infer = pb.ModelInferRequest(model_name="simple", raw_input_contents=[bytes(64)])
    infer.inputs.add(name="INPUT0", datatype=name, shape=[1, 16])
    asks = [
        ("ModelMetadata", pb.ModelMetadataRequest(name=name), grpc.StatusCode.NOT_FOUND),
        ("ModelInfer", pb.ModelInferRequest(model_name=name), grpc.StatusCode.NOT_FOUND),
        ("ModelInfer", infer, grpc.StatusCode.INVALID_ARGUMENT),
        ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name=name), grpc.StatusCode.NOT_FOUND),
        ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name=name), grpc.StatusCode.NOT_FOUND),
    ]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        for call, message, expected in asks:
            ended = channel.unary_unary(f"{SERVICE}{call}").future(message.SerializeToString())
            assert ended.code() is expected, ended.details()
            assert "characters left out]" in ended.details()
            assert len(ended.details()) < 5000


def test_large_messages_are_not_read_in_the_event_loop(server: Any, grpc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from infersdk.serve.grpc import server as module

    threads: list[str] = []
    read = module.read_request

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return read(*arguments)

    monkeypatch.setattr(module, "read_request", noted)
    for count in (4, 200_000):
        x = np.full((1, count), b"", np.object_)
        found = grpc.infer("simple_identity", inputs_of("grpc", {"INPUT0": x}, "BYTES")).as_numpy("OUTPUT0")
        assert found.shape == x.shape
    assert threads[0] == "infersdk-serve"
    assert threads[1] != "infersdk-serve"
