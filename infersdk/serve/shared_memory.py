"""POSIX shared memory that clients register: parts of it are inputs, or take outputs.

It is read and written through its file descriptor, not mapped: a client that shrinks it meanwhile gets an error, where
access to mapped memory would end the server.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .datatypes import element_count, numpy_dtype, pack, unpack
from .errors import RequestError, Status
from .messages import SharedMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["Region", "SharedMemoryRegions", "SharedTensor"]

_FOLDER = "/dev/shm"  # see shm_overview(7)
#: The most regions that are registered at a time: each holds a file open.
_MOST_REGIONS = 512


@dataclass(frozen=True, slots=True)
class Region:
    """A registered region; the names of its attributes are the protocol's."""

    name: str
    key: str
    offset: int
    byte_size: int
    file: int


class SharedMemoryRegions:
    """The regions of a server, by name. Any thread may use it.

    Args:
        prefix: what the keys of all regions begin with; None refuses every region.
    """

    def __init__(self, prefix: str | None) -> None:
        self._prefix = prefix
        self._regions: dict[str, Region] = {}
        self._lock = threading.Lock()

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Opens a region.

        Raises:
            RequestError: the name is taken, the key is not allowed, or there is no such memory of that size.
        """
        self._check_key(name, key)
        what = f"failed to register shared memory region {name!r}"
        if offset < 0 or byte_size < 1:
            raise RequestError(Status.INVALID, f"{what}: offset {offset} and byte_size {byte_size} are not valid")
        with self._lock:
            if name in self._regions:
                raise RequestError(Status.EXISTS, f"shared memory region {name!r} already in manager; unregister it")
            if len(self._regions) >= _MOST_REGIONS:
                raise RequestError(Status.TOO_LARGE, f"{what}: {_MOST_REGIONS} are registered; unregister others")
            try:
                file = os.open(_FOLDER + key, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise RequestError(Status.INVALID, f"{what}: key {key!r} cannot be opened: {reason}") from None
            try:
                self._check_file(file, what, key, offset + byte_size)
            except BaseException:
                os.close(file)
                raise
            self._regions[name] = Region(name, key, offset, byte_size, file)

    def _check_key(self, name: str, key: str) -> None:
        if self._prefix is None:
            raise RequestError(
                Status.FORBIDDEN,
                f"failed to register shared memory region {name!r}: this server takes none; its configuration "
                'allows it by shared_memory_prefix = "/frames-" under [server]',
            )
        rooted = key if key.startswith("/") else f"/{key}"
        if key != rooted or not key.startswith(self._prefix) or "/" in key[1:] or key in ("/", "/.", "/.."):
            raise RequestError(
                Status.FORBIDDEN,
                f"failed to register shared memory region {name!r}: the key {key!r} is not allowed; keys of this "
                f"server begin with {self._prefix!r}, and have no further slash",
            )

    def _check_file(self, file: int, what: str, key: str, end: int) -> None:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise RequestError(Status.INVALID, f"{what}: key {key!r} is not shared memory")
        if status.st_size < end:
            raise RequestError(
                Status.INVALID, f"{what}: key {key!r} has {status.st_size:,} bytes, and {end:,} are registered"
            )

    def unregister(self, name: str) -> None:
        """Forgets a region, or all of them where `name` is empty. One that is not there is no error, as in Triton."""
        with self._lock:
            gone = list(self._regions) if not name else [name]
            for one in gone:
                if (region := self._regions.pop(one, None)) is not None:
                    os.close(region.file)

    def status(self, name: str) -> list[Region]:
        """The regions, or the one of this name.

        Raises:
            RequestError: there is no such region.
        """
        with self._lock:
            if not name:
                return list(self._regions.values())
            return [self._get(name)]

    def tensor(
        self, part: SharedMemory, datatype: str, shape: Sequence[int], what: str
    ) -> SharedTensor | npt.NDArray[Any]:
        """A tensor in a part of a region; numbers are read when they are needed.

        Raises:
            RequestError: the part is not in the region, or does not fit the shape.
        """
        dtype, count = numpy_dtype(datatype), element_count(shape, what)
        if dtype.kind in "Ob":  # what has to be looked at
            return unpack(self.read(part), datatype, shape, what)
        with self._lock:
            self._part(part)
        if part.nbytes != count * dtype.itemsize:
            raise RequestError(
                Status.INVALID,
                f"{what}: {datatype} {list(shape)} has {count * dtype.itemsize:,} bytes, and its part of shared memory "
                f"has {part.nbytes:,}",
            )
        return SharedTensor(self, part, dtype, tuple(shape))

    def read(self, part: SharedMemory) -> memoryview:
        """A copy of a part of a region."""
        data: memoryview = np.empty(part.nbytes, np.uint8).data
        self.read_into(part, data)
        return data

    def read_into(self, part: SharedMemory, data: memoryview) -> None:
        """Copies a part of a region into memory of its size."""
        with self._lock:  # it is not closed meanwhile
            region = self._part(part)
            done = os.preadv(region.file, [data], region.offset + part.offset)
        if done != part.nbytes:
            raise RequestError(
                Status.INVALID,
                f"shared memory region {part.region!r} is shorter than when it was registered: {done:,} of "
                f"{part.nbytes:,} bytes from offset {part.offset:,} are there",
            )

    def write(self, part: SharedMemory, data: memoryview, output: str) -> None:
        """Writes an output into a part of a region.

        Raises:
            RequestError: the part is too small.
        """
        _check_size(part, data.nbytes, output)
        with self._lock:
            region = self._part(part)
            at = region.offset + part.offset
            # A write behind the end would make a region longer that its owner has shrunk.
            if os.fstat(region.file).st_size < at + data.nbytes:
                raise RequestError(
                    Status.INVALID, f"shared memory region {part.region!r} is shorter than when it was registered"
                )
            while data.nbytes:
                done = os.pwrite(region.file, data, at)
                data, at = data[done:], at + done

    def write_row(self, part: SharedMemory, row: npt.NDArray[Any], index: int, count: int, output: str) -> None:
        """Writes one of `count` rows of an output, which lie one after another in a part of a region.

        Raises:
            RequestError: the part is too small for all of them.
        """
        _check_size(part, row.nbytes * count, output)
        own = SharedMemory(part.region, part.offset + index * row.nbytes, row.nbytes)
        self.write(own, pack(row), output)

    def _get(self, name: str) -> Region:
        region = self._regions.get(name)
        if region is None:
            raise RequestError(Status.NOT_FOUND, f"Unable to find system shared memory region: {name!r}; register it")
        return region

    def _part(self, part: SharedMemory) -> Region:
        region = self._get(part.region)
        if part.offset < 0 or part.nbytes < 0 or part.offset + part.nbytes > region.byte_size:
            raise RequestError(
                Status.INVALID,
                f"Invalid offset + byte size for shared memory region: {part.region!r} has {region.byte_size:,} bytes, "
                f"and bytes {part.offset:,} to {part.offset + part.nbytes:,} were asked for",
            )
        return region

    def close(self) -> None:
        """Forgets all regions."""
        with contextlib.suppress(OSError):
            self.unregister("")


def _check_size(part: SharedMemory, needed: int, output: str) -> None:
    if needed > part.nbytes:
        raise RequestError(
            Status.INVALID,
            f"shared memory size specified with the request for output {output!r} ({part.nbytes} bytes) should be at "
            f"least {needed} bytes to hold the results",
        )


class SharedTensor:
    """Numbers in a part of a shared memory region, not yet read.

    It has of an array what a request needs: `shape`, `dtype`, `nbytes`, its rows, and `np.asarray()`.
    """

    __slots__ = ("_part", "_regions", "dtype", "shape")

    def __init__(
        self, regions: SharedMemoryRegions, part: SharedMemory, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> None:
        self._regions, self._part, self.dtype, self.shape = regions, part, dtype, shape

    @property
    def nbytes(self) -> int:
        return self._part.nbytes

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, row: int) -> SharedTensor:
        if not 0 <= row < self.shape[0]:
            raise IndexError(row)
        size = self._part.nbytes // self.shape[0]
        part = SharedMemory(self._part.region, self._part.offset + row * size, size)
        return SharedTensor(self._regions, part, self.dtype, self.shape[1:])

    def read_into(self, array: npt.NDArray[Any]) -> None:
        """Reads it into an array of its shape and type, in C order."""
        self._regions.read_into(self._part, array.reshape(-1).view(np.uint8).data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = np.empty(self.shape, self.dtype)
        self.read_into(array)
        return array if dtype is None else array.astype(dtype)
