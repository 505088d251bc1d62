"""Images into a video file."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Mapping, Sequence
from fractions import Fraction
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.files import atomic_path
from ..core.prefetch import check_count
from ..errors import ClosedError, ConfigError, InputError, OutputError, ShapeError
from ..image import HostImage, read_image
from ._av import MAX_FPS, import_av, option_texts, reason

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image
    from typing_extensions import Self

__all__ = ["WRITTEN_SUFFIXES", "VideoWriter", "check_video_path"]

#: Encoders by the suffix of the file, the best first.
_H264 = ("libx264", "libopenh264", "mpeg4")
_CODECS = {
    ".mp4": _H264, ".m4v": _H264, ".mov": _H264, ".mkv": _H264, ".ts": (*_H264[:2], "mpeg2video"),
    ".avi": ("mpeg4",), ".webm": ("libvpx-vp9", "libvpx"),
}  # fmt: skip
WRITTEN_SUFFIXES = frozenset(_CODECS)
#: Settings for good quality at high speed.
_OPTIONS = {
    "libx264": {"preset": "veryfast", "crf": "23"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8", "crf": "32", "b": "0", "row-mt": "1"},
    "mjpeg": {"strict": "unofficial"},  # which allows values of limited range
    "mpeg4": {"flags": "+qscale", "global_quality": str(4 * 118)},  # in units of 1/118: FF_QP2LAMBDA
}
#: Ticks per second: a frame of every usual rate takes a whole number of them, and MPEG-4 allows at most 65535.
_TICKS = 60_000
#: Seconds whose ticks no longer fit into 64 bits.
_END = 2**63 / _TICKS
#: The most ticks between an image and the n-th image before it, and n. AVI holds so many empty frames in a row. The
#: other formats have 31 bits for ticks, or 33 bits for 1/90000 s, between the times at which a frame is decoded and
#: shown. With B-frames, an encoder decodes a frame at the time of the fifth one before it.
_MP4 = 2**31 - 1, 5
_SPANS = {".mp4": _MP4, ".m4v": _MP4, ".mov": _MP4, ".ts": (2**33 * 2 // 3, 5), ".avi": (60_000, 1)}
#: FFmpeg's SWS_BILINEAR and SWS_ACCURATE_RND, which PyAV 17 does not name. Without the second one, FFmpeg converts BGR
#: less exactly than RGB.
_ACCURATE = 1 << 1 | 1 << 18
_IMAGE_FORMATS = {"rgb": "rgb24", "bgr": "bgr24", "rgba": "rgba", "bgra": "bgra", "gray": "gray", "nv12": "nv12"}


class VideoWriter:
    """Encodes images on a thread of its own. Use it in a `with`: the file is complete when that ends.

    The file is written under another name in the same folder, and gets its name in `close()`. A link is followed, and a
    read-only file is refused. If the `with` ends by an exception, Ctrl-C included, the frames up to then are encoded,
    and the file can be played. Without any frame there is no file. Sound is not copied.

    Args:
        path: the file: .mp4, .m4v, .mov, .mkv, .ts, .webm, or .avi, which has no times but one rate.
        size: (width, height); None is that of the first image. An odd side is made even by repeating its last row or
            column, since players require it.
        fps: frames per second, 0.001 to 1000, for images that `write()` gets without a time. None is 30.
        codec: the name of an FFmpeg encoder that takes yuv420p. None selects by the suffix: H.264, or MPEG-4 (MPEG-2 in
            .ts) without an encoder for it. It is MPEG-4 in .avi, and VP9 or else VP8 in .webm.
        options: options of the encoder, such as {"crf": "18", "preset": "slow"}. An unknown one is an OutputError.
        queue_size: images that may wait for the encoder.

    Attributes:
        frames: images written so far.

    Raises:
        ConfigError: the suffix or the encoder is unknown, the encoder does not take yuv420p, or an argument is out of
            range.
        OutputError: the file cannot be written.
        BackendUnavailableError: PyAV is not installed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        size: tuple[int, int] | None = None,
        fps: float | None = 30.0,
        *,
        codec: str | None = None,
        options: Mapping[str, str] | None = None,
        queue_size: int = 8,
    ) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise ConfigError(f"path is a str or a Path, not {path!r}")
        if codec is not None and not isinstance(codec, str):
            raise ConfigError(f"codec is the name of an encoder, such as 'libx264', not {codec!r}")
        self.path = Path(path)
        if fps is not None and not (isinstance(fps, (float, Real)) and 0.001 <= fps <= MAX_FPS):
            raise ConfigError(f"fps is a number of frames per second from 0.001 to {MAX_FPS}, not {fps!r}")
        self._fps = 30.0 if fps is None else float(fps)
        check_count("queue_size", "images", queue_size)
        self.size = _checked(size)
        texts = option_texts(options)
        av = import_av()
        self.codec = _codec(av, self.path, codec)
        with contextlib.ExitStack() as place:
            partial = place.enter_context(atomic_path(self.path))
            try:
                container = av.open(str(partial), "w")
            except (av.error.FFmpegError, OSError) as error:
                raise OutputError(f"cannot write {str(self.path)!r}: {reason(error)}") from None
            self._place = place.pop_all()
        self.frames = 0
        rate = Fraction(self._fps).limit_denominator(1001)
        # The length of a tick, and of an image. AVI has no times: all of its frames have the same length.
        avi = self.path.suffix.lower() == ".avi"
        self._tick, self._step = (1 / rate, 1 / rate) if avi else (Fraction(1, _TICKS), 1 / Fraction(self._fps))
        self._last, self._at = -1, -self._step  # the tick of the last image, and its time, which is not rounded
        self._span, self._images = _SPANS.get(self.path.suffix.lower(), (2**63, 1))
        if texts.get("bf", "0" if self.codec in ("mpeg4", "mpeg2video") else "") == "0":  # without B-frames
            self._images = 1
        self._recent = [-1] if avi else []  # ticks of the last images
        self._lock = threading.Lock()  # images enter the queue in the order of their ticks
        self._encoder = _Encoder(av, container, partial, self.codec, rate, self._tick, texts, queue_size)
        self._av = av
        self._finalizer = weakref.finalize(self, self._encoder.discard)

    def write(
        self,
        image: HostImage | Image.Image | npt.NDArray[np.uint8],
        time: float | None = None,
        *,
        channel_order: str = "bgr",
    ) -> None:
        """Copies an image into the queue of the encoder; waits while `queue_size` others are in there. Several threads
        may write at the same time.

        Args:
            time: when it is shown, in seconds; None is 1 / fps after the one before. An image cannot be shown before or
                with the one before: it is shown right after that one then. In .mkv and .webm, whose times are
                milliseconds, both can have one time.
            channel_order: of an array.

        Raises:
            ShapeError: it has another size than the first one.
            InputError: `time` is no number, negative, NaN or too large for a file, or it is too long after the images
                before for the format. The file keeps the images so far.
            OutputError: encoding failed, and there will be no file.
        """
        image = read_image(image, channel_order=channel_order)
        with self._lock:
            self._write(image, time)

    def _write(self, image: HostImage, time: float | None) -> None:
        if not self._finalizer.alive:
            raise ClosedError(f"the video {str(self.path)!r} was closed; make a new VideoWriter")
        self._encoder.check(self.path)
        self.size = self.size or image.pixel_size
        if image.pixel_size != self.size:
            raise ShapeError(
                f"an image of {image.pixel_size} does not fit a video of {self.size}, (width, height); resize it first"
            )
        if time is None:
            at = self._at + self._step
        elif isinstance(time, (float, Real)) and 0 <= time < _END:
            at = round(time / self._tick) * self._tick
        else:
            raise InputError(f"time is a number of seconds from 0 to {_END:.1e}, not {time!r}")
        at = max(at, (self._last + 1) * self._tick)
        tick = round(at / self._tick)
        recent = [*self._recent, tick]
        if len(recent) == 3 < self._images:  # B-frames: two are decoded so much earlier that the third one is in time
            recent.insert(0, recent[1] - (tick - recent[0]))
        if tick - recent[0] > self._span:
            raise InputError(
                f"the time {float(at):,.0f} s is too long after {max(float(recent[0] * self._tick), 0.0):,.0f} s for "
                f"{self.path.suffix} files; write a .mkv file, or begin another file"
            )
        self._recent = recent[-self._images :]
        frame = self._av.VideoFrame.from_ndarray(_even(image), format=_IMAGE_FORMATS[image.format])
        frame.pts, frame.time_base = tick, self._tick
        self._last, self._at = tick, at
        self.frames += 1
        self._encoder.queue.put(frame)

    def close(self) -> None:
        """Encodes the images that wait, and gives the file its name. A second call does nothing.

        Raises:
            OutputError: encoding failed, or the file cannot get its name; then it is removed.
        """
        with self._lock:
            if self._finalizer.detach() is None:
                return
        with contextlib.suppress(_NoFramesError), self._place:
            self._encoder.finish()
            self._encoder.check(self.path)
            if not self.frames:
                raise _NoFramesError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<VideoWriter {str(self.path)!r}, {self.codec}, {self.frames} frames>"


class _NoFramesError(Exception):
    """There is no frame, and so no file."""


class _Encoder:
    """The encoding thread. It does not refer to the writer, so that the garbage collector can take that."""

    def __init__(
        self,
        av: Any,
        container: Any,
        partial: Path,
        codec: str,
        rate: Fraction,
        tick: Fraction,
        options: dict[str, str],
        queue_size: int,
    ) -> None:
        self._av, self._container, self._partial = av, container, partial
        self._codec, self._rate, self._tick, self._options = codec, rate, tick, options
        self.queue: queue.Queue[Any] = queue.Queue(queue_size)
        self._stop = False
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="infersdk-encode", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        self.queue.put(None)
        self._thread.join()

    def discard(self) -> None:
        """Removes the file: nothing refers to the writer any more, or the process ends."""
        self._stop = True
        self.finish()
        with contextlib.suppress(OSError):
            self._partial.unlink()

    def check(self, path: Path) -> None:
        if self.error is not None:
            raise OutputError(f"cannot write {str(path)!r} with {self._codec}: {reason(self.error)}")

    def _work(self) -> None:
        stream: Any = None
        try:
            while (frame := self.queue.get()) is not None:
                if self.error is not None or self._stop:
                    continue  # the thread that writes must not wait for ever
                try:
                    stream = stream or self._add(frame.width, frame.height)
                    self._encode(stream, frame)
                except Exception as error:
                    self.error = error
            if stream is not None and self.error is None and not self._stop:
                for packet in stream.encode(None):
                    self._container.mux(packet)
        except Exception as error:
            self.error = error
        finally:
            try:
                self._container.close()
            except Exception as error:
                self.error = self.error or error

    def _add(self, width: int, height: int) -> Any:
        options = {**_OPTIONS.get(self._codec, {}), **self._options}
        stream = self._container.add_stream(self._codec, rate=self._rate, options=options)
        context = stream.codec_context
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        context.time_base = self._tick
        context.thread_type = "AUTO"
        # The file names its colour matrix: otherwise players guess by the size.
        spaces = self._av.video.reformatter.Colorspace
        hd = height > 576 and self._codec != "mjpeg"  # whose matrix does not depend on the size
        self._matrix = spaces.ITU709 if hd else spaces.ITU601
        code = 1 if hd else 6
        context.colorspace = context.color_primaries = context.color_trc = code
        context.color_range = 1
        try:
            context.open()
        except self._av.error.ArgumentError as error:  # FFmpeg does not say which one it is
            raise ValueError(
                f"{reason(error)}: it does not take this size, or a value of the options {options}"
            ) from error
        if context.options:  # those that the encoder has not taken
            raise ValueError(f"it has no option {', '.join(context.options)}; `ffmpeg -h encoder=NAME` lists them")
        return stream

    def _encode(self, stream: Any, frame: Any) -> None:
        converted = frame.reformat(format="yuv420p", dst_colorspace=self._matrix, interpolation=_ACCURATE)
        converted.pts, converted.time_base = frame.pts, frame.time_base
        for packet in stream.encode(converted):
            self._container.mux(packet)


def _checked(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    sides = size if isinstance(size, Sequence) else ()
    if len(sides) != 2 or not all(isinstance(side, (int, np.integer)) and 0 < side < 1 << 15 for side in sides):
        raise ConfigError(f"size is (width, height) in pixels, not {size!r}")
    return int(size[0]), int(size[1])


def check_video_path(path: Path) -> str:
    """The suffix of a path in lower case; raises ConfigError for one of no video that is written."""
    suffix = path.suffix.lower()
    if suffix not in _CODECS:
        raise ConfigError(f"{str(path)!r}: the suffix of a video is one of {', '.join(_CODECS)}, not {suffix!r}")
    return suffix


def _codec(av: Any, path: Path, wanted: str | None) -> str:
    suffix = check_video_path(path)
    for name in _CODECS[suffix] if wanted is None else (wanted,):
        with contextlib.suppress(av.codec.codec.UnknownCodecError):
            codec = av.Codec(name, "w")
            if codec.type == "video":
                formats = [one.name for one in codec.video_formats or ()]
                if formats and "yuv420p" not in formats:
                    raise ConfigError(
                        f"the encoder {name!r} takes {', '.join(formats)}, and frames are written in yuv420p; use one "
                        "that takes it, such as libx264, libx265 or ffv1"
                    )
                return str(codec.name)
    there = sorted({name for names in _CODECS.values() for name in names} & av.codecs_available)
    missing = " or ".join(_CODECS[suffix]) if wanted is None else repr(wanted)
    raise ConfigError(f"this FFmpeg has no video encoder {missing}; it has {', '.join(there) or 'none'}")


def _even(image: HostImage) -> npt.NDArray[np.uint8]:
    pixels = image.pixels
    if image.format == "gray":
        pixels = pixels.reshape(pixels.shape[:2])
    height, width = pixels.shape[:2]
    if image.format != "nv12" and (height % 2 or width % 2):
        pixels = np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0))[: pixels.ndim], mode="edge")
    return np.ascontiguousarray(pixels)
