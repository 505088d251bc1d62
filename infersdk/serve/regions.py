"""Regions of memory that clients share with the server, on the host and on CUDA devices, and tensors in them."""

from __future__ import annotations

import gc
import os
import stat
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core._lib import check, ffi, lib, out
from ..core.device import Device
from ..core.tensor import Tensor
from ..errors import CudaError, DeviceUnavailableError, InferSDKError
from .datatypes import datatype_of, element_count, numpy_dtype, pack, unpack
from .errors import RequestError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["CudaRegion", "HostRegion", "Region", "RegionPart", "SharedTensor"]

_FOLDER = "/dev/shm"  # see shm_overview(7)
#: Of a `cudaIpcMemHandle_t`.
_HANDLE_NBYTES = int(lib.IFS_CUDA_IPC_NBYTES)


class Region(ABC):
    """A registered region. It is freed when it is unregistered and no request uses it.

    `read_into()` and `write()` raise RequestError if the memory is shorter than when it was registered.

    Attributes:
        device: `"cpu"` or `"cuda:0"`.
        fields: the values that the client registered, by the names of the protocol.
    """

    device: str

    def __init__(self, name: str, byte_size: int, **place: str | int) -> None:
        self.name, self.byte_size = name, byte_size
        self.fields = {"name": name, **place, "byte_size": byte_size}

    @abstractmethod
    def read_into(self, offset: int, array: npt.NDArray[Any]) -> None:
        """Copies bytes into a contiguous array."""

    @abstractmethod
    def write(self, offset: int, data: npt.NDArray[np.uint8]) -> None:
        """Copies bytes to the region."""


class HostRegion(Region):
    """A part of POSIX shared memory.

    System calls read and write it, so that a client that shrinks the memory causes a short read and not a signal.

    Raises:
        RequestError: there is no such memory of that size.
    """

    device = "cpu"

    def __init__(self, name: str, key: str, offset: int, byte_size: int) -> None:
        super().__init__(name, byte_size, key=key, offset=offset)
        what = f"failed to register shared memory region {name!r}"
        if offset < 0 or byte_size < 1:
            raise RequestError(f"{what}: offset {offset} and byte_size {byte_size} are not valid")
        try:
            self._file = os.open(_FOLDER + key, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise RequestError(f"{what}: key {key!r} cannot be opened: {reason}") from None
        self.offset, close = offset, weakref.finalize(self, os.close, self._file)
        status, end = os.fstat(self._file), offset + byte_size
        if stat.S_ISREG(status.st_mode) and status.st_size >= end:
            return
        close()  # the traceback keeps this object alive
        if not stat.S_ISREG(status.st_mode):
            raise RequestError(f"{what}: key {key!r} is not shared memory")
        raise RequestError(f"{what}: key {key!r} has {status.st_size:,} bytes, and {end:,} are registered")

    def read_into(self, offset: int, array: npt.NDArray[Any]) -> None:
        self._transfer(os.preadv, offset, array.reshape(-1).view(np.uint8))

    def write(self, offset: int, data: npt.NDArray[np.uint8]) -> None:
        if os.fstat(self._file).st_size < self.offset + offset + len(data):  # a write would extend the file
            raise self._shorter()
        self._transfer(os.pwritev, offset, data)

    def _transfer(
        self, call: Callable[[int, list[memoryview], int], int], offset: int, data: npt.NDArray[np.uint8]
    ) -> None:
        done, view = 0, data.data
        while done < len(view):  # one call transfers at most 2 GiB
            try:
                count = call(self._file, [view[done:]], self.offset + offset + done)
            except OSError as error:  # no memory for the pages of the file
                raise RequestError(f"shared memory region {self.name!r} cannot be used: {error.strerror}") from None
            if not count:
                raise self._shorter()
            done += count

    def _shorter(self) -> RequestError:
        return RequestError(
            f"shared memory region {self.name!r} is shorter than when it was registered; unregister it, and register "
            "it again"
        )


class CudaRegion(Region):
    """Device memory of another process.

    Args:
        handle: the bytes of its `cudaIpcMemHandle_t`.

    Raises:
        RequestError: the device or the memory does not exist, the memory is shorter, or a value is not valid.
    """

    def __init__(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        super().__init__(name, byte_size, device_id=device_id)
        what = f"failed to register CUDA shared memory region {name!r}"
        if len(handle) != _HANDLE_NBYTES:
            raise RequestError(
                f"{what}: raw_handle has the {_HANDLE_NBYTES} bytes of a cudaIpcMemHandle_t, not {len(handle)}"
            )
        if byte_size < 1 or not 0 <= device_id < 1 << 31:
            raise RequestError(f"{what}: device_id {device_id}, byte_size {byte_size} are not valid")
        self.device_id, self.device = device_id, f"cuda:{device_id}"
        try:
            address, size = _opened(device_id, handle)
        except DeviceUnavailableError as error:
            raise RequestError(f"{what}: {error}; without a GPU use system shared memory") from None
        except InferSDKError as error:
            raise RequestError(
                f"{what}: {error}; give the handle of cudaIpcGetMemHandle() in another process, which still runs"
            ) from None
        self._address = int(ffi.cast("uintptr_t", address))
        close = weakref.finalize(self, lib.ifs_cuda_ipc_close, device_id, address)
        if size < byte_size:
            close()  # the traceback keeps this object alive
            raise RequestError(f"{what}: the memory has {size:,} bytes, and {byte_size:,} are registered")

    def read_into(self, offset: int, array: npt.NDArray[Any]) -> None:
        with self.tensor(offset, (array.nbytes,), np.dtype(np.uint8)) as source:
            array.reshape(-1).view(np.uint8)[:] = source.numpy()

    def write(self, offset: int, data: npt.NDArray[np.uint8]) -> None:
        with self.tensor(offset, data.shape, data.dtype) as target:
            target.numpy(writable=True)[:] = data
            target.device_ptr()  # copies to the device

    def tensor(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
        """The memory of the region as a tensor."""
        return Tensor._over(self._address + offset, shape, dtype, Device("cuda", self.device_id), lender=self)


def _opened(device_id: int, handle: bytes) -> tuple[Any, int]:
    """The address of the memory of a handle, and its remaining size in bytes."""
    address, size = out("void *"), out("size_t")
    try:
        check(lib.ifs_cuda_ipc_open(device_id, handle, address, size))
    except CudaError as error:
        if "cudaErrorAlreadyMapped" not in str(error):
            raise
        # A failed request may keep the previous region alive by a cycle of its exception and frames.
        gc.collect()
        check(lib.ifs_cuda_ipc_open(device_id, handle, address, size))
    return address[0], int(size[0])


@dataclass(frozen=True, slots=True)
class RegionPart:
    """A part of a region.

    It refers to the region itself. A request therefore keeps its memory when a client unregisters the region, or
    registers another one of the same name.
    """

    region: Region
    offset: int
    nbytes: int

    def tensor(self, datatype: str, shape: Sequence[int], what: str) -> SharedTensor:
        """The part as a tensor, without a copy. Raises RequestError if it does not fit the shape."""
        dtype, count = numpy_dtype(datatype), element_count(shape, what)
        if dtype.kind != "O" and self.nbytes != count * dtype.itemsize:
            raise RequestError(
                f"{what}: {datatype} {list(shape)} has {count * dtype.itemsize:,} bytes, and its part of shared memory "
                f"has {self.nbytes:,}"
            )
        return SharedTensor(self, dtype, tuple(shape), what)

    def write(self, array: npt.NDArray[Any], output: str) -> None:
        """Writes the output of this name. Raises RequestError if the part is too small."""
        data = np.frombuffer(pack(array), np.uint8)
        if len(data) > self.nbytes:
            raise RequestError(
                f"shared memory size specified with the request for output {output!r} ({self.nbytes} bytes) should be "
                f"at least {len(data)} bytes to hold the results"
            )
        self.region.write(self.offset, data)


class SharedTensor:
    """A tensor in a part of a region, before it is copied. The client may change its values until then. Messages call
    it `what`.
    """

    def __init__(self, part: RegionPart, dtype: np.dtype[Any], shape: tuple[int, ...], what: str) -> None:
        self.part, self.dtype, self.shape, self.what = part, dtype, shape, what
        self.nbytes, self.ndim, self.device = part.nbytes, len(shape), part.region.device

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, row: int) -> SharedTensor:
        count = self.shape[0]
        if not 0 <= row < count:
            raise IndexError(row)
        size = self.nbytes // count
        part = RegionPart(self.part.region, self.part.offset + row * size, size)
        return SharedTensor(part, self.dtype, self.shape[1:], self.what)

    def tensor(self) -> Tensor:
        """A view of the memory of a `CudaRegion`."""
        region = self.part.region
        assert isinstance(region, CudaRegion)
        return region.tensor(self.part.offset, self.shape, self.dtype)

    def read_into(self, array: npt.NDArray[Any]) -> None:
        """Copies numbers into an array of this shape and type, in C order."""
        self.part.region.read_into(self.part.offset, array)

    def load(self) -> npt.NDArray[Any]:
        """A copy of the tensor. Raises RequestError if the bytes are not valid values of the datatype."""
        data = np.empty(self.nbytes, np.uint8)
        self.read_into(data)
        return unpack(data.data, datatype_of(self.dtype), self.shape, self.what)
