"""The memory that this process and a device have in use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import infersdk

__all__ = ["device_memory_used", "resident_bytes"]


def resident_bytes() -> int:
    """The memory of this process that is in RAM; 0 on systems without /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def device_memory_used(device: str | None) -> int:
    """Bytes in use on a CUDA device, by all processes; 0 for None."""
    if device is None:
        return 0
    import ctypes

    cuda = ctypes.CDLL("libcuda.so.1")
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    number = infersdk.Device.parse(device).index
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(handle), number)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), handle)),
        ("cuCtxPushCurrent_v2", (context,)),
        ("cuMemGetInfo_v2", (ctypes.byref(free), ctypes.byref(total))),
        ("cuCtxPopCurrent_v2", (ctypes.byref(context),)),
        ("cuDevicePrimaryCtxRelease_v2", (handle,)),
    ]
    for name, arguments in calls:
        if status := getattr(cuda, name)(*arguments):
            raise OSError(f"{name} failed with CUDA error {status}")
    return total.value - free.value
