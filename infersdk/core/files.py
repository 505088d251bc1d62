"""Files: which suffixes are images, reading files that a configuration names, and writing in one step.

A reader sees the old file or the new one, never a part. Whatever writes a result writes it through here. Differences of
the systems are here, too: locks, the folder of caches, and its other writers.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import ConfigError, InferSDKError, OutputError

__all__ = [
    "IMAGE_SUFFIXES", "READ_FLAGS", "VIDEO_SUFFIXES", "WRITE_FLAGS", "atomic_path", "atomic_write", "cache_base",
    "check_output", "digest_of", "file_digest", "file_state", "image_files", "is_read_only", "lock", "make_folder",
    "open_regular", "other_writers", "read_regular", "remove_lock", "scratch_folder",
]  # fmt: skip

_COMMON = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
#: Flags of `os.open()` that read a file. Opening a pipe does not wait for its writer.
READ_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _COMMON
#: Flags of `os.open()` that write a file which is created if it is missing. A symbolic link is not followed.
WRITE_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | _COMMON


#: Windows: how long a file that is replaced may be read by others.
_READ_SECONDS = 2.0


def cache_base() -> Path:
    """The folder in which programs of this user keep their caches.

    Raises:
        RuntimeError: the user has no home.
    """
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():  # the specification ignores relative ones
        return base
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")


def lock(descriptor: int, *, block: bool) -> None:
    """Locks an open file for this process. The lock ends when the file is closed, or with the process.

    Args:
        block: waits for a process that holds the lock.

    Raises:
        BlockingIOError: `block` is false and another process holds the lock.
    """
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if block else fcntl.LOCK_NB))
        return
    import msvcrt

    while True:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            return
        except OSError as error:
            if error.errno not in (errno.EACCES, 0):  # 0: Wine
                raise
            if not block:
                raise BlockingIOError(error.errno, error.strerror) from None
        time.sleep(0.02)


def remove_lock(path: Path) -> None:
    """Removes a lock file that this process holds. Windows removes no open file: it stays there, and is empty."""
    if sys.platform != "win32":
        path.unlink(missing_ok=True)


def other_writers(folder: Path) -> str | None:
    """Which other users could replace files in a folder, and the remedy; None if there are none.

    On Windows, a folder of the user's profile is closed to others by its access list, which is not checked.
    """
    if sys.platform == "win32":
        return None
    try:
        status = os.stat(folder)
    except (OSError, ValueError):  # writing to it raises the error
        return None
    user, mode, path = os.geteuid(), stat.S_IMODE(status.st_mode), str(folder)
    if status.st_uid not in (user, 0):
        return (
            f"{path!r} belongs to the user with number {status.st_uid}, and this process runs as {user}: its owner "
            "could replace engines, which carry code"
        )
    # Many systems give each user a group of the same number, and let it write by default.
    own_group = status.st_gid == os.getegid() == user
    if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not own_group):
        return (
            f"other users can write to {path!r} (mode {mode:o}), and could replace engines, which carry code: "
            f"chmod go-w {path!r}"
        )
    return None


#: Suffixes of the files that count as images when a folder is searched. A file that is named is read whatever its
#: suffix.
IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)  # fmt: skip
#: The same for videos.
VIDEO_SUFFIXES = frozenset(
    {
        ".3gp", ".asf", ".avi", ".flv", ".gif", ".h264", ".h265", ".hevc", ".m2ts", ".m4v", ".mjpeg", ".mkv", ".mov",
        ".mp4", ".mpeg", ".mpg", ".mts", ".mxf", ".ogv", ".ts", ".webm", ".wmv",
    }
)  # fmt: skip

_PIECE = 1 << 16  # bytes that stay in the cache of the processor
_NAME_LIMIT = 200  # bytes of a name that a temporary file repeats; file systems take 255


def check_output(
    model: str | os.PathLike[str], output: str | os.PathLike[str], *others: str | os.PathLike[str]
) -> None:
    """Raises ConfigError if `output` is the file of the model, or one of the other files that are read."""
    for file in (model, *others):
        if os.path.exists(output) and os.path.exists(file) and os.path.samefile(file, output):
            what = "the model itself" if file is model else "an input, too"
            raise ConfigError(f"{os.fspath(output)!r} is {what}; write to another file")


def image_files(folder: str | os.PathLike[str], *, recursive: bool = False) -> list[Path]:
    """The images in a folder, by their suffixes, in the order of their paths."""
    result = Path(folder).rglob("*") if recursive else Path(folder).iterdir()
    return sorted(file for file in result if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file())


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a regular file for reading. A pipe, a device or a socket is refused without waiting for it.

    Raises:
        OSError: the file cannot be opened, or is not a regular file; `strerror` has the reason.
    """
    try:
        file = open(os.fspath(path), "rb", opener=lambda name, _: os.open(name, READ_FLAGS))  # noqa: SIM115
    except ValueError:
        raise OSError(errno.EINVAL, "the path has a null character") from None
    except PermissionError:
        if os.path.isdir(path):  # which Windows does not open
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from None
        raise
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file")
    return file


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """The content of a regular file.

    Args:
        limit: the largest number of bytes to read.

    Raises:
        OSError: as `open_regular()`, or the file has more than `limit` bytes; `strerror` has the reason.
    """
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes")
    return content


def file_state(path: str | os.PathLike[str]) -> tuple[int, int, int] | None:
    """The state of a file: a file that has changed has another one. None without a file."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # ValueError: the path cannot be encoded
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def file_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a regular file.

    Raises:
        OSError: as `open_regular()`.
    """
    with open_regular(path) as content:
        return digest_of(content)


def digest_of(content: BinaryIO) -> str:
    """SHA-256 of an open file from where it stands, read piece by piece."""
    digest = hashlib.sha256()
    while piece := content.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()


def atomic_write(path: str | os.PathLike[str], data: bytes | str, *, follow: bool = True) -> Path:
    """Writes a file in one step, and its folder where that is missing. Nothing half-written is left behind.

    Args:
        data: bytes, or text for UTF-8. A lone surrogate, which UTF-8 cannot hold, becomes its escape (`\\udcff`).
        follow: writes through a symbolic link, as a shell does; otherwise the file takes the place of the link.

    Raises:
        OutputError: the file cannot be written; the old file is still there.
    """
    content = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
    size = f"({len(content):,} bytes)"
    with atomic_path(path, what=size, follow=follow) as sibling, open(sibling, "wb") as file:
        file.write(content)
    return Path(path)


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for the block alone. It is removed at the end, even if Ctrl-C comes while it is being removed."""
    import shutil
    import tempfile

    folder = tempfile.TemporaryDirectory(prefix="infersdk-")
    try:
        yield Path(folder.name)
    finally:
        try:
            folder.cleanup()
        except BaseException:
            shutil.rmtree(folder.name, ignore_errors=True)
            raise


def make_folder(folder: Path) -> None:
    """Makes a folder that is missing, and the folders above it.

    Raises:
        OSError: it cannot be made; NotADirectoryError if it is a file.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, f"{str(folder)!r} is not a folder") from None


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str], *, what: str = "", follow: bool = True) -> Iterator[Path]:
    """A new path beside `path` and with its suffix, which takes the place of `path` when the block ends.

    The block writes the file, by whatever takes a path. After an error the new file is removed. A target that is
    no regular file (a pipe, `/dev/stdout`, `/dev/null`) is written to, and not replaced. A read-only file is refused.

    Args:
        what: text of the error message behind the path.
        follow: see `atomic_write`.

    Raises:
        OutputError: an OSError of the block, or of replacing the file.
    """
    target = Path(path)
    try:
        with contextlib.ExitStack() as stack:
            destination = Path(os.path.realpath(target)) if follow else target
            mode = _mode_of(destination)
            if mode is not None and stat.S_ISDIR(mode):
                raise IsADirectoryError("it is a folder")
            if is_read_only(destination):  # its folder would let it be replaced
                raise PermissionError("it is read-only; make it writable, or give another name")
            special = mode is not None and not stat.S_ISREG(mode) and not stat.S_ISLNK(mode)
            if special:
                folder = stack.enter_context(scratch_folder())
            else:
                folder = destination.parent
                make_folder(folder)
            sibling = _sibling(folder, target.name)
            stack.callback(_remove, sibling)
            yield sibling
            if special:
                with open(sibling, "rb") as source, open(destination, "wb") as sink:
                    while block := source.read(1 << 20):
                        sink.write(block)
                return
            if mode is not None and stat.S_ISREG(mode):
                os.chmod(sibling, stat.S_IMODE(mode))
            _replace(sibling, destination)
    except InferSDKError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"cannot write {str(target)!r}{' ' * bool(what)}{what}: {reason}") from None


def _replace(source: Path, target: Path) -> None:
    """Renames a file, and replaces the target. Windows refuses that while a process reads the target."""
    end = time.monotonic() + _READ_SECONDS
    while True:
        try:
            os.replace(source, target)
            return
        except PermissionError:
            if sys.platform != "win32" or time.monotonic() > end:
                raise
        time.sleep(0.02)


def is_read_only(path: Path) -> bool:
    """Whether there is a regular file without permission to write for anybody. Links are not followed."""
    mode = _mode_of(path)
    return mode is not None and stat.S_ISREG(mode) and not mode & 0o222


def _mode_of(path: Path) -> int | None:
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _sibling(folder: Path, name: str) -> Path:
    """A hidden name of its own for each writer; the suffix stays, since encoders choose their format by it."""
    stem, suffix = os.path.splitext(name)
    kept = os.fsdecode(os.fsencode(stem)[:_NAME_LIMIT])
    return folder / f".{kept}.{os.getpid()}.{os.urandom(4).hex()}.tmp{suffix[:32]}"


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
