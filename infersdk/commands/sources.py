"""The sources of a command: files, folders, patterns, URLs and cameras, each an image or a video."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from ..core.files import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from ..core.text import without_password
from ..errors import BackendUnavailableError, ConfigError, ImageError, VideoError
from ..image import HostImage, read_image
from ..image.http import get
from ..image.sources import is_http
from ..models.results.result import check_result_path
from ..video import VideoReader
from ..video.writer import WRITTEN_SUFFIXES, check_video_path

__all__ = ["Source", "drawn_paths", "find_sources"]

#: Content types of videos: playlists, and cameras that send a sequence of JPEG files.
_VIDEO_TYPES = ("application/vnd.apple.mpegurl", "application/x-mpegurl", "application/dash+xml",
                "multipart/x-mixed-replace")  # fmt: skip
_UNKNOWN_TYPES = ("", "application/octet-stream", "binary/octet-stream")


@dataclass(frozen=True)
class Source:
    """An image or a video.

    Attributes:
        name: the path or URL in messages and results.
        below: the path below the searched folder; for other sources the file name.
        body: the downloaded image file; None if it is read by its name.
        error: why an address gives neither an image nor a video.
    """

    name: str
    is_video: bool
    below: PurePosixPath
    body: bytes | None = None
    error: ImageError | None = None

    def read(self) -> HostImage:
        """The image. Raises ImageError if it cannot be read."""
        if self.error is not None:
            raise self.error
        return read_image(self.name if self.body is None else self.body)


def find_sources(given: Sequence[str], *, recursive: bool = False) -> list[Source]:
    """All images and videos of the arguments, in order; files of a folder by their paths.

    Args:
        given: paths of files or folders, patterns (`"shots/*.jpg"`, `**` goes through all folders), `http(s)://`
            addresses, whose content type tells images from videos, other addresses (`rtsp://...`) and cameras
            (`/dev/video0`).

    Raises:
        ConfigError: a folder or a pattern has nothing in it, or a name is empty.
    """
    return [source for name in given for source in _expand(name, recursive=recursive)]


def _expand(name: str, *, recursive: bool) -> Iterator[Source]:
    if not name:
        raise ConfigError("the name of a source is empty; give an image, a video or a folder, such as . for this one")
    path = Path(name)
    if is_http(name):
        try:
            yield _of_address(name)
        except ImageError as error:
            yield Source(name, False, _file_name(name, ".png"), error=error)
    elif "://" in name or name.startswith("/dev/video"):  # another address, or a camera
        yield Source(name, True, _file_name(name, ".mp4"))
    elif os.path.isdir(path):
        yield from _of_folder(path, recursive=recursive)
    elif glob.has_magic(name) and not os.path.lexists(path):
        files = sorted(match for match in glob.glob(name, recursive=True) if os.path.isfile(match))
        if not files:
            raise ConfigError(f"no file matches {name!r}")
        yield from map(_of_file, files)
    else:
        yield _of_file(name)


def _of_folder(folder: Path, *, recursive: bool) -> Iterator[Source]:
    suffixes = IMAGE_SUFFIXES | VIDEO_SUFFIXES

    def search(pattern: str) -> list[Path]:
        return sorted(p for p in folder.glob(pattern) if p.suffix.lower() in suffixes and p.is_file())

    files = search("**/*" if recursive else "*")
    if not files:
        below = not recursive and search("**/*")
        hint = f"; {len(below)} are in folders below it: --recursive" if below else ""
        raise ConfigError(f"the folder {str(folder)!r} has no image or video in it{hint}")
    for file in files:
        is_video = file.suffix.lower() in VIDEO_SUFFIXES
        yield Source(str(file), is_video, PurePosixPath(file.relative_to(folder).as_posix()))


def _of_file(name: str) -> Source:
    return Source(name, _is_video_file(name), PurePosixPath(Path(name).name))


def _is_video_file(name: str) -> bool:
    """Whether a file is a video, by its suffix or its content."""
    suffix = Path(name).suffix.lower()
    if suffix in VIDEO_SUFFIXES:
        return True
    if suffix in IMAGE_SUFFIXES or not os.path.isfile(name) or _is_image(name):
        return False
    try:
        VideoReader(name).close()
    except (VideoError, BackendUnavailableError):
        return False
    return True


def _of_address(url: str) -> Source:
    """Asks the server; an image is downloaded, a video is left to its decoder."""
    suffix = PurePosixPath(urlsplit(url).path).suffix.lower()
    may_be_video = suffix not in IMAGE_SUFFIXES

    def wanted(content_type: str) -> bool:
        return content_type.startswith("image/") or (content_type in _UNKNOWN_TYPES and suffix not in VIDEO_SUFFIXES)

    answer = get(url, wanted)
    kind, shown = answer.content_type, without_password(url)
    if answer.body is not None and (kind not in _UNKNOWN_TYPES or not may_be_video or _is_image(answer.body)):
        return Source(shown, False, _file_name(url, ".png"), body=answer.body)
    if kind.startswith("video/") or kind in _VIDEO_TYPES or kind in _UNKNOWN_TYPES:
        return Source(url, True, _file_name(url, ".mp4"))
    raise ImageError(f"{shown}: its content is {kind}, neither an image nor a video")


def _is_image(source: str | bytes) -> bool:
    try:
        read_image(source)
    except ImageError:
        return False
    return True


def _file_name(name: str, suffix: str) -> PurePosixPath:
    """A file name for the drawing of a URL or a camera: its letters and digits, and a suffix."""
    path = urlsplit(name).path if is_http(name) else without_password(name)
    stem, own = os.path.splitext(PurePosixPath(path).name if is_http(name) else path)
    known = own.lower() in (IMAGE_SUFFIXES if suffix == ".png" else VIDEO_SUFFIXES)
    text = re.sub(r"[^A-Za-z0-9.-]+", "_", stem if known else stem + own).strip("_.") or "image"
    return PurePosixPath(f"{text}{own if known and is_http(name) else suffix}")


def drawn_paths(sources: Sequence[Source], output: Path | None) -> list[Path | None]:
    """The path of the drawing of each source: `output` for a single source, else a file below it. A video of a format
    that is not written becomes an MP4.

    Raises:
        ConfigError: `output` is one file and there are several sources, two of them would go to one file, or one would
            take the place of its source. Or a video has the suffix of another file.
        OutputError: the drawing of an image has the suffix of another file.
    """
    if output is None:
        return [None] * len(sources)
    if len(sources) == 1 and output.suffix and not output.is_dir():
        (check_video_path if sources[0].is_video else check_result_path)(output)
        paths = [output]
    elif output.suffix and not output.is_dir():
        raise ConfigError(f"-o {str(output)!r} is one file, but there are {len(sources)} sources; give a folder")
    else:
        paths = [output / _below(source) for source in sources]
    taken: dict[str, str] = {}
    for source, path in zip(sources, paths, strict=True):
        target = os.path.realpath(path)
        if source.body is None and target == os.path.realpath(source.name) and os.path.isfile(target):
            raise ConfigError(f"{source.name!r} would be overwritten by its drawing; give another folder to -o")
        if taken.setdefault(target, source.name) != source.name:
            raise ConfigError(
                f"{without_password(taken[target])!r} and {without_password(source.name)!r} would both be written to "
                f"{str(path)!r}; draw them apart"
            )
    return list(paths)


def _below(source: Source) -> PurePosixPath:
    if not source.is_video or source.below.suffix.lower() in WRITTEN_SUFFIXES:
        return source.below
    return source.below.with_name(f"{source.below.name}.mp4")
