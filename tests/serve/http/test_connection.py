"""Requests as bytes on a connection: each complete one gets one answer, in order, and the connection works on."""

from __future__ import annotations

import gzip
import json
import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import make_certificate

pytest.importorskip("uvicorn")
pytest.importorskip("h11")

MODEL = "/v2/models/free/infer"
LENGTHS = [4, 1000, 65_536 - 300, 65_536, 300_000, 1_200_000, 8 << 20]


@pytest.fixture
def connect(server: Any) -> Iterator[Callable[[], socket.socket]]:
    """Opens connections to the server, and closes them."""
    opened: list[socket.socket] = []

    def connect() -> socket.socket:
        opened.append(socket.create_connection(("127.0.0.1", server.http_port), timeout=20))
        opened[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened[-1]

    yield connect
    for one in opened:
        one.close()


@pytest.fixture
def start(tables: dict[str, Any], serve: Callable[..., Any]) -> Callable[..., Any]:
    """Starts servers of the model `free`."""
    return lambda **settings: serve({"free": tables["free"]}, grpc_port=None, **settings)


def noise(length: int, seed: int = 0) -> bytes:
    """Numbers without NaN."""
    return random.Random(seed).randbytes(length // 4 * 4).replace(b"\xff", b"\0").replace(b"\x7f", b"\0")


def head(*lines: str, path: str = MODEL, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *lines, "", ""]).encode()


def raw(body: bytes, *lines: str) -> bytes:
    """A request whose body is the tensor, which comes back."""
    return head(f"Content-Length: {len(body)}", "Inference-Header-Content-Length: 0", *lines) + body


LIVE = head(path="/v2/health/live", method="GET")


def answer(one: Any) -> tuple[int, dict[str, str], bytes]:
    """The next answer of a connection, and no byte more."""
    text = b""
    while not text.endswith(b"\r\n\r\n"):
        part = one.recv(1)
        assert part, text
        text += part
    first, *lines = text.decode().splitlines()[:-1]
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = b""
    while missing := int(headers.get("content-length", "0")) - len(body):
        part = one.recv(missing)
        assert part, headers
        body += part
    return int(first.split()[1]), headers, body


def check(one: Any, body: bytes) -> None:
    """The next answer has this tensor."""
    status, headers, found = answer(one)
    assert status == 200, found
    assert found[int(headers["inference-header-content-length"]) :] == body


def is_closed(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True


# ---- bodies ----


@pytest.mark.parametrize("length", LENGTHS)
def test_one_after_the_other(connect: Callable[[], Any], length: int) -> None:
    one = connect()
    for seed in range(2):
        body = noise(length, seed)
        one.sendall(raw(body))
        check(one, body)
        one.sendall(raw(b"\1\2\3\4"))
        check(one, b"\1\2\3\4")


def test_pipelined(connect: Callable[[], Any]) -> None:
    """The next request follows at once; the answers come in order."""
    lengths = [8, 200_000, 4, 1_500_000, 12, 90_000, 90_000, 4]
    bodies = [noise(length, seed) for seed, length in enumerate(lengths)]
    one = connect()
    sender = threading.Thread(target=one.sendall, args=(b"".join(map(raw, bodies)),))
    sender.start()
    for body in bodies:
        check(one, body)
    sender.join()


def test_a_client_that_asks_first(connect: Callable[[], Any]) -> None:
    body, one = noise(300_000), connect()
    sent = raw(body, "Expect: 100-continue")
    one.sendall(sent[: -len(body)])
    assert answer(one)[0] == 100
    one.sendall(body)
    check(one, body)


def test_by_tls(start: Callable[..., Any], tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    server = start(certificate=str(certificate), private_key=str(key))
    context = ssl.create_default_context(cafile=str(certificate))
    context.check_hostname = False
    with context.wrap_socket(socket.create_connection(("127.0.0.1", server.http_port), timeout=20)) as one:
        for length in (8, 200_000, 4, 1_500_000):
            body = noise(length, length)
            one.sendall(raw(body))
            check(one, body)


# ---- framing ----

UPGRADES = [
    ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"],
    ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: AAAA", "Sec-WebSocket-Version: 13"],
    ["Upgrade: anything"],
]


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("pieces", [1, 2])
def test_an_upgrade_is_ignored(connect: Callable[[], Any], upgrade: list[str], pieces: int) -> None:
    """The body is the body: it is not lost, and not a request of its own. `curl --http2` sends this."""
    body, one = LIVE + bytes(-len(LIVE) % 4), connect()
    sent = raw(body, *upgrade)
    one.sendall(sent if pieces == 1 else sent[: -len(body)])
    if pieces == 2:
        time.sleep(0.05)
        one.sendall(body)
    check(one, body)
    one.sendall(head(*upgrade, path="/v2/health/live", method="GET") + LIVE)
    assert (answer(one)[0], answer(one)[0]) == (200, 200)
    one.sendall(
        head("Transfer-Encoding: chunked", "Inference-Header-Content-Length: 0", *upgrade) + b"4\r\nabcd\r\n0\r\n\r\n"
    )
    check(one, b"abcd")


@pytest.mark.parametrize("empty", [b"\r\n", b"\n", b"\r\n\r\n"])
def test_empty_lines_around_requests(start: Callable[..., Any], empty: bytes) -> None:
    server = start(read_timeout=0.3, keep_alive=5)
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as one:
        one.sendall(empty + raw(b"abcd") + empty + raw(b"efgh") + empty)
        check(one, b"abcd")
        check(one, b"efgh")
        one.sendall(empty[:1])
        one.sendall(empty[1:] + LIVE)
        assert answer(one)[0] == 200
        one.sendall(empty)
        assert is_closed(one)  # without an answer


@pytest.mark.parametrize("more", [b"\r\n", LIVE, b"\0 damage", bytes(100_000)])
def test_what_comes_behind_the_last_request(connect: Callable[[], Any], more: bytes) -> None:
    """It is no request, and does no harm to the last one."""
    one = connect()
    one.sendall(raw(b"abcd", "Connection: close"))
    one.sendall(more)
    status, headers, found = answer(one)
    assert (status, headers["connection"], found[-4:]) == (200, "close", b"abcd")
    assert is_closed(one)


def test_a_target_with_the_name_of_the_server(connect: Callable[[], Any]) -> None:
    """As clients of proxies send it."""
    one = connect()
    one.sendall(head(path="http://x:80/v2/health/live?a=b", method="GET") + head(path="https://x", method="GET"))
    assert (answer(one)[0], answer(one)[0]) == (200, 200)


@pytest.mark.parametrize("zeros", [1, 10, 5000])
def test_lengths_with_leading_zeros(connect: Callable[[], Any], zeros: int) -> None:
    one = connect()
    one.sendall(head(f"Content-Length: {'0' * zeros}4", "Inference-Header-Content-Length: 0") + b"abcd" + LIVE)
    status = answer(one)[0]
    assert status == (200 if zeros < 16 else 400)
    assert answer(one)[0] == 200 if status == 200 else is_closed(one)


@pytest.mark.parametrize(
    "lines",
    [
        *([f"Content-Length: {value}"] for value in ("99999999999999999999", "9" * 5000, "-1", "0x10", "1_000", "4 4")),
        ["Content-Length: 4", "Content-Length: 5"],
        ["Content-Length: 4", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: gzip, chunked"],
    ],
)
def test_bodies_of_no_clear_length(start: Callable[..., Any], lines: list[str]) -> None:
    server = start(read_timeout=0.3)
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as one:
        one.sendall(head(*lines) + b"0\r\n\r\n" + LIVE)
        status, headers, _ = answer(one)
        assert status in (400, 413, 501)
        assert headers["connection"] == "close"
        assert is_closed(one)


def test_a_client_that_closes_its_side(connect: Callable[[], Any]) -> None:
    """As `nc -N` does: what was complete is answered."""
    one = connect()
    one.sendall(raw(b"abcd") + raw(b"efgh") + raw(b"ijkl"))
    one.shutdown(socket.SHUT_WR)
    for body in (b"abcd", b"efgh", b"ijkl"):
        check(one, body)
    assert is_closed(one)


@pytest.mark.parametrize("sent", [b"", b"POST", raw(b"abcd")[:-1], raw(b"abcd") + b"GET /"])
def test_a_client_that_closes_its_side_too_early(connect: Callable[[], Any], sent: bytes) -> None:
    one = connect()
    one.sendall(sent)
    one.shutdown(socket.SHUT_WR)
    if sent.endswith(b"GET /"):
        check(one, b"abcd")
    assert is_closed(one)


def test_damage_behind_a_good_request(connect: Callable[[], Any]) -> None:
    one = connect()
    one.sendall(raw(b"abcd") + b"\0\1\2 damage\r\n\r\n")
    check(one, b"abcd")
    assert answer(one)[0] == 400
    assert is_closed(one)


@pytest.mark.parametrize("method", ["POST", "HEAD", "GET", "CONNECT", "NONESUCH"])
def test_a_damaged_body(connect: Callable[[], Any], caplog: pytest.LogCaptureFixture, method: str) -> None:
    for sent in (b"no chunk\r\n", b"5\r\nhello\r\nno chunk\r\n", b"5\r\nhello world"):
        one = connect()
        one.sendall(head("Transfer-Encoding: chunked", method=method) + sent)
        text = b""
        while part := one.recv(4096):
            text += part
        assert text.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 405 "))
        assert text.count(b"HTTP/1.1 4") == 1
        assert text.endswith(b"}") == (method != "HEAD")
    assert not caplog.records


# ---- refusals before the body ----


@pytest.fixture
def guarded(start: Callable[..., Any]) -> Any:
    return start(api_keys=["the-first-key"], read_timeout=1.0)


def test_without_a_key_nothing_is_awaited(guarded: Any) -> None:
    """The answer comes before the body, and the client is not asked for it."""
    for lines in ([], ["Expect: 100-continue"]):
        with socket.create_connection(("127.0.0.1", guarded.http_port), timeout=20) as one:
            one.sendall(head("Content-Length: 60000000", *lines))
            status, headers, _ = answer(one)
            assert (status, headers["connection"]) == (401, "close")


def test_a_refused_client_that_sends_on_sees_its_answer(guarded: Any) -> None:
    with socket.create_connection(("127.0.0.1", guarded.http_port), timeout=20) as one:
        one.sendall(raw(bytes(8 << 20)))
        assert answer(one)[0] == 401
        assert is_closed(one)


def test_a_refused_client_that_sends_for_ever_is_cut_off(guarded: Any) -> None:
    with socket.create_connection(("127.0.0.1", guarded.http_port), timeout=20) as one:
        one.sendall(head("Transfer-Encoding: chunked"))
        started = time.monotonic()
        try:
            while time.monotonic() - started < 20:
                one.sendall(b"1000\r\n" + bytes(4096) + b"\r\n")
                time.sleep(0.02)
        except OSError:
            pass
        assert time.monotonic() - started < 10


def test_a_refused_request_with_its_whole_body_leaves_the_connection_open(guarded: Any) -> None:
    with socket.create_connection(("127.0.0.1", guarded.http_port), timeout=20) as one:
        one.sendall(raw(b"abcd") + LIVE + raw(b"abcd", "X-API-Key: the-first-key"))
        assert [answer(one)[0] for _ in range(3)] == [401, 200, 200]


def test_bodies_of_all_connections_have_a_limit_together(start: Callable[..., Any]) -> None:
    """Memory is counted while requests are read, and given back; a request that is refused holds none."""
    server = start(max_bodies=1 << 20, read_timeout=30)
    body = noise(900_000)
    opened = [socket.create_connection(("127.0.0.1", server.http_port), timeout=20) for _ in range(3)]
    first, second, third = opened
    first.sendall(raw(body)[:-4])
    time.sleep(1)  # the server has read it
    second.sendall(raw(body)[:-4])
    status, headers, text = answer(second)
    assert (status, headers["retry-after"]) == (503, "1")
    assert "max_bodies" in json.loads(text)["error"]
    first.sendall(body[-4:])
    check(first, body)
    third.sendall(raw(body))
    check(third, body)
    for one in opened:
        one.close()


def test_a_body_beyond_the_limit_of_all_is_too_large(start: Callable[..., Any]) -> None:
    """It could never succeed, so the client is not told to send it again."""
    server = start(max_bodies=1000)
    packed = gzip.compress(bytes(990))
    requests = (
        head("Content-Length: 1001"), head("Transfer-Encoding: chunked") + b"3e9\r\n" + bytes(1001) + b"\r\n",
        raw(packed, "Content-Encoding: gzip"),
    )  # fmt: skip
    for request in requests:
        with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as one:
            one.sendall(request)
            status, headers, text = answer(one)
            assert (status, "retry-after" in headers) == (413, False)
            assert "more than 1,000 bytes, the limit of all requests together (max_bodies)" in text.decode()


# ---- connections ----


def test_connections_beyond_the_limit_are_refused_and_logged(
    start: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    server = start(max_connections=3)
    held = [socket.create_connection(("127.0.0.1", server.http_port), timeout=20) for _ in range(3)]
    with caplog.at_level(logging.WARNING, "infersdk.serve"):
        for one in held:
            one.sendall(LIVE)
            assert answer(one)[0] == 200
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as another:
                status, _, text = answer(another)
                assert status == 503
                assert "3 open connections, its limit (max_connections)" in json.loads(text)["error"]
    assert [record.message for record in caplog.records if "max_connections" in record.message] == [
        "HTTP: the server has 3 open connections, its limit (max_connections); 1 connections were refused so far"
    ]
    for one in held:
        one.close()


def test_a_connection_without_a_request_ends(start: Callable[..., Any]) -> None:
    server = start(read_timeout=0.2)
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as one:
        assert is_closed(one)
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as one:
        one.sendall(b"\r\n" * 10)
        assert is_closed(one)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such option")
def test_a_client_that_takes_nothing_of_its_answer_is_cut_off(start: Callable[..., Any]) -> None:
    server = start(read_timeout=0.5, max_connections=1)
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as one:
        one.sendall(raw(bytes(32 << 20)))
        until = time.monotonic() + 20
        while True:
            with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as another:
                try:
                    another.sendall(LIVE)
                    if answer(another)[0] == 200:
                        break
                except ConnectionError:
                    pass
            assert time.monotonic() < until
            time.sleep(0.1)
