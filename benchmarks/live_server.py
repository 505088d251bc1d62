"""A server of live videos for the benchmarks, in a process of its own: H.264 at its frame rate, by RTSP or MPEG-TS.

    python benchmarks/live_server.py people.mp4 --streams 16 --size 1920x1080 --rate 30 --sent sent.npy

It encodes the first `--seconds` of the video once, as a camera does, and repeats them without a break in the
timestamps. Each stream has an address; they are printed as JSON when the server is ready. Who connects gets the stream
from its first frame on, a frame each interval; the intervals of the streams begin at different times. The server waits
for no reader.

When it has handed the last byte of a frame to the kernel, it writes the time of the system's monotonic clock, in
seconds, into the file `--sent`, an array of float64 in NumPy's format, (streams, frames). A new connection sets the row
of its stream to 0. The server ends when its standard input is closed.
"""

from __future__ import annotations

import argparse
import heapq
import json
import re
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from live_formats import description, encode, rtp, transport_stream

__all__ = ["main"]

#: Bytes that the kernel keeps for a reader that is slow: several seconds of a stream.
SEND_BUFFER = 4 << 20
RECEIVE = 1 << 16


@dataclass(eq=False)
class Connection:
    """A reader of a stream."""

    stream: int
    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    playing: bool = False
    closed: bool = False


class Server:
    """One thread sends the frames of all streams, each when it is due.

    Args:
        chunks: the bytes of each frame.
        numbers: the numbers of these frames, in the order in which they are shown.
        sent: gets the times.
        description: of the video, for RTSP; None sends to everybody who connects.
    """

    def __init__(
        self, chunks: Sequence[bytes], numbers: Sequence[int], rate: int, sent: Any, description: str | None
    ) -> None:
        self._chunks, self._numbers, self._interval, self._sent = chunks, numbers, 1 / rate, sent
        self._description = description
        self._selector = selectors.DefaultSelector()
        self._due: list[tuple[float, int, int, Connection]] = []  # when, stream, frame
        self.addresses = []
        for stream in range(len(sent)):
            listener = socket.create_server(("127.0.0.1", 0))
            self._selector.register(listener, selectors.EVENT_READ, stream)
            kind = "tcp" if description is None else "rtsp"
            self.addresses.append(f"{kind}://127.0.0.1:{listener.getsockname()[1]}")

    def run(self) -> None:
        """Serves until the standard input is closed."""
        self._selector.register(sys.stdin, selectors.EVENT_READ, None)
        while True:
            wait = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            for key, events in self._selector.select(wait):
                if key.data is None:
                    return
                if isinstance(key.data, int):
                    self._accept(key.fileobj, key.data)
                    continue
                if events & selectors.EVENT_READ:
                    self._receive(key.data)
                if events & selectors.EVENT_WRITE:
                    self._send(key.data, b"")
            while self._due and self._due[0][0] <= time.monotonic():
                self._send_frame(*heapq.heappop(self._due))

    def _accept(self, listener: Any, stream: int) -> None:
        accepted, _ = listener.accept()
        accepted.setblocking(False)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(stream, accepted)
        self._selector.register(accepted, selectors.EVENT_READ, connection)
        if self._description is None:
            self._play(connection)

    def _play(self, connection: Connection) -> None:
        connection.playing = True
        self._sent[connection.stream] = 0
        phase = connection.stream / len(self._sent)
        start = (time.monotonic() // self._interval + 1 + phase) * self._interval
        heapq.heappush(self._due, (start, connection.stream, 0, connection))

    def _send_frame(self, due: float, stream: int, index: int, connection: Connection) -> None:
        self._send(connection, self._chunks[index])
        if connection.closed:
            return
        self._sent[stream, self._numbers[index]] = time.monotonic()
        if index + 1 < len(self._chunks):
            heapq.heappush(self._due, (due + self._interval, stream, index + 1, connection))
        else:
            self._close(connection)

    def _send(self, connection: Connection, data: bytes) -> None:
        """Sends as much as the kernel takes, and keeps the rest."""
        if connection.closed:
            return
        connection.unsent += data
        try:
            del connection.unsent[: connection.socket.send(connection.unsent)]
        except BlockingIOError:
            pass
        except OSError:  # the reader has left
            self._close(connection)
            return
        writing = selectors.EVENT_WRITE if connection.unsent else 0
        self._selector.modify(connection.socket, selectors.EVENT_READ | writing, connection)

    def _receive(self, connection: Connection) -> None:
        """Answers what RTSP asks before the stream begins; what comes later needs no answer."""
        try:
            data = connection.socket.recv(RECEIVE)
        except OSError:
            data = b""
        if not data:
            self._close(connection)
        elif not connection.playing:
            connection.received += data
            while b"\r\n\r\n" in connection.received and not connection.playing:
                request, _, rest = bytes(connection.received).partition(b"\r\n\r\n")
                connection.received[:] = rest
                self._answer(connection, request.decode())

    def _answer(self, connection: Connection, request: str) -> None:
        method = request.split(" ", 1)[0]
        number = re.search(r"CSeq: *(\d+)", request)
        assert number is not None, request
        status, headers, body = "200 OK", "", ""
        if method == "OPTIONS":
            headers = "Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN\r\n"
        elif method == "DESCRIBE":
            body = self._description or ""
            headers = f"Content-Type: application/sdp\r\nContent-Length: {len(body)}\r\n"
        elif method == "SETUP" and "RTP/AVP/TCP" in request:
            headers = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n"
        elif method != "PLAY":
            status = "461 Unsupported Transport" if method == "SETUP" else "501 Not Implemented"
        answer = f"RTSP/1.0 {status}\r\nCSeq: {number[1]}\r\nSession: 1\r\n{headers}\r\n{body}"
        self._send(connection, answer.encode())
        if method == "PLAY":
            self._play(connection)

    def _close(self, connection: Connection) -> None:
        if not connection.closed:
            connection.closed = True
            self._selector.unregister(connection.socket)
            connection.socket.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a video")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--size", default="1920x1080")
    parser.add_argument("--rate", type=int, default=30, help="frames a second")
    parser.add_argument("--format", choices=("rtsp", "ts", "ts-lengths"), default="rtsp")
    parser.add_argument("--seconds", type=float, default=4.0, help="of the video that are encoded")
    parser.add_argument("--repeats", type=int, default=15, help="how often a connection gets them")
    parser.add_argument("--b-frames", type=int, default=0, help="frames between others that refer to the later one")
    parser.add_argument("--sent", required=True, help="the file for the times")
    settings = parser.parse_args(arguments)
    width, height = map(int, settings.size.split("x"))
    video = encode(settings.source, (width, height), settings.rate, settings.seconds, settings.b_frames)
    if settings.format == "rtsp":
        chunks, described = rtp(video, settings.repeats), description(video)
    else:
        chunks, described = transport_stream(video, settings.repeats, lengths=settings.format == "ts-lengths"), None
    numbers = [packet.pts + shift for packet, shift in video.repeated(settings.repeats)]
    sent = np.lib.format.open_memmap(settings.sent, "w+", np.float64, (settings.streams, len(chunks)))
    server = Server(chunks, numbers, settings.rate, sent, described)
    megabits = 8e-6 * sum(map(len, chunks)) * settings.rate / len(chunks)
    print(json.dumps({"addresses": server.addresses, "megabits": megabits}), flush=True)
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
