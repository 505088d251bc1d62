"""MixMemory: a block on the host and a block on a device that hold the same bytes; and statistics of all memories."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from ..errors import ClosedError, InputError
from ._lib import address, check, ffi, lib, out
from .device import Device

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Self

__all__ = ["Handle", "Head", "MemoryStats", "MixMemory", "device_of", "is_page_locked", "memory_stats"]


class Head(enum.IntEnum):
    """The side of a memory that is newer."""

    UNINITIALIZED = lib.IFS_HEAD_UNINITIALIZED
    HOST = lib.IFS_HEAD_HOST
    DEVICE = lib.IFS_HEAD_DEVICE
    SYNCED = lib.IFS_HEAD_SYNCED


_READ, _WRITE = lib.IFS_READ, lib.IFS_WRITE  # looked up once: each run of a model asks several times


def access_code(read: bool, write: bool) -> int:
    """The native code of an access for reading, writing, or both."""
    return (_READ if read else 0) | (_WRITE if write else 0)


class Handle:
    """The owner of a native handle, which `close()`, `with` or the end of the object frees."""

    _c: Any  # None once closed

    def _own(self, handle: Any, destroy: Any) -> None:
        self._c = ffi.gc(handle, destroy)

    @property
    def _open(self) -> Any:
        if self._c is None:
            raise ClosedError(f"this {type(self).__name__} was closed; create a new one")
        return self._c

    def close(self) -> None:
        """Frees the memory now. Existing views stay valid; every other use raises ClosedError."""
        self._c = None  # destroys the handle, unless another thread is inside of a native call with it

    def __enter__(self) -> Self:
        self._open  # noqa: B018 - raises if closed
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> Any:  # copy.copy() would make two owners of one handle
        raise TypeError(f"a {type(self).__name__} can be neither copied nor pickled; create a new one")


class MixMemory(Handle):
    """A host block and a device block that hold the same `nbytes` bytes. Each is allocated at its first access.

    Args:
        nbytes: The size in bytes. A later resize within the capacity allocates nothing.
        device: `"cpu"`, or the CUDA device of the device side; the host block is page-locked then.
    """

    def __init__(self, nbytes: int = 0, device: str | Device | None = None) -> None:
        self._c = None
        handle = out("ifs_memory *")
        check(lib.ifs_memory_create(Device.parse(device).ordinal, handle))
        self._own(handle[0], lib.ifs_memory_destroy)
        self.resize(nbytes)

    def resize(self, nbytes: int) -> None:
        """Sets the size. The content is kept if it fits the capacity, and undefined otherwise."""
        if not 0 <= nbytes < 2**64:
            raise InputError(f"a memory cannot have {nbytes} bytes; the size must be 0 to 2**64 - 1")
        check(lib.ifs_memory_resize(self._open, nbytes))

    def host_ptr(self, *, read: bool = True, write: bool = False) -> int:
        """The address of the host side, brought up to date for `read`. `write` makes it the newer side."""
        address_out = out("void *")
        check(lib.ifs_memory_host_ptr(self._open, access_code(read, write), address_out))
        return address(address_out[0])

    def device_ptr(self, *, read: bool = True, write: bool = False) -> int:
        """The address of the device side, as `host_ptr` gives that of the host side.

        Raises:
            DeviceUnavailableError: The memory has no device, the build is CPU-only, or the machine has no GPU.
        """
        address_out = out("void *")
        check(lib.ifs_memory_device_ptr(self._open, access_code(read, write), ffi.NULL, address_out))
        return address(address_out[0])

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
    ordinal = out("int32_t")
    check(lib.ifs_pointer_device(ffi.cast("void *", at), ordinal))
    if ordinal[0] < 0:
        raise InputError(f"{at:#x} is not an address on a CUDA device")
    return int(ordinal[0])


class MemoryStats(dict[str, int]):
    """The bytes that the native core holds: host, pinned (page-locked) and device, now and at their peak; and the
    number of `memories`.
    """


def memory_stats() -> MemoryStats:
    """The bytes that all tensors of the process hold (`*_bytes`), the peaks (`*_peak`), and the number of memories."""
    stats = out("ifs_memory_stats")
    lib.ifs_get_memory_stats(stats)
    return MemoryStats((name, int(getattr(stats, name))) for name, _ in ffi.typeof("ifs_memory_stats").fields)
