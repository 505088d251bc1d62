"""Frames that an NVIDIA GPU decodes, and that stay on it (`pip install "infersdk[nvvideo]"`).

PyAV reads the packets, so sources, times and errors are those of `VideoReader`; PyNvVideoCodec decodes them by the
hardware decoder. A decoder writes over its frames with the next packet, so each is copied on the device, into memory
that later frames use again. Each decoder has a stream of its own: on the default one it would wait for all others.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections import deque
from collections.abc import Generator, Mapping
from typing import Any

from ..core.device import Device
from ..core.stream import Stream, device_count
from ..core.tensor import Tensor
from ..errors import BackendUnavailableError, ConfigError, DeviceUnavailableError, VideoError
from .frames import DeviceFrame
from .source_reader import TIMEOUT, Clock, Decoded, SourceReader, packets_of

__all__ = ["DeviceVideoReader"]

#: What results call the decoder.
NAME = "nvdec"
#: The codecs, as FFmpeg and as PyNvVideoCodec name them.
_CODECS = {
    "h264": "H264", "hevc": "HEVC", "av1": "AV1", "vp8": "VP8", "vp9": "VP9", "mpeg1video": "MPEG1",
    "mpeg2video": "MPEG2", "mpeg4": "MPEG4", "mjpeg": "JPEG",
}  # fmt: skip
#: The filters of FFmpeg that bring packets into the form that the decoder reads.
_FILTERS = {"h264": "h264_mp4toannexb", "hevc": "hevc_mp4toannexb", "mpeg4": "dump_extra"}
#: Stands for the time of a packet that has none.
_NO_TIME = -(2**62)
#: CUVID's flag for a packet behind whose bytes nothing of its frame follows.
_WHOLE_FRAME = 0x08
_USE_CPU = "use decode='cpu'"


class DeviceVideoReader(SourceReader[DeviceFrame]):
    """An iterator over the frames of a video, which a GPU decodes; a `DeviceFrame` in NV12 stays on the device.

    Everything else is as with `VideoReader`: the arguments, the attributes, the times, live sources, damaged files.

    Args:
        device: the CUDA device that decodes; that of the model.

    Raises:
        VideoError: as `VideoReader`; also for a codec, a pixel format or an odd size that the decoder does not have,
            and for a video that is rotated.
        BackendUnavailableError: PyAV or PyNvVideoCodec is not installed, or does not find its driver.
        DeviceUnavailableError: the machine does not have the device.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | int,
        *,
        device: str | Device = "cuda:0",
        prefetch: int = 8,
        drop: str | None = None,
        drop_after: float | None = None,
        timeout: float = TIMEOUT,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.device = Device.parse(device)
        if self.device.kind != "cuda":
            raise ConfigError(f"device {str(device)!r} decodes no video; use a CUDA device such as 'cuda:0'")
        if self.device.index >= device_count():
            raise DeviceUnavailableError(
                f"{self.device} decodes videos, and this machine has {device_count()} CUDA devices; {_USE_CPU}"
            )
        self._module = _pynvvideocodec()
        super().__init__(
            source, even=True, prefetch=prefetch, drop=drop, drop_after=drop_after, timeout=timeout, options=options
        )

    def _decode(self, stream: Any, so_far: Decoded) -> Generator[DeviceFrame, None, None]:
        codec = stream.codec_context.codec.canonical_name
        if codec not in _CODECS:
            raise VideoError(f"{self._shown!r} is in {codec}, which the GPU does not decode; {_USE_CPU}")
        decoder = _Decoder(self._module, self.device, stream, codec, self._shown, live=self.live)
        return _decode(self._av, stream, decoder, so_far, self._shown, self.fps)


def _decode(
    av: Any, stream: Any, decoder: _Decoder, so_far: Decoded, shown: str, fps: float | None
) -> Generator[DeviceFrame, None, None]:
    """All frames; packets that cannot be decoded are skipped and counted."""
    clock = Clock(stream, fps)
    unit = float(stream.time_base)
    reason = ""
    rotation_known = False
    for packet in packets_of(av, stream, so_far, shown):
        rotation_known = rotation_known or _refuse_rotated(av, stream, packet, shown)
        try:
            frames = decoder.decode(packet)
        except decoder.errors as error:
            so_far.damaged += 1
            reason = _line(error)
            continue
        for pixels, pts in frames:
            at = clock.time_of(None if pts == _NO_TIME else pts * unit)
            yield DeviceFrame(pixels, at, so_far.add(at, fps), NAME)
    if reason and not so_far.frames:
        raise VideoError(f"{shown!r} has no frame that the GPU can decode: {reason}; {_USE_CPU}")


def _refuse_rotated(av: Any, stream: Any, packet: Any, shown: str) -> bool:
    """Only a decoded frame says that it is rotated: the processor decodes the first one.

    Returns:
        Whether the answer is known; else the next packet is asked.
    """
    context = stream.codec_context
    if not context.is_open:
        context.thread_count = 1  # it is one frame
    rotations: list[int] = []
    with contextlib.suppress(av.error.FFmpegError):
        rotations = [frame.rotation for frame in context.decode(packet)]
        if not rotations and packet.is_keyframe:
            rotations = [frame.rotation for frame in context.decode(None)]  # it needs no further packet
    for rotation in filter(None, rotations):
        raise VideoError(f"{shown!r} is rotated by {rotation} degrees, which the GPU does not undo; {_USE_CPU}")
    known = bool(rotations) or packet.is_keyframe
    if known and context.is_open:
        context.flush_buffers()  # a decoder keeps frames for those that come next
    return known


class _Decoder:
    """One session of the hardware decoder. It is used by one thread.

    Args:
        stream: of PyAV.
        live: frames are wanted at once, where their order allows it.
    """

    def __init__(self, module: Any, device: Device, stream: Any, codec: str, shown: str, *, live: bool) -> None:
        self._decoder: Any = None
        self._module, self._shown = module, shown
        self.errors = (module.PyNvVCException, RuntimeError)
        self._device, self._codec = device, codec
        self._stream = Stream(device)
        self._pool = _Pool(self._stream)
        self._discarded: set[int] = set()
        self._filter = None
        if codec in _FILTERS:
            bitstream = importlib.import_module("av.bitstream")
            self._filter = bitstream.BitStreamFilterContext(_FILTERS[codec], stream)
        latency = module.DisplayDecodeLatencyType
        # Each packet of a live source ends its frame. Frames that refer to later ones come in another order than they
        # are shown in, and wait for those. Many cameras do not declare in their H.264 that frames are not reordered.
        # The decoder would delay their frames, so these are taken as they are decoded. (Other codecs say it,
        # and some of them decode frames that are never shown.)
        self._at_once = live
        self._in_order = live and codec == "h264" and not stream.codec_context.has_b_frames
        self._newest, self._second = _NO_TIME, round(1 / stream.time_base)
        try:
            self._decoder = module.CreateDecoder(
                gpuid=device.index,
                codec=getattr(module.cudaVideoCodec, _CODECS[codec]),
                cudastream=self._stream.handle,
                usedevicememory=True,
                latency=latency.ZERO if self._in_order else latency.LOW if self._at_once else latency.NATIVE,
            )
        except Exception as error:
            raise self._unsupported(error) from None

    def __del__(self) -> None:
        self._decoder = None  # it uses the stream until its end

    def decode(self, packet: Any) -> list[tuple[_Pixels, int]]:
        """The frames that come out after this packet, with their times in units of the stream. The empty packet at the
        end gives all that are left.
        """
        last = not packet.size  # asked before: the filter takes the bytes away
        if packet.is_discard and packet.pts is not None:
            self._discarded.add(packet.pts)
        filtered = [packet] if self._filter is None else self._filter.filter(None if last else packet)
        frames = [frame for one in filtered if one.size for frame in self._decoded(one)]
        return frames + self._decoded(None) if last else frames

    def _decoded(self, packet: Any) -> list[tuple[_Pixels, int]]:
        data = self._module.PacketData()
        if packet is not None:
            data.bsl_data, data.bsl = packet.buffer_ptr, packet.size
            data.pts = _NO_TIME if packet.pts is None else packet.pts
            if self._at_once:
                data.decode_flag = _WHOLE_FRAME
        try:
            frames = self._decoder.Decode(data)
        except self._module.PyNvVCExceptionUnsupported as error:  # raised at the first packet
            raise self._unsupported(error) from None
        copied = []
        for frame in frames:
            pts = self._checked(data.pts) if self._in_order else frame.getPTS()
            if pts in self._discarded:  # an edit list leaves it out
                self._discarded.remove(pts)
                continue
            shape = self._shape_of(frame)
            copied.append((self._pool.copy_of(self._address_of(frame, shape), shape), pts))
        if copied:
            # Not by the decoder's SyncOnCUStream(), which keeps the interpreter's lock until the frame is decoded.
            self._stream.synchronize()
        return copied

    def _checked(self, pts: int) -> int:
        """The time of a frame that is taken as it is decoded."""
        if pts != _NO_TIME:
            if 0 < self._newest - pts < self._second:  # a larger step is one of the sender's clock
                raise VideoError(
                    f"{self._shown!r} has frames that refer to later ones now, and had none when it was opened; "
                    f"open it again, or {_USE_CPU}"
                )
            self._newest = pts
        return pts

    def _unsupported(self, error: Exception) -> VideoError:
        return VideoError(f"{self._device} does not decode {self._shown!r} ({self._codec}): {_line(error)}; {_USE_CPU}")

    def _shape_of(self, frame: Any) -> tuple[int, int]:
        """(height * 3 / 2, width) of a frame in NV12."""
        if frame.format != self._module.Pixel_Format.NV12:
            raise VideoError(f"{self._shown!r} is decoded to {frame.format.name}, not to NV12 of 8 bits; {_USE_CPU}")
        rows, width = [int(side) for side in frame.shape if side != 1]
        return rows, width

    def _address_of(self, frame: Any, shape: tuple[int, int]) -> int:
        rows, width = shape
        luma, chroma = int(frame.GetPtrToPlane(0)), int(frame.GetPtrToPlane(1))
        if chroma - luma != rows // 3 * 2 * width:
            raise VideoError(
                f"{self._shown!r}: the planes of a frame of {width} x {rows // 3 * 2} are {chroma - luma} bytes apart, "
                f"not {rows // 3 * 2 * width}; {_USE_CPU}"
            )
        return luma


class _Pool:
    """Memory for frames on a device. The memory of a frame is reused after its last reference is gone.

    A decoder writes its frames to few addresses. The tensors over them are kept: each call of the core lets the threads
    of other readers go first, and making a tensor takes ten.

    Args:
        stream: the decoder writes its frames on it, and they are copied on it.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream, self._device = stream, stream.device
        self._free: deque[_Memory] = deque()
        self._decoded: dict[tuple[int, tuple[int, int]], Tensor] = {}

    def copy_of(self, address: int, shape: tuple[int, int]) -> _Pixels:
        """A copy of the pixels that the decoder has at an address of the device until it decodes the next packet. It is
        queued on the stream.
        """
        memory = self._take(shape)
        memory.written.copy_from(self._over(address, shape), stream=self._stream)
        return _Pixels(memory, self._free)

    def _over(self, address: int, shape: tuple[int, int]) -> Tensor:
        if (address, shape) not in self._decoded:
            if any(known != shape for _, known in self._decoded):  # the size of the video has changed
                self._decoded.clear()
            self._decoded[address, shape] = Tensor._over(address, shape, "uint8", self._device, lender=None)
        return self._decoded[address, shape]

    def _take(self, shape: tuple[int, int]) -> _Memory:
        with contextlib.suppress(IndexError):
            memory = self._free.pop()
            if memory.tensor.shape == shape:
                return memory
            self._free.clear()  # the size of the video has changed
        return _Memory(shape, self._device)


class _Memory:
    """The memory of a frame.

    Attributes:
        tensor: for those who read it. It knows nothing of the decoder's stream: a frame is there when it is given.
        written: the same memory for the decoder's thread, which knows nothing of the streams of readers.
    """

    def __init__(self, shape: tuple[int, int], device: Device) -> None:
        self.tensor = Tensor(shape, "uint8", device)
        address = self.tensor.device_ptr(read=False, write=True)
        self.written = Tensor._over(address, shape, "uint8", device, lender=self.tensor)


class _Pixels:
    """The pixels of a frame, for DLPack. Its end gives the memory back to the pool."""

    def __init__(self, memory: _Memory, pool: deque[_Memory]) -> None:
        self._memory, self._pool = memory, pool
        self._tensor = memory.tensor
        self._lock = threading.Lock()
        self.shape = self._tensor.shape

    def __dlpack__(self, **options: Any) -> Any:
        with self._lock:  # several models may borrow it at the same time
            return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()

    def __del__(self) -> None:
        self._pool.append(self._memory)


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _pynvvideocodec() -> Any:
    try:
        return importlib.import_module("PyNvVideoCodec")
    except Exception as error:  # without a driver it raises a RuntimeError of many lines
        lines = str(error).strip().splitlines()
        raise BackendUnavailableError(
            f"decode='gpu' of videos needs PyNvVideoCodec ({lines[0] if lines else type(error).__name__}): "
            'pip install "infersdk[nvvideo]"'
        ) from None
