"""HTTP as bytes: connections of several requests in any framing, and parameters of all numbers and types.

The rule of a connection: each complete request gets one answer, in order, and the next connection works.
"""

from __future__ import annotations

import functools
import json
import random
import socket
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from mutation import mutate
from serve_targets import server

__all__ = ["http_connections", "http_parameters"]

INFER = "/v2/models/numbers/infer"


# ---- connections ----


class Exchange(NamedTuple):
    """A request as bytes, and what its answer has.

    Attributes:
        status: of the answer.
        marks: bytes that the answer's body contains, and those of no other request.
        closes: whether the connection ends with the answer.
    """

    sent: bytes
    status: int
    marks: bytes
    closes: bool = False
    is_head: bool = False


class _TooSlowError(Exception):
    """This process had no processor for so long that the server may have given the connection up."""


def http_connections(rng: random.Random) -> bool:
    """Well-formed requests in random framing, pipelined, in pieces, half-closed; sometimes damage behind them."""
    try:
        return _connection(rng)
    except _TooSlowError:
        return False


def _connection(rng: random.Random) -> bool:
    exchanges = [_exchange(rng, index) for index in range(rng.choice([1, 1, 2, 3, 5, 12]))]
    expected = _until_closed(exchanges)
    sent = b"".join(one.sent for one in exchanges)
    damage = b""
    if rng.random() < 0.4 and not expected[-1].closes:
        damage = mutate(rng, _exchange(rng, 99).sent) if rng.random() < 0.7 else rng.randbytes(rng.randrange(1, 300))
    half_closed = rng.random() < 0.5
    heads = [one.is_head for one in expected]
    answers = _talk(rng, sent + damage, half_closed, heads, ended=bool(damage) or expected[-1].closes)
    assert len(answers) >= len(expected), f"{len(answers)} answers to {len(expected)} requests: {sent[:3000]!r}"
    for one, (status, body) in zip(expected, answers, strict=False):
        assert status == one.status, f"status {status}, not {one.status}, for {one.sent[:1000]!r}: {body[:300]!r}"
        assert one.is_head or one.marks in body, (
            f"the answer to another request for {one.sent[:1000]!r}: {body[:300]!r}"
        )
    more = answers[len(expected) :]
    assert damage or not more, f"{len(more)} answers without a request: {more[:3]} after {sent[-1000:]!r}"
    assert all(status < 500 or status in (501, 503, 504) for status, _ in more), more
    if rng.random() < 0.2:
        proper = _infer(rng, "next", [])
        ((status, body),) = _talk(rng, proper.sent, False, [False], ended=False)
        assert (status, proper.marks in body) == (proper.status, True), "the next connection does not work"
    return not damage


def _until_closed(exchanges: list[Exchange]) -> list[Exchange]:
    """Those that are answered: behind one that closes there are no more."""
    for index, one in enumerate(exchanges):
        if one.closes:
            return exchanges[: index + 1]
    return exchanges


def _exchange(rng: random.Random, index: int) -> Exchange:
    lines = _odd_headers(rng)
    kind = rng.random()
    if kind < 0.6:
        made = _infer(rng, f"id-{index}-{rng.randrange(1 << 30)}", lines)
    elif kind < 0.75:
        path = rng.choice(["/v2/health/live", "http://host/v2/health/live", "/v2/health/live?x=%00"])
        made = Exchange(_head(rng, "GET", path, lines) + b"\r\n", 200, b"")
    elif kind < 0.9:
        name = f"none-{index}-{rng.randrange(1 << 30)}"
        made = Exchange(_head(rng, "GET", f"/{name}", lines) + b"\r\n", 404, name.encode())
    else:
        made = Exchange(_head(rng, "HEAD", "/v2/health/live", lines) + b"\r\n", 405, b"", is_head=True)
    empty = rng.choice([b"", b"", b"", b"\r\n", b"\r\n\r\n", b"\n"])
    return made._replace(sent=empty + made.sent, closes=made.closes or "Connection: close" in lines)


def _odd_headers(rng: random.Random) -> list[str]:
    """Headers that do not change the answer, apart from `Connection: close`."""
    choices = [
        ["Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABk"],
        ["Upgrade: websocket", "Connection: Upgrade"], ["Upgrade: x"], ["X-Empty:"], ["Accept: */*", "Cookie: a=b"],
        ["X-Long: " + "y" * rng.randrange(4000)], ["Connection: keep-alive"], ["Connection: close"], ["TE: trailers"],
        ["X-Forwarded-For: 1.2.3.4, x"], ["Accept-Encoding: gzip;q=0"], ["Range: bytes=0-1"], ["If-None-Match: *"],
    ]  # fmt: skip
    chosen = [line for lines in rng.sample(choices, rng.choice([0, 0, 1, 2])) for line in lines]
    connection = [line for line in chosen if line.startswith("Connection")]
    for line in connection[1:]:  # one is enough; the first counts
        chosen.remove(line)
    return chosen


def _head(rng: random.Random, method: str, path: str, lines: list[str]) -> bytes:
    lines = ["Host: x", *lines]
    rng.shuffle(lines)
    end = "\n" if rng.random() < 0.05 else "\r\n"
    changed = [_cased(rng, line) for line in lines]
    return (end.join([f"{method} {path} HTTP/1.1", *changed]) + end).encode()


def _cased(rng: random.Random, line: str) -> str:
    name, _, value = line.partition(":")
    name = rng.choice([name, name.lower(), name.upper()])
    return f"{name}:{rng.choice(['', ' ', '  ', chr(9)])}{value.strip()}{rng.choice(['', '', ' '])}"


def _infer(rng: random.Random, name: str, lines: list[str]) -> Exchange:
    """An inference request whose answer has its id."""
    entry = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [rng.randrange(1000) for _ in range(4)]}
    body = json.dumps({"id": name, "inputs": [entry]}).encode()
    lines, status, closes = list(lines), 200, False
    if rng.random() < 0.1:
        body += b" " * rng.choice([1000, 70_000, 300_000])
    if rng.random() < 0.1:
        body, status = body.replace(b'"FP32"', b'"FP99"'), 400
        name = "FP99"
    if rng.random() < 0.1:
        lines.append("Expect: 100-continue")
    framing = rng.random()
    if framing < 0.7:
        lines.append(f"Content-Length: {'0' * rng.choice([0, 0, 0, 1, 8])}{len(body)}")
        data = body
    else:
        lines.append("Transfer-Encoding: " + rng.choice(["chunked", "Chunked"]))
        data = _chunks(rng, body)
    return Exchange(_head(rng, "POST", INFER, lines) + b"\r\n" + data, status, name.encode(), closes)


def _chunks(rng: random.Random, body: bytes) -> bytes:
    parts, at = [], 0
    while at < len(body):
        size = rng.choice([1, 2, 15, 16, 100, 5000, 100_000])
        part = body[at : at + size]
        digits = rng.choice(["%x", "%X", "0%x", "%x;name=value"]) % len(part)
        parts.append(digits.encode() + b"\r\n" + part + b"\r\n")
        at += size
        if len(parts) > 200:
            part = body[at:]
            parts.append(b"%x\r\n%s\r\n" % (len(part), part) if part else b"")
            break
    trailer = rng.choice([b"", b"", b"X-Trailer: y\r\n"])
    return b"".join([*parts, b"0\r\n", trailer, b"\r\n"])


def _talk(
    rng: random.Random, sent: bytes, half_closed: bool, heads: list[bool], *, ended: bool
) -> list[tuple[int, bytes]]:
    """Sends these bytes in pieces; the answers that come.

    Args:
        heads: of each answer that is expected, whether it is that to a HEAD request.
        ended: whether the server closes the connection.
    """
    reader, count, started = _Reader(heads), len(heads), time.monotonic()
    with socket.create_connection(("127.0.0.1", server().http_port), timeout=20) as one:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        cuts = sorted(rng.randrange(1, len(sent)) for _ in range(rng.choice([0, 0, 1, 3])) if len(sent) > 1)
        try:
            for first, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
                one.sendall(sent[first:end])
                time.sleep(rng.choice([0, 0, 0.001]))
            if half_closed:
                one.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the server has closed
        if time.monotonic() - started > server().settings.read_timeout / 2:
            raise _TooSlowError
        try:
            while ended or half_closed or len(reader.answers) < count:
                if not (chunk := one.recv(1 << 16)):
                    break
                reader.feed(chunk)
            if not ended and not half_closed:  # what else comes is too much
                one.settimeout(0.005)
                while chunk := one.recv(1 << 16):
                    reader.feed(chunk)
        except TimeoutError:
            missing = ended or half_closed or len(reader.answers) < count
            assert not missing, f"{len(reader.answers)} of {count} answers and no end: {sent!r:.3000}"
        except ConnectionError:
            pass
    is_head = reader.rest.startswith(b"HTTP/1.1 4") and reader.rest.endswith(b"\r\n\r\n")  # of damage
    assert not reader.rest or is_head, f"the answers end with {reader.rest[:200]!r}"
    return reader.answers


class _Reader:
    """Answers out of a stream of bytes; interim ones (1xx) are left out."""

    def __init__(self, heads: list[bool]) -> None:
        self.answers: list[tuple[int, bytes]] = []
        self.rest = b""
        self._heads = heads

    def feed(self, data: bytes) -> None:
        self.rest += data
        while (end := self.rest.find(b"\r\n\r\n")) >= 0:
            head = self.rest[:end].decode("latin-1").split("\r\n")
            assert head[0].startswith("HTTP/1.1 "), head[0]
            status = int(head[0].split()[1])
            headers = dict(line.lower().split(": ", 1) for line in head[1:])
            assert "transfer-encoding" not in headers, head
            is_head = status >= 200 and self._heads[len(self.answers) :][:1] == [True]
            length = 0 if is_head else int(headers.get("content-length", "0"))
            body = self.rest[end + 4 : end + 4 + length]
            if body.startswith(b"HTTP/1.1 "):  # damage made a HEAD request
                length, body = 0, b""
            if len(body) < length:
                return
            self.rest = self.rest[end + 4 + length :]
            if status >= 200:
                self.answers.append((status, body))


# ---- parameters ----

_NUMBERS = [
    *(0, 1, -1, 2, 255, 300, 30_000, 30_001, 86_400, 86_401, 2**31 - 1, 2**31, 2**53, 2**63, 2**64, 10**30, -(2**63)),
    *(0.0, -0.0, 0.5, 1e-300, 1.5, 1e10, 1e15, 1e300, -1e300, 5e-324),
]
_WORDS = ["", "a", "\0", "\x1b[31m", "\ud7ff", "x" * 5000, "1", "true", "nan", "inf", "-inf", "0x10", "1_0", "person"]
_TEXTS = ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "9" * 400, "0." + "1" * 400, "1E5", "-0", "01", "+1", ".5"]
_PARAMETERS = [
    *("deadline", "timeout", "priority", "sequence_id", "sequence_start", "binary_data_output", "nonesuch"),
    *("conf", "iou", "max_det", "max_candidates", "multi_label", "class_agnostic", "classes"),
]
_INPUT_PARAMETERS = ["binary_data_size", "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"]
_OUTPUT_PARAMETERS = ["binary_data", "classification", *_INPUT_PARAMETERS[1:]]


@functools.cache
def _image() -> bytes:
    from infersdk.data import IMAGE

    return Path(IMAGE).read_bytes()


def _value(rng: random.Random, depth: int = 0) -> str:
    """A value as JSON, or almost."""
    kind = rng.random()
    if kind < 0.5:
        return json.dumps(rng.choice(_NUMBERS))
    if kind < 0.6:
        return rng.choice(_TEXTS)
    if kind < 0.75:
        return json.dumps(rng.choice(_WORDS))
    if kind < 0.85 or depth > 2:
        return rng.choice(["true", "false", "null"])
    if kind < 0.95:
        return "[" + ",".join(_value(rng, depth + 1) for _ in range(rng.choice([0, 1, 2, 100]))) + "]"
    return '{"b64": ' + _value(rng, depth + 1) + "}"


def _table(rng: random.Random, names: list[str]) -> str:
    return "{" + ",".join(f"{json.dumps(n)}: {_value(rng)}" for n in rng.sample(names, rng.choice([0, 1, 1, 2]))) + "}"


def http_parameters(rng: random.Random) -> bool:
    """Numbers and types of all kinds where requests to a detector and to a network have parameters."""
    if rng.random() < 0.3:
        names = rng.sample(_PARAMETERS, rng.choice([1, 1, 2, 3]))
        pairs = [f"{name}={quote(_value(rng).strip(chr(34)))}" for name in names]
        path, body = "/predict?" + "&".join(pairs), _image()
    else:
        path, body = INFER, _request(rng)
    status = _ask(path, body)
    what = f"{path[:2000]} {body[:1500] if body[:1] == b'{' else b''!r}"
    assert status < 500 or status in (501, 503, 504), f"status {status} for {what}"
    if rng.random() < 0.1:
        assert (again := _ask(*_plain(path))) == 200, f"the next request has status {again} after {what}"
    return status < 400


def _request(rng: random.Random) -> bytes:
    shape = (
        "[1, 4]" if rng.random() < 0.8 else "[" + ", ".join(_value(rng) for _ in range(rng.choice([0, 1, 2, 40]))) + "]"
    )
    data = "[1, 2, 3, 4]" if rng.random() < 0.7 else "[" + ", ".join(_value(rng) for _ in range(4)) + "]"
    datatype = rng.choice(["FP32"] * 6 + ["FP16", "INT8", "BYTES", "BOOL", "UINT64", "BF16", "", "fp32"])
    with_parameters = f', "parameters": {_table(rng, _INPUT_PARAMETERS)}' if rng.random() < 0.4 else ""
    one = f'{{"name": "x", "shape": {shape}, "datatype": "{datatype}", "data": {data}{with_parameters}}}'
    outputs = (
        f', "outputs": [{{"name": "y", "parameters": {_table(rng, _OUTPUT_PARAMETERS)}}}]' if rng.random() < 0.4 else ""
    )
    parameters = f', "parameters": {_table(rng, _PARAMETERS)}' if rng.random() < 0.7 else ""
    name = f', "id": {_value(rng)}' if rng.random() < 0.2 else ""
    return f'{{"inputs": [{one}]{outputs}{parameters}{name}}}'.encode("utf-8", "surrogatepass")


def _plain(path: str) -> tuple[str, bytes]:
    if path == INFER:
        return INFER, b'{"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}'
    return "/predict?deadline=20", _image()


def _ask(path: str, body: bytes) -> int:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", "Connection: close", "", ""]
    for _ in range(3):  # the server closes connections that are not used in time
        answer = b""
        with socket.create_connection(("127.0.0.1", server().http_port), timeout=30) as one:
            try:
                one.sendall("\r\n".join(lines).encode() + body)
                while chunk := one.recv(1 << 16):
                    answer += chunk
            except ConnectionError:  # the head is refused, and the body was on its way
                return 400
        if answer:
            break
    assert answer.startswith(b"HTTP/1.1 "), answer[:100]
    return int(answer[9:12])
