"""Memory, descriptors and threads of a process, on Linux, for tests that they do not grow."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

_Sample = TypeVar("_Sample", bound=tuple[Any, ...])


class ProcessSample(NamedTuple):
    """A process at one time. `memory` is the resident memory in bytes."""

    memory: float
    descriptors: float
    threads: float


def process_sample(pid: int | str = "self") -> ProcessSample:
    """The present state of a process."""
    folder = Path("/proc", str(pid))
    fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    descriptors = len(list((folder / "fd").iterdir()))
    return ProcessSample(int(fields["VmRSS"].split()[0]) << 10, descriptors, int(fields["Threads"]))


def early_and_late(samples: Sequence[_Sample]) -> tuple[_Sample, _Sample]:
    """The medians of each field in the second and in the last quarter."""
    quarter = max(len(samples) // 4, 1)
    early, late = (
        type(samples[0])(*map(statistics.median, zip(*part, strict=True)))
        for part in (samples[quarter : 2 * quarter] or samples[:1], samples[-quarter:])
    )
    return early, late
