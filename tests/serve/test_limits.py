"""Clients that do wrong things: too much, too slowly, half of it, or without a key."""

from __future__ import annotations

import io
import json
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serve_models
from certificates import make_certificate
from served_requests import ask, client_of, inputs_of, serving, simple_body, triton

from infersdk.serve import access_log
from infersdk.serve.access_log import AccessLog

LIMITS = {
    "read_timeout": 0.5, "keep_alive": 0.5, "max_headers": 20,
    "max_header_bytes": 4096, "max_connections": 20, "max_body": 1 << 20,
}  # fmt: skip


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server with little patience."""
    path = serve_models.simple(tmp_path_factory.mktemp("strict") / "simple.onnx")
    models = {"simple": {"type": "network", "path": str(path), "max_batch": 8, "options": {"threads": 1}}}
    with serving(models, **LIMITS) as running:
        yield running


@contextmanager
def connection(server: Any) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=10) as one:
        yield one


def everything(one: socket.socket) -> bytes:
    """What comes until the server closes."""
    data = b""
    try:
        while chunk := one.recv(65536):
            data += chunk
    except ConnectionResetError:
        pass
    return data


def works(server: Any) -> None:
    assert ask(server.http_port, "/v2/models/simple/infer", simple_body()).status == 200


HEAD = b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\n"


NEVER_WHOLE = [
    (b"POST /v2", b"408"),
    (HEAD + b"Content-Length: 100\r\n\r\n", b"408"),
    (HEAD + b"Content-Length: 100\r\n\r\nhalf", b"408"),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", b"408"),
    (HEAD + b"".join(b"X%d: y\r\n" % i for i in range(30)) + b"\r\n", b"431"),
    (HEAD + b"X: " + b"y" * 5000 + b"\r\n\r\n", b"431"),
    (b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"431"),
    (b"GET /" + b"x" * 5000, b"400"),
    (b"\x16\x03\x01 this is TLS", b"400"),
    (HEAD + b"Content-Length: -5\r\n\r\n", b"400"),
    (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
]


def test_requests_that_never_become_whole(strict: Any) -> None:
    """All of them at a time: most are refused when `read_timeout` has passed."""
    with ExitStack() as held:
        sockets = [held.enter_context(connection(strict)) for _ in NEVER_WHOLE]
        for one, (sent, _) in zip(sockets, NEVER_WHOLE, strict=True):
            one.sendall(sent)
        for one, (sent, status) in zip(sockets, NEVER_WHOLE, strict=True):
            answer = everything(one)
            assert answer.startswith(b"HTTP/1.1 " + status), (sent, answer)
            assert "error" in json.loads(answer.partition(b"\r\n\r\n")[2])
    works(strict)


def test_a_body_that_comes_in_drops(strict: Any) -> None:
    with connection(strict) as one:
        one.sendall(HEAD + b"Content-Length: 1000\r\n\r\n")
        started = time.monotonic()
        try:
            for _ in range(400):
                one.sendall(b"x")
                time.sleep(0.05)
        except OSError:
            pass
        assert time.monotonic() - started < 15
    works(strict)


def test_clients_that_vanish(strict: Any) -> None:
    text = json.dumps(simple_body()).encode()
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(text) + text
    for length in (10, 60, len(whole) - 10, len(whole)):
        for _ in range(5):
            with connection(strict) as one:
                one.sendall(whole[:length])
    works(strict)


def test_a_connection_that_is_kept_and_not_used_ends(strict: Any) -> None:
    text = json.dumps(simple_body()).encode()
    with connection(strict) as one:
        one.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(text) + text)
        assert one.recv(100).startswith(b"HTTP/1.1 200")
        started = time.monotonic()
        everything(one)
        assert time.monotonic() - started < 9  # the socket gives up after 10


# ---- keys, TLS, the log ----


@pytest.fixture
def run(tables: dict[str, Any], serve: Callable[..., Any]) -> Callable[..., Any]:
    """Starts servers of the model `simple`."""
    return lambda **settings: serve({"simple": tables["simple"]}, **settings)


def test_keys(run: Callable[..., Any]) -> None:
    server = run(api_keys=["first-key", "second-key"])
    for headers, status in (
        ({}, 401), ({"X-API-Key": "wrong-key"}, 401), ({"X-API-Key": "second-key"}, 200),
        ({"Authorization": "Bearer first-key"}, 200), ({"Authorization": "Basic first-key"}, 401),
    ):  # fmt: skip
        answer = ask(server.http_port, "/v2/models/simple/infer", simple_body(), headers=headers)
        assert answer.status == status
        assert answer.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)
    for path, status in (("/v2/health/live", 200), ("/v2/health/ready", 200), ("/v2", 401), ("/metrics", 401)):
        assert ask(server.http_port, path).status == status
    with client_of(server, "grpc") as client:
        assert client.is_server_ready()
        x = np.ones((1, 16), np.int32)
        inputs = inputs_of("grpc", {"INPUT0": x, "INPUT1": x}, "INT32")
        for headers in ({}, {"x-api-key": "wrong-key"}):
            with pytest.raises(Exception, match="a valid API key is needed") as raised:
                client.infer("simple", inputs, headers=headers)
            assert raised.value.status() == "StatusCode.UNAUTHENTICATED"
        assert client.infer("simple", inputs, headers={"x-api-key": "first-key"}).as_numpy("OUTPUT0")[0, 0] == 2
        assert client.infer("simple", inputs, headers={"authorization": "Bearer second-key"}) is not None


def test_tls(run: Callable[..., Any], tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    server = run(certificate=str(certificate), private_key=str(key))
    context = ssl.create_default_context(cafile=str(certificate))
    with urllib.request.urlopen(f"https://localhost:{server.http_port}/v2/health/ready", context=context) as answer:
        assert answer.status == 200
    address, root = f"localhost:{server.grpc_port}", str(certificate)
    with triton("grpc").InferenceServerClient(address, ssl=True, root_certificates=root) as client:
        assert client.is_server_ready()
    with pytest.raises(OSError, match=r"."):
        ask(server.http_port, "/v2/health/ready")


def test_model_control_and_shared_memory_are_off_by_default(run: Callable[..., Any]) -> None:
    server = run()
    answer = ask(server.http_port, "/v2/repository/models/simple/load", b"{}")
    assert (answer.status, "model_control = true" in answer.json()["error"]) == (503, True)
    answer = ask(server.http_port, "/v2/systemsharedmemory/region/x/register", {"key": "/x", "byte_size": 4})
    assert (answer.status, "shared_memory_prefix" in answer.json()["error"]) == (403, True)


def test_the_access_log(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    log = AccessLog()
    log.write("http", "GET", "/v2", 200, 0.0123, client="1.2.3.4:5", model="m", error="", received=0)
    log.write("grpc", "POST", "/x", "OK", 1, text='a "quote"\n\x1b[31m\x7f\x9b31m', id="7" * 1_000_000)
    log.close()
    assert len(stream.getvalue()) < 2000
    assert all(character.isprintable() or character == "\n" for character in stream.getvalue())
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first.pop("time") == pytest.approx(time.time(), abs=60)
    assert first == {
        "protocol": "http", "method": "GET", "path": "/v2", "status": 200, "ms": 12.3, "client": "1.2.3.4:5",
        "model": "m",
    }  # fmt: skip
    assert second["text"] == 'a "quote"\n\x1b[31m\x7f\x9b31m'


def test_a_log_whose_reader_stalls_drops_lines_and_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stalled(io.StringIO):
        go = threading.Event()

        def write(self, text: str) -> int:
            self.go.wait(10)
            return super().write(text)

    monkeypatch.setattr(access_log, "_MOST_LINES", 5)
    stream = Stalled()
    monkeypatch.setattr("sys.stderr", stream)
    log = access_log.AccessLog()
    for index in range(100):
        log.write("http", "GET", "/", 200, index)
    stream.go.set()
    time.sleep(0.2)
    log.write("http", "GET", "/", 200, 1)
    log.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert len(lines) + sum(line.get("dropped", 0) for line in lines) == 101
    assert len(lines) < 20


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([0, 1 << 62], "have a product above"),
        ([1 << 40, 1 << 40], "have a product above"),
        ([1] * 80, "at most 32 axes, not 80"),
        ([3] * 20_000, "at most 32 axes, not 20,000"),
    ],
)
def test_shapes_that_no_tensor_has(
    client: Any, protocol: str, shape: list[int], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They are the client's fault, and the message is short: no line of the server's log, no product of all sides."""
    one = triton(protocol).InferInput("INPUT0", shape, "FP32")
    one._raw_data = one._raw_content = b""  # set_data_from_numpy() compares the shapes
    if protocol == "http":
        one._parameters["binary_data_size"] = 0
    with pytest.raises(Exception, match=message) as raised:
        client.infer("free", [one])
    assert len(str(raised.value)) < 300
    assert raised.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")  # type: ignore[attr-defined]
    assert not caplog.records
