"""Differences of the systems: opening, locking and removing files, the folder of caches, and its other writers."""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path

__all__ = ["READ_FLAGS", "WRITE_FLAGS", "cache_base", "lock", "other_writers", "remove_lock"]

_COMMON = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
#: Flags of `os.open()` that read a file. Opening a pipe does not wait for its writer.
READ_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _COMMON
#: Flags of `os.open()` that write a file which is created if it is missing. A symbolic link is not followed.
WRITE_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | _COMMON


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
        except PermissionError as error:
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
