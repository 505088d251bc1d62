"""NVIDIA GPUs through the management library of the driver (NVML): energy and memory.

NVML numbers all GPUs of the machine by slot; CUDA numbers the visible ones, the fastest first. The address
on the PCI bus is the same for both, whatever CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER say. A part of a GPU (MIG) has
the address of the whole GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from typing import Any

from ..core.stream import device_info
from ..errors import InferSDKError

__all__ = ["DeviceMemory", "cuda_index", "free_share", "nvml_handle", "process_bytes", "start_cuda", "used_bytes"]


def cuda_index(device: str) -> int | None:
    """The number of a CUDA device by its name (`"cuda"`, `"cuda:1"`); None for any other device."""
    kind, _, index = device.partition(":")
    return int(index or 0) if kind == "cuda" else None


@functools.cache
def pci_address(index: int) -> bytes:
    """The address of CUDA's device `index` on the PCI bus. This starts the driver, and makes no context.

    Raises:
        OSError: there is no driver, or no such device.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    device, text = ctypes.c_int(), ctypes.create_string_buffer(32)
    for name, arguments in (
        ("cuInit", (ctypes.c_uint(0),)),
        ("cuDeviceGet", (ctypes.byref(device), ctypes.c_int(index))),
        ("cuDeviceGetPCIBusId", (text, ctypes.c_int(len(text)), device)),
    ):
        if status := getattr(driver, name)(*arguments):
            raise OSError(f"{name} failed for cuda:{index} with CUDA error {status}")
    return text.value


@functools.cache
def nvml_handle(index: int) -> tuple[Any, Any]:
    """NVML, and its handle of CUDA's device `index`.

    Raises:
        ImportError: nvidia-ml-py is not installed.
        Exception: an exception of NVML, or OSError.
    """
    import pynvml

    pynvml.nvmlInit()
    return pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(pci_address(index))


def process_bytes(index: int) -> int | None:
    """Memory of a GPU that this process holds now; None if the driver does not report it.

    In a container NVML may list no processes, or those of the host by the host's numbers.
    """
    with contextlib.suppress(Exception):  # no package, no driver, or no right to ask
        nvml, handle = nvml_handle(index)
        mine = [
            entry.usedGpuMemory
            for entry in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            if entry.pid == os.getpid() and entry.usedGpuMemory is not None
        ]
        return int(sum(mine)) or None
    return None


def used_bytes(index: int) -> int | None:
    """Memory of a GPU that all processes hold now; None without NVML."""
    with contextlib.suppress(Exception):  # as above
        nvml, handle = nvml_handle(index)
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
    return None


def start_cuda(index: int) -> None:
    """Creates CUDA's context on a device, if there is one. This takes tenths of a second."""
    _info(index)  # without a device, loading reports the reason


def free_share(index: int) -> float:
    """The share of a device's memory that is free; 1 where that is unknown."""
    info = _info(index)
    return float(info["free_bytes"] / info["total_bytes"]) if info and info["total_bytes"] else 1.0


def _info(index: int) -> dict[str, Any] | None:
    try:
        return device_info(f"cuda:{index}")
    except InferSDKError:
        return None


class DeviceMemory:
    """Device memory of this process at the ends of its steps; a step is a `with` block.

    If the driver does not report memory by process, the growth of the used memory of the GPU is summed over the steps.

    Attributes:
        peak: maximum so far in bytes; None before the end of the first step, or if unknown.
        source: the method of measurement.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._held = 0
        self._before: int | None = None
        # Without NVML, CUDA reports the memory. This creates a context, which the figure excludes.
        self._by_nvml = used_bytes(index) is not None
        self.peak: int | None = None
        self.source = ""

    def __enter__(self) -> None:
        self._before = self._used()

    def __exit__(self, *exc: object) -> None:
        after = self._used()
        if self._before is not None and after is not None:
            self._held += after - self._before
        mine = process_bytes(self._index)
        if mine is not None:
            if not self.source.startswith("NVML: this process"):
                self.peak = None  # replaces the earlier estimates
            self.source = "NVML: this process, at the ends of steps"
        elif after is None or self.source.startswith("NVML: this process"):
            return
        else:
            mine = max(self._held, 0)
            self.source = (
                "NVML: by how much more of the GPU was in use after our steps than before"
                if self._by_nvml
                else "CUDA: by how much less of the GPU was free after our steps than before, without CUDA's context"
            )
        self.peak = max(self.peak or 0, mine)

    def _used(self) -> int | None:
        if self._by_nvml:
            return used_bytes(self._index)
        info = _info(self._index)
        return int(info["total_bytes"] - info["free_bytes"]) if info else None
