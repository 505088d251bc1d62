"""Eight live streams through one model, which are cut, damaged and silenced again and again.

    pytest -m soak tests/video/test_stream_soak.py          # ten minutes; INFERSDK_SOAK_SECONDS sets another time

No stream is lost, the frames of each come in order, its counts add up, and memory, descriptors and threads do not grow.
"""

from __future__ import annotations

import gc
import os
import random
import re
import socket
import statistics
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from infersdk import models
from infersdk.data import DETECTOR
from infersdk.video import Streams, VideoWriter, stream

pytest.importorskip("av")
pytest.importorskip("onnxruntime")
from live_server import description, encode, rtp, transport_stream

SIZE, RATE, TIMEOUT = (160, 120), 5, 3.0
#: Frames of a connection, unless it fails before.
FRAMES = 40
#: How connections end: by the server, in the middle of a frame, and by silence.
ENDS = ("close", "cut", "silence")
#: Two of the streams are MPEG-TS by TCP, the others RTSP.
STREAMS, BY_TCP = 8, 2
#: Growth of the median between the second and the last quarter that is noise of the allocator.
GROWTH = 16 << 20
#: Frames that may be dropped between the last result and the end.
LAST_DROPS = 2 * stream.WAITING


class Camera:
    """Sends frames at their rate, some of them damaged. Each connection ends by chance in one of `ENDS`.

    Args:
        chunks: the bytes of each frame.
        description: of the video, for RTSP; None sends to everybody who connects.
    """

    def __init__(self, chunks: list[bytes], description: str | None, seed: int) -> None:
        self._chunks, self._description, self._random = chunks, description, random.Random(seed)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"{'tcp' if description is None else 'rtsp'}://127.0.0.1:{self._server.getsockname()[1]}"
        self.faults: Counter[str] = Counter()
        self._closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=self._server.accept()[:1], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if self._description is not None and not self._answer(connection):
                return
            end = self._random.choice(ENDS)
            length = self._random.randrange(FRAMES // 2, FRAMES)
            for number, chunk in enumerate(self._chunks[:length]):
                connection.sendall(self._damaged(chunk) if number > FRAMES // 4 else chunk)
                if self._closed.wait(1 / RATE):
                    return
            self.faults[end] += 1
            if end == "cut":
                connection.sendall(self._chunks[length][: len(self._chunks[length]) // 2])
            elif end == "silence":
                self._closed.wait(2 * TIMEOUT)

    def _answer(self, connection: socket.socket) -> bool:
        """Answers the requests of RTSP; whether the stream is played."""
        request = ""
        while not request.startswith("PLAY"):
            if not (request := connection.recv(1 << 16).decode()):
                return False
            number = re.search(r"CSeq: *(\d+)", request)
            assert number is not None
            body = self._description or ""
            headers, content = {
                "DESCRIBE": (f"Content-Type: application/sdp\r\nContent-Length: {len(body)}\r\n", body),
                "SETUP": ("Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n", ""),
            }.get(request.split(" ", 1)[0], ("", ""))
            answer = f"RTSP/1.0 200 OK\r\nCSeq: {number[1]}\r\nSession: 1\r\n{headers}\r\n{content}"
            connection.sendall(answer.encode())
        return True

    def _damaged(self, chunk: bytes) -> bytes:
        """Every tenth frame has other bytes in its second half, behind the headers."""
        if self._random.random() > 0.1:
            return chunk
        self.faults["damage"] += 1
        data = bytearray(chunk)
        for _ in range(10):
            data[self._random.randrange(len(data) // 2, len(data))] ^= 0x55
        return bytes(data)

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


def sample() -> tuple[int, int, int]:
    """Bytes of memory, open descriptors and threads of this process."""
    gc.collect()
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) << 10, len(os.listdir("/proc/self/fd")), int(fields["Threads"])


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_streams_that_fail_again_and_again(tmp_path: Path) -> None:
    seconds = float(os.environ.get("INFERSDK_SOAK_SECONDS", "600"))
    random_numbers = np.random.default_rng(0)
    with VideoWriter(tmp_path / "a.mp4", SIZE, RATE) as writer:
        for _ in range(FRAMES):
            writer.write(random_numbers.integers(0, 255, (*SIZE[::-1], 3), np.uint8))
    video = encode(str(tmp_path / "a.mp4"), SIZE, RATE, FRAMES / RATE, 0)
    by_rtsp, by_tcp = rtp(video, 1), transport_stream(video, 1, lengths=True)
    cameras = {
        str(number): Camera(by_tcp, None, number) if number < BY_TCP else Camera(by_rtsp, description(video), number)
        for number in range(STREAMS)
    }
    sources = {name: camera.url for name, camera in cameras.items()}
    items: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    numbers, times = dict.fromkeys(sources, -1), dict.fromkeys(sources, -1.0)
    samples = []
    options = {"rtsp_transport": "tcp", "fpsprobesize": "0"}
    with (
        models.YOLOv5(DETECTOR, backend="onnxruntime", max_batch=1, threads=1) as model,
        Streams(sources, timeout=TIMEOUT, options=options, format="nv12") as streams,
    ):
        begin = sampled = time.monotonic()
        for item in streams.run(model):
            assert item.frame is not None, f"stream {item.stream} was lost: {item.error}"
            items[item.stream] += 1
            errors[item.stream] += item.error is not None
            assert item.frame.number > numbers[item.stream]
            assert item.frame.time >= times[item.stream]
            numbers[item.stream], times[item.stream] = item.frame.number, item.frame.time
            now = time.monotonic()
            if now - sampled > seconds / 100:
                samples.append(sample())
                sampled = now
            if now - begin > seconds:
                break
        streams.close()
        health = streams.health()
    for camera in cameras.values():
        camera.close()
    for name, state in health.items():
        print(name, items[name], cameras[name].faults, state)
    for name, state in health.items():
        assert state.connects > seconds / 40, "it is opened again and again"
        assert (state.results + state.errors, state.errors) == (items[name], errors[name])
        assert 0 <= state.frames - items[name] <= stream.WAITING
        assert 0 <= state.dropped - (numbers[name] + 1 - items[name]) <= LAST_DROPS
    faults = sum((camera.faults for camera in cameras.values()), Counter())
    assert set(faults) == {*ENDS, "damage"}
    quarter = len(samples) // 4
    early, late = (
        [statistics.median(values) for values in zip(*part, strict=True)]
        for part in (samples[quarter : 2 * quarter], samples[-quarter:])
    )
    print("memory, descriptors, threads:", early, late)
    assert late[0] - early[0] < GROWTH
    assert late[1] - early[1] <= STREAMS
    assert late[2] - early[2] <= STREAMS
