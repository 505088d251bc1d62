"""Garbage collection and memory allocation in a process that only serves."""

from __future__ import annotations

import ctypes
import gc

__all__ = ["freeze", "keep_freed_memory"]

#: Of `mallopt()` in glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def freeze() -> None:
    """Collects garbage, then excludes all remaining objects from later collections.

    A full collection stops all threads for some 30 ms because it visits each object of the loaded packages and models.
    Another call visits all objects again, so the objects of a closed model are freed.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def keep_freed_memory() -> None:
    """Lets glibc's allocator keep up to 64 MiB of freed memory for later requests.

    By default it returns the memory of each large message to the system, and the next message causes a page fault for
    each 4 KiB. Other allocators are left unchanged.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, 64 << 20)
        mallopt(_MMAP_THRESHOLD, 32 << 20)
