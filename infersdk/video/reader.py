"""Frames out of files, streams and cameras."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import warnings
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from .._http import without_password
from .._prefetch import Prefetch
from ..errors import ClosedError, ConfigError, VideoError, relative_to
from ..image import HostImage
from ._av import import_av, reason

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Self

__all__ = ["Frame", "VideoReader"]

#: Protocols of live sources: the sender does not wait for its reader.
_LIVE = frozenset({"rtsp", "rtsps", "rtmp", "rtmps", "rtp", "udp", "srt", "mms", "tcp", "unix"})
_FORMATS = {"rgb": "rgb24", "bgr": "bgr24", "nv12": "nv12"}
#: Seconds without data after which a live source counts as dead.
_TIMEOUT = 10.0


class Frame(HostImage):
    """A frame of a video, which is a `HostImage`.

    Attributes:
        time: when it is shown, in seconds from the start of the video.
        number: its number, from 0; frames that were dropped count as well.
        decoded: the time of `time.monotonic()` when it was decoded.
    """

    time: float
    number: int
    decoded: float

    def __new__(cls, pixels: npt.NDArray[np.uint8], format: str, time: float, number: int) -> Frame:
        frame = super().__new__(cls, pixels, format)
        frame.time, frame.number, frame.decoded = time, number, monotonic()
        return frame


@dataclass
class _Decoded:
    """What the decoding thread has done so far."""

    frames: int = 0
    damaged: int = 0
    end: float = 0.0


class VideoReader:
    """An iterator over the frames of a video, which are decoded on a thread of its own. It can be read once; `with`
    closes it.

    Args:
        source: a file, a URL (`rtsp://`, `http://`, ...), or a camera (`/dev/video0`, or its number).
        format: of the frames: `"rgb"`, `"bgr"` or `"nv12"`. RGB is the fastest if boxes are drawn on the frames. NV12
            has half as many bytes, for frames that only go to a GPU; frames with an odd side cannot have it.
        prefetch: decoded frames that may wait.
        drop: what happens when `prefetch` frames wait. `"never"`: the decoder waits. `"oldest"`, for live sources: the
            oldest one is dropped, and counted in `dropped`. None is `"oldest"` for live sources and `"never"` for
            files, which never drop a frame.
        timeout: seconds without data after which reading from a URL or camera fails.
        options: FFmpeg's options for the container: `{"rtsp_transport": "tcp"}`, `{"video_size": "1280x720"}`.

    Attributes:
        size: (width, height) of the frames as they are shown, rotated if the file says so.
        fps: frames per second on average; None if the source does not say.
        frames: number of frames; None if the source does not say.
        duration: in seconds; None for live sources.
        live: whether the source does not wait for its reader.
        damage: what was wrong with a file that was read to its end; empty if nothing was.

    Raises:
        VideoError: there is no such source, it is not a video, or none of its frames can be decoded.
        BackendUnavailableError: PyAV is not installed.

    A file that ends early or is damaged gives all frames that can be decoded, and one RuntimeWarning at the end with
    the text of `damage`.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | int,
        *,
        format: str = "rgb",
        prefetch: int = 8,
        drop: str | None = None,
        timeout: float = _TIMEOUT,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self._buffer: Prefetch[Frame] | None = None
        self._closed = False
        self.damage = ""
        self.source = f"/dev/video{source}" if isinstance(source, int) else os.fspath(source)
        self._shown = without_password(self.source)
        scheme = re.match(r"([a-z][a-z0-9+]+)://", self.source, re.IGNORECASE)
        camera = self.source.startswith("/dev/")
        if format not in _FORMATS:
            raise ConfigError(f"unknown format {format!r}; use one of {', '.join(_FORMATS)}")
        if drop not in (None, "never", "oldest"):
            raise ConfigError(f"unknown drop {drop!r}; use 'never' or 'oldest'")
        if drop == "oldest" and not scheme and not camera:
            raise ConfigError(f"drop='oldest' is for live sources, and {self._shown!r} is a file; leave it out")
        if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 1:
            raise ConfigError(f"prefetch is a number of frames from 1, not {prefetch!r}")
        self._av = import_av()
        self._container = self._open(bool(scheme), camera, timeout, dict(options or {}))
        try:
            stream = self._stream()
            live = camera or (scheme is not None and scheme[1].lower() in _LIVE)
            # A web server may have a file or a camera: a source without a length is live.
            self.live = live or (bool(scheme) and self._container.duration is None and not stream.frames)
            self._describe(stream, format)
            stream.thread_type = "SLICE" if self.live else "AUTO"  # threads over frames would delay as many frames
            self._decoded = _Decoded()
            self._frames = _decode(self._av, self._container, format, self._decoded, self._shown, self.fps)
            # Only the first frame shows whether there is one, and how it is rotated.
            first = next(self._frames, None)
            if first is None:
                raise VideoError(f"{self._shown!r} has no frame that can be decoded")
        except BaseException:
            self._container.close()
            raise
        self.size: tuple[int, int] = first.size
        self._first, self._prefetch = first, prefetch
        self._drops = (drop or ("oldest" if self.live else "never")) == "oldest"

    def _open(self, url: bool, camera: bool, timeout: float, options: dict[str, str]) -> Any:
        av = self._av
        try:
            kind = "v4l2" if camera and sys.platform == "linux" and self.source.startswith("/dev/video") else None
            wait = timeout if url or camera else None
            return av.open(self.source, format=kind, options=options, timeout=wait)
        except FileNotFoundError:
            raise VideoError(f"no video at {self._shown!r}{relative_to(self.source)}") from None
        except (av.error.FFmpegError, OSError, ValueError) as error:
            raise VideoError(f"{self._shown!r} cannot be opened as a video: {reason(error)}") from None

    def _stream(self) -> Any:
        if self._container.format.name == "tty":  # FFmpeg renders text as a video of a terminal
            raise VideoError(f"{self._shown!r} is not a video, but text")
        streams = self._container.streams.video
        images = self._container.format.name in ("image2", "png_pipe", "jpeg_pipe", "webp_pipe", "bmp_pipe")
        if not streams or images or streams[0].codec_context is None or not streams[0].codec_context.width:
            what = ", ".join(stream.type for stream in self._container.streams) or "nothing"
            raise VideoError(f"{self._shown!r} is not a video: it contains {'one image' if images else what}")
        return streams[0]

    def _describe(self, stream: Any, format: str) -> None:
        context = stream.codec_context
        if format == "nv12" and (context.width % 2 or context.height % 2):
            raise VideoError(
                f"{self._shown!r} is {context.width} x {context.height}; NV12 needs even sides: use format='rgb'"
            )
        rate = stream.average_rate or stream.guessed_rate
        self.fps: float | None = float(rate) if rate else None
        length = stream.duration * stream.time_base if stream.duration else None
        if length is None and self._container.duration:
            length = self._container.duration / self._av.time_base
        self.duration: float | None = float(length) if length is not None and not self.live else None
        self.frames: int | None = (stream.frames or None) if not self.live else None
        if self.frames is None and self.duration and self.fps:
            self._expected, self.frames = None, round(self.duration * self.fps)
        else:
            self._expected = self.frames  # the file says it, so it is no estimate

    @property
    def dropped(self) -> int:
        """Frames of a live source that were dropped, since `prefetch` newer ones waited."""
        return self._buffer.dropped if self._buffer is not None else 0

    # ---- frames ----

    def __iter__(self) -> Iterator[Frame]:
        return self

    def __next__(self) -> Frame:
        if self._closed:
            raise ClosedError(f"the video {self._shown!r} was closed; open it again")
        if self._buffer is None:
            self._buffer = Prefetch(_rest(self._first, self._frames), self._prefetch, drop_oldest=self._drops)
            del self._first
        try:
            return next(self._buffer)
        except StopIteration:
            self._check_end()
            raise

    def _check_end(self) -> None:
        decoded = self._decoded
        if self.live or self.damage or self._closed:
            return
        problems = []
        tolerated = max(2, decoded.frames // 50)  # edit lists leave some frames out
        if self._expected is not None and self._expected - decoded.frames > tolerated + decoded.damaged:
            problems.append(f"it ends after {decoded.frames} of {self._expected} frames")
        elif self._expected is None and self.duration and self.duration - decoded.end > max(1.0, self.duration / 50):
            problems.append(f"it ends after {decoded.end:.1f} of {self.duration:.1f} seconds")
        if decoded.damaged:
            problems.append(f"{decoded.damaged} packets could not be decoded")
        if problems:
            self.damage = "; ".join(problems)
            warnings.warn(f"the video {self._shown!r} is damaged: {self.damage}", RuntimeWarning, 3)

    def close(self) -> None:
        """Stops decoding and closes the source. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._buffer is None:
            self._frames.close()
        else:
            self._buffer.close()  # its thread closes the container

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        rate = f", {self.fps:g} fps" if self.fps else ""
        return f"<VideoReader {self._shown!r}, {self.size[0]} x {self.size[1]}{rate}>"


class _Clock:
    """The times of frames in seconds from the start of the video.

    Args:
        begin: the time that the source calls its start; None if it does not say.
        interval: from a frame to the next, for frames without a time: streams that are joined begin with some.
    """

    def __init__(self, begin: float | None, interval: float) -> None:
        self._begin, self._interval = begin, interval
        self._start: float | None = None
        self._next = 0.0

    def time_of(self, time: float | None) -> float:
        if time is None:
            at = self._next
        else:
            if self._start is None:
                self._start = time - self._next
                if self._next == 0.0 and self._begin is not None and self._begin <= time:
                    self._start = self._begin
            at = time - self._start
        self._next = at + self._interval
        return at


def _rest(first: Frame, frames: Generator[Frame, None, None]) -> Iterator[Frame]:
    with contextlib.closing(frames):
        yield first
        yield from frames


def _decode(
    av: Any, container: Any, format: str, so_far: _Decoded, source: str, fps: float | None
) -> Generator[Frame, None, None]:
    """All frames; packets that cannot be decoded are skipped and counted."""
    stream = container.streams.video[0]
    target = _FORMATS[format]
    begin = float(stream.start_time * stream.time_base) if stream.start_time is not None else None
    clock = _Clock(begin, 1 / (fps or 30.0))
    with container:
        packets = container.demux(stream)
        while True:
            try:
                packet = next(packets, None)
            except av.error.FFmpegError as error:
                if isinstance(error, (av.error.ExitError, TimeoutError)):
                    raise VideoError(f"{source!r} has sent no data for too long: {reason(error)}") from None
                so_far.damaged += 1
                return
            if packet is None:
                return
            try:
                decoded = packet.decode()
            except av.error.FFmpegError:
                so_far.damaged += 1
                continue
            for frame in decoded:
                at = clock.time_of(frame.time)
                pixels = frame.to_ndarray(format=target)
                if frame.rotation and format != "nv12":
                    pixels = np.ascontiguousarray(np.rot90(pixels, round(frame.rotation / 90)))
                so_far.end = max(so_far.end, at + (1 / fps if fps else 0.0))
                so_far.frames += 1
                yield Frame(pixels, format, at, so_far.frames - 1)
