"""A part of a file that another process can shrink, mapped into memory without the risk that this ends the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._lib import address, check, ffi, lib, out

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["SharedMap"]


class SharedMap:
    """Bytes of an open file, to be read and written in place.

    Where the file ends earlier than when it was mapped, an access gives zeros instead of the signal SIGBUS, and
    `damaged` is true from then on. The file may be closed. The bytes stay mapped as long as there is this object or a
    view of `array`.

    Args:
        file: its descriptor.
        offset: of the first byte, anywhere in a page.
        nbytes: how many.

    Raises:
        InputError: the file cannot be mapped.
        OutOfMemoryError: too many mappings.
    """

    def __init__(self, file: int, offset: int, nbytes: int) -> None:
        handle = out("ifs_shared_map *")
        check(lib.ifs_shared_map_create(file, offset, nbytes, handle))
        self._c = ffi.gc(handle[0], lib.ifs_shared_map_destroy)
        self._nbytes = nbytes

    @staticmethod
    def guard() -> None:
        """Installs the handler of SIGBUS again where another one took its place, and unblocks the signal in this thread
        and in those that it starts from now on. Each new mapping does that for the thread that makes it.
        """
        lib.ifs_shared_map_guard()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        at = address(lib.ifs_shared_map_address(self._c))
        return {"shape": (self._nbytes,), "typestr": "|u1", "data": (at, False), "version": 3}

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """The bytes, writable; the view keeps them mapped."""
        return np.asarray(self)

    def is_whole(self, file: int, end: int) -> bool:
        """Whether all that was read and written is the file's, which still has all bytes in front of `end`. Guards the
        thread as `guard()` does, for the next access: a library may have taken the handler away.

        Args:
            file: its descriptor.
        """
        return bool(lib.ifs_shared_map_is_whole(self._c, file, end))  # one call: each lets go of the interpreter's lock

    @property
    def damaged(self) -> bool:
        """Whether an access went behind the end of the file: the bytes have nothing to do with it any more."""
        return bool(lib.ifs_shared_map_is_damaged(self._c))
