"""Regions of memory that clients share with the server, on the host and on CUDA devices, and tensors in them."""

from __future__ import annotations

import gc
import os
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .._lib import check, ffi, lib, out
from ..device import Device
from ..errors import CudaError, DeviceUnavailableError, InferSDKError
from ..tensor import Tensor
from .datatypes import pack
from .errors import RequestError, Status
from .shared_map import SharedMap

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["HANDLE_NBYTES", "CudaRegion", "HostRegion", "Region", "RegionPart", "SharedTensor"]

#: Of a `cudaIpcMemHandle_t`.
HANDLE_NBYTES = int(lib.IFS_CUDA_IPC_NBYTES)


class Region(ABC):
    """A registered region. It is freed when it is not registered any more, no request uses it, and no model is bound to
    it.

    Attributes:
        name: the client's.
        byte_size: how much of it requests may use.
        device: where it lies: `"cpu"` or `"cuda:0"`.
        stays_bound: whether a model that ran on it in place stays bound to it until its next run, which spares that run
            the binding.
    """

    device: str
    stays_bound: ClassVar[bool]

    def __init__(self, name: str, byte_size: int) -> None:
        self.name, self.byte_size = name, byte_size

    @abstractmethod
    def read_into(self, offset: int, array: npt.NDArray[Any]) -> None:
        """Copies bytes into an array in C order."""

    @abstractmethod
    def write(self, offset: int, data: npt.NDArray[np.uint8]) -> None:
        """Copies bytes to the region."""

    @abstractmethod
    def tensor(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
        """The region's own bytes as a tensor.

        Raises:
            InputError: they are not aligned to the elements.
        """

    @abstractmethod
    def address(self, offset: int) -> int:
        """Of a byte, on the device."""

    @abstractmethod
    def check(self) -> None:
        """Raises a RequestError if the memory is not any more what was registered."""


class HostRegion(Region):
    """A part of POSIX shared memory, mapped.

    Args:
        file: its descriptor, which belongs to the region.
        key, offset: what the client registered.

    Raises:
        RequestError: the memory cannot be mapped.
    """

    device = "cpu"
    stays_bound = True

    def __init__(self, name: str, key: str, offset: int, byte_size: int, file: int) -> None:
        super().__init__(name, byte_size)
        self.key, self.offset = key, offset
        self._file, self._end = file, offset + byte_size
        weakref.finalize(self, os.close, file)
        try:
            self._map = SharedMap(file, offset, byte_size)
        except InferSDKError as error:
            raise RequestError(Status.INVALID, f"failed to register shared memory region {name!r}: {error}") from None
        self._bytes = self._map.array
        self._address = int(self._bytes.__array_interface__["data"][0])

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """The region's own bytes as an array. It keeps them mapped."""
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, self._bytes.data, offset)
        return array

    def read_into(self, offset: int, array: npt.NDArray[Any]) -> None:
        np.copyto(array, self.array(offset, array.shape, array.dtype))

    def write(self, offset: int, data: npt.NDArray[np.uint8]) -> None:
        self._bytes[offset : offset + len(data)] = data

    def tensor(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
        return Tensor.wrap(self.array(offset, shape, dtype))

    def address(self, offset: int) -> int:
        return self._address + offset

    def check(self) -> None:
        if not self._map.is_whole(self._file, self._end):
            raise RequestError(
                Status.INVALID,
                f"shared memory region {self.name!r} is shorter than when it was registered; unregister it, and "
                "register it again",
            )


class CudaRegion(Region):
    """Device memory of another process.

    Args:
        handle: the bytes of its `cudaIpcMemHandle_t`.

    Raises:
        RequestError: there is no such device or memory, or it is shorter.
    """

    # A client may free its memory once it has unregistered it. What it allocates then may lie where the old memory was,
    # and CUDA refuses to open that here as long as the old one is open ("resource already mapped").
    stays_bound = False

    def __init__(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        super().__init__(name, byte_size)
        what = f"failed to register CUDA shared memory region {name!r}"
        self.device_id, self.device = device_id, f"cuda:{device_id}"
        try:
            address, size = _opened(device_id, handle)
        except DeviceUnavailableError as error:
            raise RequestError(Status.INVALID, f"{what}: {error}; without a GPU use system shared memory") from None
        except InferSDKError as error:
            raise RequestError(
                Status.INVALID,
                f"{what}: {error}; give the handle of cudaIpcGetMemHandle() in another process, which still runs",
            ) from None
        self._address = int(ffi.cast("uintptr_t", address))
        close = weakref.finalize(self, lib.ifs_cuda_ipc_close, device_id, address)
        if size < byte_size:
            close()  # the error keeps this object for a while
            raise RequestError(
                Status.INVALID, f"{what}: the memory has {size:,} bytes, and {byte_size:,} are registered"
            )

    def read_into(self, offset: int, array: npt.NDArray[Any]) -> None:
        with self.tensor(offset, (array.nbytes,), np.dtype(np.uint8)) as source:
            array.reshape(-1).view(np.uint8)[:] = source.numpy()

    def write(self, offset: int, data: npt.NDArray[np.uint8]) -> None:
        with self.tensor(offset, data.shape, data.dtype) as target:
            target.numpy(writable=True)[:] = data
            target.device_ptr()  # the copy to the device is done on return

    def tensor(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
        return Tensor._over(self._address + offset, shape, dtype, Device("cuda", self.device_id), lender=self)

    def address(self, offset: int) -> int:
        return self._address + offset

    def check(self) -> None:
        """Memory of a device cannot shrink, and stays as long as it is open."""


def _opened(device_id: int, handle: bytes) -> tuple[Any, int]:
    """The address of the memory behind a handle, and its bytes from there on."""
    address, size = out("void *"), out("size_t")
    try:
        check(lib.ifs_cuda_ipc_open(device_id, handle, address, size))
    except CudaError as error:
        if "cudaErrorAlreadyMapped" not in str(error):
            raise
        # A request that failed may keep the region that lay there: an exception and its frames refer to each other.
        gc.collect()
        check(lib.ifs_cuda_ipc_open(device_id, handle, address, size))
    return address[0], int(size[0])


@dataclass(frozen=True, slots=True)
class RegionPart:
    """A part of a region that takes an output.

    It holds the region, and not its name: a request writes into the memory that it named when it came, also after a
    client has unregistered that, or registered other memory under the same name.
    """

    region: Region
    offset: int
    nbytes: int

    def check_size(self, needed: int, output: str) -> None:
        """Raises a RequestError if the part is too small for an output."""
        if needed > self.nbytes:
            raise RequestError(
                Status.INVALID,
                f"shared memory size specified with the request for output {output!r} ({self.nbytes} bytes) should be "
                f"at least {needed} bytes to hold the results",
            )

    def write(self, data: memoryview, output: str) -> None:
        """Writes an output.

        Raises:
            RequestError: the part is too small, or the region has shrunk.
        """
        self.check_size(data.nbytes, output)
        self.region.write(self.offset, np.frombuffer(data, np.uint8))
        self.region.check()

    def write_row(self, row: npt.NDArray[Any], index: int, count: int, output: str) -> None:
        """Writes one of `count` rows of an output, which lie one after another.

        Raises:
            RequestError: the part is too small for all of them, or the region has shrunk.
        """
        self.check_size(row.nbytes * count, output)
        RegionPart(self.region, self.offset + index * row.nbytes, row.nbytes).write(pack(row), output)


class SharedTensor:
    """Numbers in a part of a region, not copied yet.

    It has of an array what a request needs: `shape`, `dtype`, `nbytes`, its rows, and `np.asarray()`: a view of memory
    of the host, a copy of that of a device. The client may change the numbers at any time.
    """

    __slots__ = ("dtype", "offset", "region", "shape", "size")

    def __init__(self, region: Region, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...], size: int) -> None:
        self.region, self.offset, self.dtype, self.shape, self.size = region, offset, dtype, shape, size

    @property
    def nbytes(self) -> int:
        return self.size

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def address(self) -> int:
        """Of the first element, on the region's device."""
        return self.region.address(self.offset)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, row: int) -> SharedTensor:
        count = self.shape[0]
        if not 0 <= row < count:
            raise IndexError(row)
        size = self.size // count
        return SharedTensor(self.region, self.offset + row * size, self.dtype, self.shape[1:], size)

    def tensor(self, shape: tuple[int, ...]) -> Tensor:
        """The same memory as a tensor.

        Args:
            shape: with as many elements.
        """
        return self.region.tensor(self.offset, shape, self.dtype)

    def read_into(self, array: npt.NDArray[Any]) -> None:
        """Reads it into an array of its shape and type, in C order."""
        self.region.read_into(self.offset, array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if isinstance(self.region, HostRegion) and not copy:
            array = self.region.array(self.offset, self.shape, self.dtype)
        else:
            array = np.empty(self.shape, self.dtype)
            self.read_into(array)
        return array if dtype is None else array.astype(dtype)
