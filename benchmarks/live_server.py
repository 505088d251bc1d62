"""Live videos for the benchmarks and tests: H.264 at its frame rate, by RTSP or MPEG-TS, from a process of its own.

    python benchmarks/live_server.py people.mp4 --streams 16 --size 1920x1080 --rate 30 --sent sent.npy

The server encodes the first `--seconds` of the video once, as a camera does, and repeats them with continuous
timestamps. Each stream has an address; the addresses are printed as JSON when the server is ready. A connection gets
the stream from its first frame on, a frame each interval; the server waits for no reader.

When the kernel has taken the last byte of a frame, the server writes the time into the file `--sent`, a NumPy array of
float64 (streams, frames). Times are seconds of the system's monotonic clock. A new connection sets the row of its
stream to 0. The server ends when a line comes from its standard input, which it answers with the number of faults of
each kind, or when that is closed.

With `--faults`, the first connection of each stream is whole, so that all of them are open at the same time. Each later
one ends in its second half: the server closes it, closes it in the middle of a frame, or sends nothing more. Every
tenth frame behind the first quarter has wrong bytes. And now and then the network stalls: for half a second nothing is
sent, and then all frames that are due at once.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import functools
import io
import itertools
import json
import random
import re
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
import numpy as np

__all__ = ["Encoded", "description", "encode", "main", "rtp", "transport_stream"]

#: Bytes of a NAL unit in one packet of RTP, and the clock and the first time of these packets.
PAYLOAD, CLOCK, FIRST = 1400, 90000, 900000
PAYLOAD_TYPE, FRAGMENT = 96, 28
SPS, PPS = 7, 8


@dataclass(frozen=True)
class Encoded:
    """H.264 in Annex B, a packet for each frame; the time of a packet counts frames."""

    encoder: Any
    packets: list[Any]
    rate: int

    def repeated(self, repeats: int) -> Iterator[tuple[Any, int]]:
        """Repeats the packets, each with the offset of its time."""
        for repeat, packet in itertools.product(range(repeats), self.packets):
            yield packet, repeat * len(self.packets)


def encode(source: str, size: tuple[int, int], rate: int, seconds: float, b_frames: int = 0) -> Encoded:
    """The first frames of a video, with a key frame each second.

    Args:
        b_frames: so many frames between two others refer to the later one.
    """
    encoder = av.CodecContext.create("libx264", "w")
    encoder.width, encoder.height = size
    encoder.pix_fmt, encoder.time_base, encoder.framerate = "yuv420p", Fraction(1, rate), Fraction(rate)
    tune = {} if b_frames else {"tune": "zerolatency"}
    encoder.options = {"preset": "veryfast", "crf": "21", "g": str(rate), "bf": str(b_frames), **tune}
    packets = []
    with av.open(source) as container:
        frames = itertools.islice(container.decode(video=0), round(rate * seconds))
        for number, frame in enumerate(frames):
            scaled = frame.reformat(*size, format="yuv420p")
            scaled.pts, scaled.time_base = number, encoder.time_base
            scaled.pict_type = 0  # the encoder chooses, not the source
            packets += encoder.encode(scaled)
    return Encoded(encoder, packets + encoder.encode(None), rate)


def transport_stream(video: Encoded, repeats: int, *, lengths: bool) -> list[bytes]:
    """The bytes of MPEG-TS of each packet.

    Args:
        lengths: packets of MPEG-TS tell their length, if they are below 64 KiB.
    """
    file, encoder = io.BytesIO(), video.encoder
    options = {"flush_packets": "1", "omit_video_pes_length": str(int(not lengths))}
    chunks, written = [], 0
    with av.open(file, "w", format="mpegts", container_options=options) as container:
        stream = container.add_stream("libx264", rate=video.rate)
        stream.width, stream.height, stream.pix_fmt = encoder.width, encoder.height, encoder.pix_fmt
        for packet, shift in video.repeated(repeats):
            copy = av.Packet(bytes(packet))
            copy.pts, copy.dts, copy.time_base = packet.pts + shift, packet.dts + shift, encoder.time_base
            copy.is_keyframe, copy.stream = packet.is_keyframe, stream
            container.mux(copy)
            with file.getbuffer() as written_so_far:
                chunks.append(bytes(written_so_far[written:]))
            written = file.tell()
    return chunks


def rtp(video: Encoded, repeats: int) -> list[bytes]:
    """The bytes of RTP (RFC 6184) of each packet, for channel 0 of an RTSP connection (RFC 2326, 10.12)."""
    chunks, sequence = [], itertools.count()
    for packet, shift in video.repeated(repeats):
        timestamp = FIRST + (packet.pts + shift) * CLOCK // video.rate
        payloads = [payload for unit in _units(packet) for payload in _payloads(unit)]
        chunk = bytearray()
        for number, payload in enumerate(payloads, 1):
            marker = 0x80 if number == len(payloads) else 0
            header = (0x80, marker | PAYLOAD_TYPE, next(sequence) & 0xFFFF, timestamp & 0xFFFFFFFF, 1)
            chunk += struct.pack(">cBHBBHII", b"$", 0, 12 + len(payload), *header) + payload
        chunks.append(bytes(chunk))
    return chunks


def description(video: Encoded) -> str:
    """The video as RTSP describes it (RFC 4566)."""
    sets = {unit[0] & 0x1F: unit for unit in _units(video.packets[0])}
    parameters = ",".join(base64.b64encode(sets[kind]).decode() for kind in (SPS, PPS))
    lines = (
        "v=0", "o=- 0 0 IN IP4 127.0.0.1", "s=live", "c=IN IP4 127.0.0.1", "t=0 0", f"m=video 0 RTP/AVP {PAYLOAD_TYPE}",
        f"a=rtpmap:{PAYLOAD_TYPE} H264/{CLOCK}", f"a=framerate:{video.rate}",
        f"a=fmtp:{PAYLOAD_TYPE} packetization-mode=1;sprop-parameter-sets={parameters}", "a=control:video",
    )  # fmt: skip
    return "\r\n".join(lines) + "\r\n"


def _units(packet: Any) -> Sequence[bytes]:
    """The NAL units of a packet."""
    return [unit for unit in re.split(b"\0\0\0?\1", bytes(packet)) if unit]


def _payloads(unit: bytes) -> Iterator[bytes]:
    """A NAL unit in one piece, or in fragments."""
    if len(unit) <= PAYLOAD:
        yield unit
        return
    kind, importance = unit[0] & 0x1F, unit[0] & 0xE0
    for start in range(1, len(unit), PAYLOAD):
        begins, ends = start == 1, start + PAYLOAD >= len(unit)
        yield bytes((importance | FRAGMENT, begins << 7 | ends << 6 | kind)) + unit[start : start + PAYLOAD]


# ---- the server ----

#: Bytes that the kernel keeps for a reader that is slow: several seconds of a stream.
SEND_BUFFER = 4 << 20
#: The ends of connections with faults.
ENDS = ("close", "cut", "silence")
#: The seconds of a stall, and its probability before each frame.
STALL, STALLS = 0.5, 0.005


class Server:
    """Sends the frames of all streams, each when it is due.

    Args:
        chunks: the bytes of each frame.
        numbers: the numbers of these frames, in the order in which they are shown.
        sent: gets the times.
        description: of the video, for RTSP; None sends to everybody who connects.
        faults: their seed; None for no faults.
    """

    def __init__(
        self,
        chunks: Sequence[bytes],
        numbers: Sequence[int],
        rate: int,
        sent: Any,
        description: str | None,
        faults: int | None,
    ) -> None:
        self._chunks, self._numbers, self._interval, self._sent = chunks, numbers, 1 / rate, sent
        self._description = description
        self._random = None if faults is None else random.Random(faults)
        self._played: set[int] = set()  # the streams that have had a connection
        self.faults: Counter[str] = Counter()
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in sent]
        kind = "tcp" if description is None else "rtsp"
        self.addresses = [f"{kind}://127.0.0.1:{listener.getsockname()[1]}" for listener in self._listeners]

    async def run(self) -> None:
        """Serves until something comes from the standard input, or it is closed."""
        for stream, listener in enumerate(self._listeners):
            await asyncio.start_server(functools.partial(self._serve, stream), sock=listener)
        await asyncio.to_thread(sys.stdin.readline)

    async def _serve(self, stream: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        # The reader leaves, or the server ends.
        with contextlib.suppress(EOFError, OSError, asyncio.CancelledError), contextlib.closing(writer):
            if self._description is not None:
                await self._answer(self._description, reader, writer)
            await self._play(stream, writer, asyncio.ensure_future(_read_to_end(reader)))

    async def _answer(self, description: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers what RTSP asks before the stream begins."""
        method = ""
        while method != "PLAY":
            request = (await reader.readuntil(b"\r\n\r\n")).decode()
            method = request.split(" ", 1)[0]
            number = re.search(r"CSeq: *(\d+)", request)
            assert number is not None, request
            status, headers, body = "200 OK", "", ""
            if method == "OPTIONS":
                headers = "Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN\r\n"
            elif method == "DESCRIBE":
                body, headers = description, f"Content-Type: application/sdp\r\nContent-Length: {len(description)}\r\n"
            elif method == "SETUP" and "RTP/AVP/TCP" in request:
                headers = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n"
            elif method != "PLAY":
                status = "461 Unsupported Transport" if method == "SETUP" else "501 Not Implemented"
            answer = f"RTSP/1.0 {status}\r\nCSeq: {number[1]}\r\nSession: 1\r\n{headers}\r\n{body}"
            writer.write(answer.encode())

    async def _play(self, stream: int, writer: asyncio.StreamWriter, reading: asyncio.Future[None]) -> None:
        """Sends the frames, and does not wait until they are received.

        Args:
            reading: ends when the reader has left.
        """
        faults = self._random if stream in self._played else None
        self._played.add(stream)
        length = len(self._chunks)
        if faults is not None:
            length = faults.randrange(length // 2, length)
        self._sent[stream] = 0
        start = (time.monotonic() // self._interval + 1 + stream / len(self._sent)) * self._interval
        for index in range(length):
            chunk, due = self._chunks[index], start + index * self._interval
            if faults is not None and faults.random() < STALLS:
                self.faults["stall"] += 1
                due += STALL
            await asyncio.sleep(due - time.monotonic())
            if reading.done():
                return
            if faults is not None and index > len(self._chunks) // 4:
                chunk = self._damaged(chunk, faults)
            writer.write(chunk)
            self._sent[stream, self._numbers[index]] = time.monotonic()
        end = faults.choice(ENDS) if faults is not None else "close"
        self.faults[end] += 1
        if end == "cut":
            chunk = self._chunks[length]
            writer.write(chunk[: len(chunk) // 2])
        elif end == "silence":
            await reading

    def _damaged(self, chunk: bytes, faults: random.Random) -> bytes:
        """The second half of a frame, which contains no headers, gets other bytes now and then."""
        if faults.random() > 0.1:
            return chunk
        self.faults["damage"] += 1
        data = bytearray(chunk)
        for _ in range(10):
            data[faults.randrange(len(data) // 2, len(data))] ^= 0x55
        return bytes(data)


async def _read_to_end(reader: asyncio.StreamReader) -> None:
    """Reads the messages of a client during the stream, which need no answer."""
    with contextlib.suppress(OSError):
        while await reader.read(1 << 16):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a video")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--size", default="1920x1080")
    parser.add_argument("--rate", type=int, default=30, help="frames a second")
    parser.add_argument("--format", choices=("rtsp", "ts-lengths"), default="rtsp")
    parser.add_argument("--seconds", type=float, default=4.0, help="of the video that are encoded")
    parser.add_argument("--repeats", type=int, default=15, help="how often a connection gets them")
    parser.add_argument("--faults", type=int, metavar="SEED", help="connections and frames are damaged at random")
    parser.add_argument("--sent", required=True, help="the file for the times")
    settings = parser.parse_args()
    width, height = map(int, settings.size.split("x"))
    video = encode(settings.source, (width, height), settings.rate, settings.seconds)
    if settings.format == "rtsp":
        chunks, described = rtp(video, settings.repeats), description(video)
    else:
        chunks, described = transport_stream(video, settings.repeats, lengths=True), None
    numbers = [packet.pts + shift for packet, shift in video.repeated(settings.repeats)]
    sent = np.lib.format.open_memmap(settings.sent, "w+", np.float64, (settings.streams, len(chunks)))
    server = Server(chunks, numbers, settings.rate, sent, described, settings.faults)
    print(json.dumps({"addresses": server.addresses}), flush=True)
    asyncio.run(server.run())
    print(json.dumps(server.faults), flush=True)


if __name__ == "__main__":
    main()
