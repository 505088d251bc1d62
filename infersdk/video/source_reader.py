"""The base of video readers: opening a source, its properties, and decoding in a thread."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from ..core.prefetch import NoItemError, Prefetch, check_count
from ..core.text import without_password
from ..errors import ClosedError, ConfigError, VideoError, relative_to
from ._av import MAX_FPS, import_av, option_texts, reason
from .frames import DeviceFrame, Frame

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "TIMEOUT", "Decoded", "SourceReader", "check_even", "check_seconds", "is_camera", "packets_of",
    "source_text", "turn_of",
]  # fmt: skip

FrameKind = TypeVar("FrameKind", Frame, DeviceFrame)

#: Protocols of live sources: the sender does not wait for its reader.
_LIVE = frozenset({"rtsp", "rtsps", "rtmp", "rtmps", "rtp", "udp", "srt", "mms", "tcp", "unix"})
#: Demuxers (FFmpeg's names) of files that contain their frames. Not among them are playlists and scripts, which name
#: other files and addresses (hls, dash, concat, sdp), patterns of names (image2), single images and text.
_FORMATS = (
    "mov", "matroska", "avi", "mpegts", "mpeg", "mpegvideo", "flv", "asf", "ogg", "mxf", "nut", "ivf", "gif", "dv",
    "rm", "h264", "hevc", "vvc", "av1", "obu", "m4v", "vc1", "mjpeg", "mpjpeg", "yuv4mpegpipe",
)  # fmt: skip
#: Further ones for addresses: protocols of cameras, playlists of web servers, and the sound that playlists name.
_NETWORK_FORMATS = ("rtsp", "rtp", "live_flv", "hls", "dash", "aac", "mp3", "ac3", "eac3", "webvtt")
#: Protocols of addresses, for redirections and for the addresses that a playlist names: the network, and no file.
_NETWORK = (
    "http", "https", "httpproxy", "tls", "tcp", "udp", "udplite", "rtp", "srtp", "srt", "rtmp", "rtmpe", "rtmps",
    "rtmpt", "rtmpte", "rtmpts", "ffrtmphttp", "ffrtmpcrypt", "mmsh", "mmst", "crypto",
)  # fmt: skip
#: Demuxers whose duration is the time of the end.
_END_TIMES = ("matroska,webm", "nut")
#: The most pixels of a frame: four times as many as 8K has.
MAX_PIXELS = 4 * 7680 * 4320
#: Seconds without data after which a live source counts as dead.
TIMEOUT = 10.0
#: Seconds that `close()` waits for the thread that reads. A live source that sends gives it an end within a few frames.
CLOSING, CLOSING_LIVE = 5.0, 1.0
#: PyAV's timeout takes the interpreter's lock twice for each read from a socket, 81 times for a frame of 17 kB by RTSP.
#: Dozens of streams would mostly wait for the lock. FFmpeg itself therefore handles the timeout of these protocols.
_TIMED_BY_FFMPEG = frozenset({"rtsp", "rtsps"})
#: Seconds that a frame may come later than FFmpeg's timeout, which is for any data.
_LATER = 1.0
#: By source, readers that were given up, since the source sent data without a frame for too long. While one of them
#: still reads, its source is opened with PyAV's timeout, which can end such a read.
_stalled: dict[str, Prefetch[Any]] = {}


class Decoded:
    """The progress of the decoding thread, and the times of frames in seconds from the start of the video.

    Frames without a time, such as the first ones of a stream that is joined, follow one another at the frame rate. So
    does a frame that is earlier than the one before it, as after a restart of a camera's clock: no time is earlier than
    the last one. Two frames of a damaged stream may have one time.

    Args:
        arrivals: whether frames have the times at which they are decoded, and not those that FFmpeg gives them.

    Attributes:
        broken: why reading failed before the end; else empty.
        stopped: no further frame is wanted: the thread ends with the next packet, whether that gives a frame or not.
    """

    def __init__(self, stream: Any, fps: float | None, *, arrivals: bool = False) -> None:
        self.frames = self.damaged = 0
        self.end, self.broken, self.stopped = 0.0, "", False
        self._fps, self._arrivals = fps, arrivals
        start = None if arrivals else stream.start_time
        self._begin = float(start * stream.time_base) if start is not None else None  # start time of the source
        self._interval = 1 / (fps or 30.0)
        self._start: float | None = None
        self._last = self._next = 0.0

    def time_of(self, given: float | None) -> float:
        if self._arrivals:
            given = time.monotonic()
        if given is None:
            at = self._next
        else:
            if self._start is None:
                self._start = given - self._next
                if self._next == 0.0 and self._begin is not None and self._begin <= given:
                    self._start = self._begin
            at = given - self._start
            if at < self._last:
                self._start, at = given - self._next, self._next
        self._last, self._next = at, at + self._interval
        return at

    def add(self, at: float) -> int:
        """Counts a frame that is shown at this time; returns its number."""
        self.end = max(self.end, at + (self._interval if self._fps else 0.0))
        self.frames += 1
        return self.frames - 1


class SourceReader(ABC, Generic[FrameKind]):
    """See `VideoReader`. A reader says in `_decode()` how packets become frames.

    Args:
        even: whether the frames need even sides, as NV12 does.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | int,
        *,
        even: bool,
        prefetch: int,
        drop: str | None,
        drop_after: float | None,
        timeout: float,
        options: Mapping[str, str] | None,
    ) -> None:
        self._closed = self._hangs = False
        self.damage = ""
        self.source = source_text(source)
        self._shown = without_password(self.source)
        if "\0" in self.source:  # where FFmpeg would end the path
            raise VideoError(f"{self._shown!r} cannot be opened as a video: the path has a null character")
        scheme = _scheme_of(self.source)
        camera = is_camera(self.source)
        if drop not in (None, "never", "oldest"):
            raise ConfigError(f"unknown drop {drop!r}; use 'never' or 'oldest'")
        if drop_after is not None:
            check_seconds("drop_after", drop_after)
            if drop == "never":
                raise ConfigError(
                    f"drop='never' drops no frame after {drop_after:g} s; leave one of drop and drop_after out"
                )
        if (drop == "oldest" or drop_after is not None) and not scheme and not camera:
            given = "drop='oldest'" if drop == "oldest" else f"drop_after={drop_after:g}"
            raise ConfigError(f"{given} is for live sources, and {self._shown!r} is a file; leave it out")
        check_count("prefetch", "frames", prefetch)
        check_seconds("timeout", timeout, zero=False)
        self._av = import_av()
        options = option_texts(options)
        #: Seconds to wait for a frame; None where PyAV interrupts FFmpeg after them.
        self._patience: float | None = None
        if scheme in _TIMED_BY_FFMPEG and "timeout" not in options and timeout < math.inf:
            self._patience = timeout + _LATER
        self._container = self._open(scheme, camera, timeout, options)
        try:
            stream = self._stream()
            # A web server may have a file or a camera: a source without a length is live.
            endless = bool(scheme) and self._container.duration is None and not stream.frames
            self.live = camera or scheme in _LIVE or endless
            self._describe(stream, even)
            stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}  # its size may change from frame to frame
            stream.thread_type = "SLICE" if self.live else "AUTO"  # threads over frames would delay as many frames
            frames = self._decode(stream)
        except BaseException:
            self._container.close()
            raise
        drops = (drop or ("oldest" if self.live else "never")) == "oldest"
        longest = math.inf if drop_after is None else drop_after
        self._buffer: Prefetch[FrameKind] = Prefetch(
            frames, prefetch, drop_oldest=drops, expired=lambda frame: time.monotonic() - frame.decoded > longest
        )
        try:
            # Only the first frame shows whether there is one, and how it is turned.
            self.size: tuple[int, int] = self._take(keep=True).size
        except StopIteration:
            raise VideoError(f"{self._shown!r} has no frame that can be decoded") from None
        except BaseException:
            self._buffer.close(0)
            raise

    @abstractmethod
    def _decode(self, stream: Any) -> Generator[FrameKind, None, None]:
        """All frames of a stream of PyAV, counted in `_decoded`. It closes the container at its end, and knows nothing
        of the reader, so that the garbage collector can take that.
        """

    def _open(self, scheme: str, camera: bool, timeout: float, options: dict[str, str]) -> Any:
        av, url = self._av, bool(scheme)
        wait, begin = timeout if url or camera else None, time.monotonic()
        try:
            kind = "v4l2" if camera and sys.platform == "linux" and self.source.startswith("/dev/video") else None
            patient = {} if self._patience is None else {"timeout": str(round(timeout * 1e6))}  # microseconds
            reading = wait if self._patience is None or _still_reads(self.source, timeout) else None
            # The prefix tells FFmpeg that this is a path, even with a colon in it: FFmpeg has protocols such as
            # "concat:a|b" and "subfile,,start,0,end,0,,:a".
            source = self.source if url or kind else f"file:{self.source}"
            allowed = {} if kind else _allowed(scheme)
            return av.open(source, format=kind, options=allowed | options | patient, timeout=(wait, reading))
        except FileNotFoundError:
            raise VideoError(f"no video at {self._shown!r}{relative_to(self.source)}") from None
        except (av.error.FFmpegError, OSError, ValueError) as error:
            # FFmpeg calls that "invalid data" or "not permitted", depending on the step.
            late = wait is not None and time.monotonic() - begin > 0.95 * wait
            why = f"it has not answered within {timeout:g} s" if late else reason(error)
            if isinstance(error, av.error.ArgumentError):  # as of a format that is not on the list
                why += "; it has no format of a video that is read (MP4, Matroska, AVI, MPEG-TS and others)"
                if options:  # FFmpeg does not say which of the two it is
                    why += f", or a value in options ({', '.join(options)}) is none that FFmpeg takes"
            raise VideoError(f"{self._shown!r} cannot be opened as a video: {why}") from None

    def _stream(self) -> Any:
        stream = self._container.streams.best("video")  # a cover image only where there is no other one
        if stream is None:
            what = ", ".join(stream.type for stream in self._container.streams) or "nothing"
            raise VideoError(f"{self._shown!r} is not a video: it contains {what}")
        context = stream.codec_context
        if context is None:
            raise VideoError(f"{self._shown!r} is a video that FFmpeg has no decoder for")
        if not context.width:
            raise VideoError(f"{self._shown!r} has no frame that can be decoded: the size of the video is unknown")
        if context.width * context.height > MAX_PIXELS:
            raise VideoError(
                f"{self._shown!r} is {context.width} x {context.height}; a frame has at most {MAX_PIXELS:,} pixels"
            )
        return stream

    def _describe(self, stream: Any, even: bool) -> None:
        context = stream.codec_context
        if even:
            check_even(context, self._shown)
        arrivals = self.live and self._container.format.name == "mpjpeg"  # FFmpeg counts 25 of its images a second
        rate = stream.average_rate
        # A guess of one frame a tick is right where ticks are frames (IVF, Ogg), and not where they are milliseconds.
        if not rate and (guess := stream.guessed_rate) and (guess * stream.time_base < 1 or guess < MAX_FPS):
            rate = guess
        self.fps: float | None = float(rate) if rate and rate <= MAX_FPS and not arrivals else None
        self._decoded = Decoded(stream, self.fps, arrivals=arrivals)
        length = stream.duration * stream.time_base if stream.duration else None
        if length is None and self._container.duration:
            length = self._container.duration / self._av.time_base
        if length is not None and self._container.format.name in _END_TIMES:
            start = None if stream.start_time is None else stream.start_time * stream.time_base
            length = None if start is None else length - start if start < length else length
        self.duration: float | None = float(length) if length is not None and not self.live else None
        self.frames: int | None = (stream.frames or None) if not self.live else None
        self._expected = self.frames  # if the file states it; below are estimates
        if self.duration and self.fps:
            by_length = round(self.duration * self.fps)
            if self.frames is None:
                self.frames = by_length or None
            elif "mp4" in self._container.format.name:  # it also states the frames that an edit list leaves out
                self._expected = min(self.frames, by_length)

    @property
    def dropped(self) -> int:
        """Frames of a live source that were dropped, since newer ones waited."""
        return self._buffer.dropped

    # ---- frames ----

    def _take(self, *, keep: bool = False) -> FrameKind:
        with self._patient():
            return self._buffer.next_within(self._patience, keep=keep)

    @contextlib.contextmanager
    def _patient(self) -> Iterator[None]:
        try:
            yield
        except NoItemError:
            _stalled[self.source] = self._buffer
            self._hangs = self._decoded.stopped = True
            self._buffer.close(0)
            raise VideoError(
                f"{self._shown!r} has sent data, but no frame that can be decoded, for {self._patience:g} s"
            ) from None

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the video {self._shown!r} was closed; open it again")

    def __iter__(self) -> Iterator[FrameKind]:
        return self

    def __next__(self) -> FrameKind:
        self._check_open()
        try:
            return self._take()
        except StopIteration:
            self._check_end()
            raise

    def pass_to(self, receive: Callable[[FrameKind], object]) -> None:
        """Calls `receive` with each further frame, in the thread that decodes; returns at the end. Nothing is dropped.

        Errors of `receive` end it, and are raised here.
        """
        self._check_open()
        with self._patient():
            self._buffer.pass_to(receive, self._patience)
        self._check_end()

    def _check_end(self) -> None:
        decoded = self._decoded
        if self.live or self.damage or self._closed:
            return
        problems = []
        tolerated = max(2, decoded.frames // 50)  # edit lists leave some frames out
        # AVI counts the frames of a gap, which are not there.
        seen = max(decoded.frames, round(decoded.end * (self.fps or 0)))
        if self._expected is not None and self._expected - seen > tolerated + decoded.damaged:
            problems.append(f"it ends after {decoded.frames} of {self._expected} frames")
        elif self._expected is None and self.duration and self.duration - decoded.end > max(1.0, self.duration / 50):
            problems.append(f"it ends after {decoded.end:.1f} of {self.duration:.1f} seconds")
        if decoded.damaged:
            problems.append(f"FFmpeg reports {decoded.damaged} packets as damaged")
        # FFmpeg also reports the end of an answer of a web server that states no length.
        if decoded.broken and decoded.frames < (self._expected or self.frames or math.inf):
            problems.append(f"reading failed: {decoded.broken}")
        if problems:
            self.damage = "; ".join(problems)
            warnings.warn(f"the video {self._shown!r} is damaged: {self.damage}", RuntimeWarning, 3)

    def close(self) -> None:
        """Stops decoding and closes the source. A second call does nothing."""
        if self._closed:
            return
        self._closed = self._decoded.stopped = True
        # Its thread closes the container. Nothing ends a read from a source that has stalled before its timeout.
        self._buffer.close(0 if self._hangs else CLOSING_LIVE if self.live else CLOSING)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        rate = f", {self.fps:g} fps" if self.fps else ""
        return f"<{type(self).__name__} {self._shown!r}, {self.size[0]} x {self.size[1]}{rate}>"


def source_text(source: object) -> str:
    """The path or the address of a source. Raises ConfigError for other types, and for `file://`."""
    if isinstance(source, bool) or not isinstance(source, (str, bytes, os.PathLike, int)):
        raise ConfigError(f"a video is a path, an address or the number of a camera, not {source!r}")
    text = f"/dev/video{source}" if isinstance(source, int) else os.fsdecode(source)
    if _scheme_of(text) == "file":
        raise ConfigError(f"{text!r} is the address of a file; give its path, without {text[: len('file://')]!r}")
    return text


def _scheme_of(source: str) -> str:
    """The scheme of an address in lower case; empty for a path."""
    match = re.match(r"([a-z][a-z0-9+]+)://", source, re.IGNORECASE)
    return match[1].lower() if match else ""


def is_camera(source: str) -> bool:
    """Whether a path is that of a device, and not of a file such as those in /dev/shm."""
    return source.startswith("/dev/") and not os.path.isfile(source)


def check_seconds(name: str, seconds: float, *, zero: bool = True) -> None:
    """Raises ConfigError for an argument that is no number of seconds from 0, or above 0 without `zero`."""
    if not isinstance(seconds, Real) or not (seconds >= 0 if zero else seconds > 0):
        raise ConfigError(f"{name} is a number of seconds {'from' if zero else 'above'} 0, not {seconds!r}")


def _still_reads(source: str, timeout: float) -> bool:
    """Whether a reader of this source that was given up reads on. It gets up to `timeout` seconds to end."""
    if (given_up := _stalled.get(source)) is None:
        return False
    if given_up.close(min(timeout, CLOSING)):
        _stalled.pop(source, None)
        return False
    return True


def _allowed(scheme: str) -> dict[str, str]:
    """FFmpeg's options that restrict a file (without a scheme) to itself, and an address to the network."""
    if not scheme:
        return {"protocol_whitelist": "file", "format_whitelist": ",".join(_FORMATS)}
    return {
        "protocol_whitelist": ",".join((scheme, *_NETWORK)),
        "format_whitelist": ",".join((*_FORMATS, *_NETWORK_FORMATS)),
    }


def check_even(frame: Any, shown: str) -> None:
    """Raises VideoError for odd sides of a frame or a codec context of PyAV, which NV12 does not have."""
    if frame.width % 2 or frame.height % 2:
        raise VideoError(f"{shown!r} is {frame.width} x {frame.height}; NV12 needs even sides: use format='rgb'")


def turn_of(frame: Any) -> tuple[bool, bool, bool]:
    """How a decoded frame of PyAV is to be turned: whether its sides are exchanged first, and whether its rows and its
    columns are reversed then.
    """
    matrix = frame.side_data.get("DISPLAYMATRIX")  # `frame.rotation` has no mirroring
    if matrix is None:
        return False, False, False
    a, b, _, c, d = np.frombuffer(matrix, np.int32)[:5].tolist()
    exchanged = abs(b) > abs(a)
    across, down = (c, b) if exchanged else (a, d)
    return exchanged, down < 0, across < 0


def packets_of(av: Any, stream: Any, so_far: Decoded, shown: str) -> Iterator[Any]:
    """The packets of a stream of PyAV. The last one is empty: the decoder gives the frames that it holds. The container
    is closed then. A packet that FFmpeg calls corrupt is counted, unless the caller has counted it.

    Raises:
        VideoError: the source has sent no data for too long.
    """
    with stream.container as container:
        packets, is_last = container.demux(stream), False
        while not is_last:
            try:
                packet = next(packets)
            except av.error.FFmpegError as error:
                if isinstance(error, (av.error.ExitError, TimeoutError)):
                    raise VideoError(f"{shown!r} has sent no data for too long: {reason(error)}") from None
                so_far.broken = reason(error)
                packet = av.Packet()
                packet.stream, packet.time_base = stream, stream.time_base
            if so_far.stopped:
                return
            # PyAV fails behind this packet if other streams have appeared meanwhile.
            is_last = packet.size == 0 and packet.dts is None
            damaged = so_far.damaged
            yield packet
            so_far.damaged += packet.is_corrupt and so_far.damaged == damaged
