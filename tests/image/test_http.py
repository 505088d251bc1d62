"""Requests over HTTP: limits, redirections, and what servers do wrong."""

from __future__ import annotations

import base64
import contextlib
import socket
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler

import pytest
from web import content, served

from infersdk.core.text import without_password
from infersdk.errors import ImageError
from infersdk.image.http import get


def redirect(target: str, code: int = 302) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(code)
        request.send_header("Location", target)
        request.end_headers()

    return answer


def endless(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    while True:
        request.wfile.write(bytes(1 << 16))


def drip(request: BaseHTTPRequestHandler) -> None:
    """A byte now and then: no read waits for long."""
    request.send_response(200)
    request.end_headers()
    while True:
        request.wfile.write(b"x")
        request.wfile.flush()
        time.sleep(0.05)


def drip_headers(request: BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"HTTP/1.0 200 OK\r\nX: ")
    while True:
        request.wfile.write(b"x")
        request.wfile.flush()
        time.sleep(0.05)


def short(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    request.wfile.write(bytes(10))


def silent(request: BaseHTTPRequestHandler) -> None:
    time.sleep(20)


def nonsense(request: BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"\x16\x03\x01 what is this\r\n\r\n")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    pages = {
        "/page": content(b"abc", "Text/Plain; charset=utf-8"), "/bare": content(b"abc", None),
        "/moved": redirect("/page"), "/away": redirect("file:///etc/passwd"), "/ftp": redirect("ftp://127.0.0.1/x"),
        "/loop": redirect("/loop"), "/endless": endless, "/drip": drip, "/drip_headers": drip_headers, "/short": short,
        "/silent": silent, "/nonsense": nonsense, "/big": content(bytes(5000), "image/png"),
    }  # fmt: skip
    with served(pages) as address:
        yield address


def test_content_and_its_type(server: str) -> None:
    answer = get(f"{server}/page")
    assert (answer.content_type, answer.body) == ("text/plain", b"abc")
    assert get(f"{server}/bare").content_type == ""
    assert get(f"{server}/moved").body == b"abc"
    assert get(f"{server}/page?a=b", max_bytes=3).body == b"abc"


def test_addresses_may_have_spaces_and_letters_outside_ascii() -> None:
    asked = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        asked.append(request.path)
        content(b"abc", None)(request)

    paths = {"/k%C3%A4se%20%C3%9F.jpg": answer, "/a%20b;c=1": answer}
    with served(paths) as address:
        assert get(f"{address}/käse ß.jpg?größe=1 2&x=%20+,#teil ä").body == b"abc"
        assert get(f"{address}/a%20b;c=1").body == b"abc"  # which has no letter to encode
    assert asked == ["/k%C3%A4se%20%C3%9F.jpg?gr%C3%B6%C3%9Fe=1%202&x=%20+,", "/a%20b;c=1"]


def test_a_body_that_is_not_wanted_is_not_read(server: str) -> None:
    start = time.monotonic()
    assert get(f"{server}/drip", lambda kind: kind == "image/png").body is None
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/none", "the server answers 404 Not Found"), ("/big", "has 5,000 bytes; at most 4,000 are read"),
        ("/endless", "has more than 4,000 bytes"), ("/drip", "no answer within 0.5 s"),
        ("/drip_headers", "no answer within 0.5 s"), ("/silent", "no answer within 0.5 s|timed out"),
        ("/short", "the connection ended after 10 of 1,000 bytes"), ("/away", "302|unknown url type"),
        ("/ftp", "unknown url type: ftp"), ("/loop", "redirect|infinite loop"), ("/nonsense", "cannot be read"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_one_error(server: str, path: str, words: str) -> None:
    start = time.monotonic()
    with pytest.raises(ImageError, match=words) as caught:
        get(server + path, max_bytes=4000, max_seconds=0.5)
    assert str(caught.value).count(f"{server}{path}") == 1
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("url", ["http://", "http://[::1", "http://a b/", "http://host:port/", "https://\n/"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ImageError):
        get(url, max_seconds=1)


@pytest.fixture
def unanswered() -> Iterator[int]:
    """The port of a listener that answers no connection: its queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(listener.getsockname())
        yield listener.getsockname()[1]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems fill the queue of a listener in other ways")
def test_the_time_is_for_all_addresses_and_redirections(unanswered: int, monkeypatch: pytest.MonkeyPatch) -> None:
    address_of = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: 5 * address_of(*args, **options))

    def late(request: BaseHTTPRequestHandler) -> None:
        time.sleep(0.2)
        redirect(f"http://127.0.0.1:{unanswered}/")(request)

    with served({"/moved": late}) as server:
        for url in (f"http://127.0.0.1:{unanswered}/", f"{server}/moved"):
            start = time.monotonic()
            with pytest.raises(ImageError, match=r"no answer within 0\.3 s"):
                get(url, max_seconds=0.3)
            assert time.monotonic() - start < 1


def test_nothing_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ImageError, match="refused"):
        get(f"http://127.0.0.1:{port}/")


def test_passwords_are_not_shown() -> None:
    assert without_password("https://me:secret@host:8/a?b=c") == "https://***@host:8/a?b=c"
    assert without_password("https://host/a") == "https://host/a"
    assert without_password("http://[bad") == "http://[bad"
    for url in (
        "http://me:secret@127.0.0.1:1/",
        "http://me:secret@/",
        "http://me:sec:secret@[::1",
        "http://me:secret@x:y/",
    ):
        with pytest.raises(ImageError) as caught:
            get(url, max_seconds=1)
        assert "secret" not in str(caught.value)


def test_a_login_is_sent_to_its_server_and_no_other() -> None:
    seen = []

    def logged(request: BaseHTTPRequestHandler) -> None:
        seen.append(request.headers["Authorization"])
        content(b"", None)(request)

    with served({"/page": logged}) as second, served({"/page": logged, "/moved": redirect(f"{second}/page")}) as first:
        with_login = first.replace("://", "://me:p%40ss@")
        get(f"{with_login}/page")
        get(f"{with_login}/moved")
    assert seen == ["Basic " + base64.b64encode(b"me:p@ss").decode(), None]
