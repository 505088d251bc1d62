"""RTSP sources that fall silent, or send all but frames; and how often their reader takes the interpreter's lock."""

from __future__ import annotations

import itertools
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from infersdk.errors import VideoError
from infersdk.video import Streams, VideoReader, VideoWriter, source_reader

pytest.importorskip("av")
from live_server import Encoded, description, encode, rtp
from waiting import until

if TYPE_CHECKING:
    from rtsp import RtspServer

RATE = 30
#: Frames that a camera sends before it falls silent.
FRAMES = 10
TCP = {"rtsp_transport": "tcp", "fpsprobesize": "0"}
#: A report of the sender (RFC 3550, 6.4.1) on channel 1 of the connection.
REPORT = struct.pack(">cBH", b"$", 1, 28) + struct.pack(">BBHIIIIII", 0x80, 200, 6, 1, 0, 0, 0, 0, 0)


class Camera:
    """Sends so many frames at their rate to everybody who connects. Then it calls `after` with the connection, again
    and again, and keeps that open. It never answers the request `silent_at`.
    """

    def __init__(
        self, video: Encoded, frames: int, after: Callable[[socket.socket], object], silent_at: str = "none"
    ) -> None:
        self._silent_at = silent_at
        self._chunks, self._description, self._after = rtp(video, 1)[:frames], description(video), after
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"rtsp://127.0.0.1:{self._server.getsockname()[1]}/"
        self._closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=self._server.accept()[:1], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            request = b""
            while b"PLAY" not in request:
                if not (request := connection.recv(1 << 16)):
                    return
                if request.startswith(self._silent_at.encode()):
                    self._closed.wait()
                connection.sendall(self._answer(request.decode()))
            for chunk in self._chunks:
                connection.sendall(chunk)
                time.sleep(1 / RATE)
            while not self._closed.wait(0.1):
                self._after(connection)

    def _answer(self, request: str) -> bytes:
        number = re.search(r"CSeq: *(\d+)", request)
        body = self._description if request.startswith("DESCRIBE") else ""
        headers = {
            "DESCRIBE": f"Content-Type: application/sdp\r\nContent-Length: {len(body)}\r\n",
            "SETUP": "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n",
        }.get(request.split(" ", 1)[0], "")
        return f"RTSP/1.0 200 OK\r\nCSeq: {number[1]}\r\nSession: 1\r\n{headers}\r\n{body}".encode()

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


def noise(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 255, (240, 320, 3), np.uint8)


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Encoded:
    path = tmp_path_factory.mktemp("sent") / "sent.mp4"
    with VideoWriter(path, (320, 240), RATE) as writer:
        for number in range(FRAMES):
            writer.write(noise(number))
    return encode(str(path), (320, 240), RATE, 1.0, 0)


@pytest.fixture
def camera(video: Encoded) -> Iterator[Callable[..., Camera]]:
    cameras: list[Camera] = []

    def make(frames: int, after: Callable[[socket.socket], object] = lambda _: None, silent_at: str = "none") -> Camera:
        cameras.append(Camera(video, frames, after, silent_at))
        return cameras[-1]

    yield make
    for one in cameras:
        one.close()


class Sides:
    """A model that says how high a frame is."""

    def submit(self, frame: Any, **parameters: Any) -> Future[int]:
        result: Future[int] = Future()
        result.set_result(len(frame.pixels))
        return result


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that sends data has 0.75 s for a frame, where its timeout is 0.5 s."""
    monkeypatch.setattr(source_reader, "_LATER", 0.25)


def send_report(connection: socket.socket) -> None:
    connection.sendall(REPORT)


@pytest.mark.parametrize("step", ["OPTIONS", "DESCRIBE", "SETUP", "PLAY"])
def test_a_source_that_does_not_answer(camera: Callable[..., Camera], step: str) -> None:
    begin = time.monotonic()
    with pytest.raises(VideoError, match=r"cannot be opened as a video: it has not answered within 0\.5 s"):
        VideoReader(camera(FRAMES, silent_at=step).url, timeout=0.5, options=TCP)
    assert time.monotonic() - begin < 5


def test_a_source_without_a_frame(camera: Callable[..., Camera]) -> None:
    with pytest.raises(VideoError, match="no frame that can be decoded"):
        VideoReader(camera(0).url, timeout=0.5, options=TCP)


def test_closing_does_not_wait_for_a_source_that_has_stalled(camera: Callable[..., Camera]) -> None:
    half = threading.Event()

    def send_half(connection: socket.socket) -> None:
        if not half.is_set():
            half.set()
            connection.sendall(REPORT[:10])

    reader = VideoReader(camera(FRAMES, send_half).url, timeout=20, options=TCP)
    next(reader)
    assert half.wait(20)
    begin = time.monotonic()
    reader.close()
    assert time.monotonic() - begin < source_reader.CLOSING


def test_a_source_that_falls_silent(camera: Callable[..., Camera]) -> None:
    with VideoReader(camera(FRAMES).url, timeout=1, options=TCP, drop="never") as reader:
        numbers: list[int] = []
        with pytest.raises(VideoError, match="no data for too long"):
            numbers.extend(frame.number for frame in reader)
    assert len(numbers) >= FRAMES - 2, "the last frame ends with the next one"


@pytest.mark.usefixtures("impatient")
def test_a_source_that_sends_all_but_frames(camera: Callable[..., Camera]) -> None:
    url = camera(FRAMES, send_report).url
    begin = time.monotonic()
    with (
        VideoReader(url, timeout=0.5, options=TCP, drop="never") as reader,
        pytest.raises(VideoError, match=r"no frame that can be decoded, for 0\.75 s"),
    ):
        list(reader)
    assert time.monotonic() - begin < 15
    assert url in source_reader._stalled
    reading = count_readers()
    with VideoReader(url, timeout=0.5, options=TCP, drop="never") as reader, suppress(VideoError):
        list(reader)  # it ends: FFmpeg is interrupted now, and may call that the end of the source
    assert count_readers() == reading


@pytest.mark.usefixtures("impatient")
def test_a_source_whose_frames_are_damaged_leaves_no_thread_behind(camera: Callable[..., Camera]) -> None:
    packets = itertools.count(2000)  # their numbers are near those of the packets before them

    def send_damaged(connection: socket.socket) -> None:
        number = next(packets)
        header = struct.pack(">cBHBBHII", b"$", 0, 32, 0x80, 0x80 | 96, number, number * 9000, 1)
        connection.sendall(header + bytes([0x41, *[0xFF] * 19]))  # a slice of H.264 with wrong numbers

    url = camera(FRAMES, send_damaged).url
    for _ in range(2):
        reading = count_readers()
        with (
            VideoReader(url, timeout=0.5, options=TCP, drop="never") as reader,
            pytest.raises(VideoError, match=r"no frame that can be decoded, for 0\.75 s"),
        ):
            list(reader)
        until(lambda before=reading: count_readers() == before)


@pytest.mark.usefixtures("impatient")
def test_streams_open_it_again_and_leave_one_thread_behind(camera: Callable[..., Camera]) -> None:
    url = camera(FRAMES, send_report).url
    reading = count_readers()
    with Streams({"camera": url}, timeout=0.5, options=TCP) as streams:
        for item in streams.run(Sides()):
            assert item.error is None
            if streams.health()["camera"].connects == 3:
                break
        assert streams.health()["camera"].error
    assert count_readers() - reading <= 1


def count_readers() -> int:
    return sum(thread.name == "infersdk-prefetch" for thread in threading.enumerate())


@pytest.mark.parametrize("options", [TCP, {}], ids=["TCP", "UDP"])
def test_a_server_that_hangs(rtsp: RtspServer, options: dict[str, str]) -> None:
    with VideoReader(rtsp.url, timeout=1, options=options, drop="never") as reader:
        for _ in range(5):
            next(reader)
        rtsp.process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        try:
            with pytest.raises(VideoError, match="no data for too long|no frame"):
                list(reader)
        finally:
            rtsp.process.send_signal(signal.SIGCONT)
    assert time.monotonic() - begin < 10


def test_a_timeout_of_ffmpeg_in_the_options_holds(camera: Callable[..., Camera]) -> None:
    begin = time.monotonic()
    with (
        VideoReader(camera(FRAMES).url, options=TCP | {"timeout": "1000000"}, drop="never") as reader,
        pytest.raises(VideoError, match="no data for too long"),
    ):
        list(reader)
    assert time.monotonic() - begin < source_reader.TIMEOUT
