"""A video as `live_server.py` sends it: encoded as by a camera, frame by frame, in MPEG-TS or in RTP."""

from __future__ import annotations

import base64
import io
import itertools
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av

__all__ = ["Encoded", "description", "encode", "rtp", "transport_stream"]

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
        """The packets again and again, each with what is added to its time."""
        for repeat, packet in itertools.product(range(repeats), self.packets):
            yield packet, repeat * len(self.packets)


def encode(source: str, size: tuple[int, int], rate: int, seconds: float, b_frames: int) -> Encoded:
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
