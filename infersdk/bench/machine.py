"""The machine of a measurement, and its other load."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from glob import glob
from importlib.metadata import distributions
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from .. import __version__
from ..core._lib import lib, text
from ..core.processors import available_processors, control_groups
from ..core.stream import device_count, device_info
from ..errors import InferSDKError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "Contention", "contention", "counters", "describe_machine", "growth", "peak_resident_bytes", "resident_bytes",
]  # fmt: skip

#: The packages whose versions a report names, where they are installed.
_PACKAGES = (
    "numpy", "onnxruntime", "onnxruntime-gpu", "openvino", "tensorrt", "tensorrt-rtx-cu13-libs", "onnx", "pillow",
)  # fmt: skip
#: Shares above which a measurement is disturbed.
OTHERS, STEAL = 0.05, 0.01


def describe_machine() -> dict[str, Any]:
    """Processor, memory, GPUs, system and versions, for the head of a report."""
    return {
        "processor": _processor(),
        "cores": available_processors(),
        "memory_bytes": _memory(),
        "gpus": _gpus(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "infersdk": __version__,
        "simd": text(lib.ifs_simd_name(lib.ifs_simd())),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip() or None,
        "packages": {name: one.version for name in _PACKAGES for one in islice(distributions(name=name), 1)},
    }


def _processor() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return platform.processor() or platform.machine()


def _memory() -> int | None:
    if sys.platform == "win32":
        return _kilobytes("/proc/meminfo", "MemTotal")
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def available_bytes() -> int | None:
    """Memory available to new processes without swapping."""
    return _kilobytes("/proc/meminfo", "MemAvailable")


def _gpus() -> list[str]:
    try:
        return [device_info(f"cuda:{i}")["name"] for i in range(device_count())]
    except InferSDKError:
        return []


def _read(path: str) -> str:
    """The content of a file of Linux's kernel; empty where there is none."""
    if sys.platform != "linux":
        return ""
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""


def _kilobytes(path: str, key: str) -> int | None:
    """A figure of memory in bytes, which Linux counts in kB; None if the system does not report it."""
    if sys.platform == "win32":
        return _windows_memory()[key]
    for line in _read(path).splitlines():
        name, _, rest = line.partition(":")
        if name == key:
            return int(rest.split()[0]) * 1024
    return None


def resident_bytes() -> int:
    """The resident memory of this process."""
    return _kilobytes("/proc/self/status", "VmRSS") or 0


def peak_resident_bytes() -> int:
    """The peak resident memory of this process."""
    if known := _kilobytes("/proc/self/status", "VmHWM"):
        return known
    import resource  # here: systems without it can import the module

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


if sys.platform == "win32":

    def _windows_memory() -> dict[str, int]:
        """Figures of Windows by Linux's names for them."""
        system, process = (ctypes.c_uint64 * 8)(64), (ctypes.c_size_t * 9)(72)  # each begins with its size
        ctypes.windll.kernel32.GlobalMemoryStatusEx(system)  # MEMORYSTATUSEX
        this = ctypes.c_void_p(-1)  # the handle of the process itself
        ctypes.windll.kernel32.K32GetProcessMemoryInfo(this, process, 72)  # PROCESS_MEMORY_COUNTERS
        return {"MemTotal": system[1], "MemAvailable": system[2], "VmRSS": process[2], "VmHWM": process[1]}


# ---- other load ----


class Contention(msgspec.Struct, frozen=True, kw_only=True):
    """Other load during a measurement. Fields are None if the system does not report them.

    Attributes:
        seconds: of the measurement.
        others: the share of all processors' time that other processes used.
        steal: the share that the hypervisor gave to other machines.
        run_delay: seconds that threads of this process waited for a processor, a second of measuring: for others, or
            for one another.
        throttled: seconds that a limit of the control group held this process back.
        load: runnable processes of the machine on average over the last minute, at the end.
        disturbed: whether others had more than 5 % or steal more than 1 %, or there was any throttling.
    """

    seconds: float
    others: float | None
    steal: float | None
    run_delay: float | None
    throttled: float | None
    load: float | None
    disturbed: bool


def growth(before: Mapping[str, float]) -> dict[str, float]:
    """How much each counter has grown since `counters()`, in seconds, and the load average now."""
    after = counters()
    grown = {key: max(after[key] - value, 0.0) for key, value in before.items() if key in after}
    if load := _read("/proc/loadavg").split():
        grown["load"] = float(load[0])
    return grown


def contention(parts: Sequence[Mapping[str, float]]) -> Contention | None:
    """Other load during several measurements, each a result of `growth()`; None without any."""
    if not parts:
        return None
    grown = {name: sum(part.get(name, 0.0) for part in parts) for name in parts[-1]}
    seconds, total = grown["seconds"], grown.get("total")
    others, steal = (grown[name] / total if total else None for name in ("others", "steal"))
    delay, throttled = grown.get("delay"), grown.get("throttled")
    return Contention(
        seconds=seconds, others=others, steal=steal, run_delay=None if delay is None else delay / seconds,
        throttled=throttled, load=parts[-1].get("load"),
        disturbed=(others or 0) > OTHERS or (steal or 0) > STEAL or (throttled or 0) > 0,
    )  # fmt: skip


def counters() -> dict[str, float]:
    """The counters of other load; see `growth()`."""
    result: dict[str, float] = {"seconds": perf_counter()}
    fields = _read("/proc/stat").partition("\n")[0].split()
    if len(fields) > 8 and fields[0] == "cpu":
        import resource

        tick = 1 / os.sysconf("SC_CLK_TCK")
        user, nice, system, idle, iowait, irq, softirq, steal = (float(n) * tick for n in fields[1:9])
        busy = user + nice + system + irq + softirq
        # Finished child processes count as own time.
        own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        # The kernel counts in ticks of 10 ms, so the growth in a short measurement may be negative.
        result["others"] = busy - sum(used.ru_utime + used.ru_stime for used in own)
        result["steal"] = steal
        result["total"] = busy + idle + iowait + steal
    delays = [_read(file).split() for file in glob("/proc/self/task/*/schedstat")]
    if known := [float(entry[1]) for entry in delays if len(entry) > 1]:
        result["delay"] = sum(known) * 1e-9
    if (throttled := _throttled()) is not None:
        result["throttled"] = throttled
    return result


def _throttled() -> float | None:
    """Seconds that the control group of this process was held back."""
    units = {"throttled_usec": 1e-6, "throttled_time": 1e-9}  # of version 2 and 1 of the interface
    for group in reversed(control_groups()):  # the innermost first
        for entry in _read(f"{group}/cpu.stat").splitlines():
            name, _, value = entry.partition(" ")
            if name in units:
                return float(value) * units[name]
    return None
