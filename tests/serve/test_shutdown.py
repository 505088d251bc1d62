"""The end of a server: both ports close at once, and requests that run have one time to end."""

from __future__ import annotations

import http.client
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served_requests import ask, client_of, inputs_of
from waiting import meanwhile, until

from infersdk.errors import ClosedError, DeadlineExceeded, InputError
from infersdk.loading import registry
from infersdk.serve import Server

SECONDS = 0.6


@pytest.fixture
def idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], dict[str, Any]]:
    """The table of a model whose runs take so long."""
    monkeypatch.setitem(registry._BUILT_IN, "idle", registry._Backend("idle_backend:IdleInfer", "it is a test's"))
    (tmp_path / "idle.model").write_bytes(b"idle")
    return lambda seconds: {
        "type": "network", "path": str(tmp_path / "idle.model"), "backend": "idle", "max_batch": 1,
        "options": {"seconds": seconds, "side": 1},
    }  # fmt: skip


@pytest.fixture
def start(idle: Callable[[float], dict[str, Any]], serve: Callable[..., Any]) -> Callable[..., Any]:
    """Starts a server of a model whose runs take so long."""
    return lambda seconds, **settings: serve({"idle": idle(seconds)}, **settings)


@pytest.fixture
def loading(idle: Callable[[float], dict[str, Any]]) -> Iterator[Any]:
    """A server that has not begun, of a model that takes half a second to load."""
    with Server({"models": {"idle": idle(0.5)}}, http_port=0, grpc_port=0, access_log=False) as server:
        yield server


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def test_no_port_accepts_while_requests_end(start: Callable[..., Any]) -> None:
    server = start(SECONDS, drain=20)
    body = {"inputs": [{"name": "x", "shape": [1, 3, 1, 1], "datatype": "FP32", "data": [7, 0, 0]}]}
    answers: queue.Queue[Any] = queue.Queue()

    def over_http() -> None:
        answers.put(ask(server.http_port, "/v2/models/idle/infer", body).json()["outputs"][0]["data"][0])

    with client_of(server, "grpc") as client:
        inputs = inputs_of("grpc", {"x": np.full((1, 3, 1, 1), 7, np.float32)}, "FP32")
        threading.Thread(target=over_http).start()
        client.async_infer("idle", inputs, callback=lambda result, error: answers.put(error or result.as_numpy("y")[0]))
        client.start_stream(lambda result, error: answers.put(error or result.as_numpy("y")[0]))
        client.async_stream_infer("idle", inputs)
        until(lambda: server.service.repository.find("idle").admission.running == 3)
        began = time.monotonic()
        with meanwhile(server.stop, [()]):
            until(lambda: not accepts(server.http_port) and not accepts(server.grpc_port), SECONDS)
            given = [answers.get(timeout=30) for _ in range(4)]  # three answers and the end of the stream, in any order
            assert sum(not isinstance(answer, Exception) and answer == 7 for answer in given) == 3, given
            assert any("the server ends" in str(answer) for answer in given)
        assert time.monotonic() - began < 3 * SECONDS + 3


@pytest.mark.parametrize(("last", "status"), [(b"}", 200), (b"?", 400)])
def test_the_last_answer_of_a_connection_says_that_it_closes(
    last: bytes, status: int, start: Callable[..., Any]
) -> None:
    server = start(0, drain=20)
    body = b'{"inputs": [{"name": "x", "shape": [1, 3, 1, 1], "datatype": "FP32", "data": [7, 0, 0]}]'
    client = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=20)
    for stopping in (False, True):
        client.putrequest("POST", "/v2/models/idle/infer")
        client.putheader("Content-Length", str(len(body) + 1))
        client.endheaders(body)
        if stopping:
            time.sleep(0.1)  # the server has read it
            thread = threading.Thread(target=server.stop)
            thread.start()
            until(lambda: server.service.stopping)
        client.send(last)
        answer = client.getresponse()
        answer.read()
        assert answer.headers.get_all("connection") == (["close"] if stopping else None)
        assert answer.status == status
    thread.join(20)


def test_connections_without_a_request_cost_no_drain(start: Callable[..., Any]) -> None:
    server = start(0, drain=20)
    with (
        socket.create_connection(("127.0.0.1", server.grpc_port)),
        socket.create_connection(("127.0.0.1", server.http_port)),
        client_of(server, "grpc") as client,
    ):
        client.start_stream(lambda result, error: None)
        assert client.is_server_ready()
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 5


def test_a_drain_of_less_than_half_a_second(start: Callable[..., Any]) -> None:
    server = start(0.3, drain=0.49)
    body = {"inputs": [{"name": "x", "shape": [1, 3, 1, 1], "datatype": "FP32", "data": [7, 0, 0]}]}
    with ThreadPoolExecutor(1) as caller:
        answer = caller.submit(ask, server.http_port, "/v2/models/idle/infer", body)
        until(lambda: server.service.repository.find("idle").admission.running == 1)
        server.stop()
        assert answer.result().status == 200


def test_a_request_that_takes_longer_than_the_drain_costs_it_once(start: Callable[..., Any]) -> None:
    import grpc

    server = start(0, drain=2)
    with (
        socket.create_connection(("127.0.0.1", server.http_port)) as half,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        half.sendall(b"POST /v2/models/idle/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf of it")
        more = threading.Event()
        upload = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer").future(
            iter(lambda: more.wait(30) or b"", True)
        )
        time.sleep(0.2)  # both have come
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 4
        more.set()
        assert upload.exception(30) is not None


def test_a_stop_while_the_models_load(loading: Any) -> None:
    stopping = threading.Timer(0.1, loading.stop)
    stopping.start()
    with pytest.raises(ClosedError, match=r"stopped before its models were ready; make a new Server"):
        loading.start(20)
    stopping.join()
    assert not accepts(loading.http_port)


@pytest.mark.parametrize("begin", ["run", "start"])
def test_a_stop_before_the_server_begins(loading: Any, begin: str) -> None:
    loading.stop()
    if begin == "run":
        loading.run(lambda server: pytest.fail("it serves"))
    else:
        with pytest.raises(ClosedError, match="stopped before its models were ready"):
            loading.start()
    assert not accepts(loading.http_port)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="Windows has no such call")
def test_ctrl_c_while_the_models_load(loading: Any) -> None:
    main = threading.get_ident()
    threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        loading.start()
    assert not accepts(loading.http_port)


def test_models_that_are_not_ready_in_time(loading: Any) -> None:
    others = set(threading.enumerate())
    with pytest.raises(DeadlineExceeded, match="not ready within 0 s, and the server ends"):
        loading.start(0)
    until(lambda: all(thread.name != "infersdk-serve" for thread in set(threading.enumerate()) - others))


@pytest.mark.parametrize("timeout", ["x", -1, float("inf"), float("nan")])
def test_a_timeout_of_start_that_is_no_time(loading: Any, timeout: Any) -> None:
    with pytest.raises(InputError, match="timeout is .*seconds"):
        loading.start(timeout)
    assert loading.http_port is None
