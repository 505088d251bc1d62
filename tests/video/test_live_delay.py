"""A live source gives a frame before its sender has the next ones: how many frames the reader holds back."""

from __future__ import annotations

import queue
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import until

from infersdk.video import DeviceVideoReader, Streams, VideoReader, VideoWriter, stream

av = pytest.importorskip("av")
from live_server import Encoded, encode, transport_stream  # noqa: E402

SIZE, RATE = (160, 120), 20
#: Frames that are sent at once, so that the source can be opened, and after that one by one.
AT_ONCE, ONE_BY_ONE = 40, 20
#: Seconds after which the sender and the test give up.
WAIT = 30.0
WHOLE_PACKETS = {"fflags": "+noparse"}


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("live") / "a.mp4"
    image = np.random.default_rng(0).integers(0, 255, (*SIZE[::-1], 3), np.uint8)
    with VideoWriter(path, SIZE, RATE) as writer:
        for number in range(AT_ONCE + ONE_BY_ONE):
            writer.write(np.roll(image, 3 * number, axis=1))
    return path


@contextmanager
def sending(parts: Iterable[bytes]) -> Iterator[str]:
    """The address of a server that sends these to whom connects. Without a reader, the process does not wait for it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT)

        def send() -> None:
            connection, _ = server.accept()
            with connection:
                for part in parts:
                    connection.sendall(part)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        thread.join(WAIT)


READERS = [VideoReader, pytest.param(DeviceVideoReader, marks=pytest.mark.gpu)]


def assert_held_back(reader: Any, chunks: list[bytes], held: int, options: Mapping[str, str]) -> None:
    """The reader gives each frame when `held` later ones have been sent; if it wants more, it fails after `timeout`."""
    parts = queue.SimpleQueue[bytes]()
    parts.put(b"".join(chunks[:AT_ONCE]))
    settings: dict[str, Any] = {"drop": "never", "prefetch": AT_ONCE + ONE_BY_ONE, "timeout": 5, "options": options}
    with sending(iter(parts.get, b"")) as address, reader(address, **settings) as frames:
        assert frames.live
        for number in range(AT_ONCE - held):
            assert next(frames).number == number
        for number in range(AT_ONCE, AT_ONCE + ONE_BY_ONE):
            parts.put(chunks[number])
            frame = next(frames)
            assert frame.number == number - held
            assert frame.time == pytest.approx(frame.number / RATE, abs=1e-3)
        parts.put(b"")
        assert [frame.number for frame in frames] == list(range(len(chunks) - held, len(chunks)))


@pytest.mark.parametrize(
    ("lengths", "options", "held"), [(False, {}, 2), (True, {}, 1), (False, WHOLE_PACKETS, 1), (True, WHOLE_PACKETS, 0)]
)
@pytest.mark.parametrize("reader", READERS)
def test_mpeg_ts(reader: Any, lengths: bool, options: Mapping[str, str], held: int, video: Path) -> None:
    """Frames in the order in which they are shown; the decoder itself holds back none."""
    encoded = encode(str(video), SIZE, RATE, (AT_ONCE + ONE_BY_ONE) / RATE, 0)
    assert_held_back(reader, transport_stream(encoded, 1, lengths=lengths), held, options)


class Bits:
    """The bits of a NAL unit."""

    def __init__(self, unit: bytes) -> None:
        self.bits = "".join(f"{byte:08b}" for byte in re.sub(b"\0\0\3", b"\0\0", unit))
        self.at = 8

    def u(self, count: int) -> int:
        self.at += count
        return int(self.bits[self.at - count : self.at], 2)

    def ue(self) -> int:
        zeros = self.bits.index("1", self.at) - self.at
        self.at += zeros
        return self.u(zeros + 1) - 1


def without_reordering_limit(unit: bytes) -> bytes:
    """A sequence parameter set (H.264, 7.3.2.1.1) without what says how far frames are reordered; other NAL units."""
    if unit[0] & 0x1F != 7:
        return unit
    sps = Bits(unit)
    assert sps.u(8) == 100, "the high profile"
    sps.u(16), sps.ue()
    assert sps.ue() == 1, "4:2:0"
    sps.ue(), sps.ue(), sps.u(1)
    assert not sps.u(1), "no scaling matrices"
    sps.ue()
    assert sps.ue() == 0, "a type of order that allows other orders"
    for _ in range(2):
        sps.ue()
    sps.u(1), sps.ue(), sps.ue()
    assert sps.u(1), "no fields"
    sps.u(1)
    if sps.u(1):
        for _ in range(4):
            sps.ue()
    assert sps.u(1), "there is something to leave out"
    bits = sps.bits[: sps.at - 1] + "01"
    bits += "0" * (-len(bits) % 8)
    data = bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))
    return re.sub(b"\0\0([\0-\3])", b"\0\0\3\\1", data)


def as_cameras_send(video: Path) -> Encoded:
    """Frames in their order, in a stream that does not say so."""
    encoder = av.CodecContext.create("libx264", "w")
    (encoder.width, encoder.height), encoder.pix_fmt = SIZE, "yuv420p"
    encoder.time_base, encoder.framerate = Fraction(1, RATE), Fraction(RATE)
    encoder.options = {"preset": "veryfast", "g": "20", "bf": "1", "b_strategy": "0"}
    packets = []
    with av.open(str(video)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            frame.pts, frame.time_base = number, encoder.time_base
            frame.pict_type = 2 if number % 20 else 1  # none that refers to a later one
            packets += encoder.encode(frame)
    rewritten = []
    for packet in packets + encoder.encode(None):
        units = [unit for unit in re.split(b"\0\0\0?\1", bytes(packet)) if unit]
        copy = av.Packet(b"".join(b"\0\0\0\1" + without_reordering_limit(unit) for unit in units))
        copy.pts = copy.dts = packet.pts
        copy.is_keyframe = packet.is_keyframe
        rewritten.append(copy)
    return Encoded(encoder, rewritten, RATE)


@pytest.mark.parametrize("reader", READERS)
def test_as_cameras_send(reader: Any, video: Path) -> None:
    """No frame is held back until the buffer of the standard is full."""
    encoded = as_cameras_send(video)
    assert [packet.pts for packet in encoded.packets] == list(range(AT_ONCE + ONE_BY_ONE))
    assert_held_back(reader, transport_stream(encoded, 1, lengths=True), 0, WHOLE_PACKETS)


@pytest.mark.parametrize("options", [{}, WHOLE_PACKETS], ids=["parsed", "whole"])
@pytest.mark.parametrize("b_frames", [0, 1, 2, 3])
@pytest.mark.parametrize("reader", READERS)
def test_all_frames_come_in_order(
    reader: Any, b_frames: int, options: Mapping[str, str], video: Path, tmp_path: Path
) -> None:
    """A live source gives the frames of the same file, also where frames refer to later ones."""
    encoded = encode(str(video), SIZE, RATE, (AT_ONCE + ONE_BY_ONE) / RATE, b_frames)
    data = b"".join(transport_stream(encoded, 2, lengths=True))
    (tmp_path / "a.ts").write_bytes(data)
    with VideoReader(tmp_path / "a.ts", format="nv12") as frames:
        expected = list(frames)
    assert len(expected) == 2 * (AT_ONCE + ONE_BY_ONE)
    settings: dict[str, Any] = {"drop": "never", "timeout": 5, "options": options}
    settings |= {"format": "nv12"} if reader is VideoReader else {}
    with sending([data]) as address, reader(address, **settings) as frames:
        assert frames.live
        for theirs in expected:
            ours = next(frames)
            assert (ours.number, ours.time) == (theirs.number, pytest.approx(theirs.time, abs=1e-6))
            pixels = ours.to_host().pixels if reader is DeviceVideoReader else ours.pixels
            np.testing.assert_array_equal(pixels, theirs.pixels, err_msg=f"frame {ours.number}")
        assert not list(frames)


class Slow:
    """A model that takes 10 ms for a frame, one after the other."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1)

    def submit(self, frame: Any) -> Future[None]:
        return self.thread.submit(time.sleep, 0.01)


@contextmanager
def live(video: Path, together: int, pause: float) -> Iterator[tuple[str, int]]:
    """The address of a source, and its number of frames: `AT_ONCE`, and then this many at a time after each pause."""
    encoded = encode(str(video), SIZE, RATE, (AT_ONCE + ONE_BY_ONE) / RATE, 0)
    chunks = transport_stream(encoded, 1, lengths=True)

    def parts() -> Iterator[bytes]:
        yield b"".join(chunks[:AT_ONCE])
        for number in range(AT_ONCE, len(chunks), together):
            time.sleep(pause)
            yield b"".join(chunks[number : number + together])

    with sending(parts()) as address:
        yield address, len(chunks)


@pytest.mark.parametrize("waits", [60.0, 0.0])
def test_frames_that_come_together(waits: float, video: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four frames come at once, and the model has time for all of them before the next four."""
    monkeypatch.setattr(stream, "WAITS", waits)
    with (
        live(video, 4, 0.5) as (address, count),
        Streams({"live": address}, in_flight=1, give_up_after=0, options=WHOLE_PACKETS) as streams,
    ):
        numbers = [item.frame.number for item in streams.run(Slow()) if item.frame is not None]
        dropped = streams.health()["live"].dropped
    came_later = [number for number in numbers if number >= AT_ONCE]
    if waits:
        assert came_later == list(range(AT_ONCE, count))
    else:
        assert len(came_later) < ONE_BY_ONE
    assert dropped == count - len(numbers)


class Busy:
    """A model that never has a result."""

    def submit(self, frame: Any) -> Future[None]:
        return Future()


def test_one_frame_waits_for_a_busy_model(video: Path) -> None:
    """Newer frames replace it when they come, and not when the model takes one: so few have memory at a time."""
    with live(video, 1, 1 / RATE) as (address, count):
        with Streams({"live": address}, in_flight=1, options=WHOLE_PACKETS) as streams:
            taking = threading.Thread(target=lambda: next(streams.run(Busy()), None), daemon=True)
            taking.start()
            until(lambda: streams.health()["live"].dropped >= count - 4)  # one is in the model, and few wait
        taking.join(WAIT)
