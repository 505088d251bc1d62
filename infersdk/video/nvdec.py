"""Frames that an NVIDIA GPU decodes, and that stay on it.

PyAV reads the packets, and FFmpeg decodes them by the GPU's decoder. So sources, times and errors are those of
`VideoReader`. FFmpeg copies each frame on the device into memory of its own, which later frames use again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from ..core.device import Device
from ..core.stream import Event, current_device, default_stream, device_count
from ..errors import BackendUnavailableError, ConfigError, DeviceUnavailableError, VideoError
from ..image.images import DevicePixels
from ._av import import_av, reason
from .frames import DeviceFrame
from .source_reader import MAX_PIXELS, TIMEOUT, Decoded, SourceReader, packets_of, turn_of

__all__ = ["DeviceVideoReader"]

#: Frames of a reader that are in use at a time besides those that wait: one that is decoded, and those of a model.
_IN_USE = 4
#: What results call the decoder.
NAME = "nvdec"
#: The first version of PyAV that leaves frames on the device.
_OLDEST_AV = 17
_USE_CPU = "use decode='cpu'"


class DeviceVideoReader(SourceReader[DeviceFrame]):
    """An iterator over the frames of a video, which a GPU decodes; a `DeviceFrame` in NV12 stays on the device.

    Everything else is as with `VideoReader`: the arguments, the attributes, the times, live sources, damaged files.

    Args:
        device: the CUDA device that decodes; that of the model.
        decoders: of readers that have ended. One that fits is used again, since creating and freeing a decoder take
            hundreds of milliseconds, in which no other thread runs Python. Others are freed. At its end, this reader
            leaves its own there, and no other.

    Raises:
        VideoError: as `VideoReader`; also for a codec, a pixel format or an odd size that the decoder does not have,
            and for a video that is rotated or mirrored.
        BackendUnavailableError: PyAV is not installed, or older than version 17.
        DeviceUnavailableError: the machine does not have the device.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | int,
        *,
        device: str | Device = "cuda:0",
        decoders: list[Any] | None = None,
        prefetch: int = 8,
        drop: str | None = None,
        drop_after: float | None = None,
        timeout: float = TIMEOUT,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.device, self._decoders = Device.parse(device), [] if decoders is None else decoders
        if self.device.kind != "cuda":
            raise ConfigError(f"device {str(device)!r} decodes no video; use a CUDA device such as 'cuda:0'")
        if self.device.index >= device_count():
            raise DeviceUnavailableError(
                f"{self.device} decodes videos, and this machine has {device_count()} CUDA devices; {_USE_CPU}"
            )
        version = import_av().__version__
        if int(version.split(".")[0]) < _OLDEST_AV:
            raise BackendUnavailableError(
                f"decode='gpu' needs PyAV {_OLDEST_AV}, and {version} is installed: "
                'pip install --upgrade "infersdk[video]"'
            )
        self._prefetch = prefetch
        super().__init__(
            source, even=True, prefetch=prefetch, drop=drop, drop_after=drop_after, timeout=timeout, options=options
        )

    def _decode(self, stream: Any) -> Generator[DeviceFrame, None, None]:
        decoder = _decoder(self._av, stream, self.device, self._shown, self._decoders)
        in_use = self._prefetch + _IN_USE
        return _decode(self._av, stream, decoder, self._decoders, self.device, self._decoded, self._shown, in_use)


def _decoder(av: Any, stream: Any, device: Device, shown: str, decoders: list[Any]) -> Any:
    """A codec context that decodes a stream of PyAV on a device: one of `decoders`, or a new one where none fits."""
    software = stream.codec_context
    codec = software.codec.canonical_name
    while decoders:
        one = decoders.pop()  # one that does not fit is freed
        if (one.codec.canonical_name, one.extradata) == (codec, software.extradata):
            one.flush_buffers()
            one.reorder_depth = software.reorder_depth
            return one
    # The current context is that of the CUDA runtime. FFmpeg refuses to take it as the "primary" one, because the
    # runtime does not set FFmpeg's flags.
    own = {"primary_ctx": "0", "current_ctx": "1"}
    settings = {"allow_software_fallback": False, "is_hw_owned": True, "options": own}
    try:
        with current_device(device):
            accelerated = av.codec.hwaccel.HWAccel("cuda", str(device.index), **settings)
            decoder = av.CodecContext.create(codec, "r", accelerated)
    except (av.error.FFmpegError, ValueError) as error:  # ValueError: FFmpeg has no decoder of this name
        raise VideoError(f"{device} does not decode {shown!r} ({codec}): {reason(error)}; {_USE_CPU}") from None
    if not decoder.is_hwaccel:
        raise VideoError(f"{shown!r} is in {codec}, which the GPU does not decode; {_USE_CPU}")
    if software.extradata:
        decoder.extradata = software.extradata
    decoder.width, decoder.height, decoder.codec_tag = software.width, software.height, software.codec_tag
    decoder.reorder_depth = software.reorder_depth
    decoder.thread_count = 1
    decoder.options = {"max_pixels": str(MAX_PIXELS)}
    return decoder


def _decode(
    av: Any, stream: Any, decoder: Any, decoders: list[Any], device: Device, so_far: Decoded, shown: str,
    in_use: int,
) -> Generator[DeviceFrame, None, None]:  # fmt: skip
    """All frames; what cannot be decoded is skipped and counted. At the end `decoders` has the decoder alone."""
    # FFmpeg allocates memory for a copy when all that it has is in use. The first frames of a new decoder are held, so
    # that it has enough, and the memory of the device does not grow after them.
    held: list[Any] | None = None if decoder.is_open else []
    # FFmpeg's copies are queued on the default stream. Who waits for a later one waits for those before it.
    copies, copied = default_stream(device), Event(device)
    turn_known, problem = False, ""
    try:
        for packet in packets_of(av, stream, so_far, shown):
            turn_known = turn_known or _refuse_rotated(av, stream, packet, shown)
            try:
                frames = decoder.decode(packet)
            except av.error.FFmpegError as error:
                so_far.damaged += 1
                problem = reason(error)
                continue
            copied.record(copies)
            for frame in frames:
                planes = frame.planes
                if not planes:  # of a damaged packet: FFmpeg gives it without memory
                    so_far.damaged += 1
                    continue
                if held is not None:
                    held.append(frame)
                    if len(held) == in_use:
                        held = None
                at = so_far.time_of(frame.time)
                pixels = _pixels(frame, planes, decoder, copied, device, shown)
                yield DeviceFrame(pixels, at, so_far.add(at), NAME)
    finally:
        decoders[:] = [decoder]  # a reader that was given up, and ended late, may have left another one
    if problem and not so_far.frames:
        codec = decoder.codec.canonical_name
        raise VideoError(f"{device} does not decode {shown!r} ({codec}): {problem}; {_USE_CPU}")


def _refuse_rotated(av: Any, stream: Any, packet: Any, shown: str) -> bool:
    """Only a decoded frame says that it is rotated or mirrored: the processor decodes the first one.

    Returns:
        Whether the answer is known; else the next packet is asked.
    """
    context = stream.codec_context
    if not context.is_open:
        context.thread_count = 1  # it is one frame
    turns: list[bool] = []
    with contextlib.suppress(av.error.FFmpegError):
        turns = [any(turn_of(frame)) for frame in context.decode(packet)]
        if not turns and packet.is_keyframe:
            turns = [any(turn_of(frame)) for frame in context.decode(None)]  # it needs no further packet
    if any(turns):
        raise VideoError(f"{shown!r} is rotated or mirrored by its metadata, which the GPU does not undo; {_USE_CPU}")
    known = bool(turns) or packet.is_keyframe
    if known and context.is_open:
        context.flush_buffers()  # a decoder keeps frames for those that come next
    return known


def _pixels(frame: Any, planes: Sequence[Any], decoder: Any, copied: Event, device: Device, shown: str) -> DevicePixels:
    """The pixels of a decoded frame, which stay as they are as long as PyAV's frame is there."""
    if decoder.sw_format.name != "nv12":
        raise VideoError(f"{shown!r} is decoded to {decoder.sw_format.name}, not to NV12 of 8 bits; {_USE_CPU}")
    luma, chroma = planes
    distance = chroma.buffer_ptr - luma.buffer_ptr
    if luma.line_size != chroma.line_size or distance < luma.line_size * frame.height:
        raise VideoError(
            f"{shown!r} has a frame whose planes have rows of {luma.line_size} and {chroma.line_size} bytes and are "
            f"{distance} bytes apart; {_USE_CPU}"
        )
    size = frame.width, frame.height
    return DevicePixels(luma.buffer_ptr, size, luma.line_size, device, copied, frame, distance)
