"""MixMemory: a block on the host and a block on a device that hold the same bytes; and statistics of all memories."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ._lib import Handle, access_code, address, check, ffi, lib, out, returned
from .device import Device, memory_ordinal

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Head", "MixMemory", "device_of", "is_page_locked", "memory_stats"]


class Head(enum.IntEnum):
    """The side of a memory that is newer."""

    UNINITIALIZED = lib.IFS_HEAD_UNINITIALIZED
    HOST = lib.IFS_HEAD_HOST
    DEVICE = lib.IFS_HEAD_DEVICE
    SYNCED = lib.IFS_HEAD_SYNCED


class MixMemory(Handle):
    """A host block and a device block that hold the same `nbytes` bytes. Each is allocated at its first access.

    Args:
        nbytes: The size in bytes. A later resize within the capacity allocates nothing.
        device: `"cpu"`, or the CUDA device of the device side; the host block is page-locked then.
    """

    def __init__(self, nbytes: int = 0, device: str | Device | None = None) -> None:
        handle = returned("ifs_memory *", lib.ifs_memory_create, memory_ordinal(device))
        self._own(handle, lib.ifs_memory_destroy)
        self.resize(nbytes)

    def resize(self, nbytes: int) -> None:
        """Sets the size. The content is kept if it fits the capacity, and undefined otherwise."""
        if not 0 <= nbytes < 2**64:
            raise InputError(f"a memory cannot have {nbytes} bytes; the size must be 0 to 2**64 - 1")
        check(lib.ifs_memory_resize(self._open, nbytes))

    def host_ptr(self, *, read: bool = True, write: bool = False) -> int:
        """The address of the host side, brought up to date for `read`. `write` makes it the newer side."""
        return address(returned("void *", lib.ifs_memory_host_ptr, self._open, access_code(read, write)))

    def device_ptr(self, *, read: bool = True, write: bool = False) -> int:
        """The address of the device side, as `host_ptr` gives that of the host side.

        Raises:
            DeviceUnavailableError: The memory has no device, the build is CPU-only, or the machine has no GPU.
        """
        access = access_code(read, write)
        return address(returned("void *", lib.ifs_memory_device_ptr, self._open, access, ffi.NULL))

    @property
    def nbytes(self) -> int:
        return int(lib.held_ifs_memory_nbytes(self._open))

    @property
    def head(self) -> Head:
        return Head(lib.held_ifs_memory_head(self._open))

    @property
    def host_capacity(self) -> int:
        """Bytes of the host block; 0 before the first access."""
        return int(lib.ifs_memory_host_capacity(self._open))

    @property
    def device_capacity(self) -> int:
        """Bytes of the device block; 0 before the first access."""
        return int(lib.ifs_memory_device_capacity(self._open))

    def __repr__(self) -> str:
        return "<MixMemory closed>" if self._c is None else f"<MixMemory {self.nbytes} bytes, {self.head.name}>"


def is_page_locked(array: npt.NDArray[Any]) -> bool:
    """Whether the array is in page-locked memory, from which a device copies directly."""
    return bool(lib.held_ifs_is_page_locked(ffi.cast("void *", array.__array_interface__["data"][0])))


def device_of(at: int) -> int:
    """The ordinal of the CUDA device that an address is on.

    Raises:
        InputError: It is an address of the host.
    """
    ordinal = int(returned("int32_t", lib.ifs_pointer_device, ffi.cast("void *", at)))
    if ordinal < 0:
        raise InputError(f"{at:#x} is not an address on a CUDA device")
    return ordinal


def memory_stats() -> dict[str, int]:
    """The bytes that the tensors of the process hold on the host, page-locked (pinned) and on devices (`*_bytes`), the
    peaks (`*_peak`), and the number of `memories`.
    """
    stats = out("ifs_memory_stats")
    lib.ifs_get_memory_stats(stats)
    return {name: int(getattr(stats, name)) for name, _ in ffi.typeof("ifs_memory_stats").fields}
