"""The processors of the machine, and the number that this process may use."""

from __future__ import annotations

import functools
import hashlib
import math
import os
import re
import threading
from pathlib import Path, PurePosixPath

from ..errors import exhausted

__all__ = [
    "available_processors", "control_groups", "fits_quotas", "processor_digest", "runtime_threads", "start_thread",
]  # fmt: skip

#: Of the file system.
_ROOT = Path("/")


def available_processors() -> int:
    """The number of processors that this process may use: those of its affinity, or fewer where the quotas of its
    control groups (rounded up) or `OMP_NUM_THREADS` allow fewer.
    """
    return math.ceil(min([_usable(), *_limits()]))


def runtime_threads(requested: int) -> int:
    """The threads that a runtime is given: `requested`, or for 0 the processors of this process. Where nothing limits
    it, 0 stays, the runtime's own choice.
    """
    limited = _limits() or _usable() < (os.cpu_count() or 1)
    return requested or (available_processors() if limited else 0)


def fits_quotas(threads: int) -> bool:
    """Whether this number of threads may be busy all the time: no control group has a smaller quota."""
    return all(threads <= quota for quota in _quotas())


@functools.cache
def processor_digest() -> str:
    """A digest of the processors' models and features, for caches that several machines share."""
    try:
        text = (_ROOT / "proc/cpuinfo").read_text("utf-8")
    except OSError:  # not Linux
        import platform

        return f"{platform.machine()} {platform.processor()}"
    found = re.findall(r"^(?:model name|CPU part|flags|Features)\s*:\s*(.*)$", text, re.MULTILINE) or [text]
    return hashlib.sha256("\n".join(sorted(set(found))).encode()).hexdigest()


def _usable() -> int:
    return getattr(os, "process_cpu_count", _affinity)() or 1


def _limits() -> list[float]:
    """The limits on processors, other than the affinity."""
    found = _quotas()
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # a list has one for each nesting level
    if first.isdecimal() and int(first):  # OpenMP ignores other values too
        found.append(int(first))
    return found


def _quotas() -> list[float]:
    return [quota for group in control_groups() if (quota := _quota(group)) is not None]


def _affinity() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def control_groups() -> list[Path]:
    """The folders of the control groups with limits on processor time, of version 1 and 2: this process's and all
    above it.
    """
    try:
        # The names of folders are any bytes other than "\n", which the kernel escapes.
        mounts, lines = (os.fsdecode((_ROOT / "proc/self" / name).read_bytes()) for name in ("mountinfo", "cgroup"))
    except OSError:  # not Linux
        return []
    memberships = [line.split(":", 2) for line in lines.split("\n") if line]
    folders = []
    for mount in mounts.split("\n"):
        fields, _, source = mount.partition(" - ")
        kind, _, options = source.partition(" ")
        if kind == "cgroup2":
            paths = [path for _, names, path in memberships if not names]
        elif kind == "cgroup" and "cpu" in options.rpartition(" ")[2].split(","):
            paths = [path for _, names, path in memberships if "cpu" in names.split(",")]
        else:
            continue
        mounted, folder = fields.split(" ")[3:5]
        for path in map(PurePosixPath, paths):
            # In a container the mount may be of the group itself, or the path one that is not visible.
            inner = path.relative_to(mounted) if path.is_relative_to(mounted) else PurePosixPath()
            group = _ROOT / folder.lstrip("/")
            folders += [group, *(group := group / part for part in inner.parts)]
    return folders


def _quota(group: Path) -> float | None:
    """The processors that a control group allows; None is no limit."""
    try:
        quota, period = (group / "cpu.max").read_text("ascii").split()
    except OSError:
        try:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text("ascii").strip() for name in ("quota", "period"))
        except OSError:
            return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


def start_thread(thread: threading.Thread, name: str) -> None:
    """Starts a thread. Raises OutOfMemoryError if the system has no further one; `name` is its owner's."""
    try:
        thread.start()
    except RuntimeError as error:
        raise exhausted(error, name) or error from None
