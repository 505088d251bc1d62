"""Bodies of all lengths reach the application as they were sent, however they arrive."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import make_certificate

pytest.importorskip("uvicorn")
pytest.importorskip("httptools")

from infersdk.serve.http.messages import WHOLE_BODY
from infersdk.serve.http.protocol import _READ, protocol_factory
from infersdk.serve.settings import ServerSettings

LIMIT = 3 << 20
LENGTHS = [0, 1, _READ - 200, _READ, _READ + 1, 300_001, 16 * _READ - 1, 16 * _READ + 1, LIMIT]


class Digest:
    """An application that answers with the length and the digest of the body, and how it came."""

    def __init__(self) -> None:
        self.disconnected = threading.Semaphore(0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/refuse":  # without a look at the body
            await self._answer(send, 403, {})
            return
        parts, more = [], True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnected.release()
                return
            parts.append(message["body"])
            more = message["more_body"]
        whole = scope.pop(WHOLE_BODY, None)
        assert whole is None or parts == [b""]
        body = b"".join(parts) if whole is None else whole
        found = {"length": len(body), "digest": hashlib.sha256(body).hexdigest(), "path": scope["path"]}
        await self._answer(send, 200, {**found, "whole": whole is not None})

    async def _answer(self, send: Any, status: int, value: Any) -> None:
        text = json.dumps(value).encode()
        headers = [(b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": text})


class Running:
    """A server in a thread, on asyncio's loop or uvloop's."""

    def __init__(self, loop: str, **tls: Any) -> None:
        import uvicorn

        self.app = Digest()
        settings = ServerSettings(max_body=LIMIT, read_timeout=2.0, keep_alive=5.0)
        config = uvicorn.Config(
            self.app, http=protocol_factory(settings), ws="none", lifespan="off", log_config=None, port=0, **tls
        )
        self.server = uvicorn.Server(config)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, args=(loop,), daemon=True)
        self._thread.start()
        while not self.server.started:
            assert self._thread.is_alive()
            time.sleep(0.005)

    def _run(self, name: str) -> None:
        if name == "uvloop":
            import uvloop

            loop = uvloop.new_event_loop()
        else:
            loop = asyncio.new_event_loop()
        loop.run_until_complete(self.server.serve([self.listener]))
        loop.close()

    def connect(self) -> socket.socket:
        one = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return one

    def close(self) -> None:
        self.server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    pytest.importorskip(request.param)
    server = Running(request.param)
    yield server
    server.close()


def request(body: bytes, path: str = "/", *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def answer(one: Any) -> tuple[int, dict[str, Any]]:
    """The next answer of a connection, and no byte more."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        part = one.recv(1)
        assert part, head
        head += part
    length, text = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]), b""
    while len(text) < length:
        text += one.recv(length - len(text))
    return int(head.split()[1]), json.loads(text)


def check(one: Any, body: bytes, path: str = "/") -> bool:
    """The next answer is that to this body. Whether it was read into memory of its own."""
    status, found = answer(one)
    assert status == 200
    assert (found["path"], found["length"]) == (path, len(body))
    assert found["digest"] == hashlib.sha256(body).hexdigest()
    return bool(found["whole"])


def noise(length: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(length)


@pytest.mark.parametrize("length", LENGTHS)
def test_one_after_the_other(running: Running, length: int) -> None:
    """On one connection, with short ones in between."""
    with running.connect() as one:
        for seed in range(3):
            body = noise(length, seed)
            one.sendall(request(body))
            whole = check(one, body)
            assert whole or length <= _READ
            one.sendall(request(b"short"))
            assert not check(one, b"short")


def test_in_pieces(running: Running) -> None:
    """Cut anywhere, also within the headers, and where memory for more is taken."""
    rng = random.Random(1)
    for length in (40, 70_000, 16 * 1000 + 5, 400_000):
        body = noise(length)
        sent = request(body)
        start = len(sent) - length
        cuts = {rng.randrange(1, len(sent)) for _ in range(6)} | {start, start + 1, start + 1000, start + 16_000}
        edges = [0, *sorted(cut for cut in cuts if cut < len(sent)), len(sent)]
        with running.connect() as one:
            for _ in range(2):
                for first, end in itertools.pairwise(edges):
                    one.sendall(sent[first:end])
                    time.sleep(0.002)
                check(one, body)


def test_pipelined(running: Running) -> None:
    """The next request follows at once; the answers come in order."""
    lengths = [5, 200_000, 0, 1_500_000, 7, 90_000, 90_000, 3]
    bodies = [noise(length, seed) for seed, length in enumerate(lengths)]
    sent = b"".join(request(body, f"/{index}") for index, body in enumerate(bodies))
    with running.connect() as one:
        sender = threading.Thread(target=one.sendall, args=(sent,))
        sender.start()
        for index, body in enumerate(bodies):
            check(one, body, f"/{index}")
        sender.join()


def test_many_connections_at_a_time(running: Running) -> None:
    """They share the memory for what comes first."""
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            with running.connect() as one:
                for _ in range(8):
                    body = noise(rng.choice([10, 1000, 66_000, 500_000]), seed)
                    one.sendall(request(body))
                    check(one, body)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed


def test_chunks(running: Running) -> None:
    """Of unknown length: they go through the parser."""
    body = noise(200_000)
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:70_000], body[70_000:])) + b"0\r\n\r\n"
    with running.connect() as one:
        for _ in range(2):
            one.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
            assert not check(one, body)


def test_a_client_that_asks_first(running: Running) -> None:
    body = noise(300_000)
    sent = request(body, "/", "Expect: 100-continue")
    start = len(sent) - len(body)
    with running.connect() as one:
        one.sendall(sent[:start])
        assert one.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        one.sendall(sent[start:])
        assert check(one, body)


def test_more_than_is_taken(running: Running) -> None:
    """The application sees that it is more, and not all of it is kept."""
    body = noise(LIMIT + 500_000)
    with running.connect() as one:
        one.sendall(request(body))
        status, found = answer(one)
        assert status == 200
        assert LIMIT < found["length"] < len(body)
        assert not found["whole"]


@pytest.mark.parametrize("length", ["99999999999999999999", "9" * 5000, "-1", "0x10", "1_000"])
def test_lengths_that_are_none(running: Running, length: str) -> None:
    with running.connect() as one:
        one.sendall(f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode() + noise(1000))
        assert one.recv(12) == b"HTTP/1.1 400"


def test_a_client_that_goes_away_in_the_middle(running: Running) -> None:
    sent = request(noise(400_000))
    for length in (100_000, len(sent) - 1):
        with running.connect() as one:
            one.sendall(sent[:length])
            time.sleep(0.05)
        assert running.app.disconnected.acquire(timeout=20)


def test_a_client_that_stalls_in_the_middle(running: Running) -> None:
    sent = request(noise(400_000))
    with running.connect() as one:
        one.sendall(sent[:200_000])
        assert answer(one)[0] == 408
        assert one.recv(1) == b""
    assert running.app.disconnected.acquire(timeout=20)


def test_an_answer_before_the_body(running: Running) -> None:
    """The connection can be used on, when the rest has come."""
    sent, body = request(noise(400_000), "/refuse"), noise(90_000, 1)
    with running.connect() as one:
        for cut in (len(sent) - 400_000, 100_000, len(sent)):
            one.sendall(sent[:cut])
            assert answer(one)[0] == 403
            one.sendall(sent[cut:])
            one.sendall(request(body))
            check(one, body)


def test_by_tls(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    server = Running("uvloop", ssl_certfile=str(certificate), ssl_keyfile=str(key))
    context = ssl.create_default_context(cafile=str(certificate))
    context.check_hostname = False
    try:
        with context.wrap_socket(server.connect()) as one:
            for length in (5, 200_000, 0, 1_500_000):
                body = noise(length, length)
                one.sendall(request(body))
                check(one, body)
    finally:
        server.close()
