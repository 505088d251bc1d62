"""Frames out of files, streams and cameras."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, VideoError
from .frames import Frame
from .source_reader import TIMEOUT, Decoded, SourceReader, check_even, packets_of, turn_of

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["VideoReader", "check_format"]

_FORMATS = {"rgb": "rgb24", "bgr": "bgr24", "nv12": "nv12"}


class VideoReader(SourceReader[Frame]):
    """An iterator over the frames of a video, which are decoded on a thread of its own. It can be read once; `with`
    closes it.

    Args:
        source: a file, a URL (`rtsp://`, `http://`, ...), or a camera (`/dev/video0`, or its number).
        format: of the frames: `"rgb"`, `"bgr"` or `"nv12"`. RGB is the fastest if boxes are drawn on the frames. NV12
            has half as many bytes, for frames that only go to a GPU. Frames with an odd side and videos that are
            rotated or mirrored cannot have it. Its values are those of the file, and models take them as BT.601 with
            limited range.
        prefetch: decoded frames that may wait.
        drop: what happens when `prefetch` frames wait. `"never"`: the decoder waits. `"oldest"`, for live sources: the
            oldest one is dropped, and counted in `dropped`. None is `"oldest"` for live sources and `"never"` for
            files, which never drop a frame.
        drop_after: seconds that a frame of a live source may wait: when one is taken, older ones are dropped, and
            counted, as long as a newer one waits. None drops none by its age.
        timeout: seconds without data after which reading from a URL or camera fails; by RTSP also a second more
            without a frame, while the connection stays alive.
        options: FFmpeg's options for the container: `{"rtsp_transport": "tcp"}`, `{"video_size": "1280x720"}`.
            FFmpeg refuses a wrong value, and ignores an option of an unknown name; PyAV does not report that.

    Attributes:
        size: (width, height) of the frames, after rotation by the file. Those of pixels that are not square are not
            stretched.
        fps: frames per second on average; None if the source does not say, or says more than 1000.
        frames: number of frames that the file states, with those that a trimmed MP4 file leaves out. Without that
            number it is an estimate, `duration` times `fps`; None if one of them is None.
        duration: in seconds; None for live sources, and if the source does not say. FFmpeg estimates it and `fps`: both
            can be wrong for MP4 files with irregular times and B-frames. The times of their frames are right.
        live: whether the source does not wait for its reader.
        damage: the damage of a file that was read to its end; else empty.

    Raises:
        ConfigError: an argument has a wrong value.
        VideoError: there is no such source, it is not a video, or none of its frames can be decoded.
        BackendUnavailableError: PyAV is not installed.

    A file that ends early or is damaged gives the frames that can be decoded, and one RuntimeWarning at the end with
    the text of `damage`. A few missing frames are not reported, nor is up to a second or 2 % of a Matroska or WebM
    file. MPEG-TS states no length, so that its missing end is not reported.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | int,
        *,
        format: str = "rgb",
        prefetch: int = 8,
        drop: str | None = None,
        drop_after: float | None = None,
        timeout: float = TIMEOUT,
        options: Mapping[str, str] | None = None,
    ) -> None:
        check_format(format)
        self._format = format
        super().__init__(
            source,
            even=format == "nv12",
            prefetch=prefetch,
            drop=drop,
            drop_after=drop_after,
            timeout=timeout,
            options=options,
        )

    def _decode(self, stream: Any) -> Generator[Frame, None, None]:
        return _decode(self._av, stream, self._format, self._decoded, self._shown)


def check_format(format: str) -> None:
    """Raises ConfigError for an unknown format of frames."""
    if format not in tuple(_FORMATS):  # which takes what has no hash
        raise ConfigError(f"unknown format {format!r}; use one of {', '.join(_FORMATS)}")


def _decode(av: Any, stream: Any, format: str, so_far: Decoded, shown: str) -> Generator[Frame, None, None]:
    """All frames; packets that cannot be decoded are skipped and counted."""
    converter = av.video.reformatter.VideoReformatter()
    turn: tuple[bool, bool, bool] | None = None  # it changes at key frames
    for packet in packets_of(av, stream, so_far, shown):
        try:
            decoded = packet.decode()
        except av.error.FFmpegError:
            so_far.damaged += 1
            continue
        for frame in decoded:
            if format == "nv12":  # a stream may change its size
                check_even(frame, shown)
            at = so_far.time_of(frame.time)
            pixels = _pixels(converter, frame, _FORMATS[format])
            if turn is None or frame.key_frame:  # reading it takes a twentieth of the time of a frame
                turn = turn_of(frame)
            if any(turn):
                exchanged, down, across = turn
                if format == "nv12":
                    raise VideoError(
                        f"{shown!r} is rotated or mirrored by its metadata, and NV12 frames are not turned; use "
                        "format='rgb'"
                    )
                pixels = pixels.swapaxes(0, 1) if exchanged else pixels
                pixels = np.ascontiguousarray(pixels[:: -1 if down else 1, :: -1 if across else 1])
            yield Frame(pixels, format, at, so_far.add(at))


def _pixels(converter: Any, frame: Any, target: str) -> npt.NDArray[np.uint8]:
    """The pixels of a decoded frame of PyAV. Those of one plane stay where the conversion has written them."""
    converted = converter.reformat(frame, format=target, threads=1)
    if converted is frame or target == "nv12":  # the decoder's memory, or two planes that are not adjacent
        pixels: npt.NDArray[np.uint8] = converted.to_ndarray()  # which copies two planes, but not one
        return pixels if target == "nv12" else pixels.copy()
    (plane,) = converted.planes
    rows = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
    return rows[:, : 3 * plane.width].reshape(plane.height, plane.width, 3)
