"""Regions of memory that clients share with the server, on the host and on CUDA devices, and tensors in them."""

from __future__ import annotations

import gc
import os
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._lib import check, ffi, lib, out
from ..device import Device
from ..errors import CudaError, DeviceUnavailableError, InferSDKError
from ..tensor import Tensor
from .datatypes import numpy_dtype, pack, unpack
from .errors import RequestError, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

__all__ = ["HANDLE_NBYTES", "CudaRegion", "HostRegion", "Region", "RegionPart", "SharedTensor"]

#: Of a `cudaIpcMemHandle_t`.
HANDLE_NBYTES = int(lib.IFS_CUDA_IPC_NBYTES)


class Region(ABC):
    """A registered region. It is freed when it is not registered any more and no request uses it.

    Attributes:
        name: as the client registered it.
        byte_size: the number of bytes that requests may use.
        device: where the memory is: `"cpu"` or `"cuda:0"`.
    """

    device: str

    def __init__(self, name: str, byte_size: int) -> None:
        self.name, self.byte_size = name, byte_size

    @abstractmethod
    def read_into(self, offset: int, array: npt.NDArray[Any]) -> None:
        """Copies bytes into a contiguous array.

        Raises:
            RequestError: the memory is shorter than when it was registered.
        """

    @abstractmethod
    def write(self, offset: int, data: npt.NDArray[np.uint8]) -> None:
        """Copies bytes to the region.

        Raises:
            RequestError: the memory is shorter than when it was registered.
        """


class HostRegion(Region):
    """A part of POSIX shared memory. It is read and written by system calls: a client that shrinks the memory causes a
    short read or write, and no signal.

    Args:
        file: its descriptor, which belongs to the region.
        key, offset: as the client registered them.
    """

    device = "cpu"

    def __init__(self, name: str, key: str, offset: int, byte_size: int, file: int) -> None:
        super().__init__(name, byte_size)
        self.key, self.offset = key, offset
        self._file = file
        weakref.finalize(self, os.close, file)

    def read_into(self, offset: int, array: npt.NDArray[Any]) -> None:
        self._transfer(os.preadv, offset, array.reshape(-1).view(np.uint8))

    def write(self, offset: int, data: npt.NDArray[np.uint8]) -> None:
        if os.fstat(self._file).st_size < self.offset + offset + len(data):  # a write would make the file longer
            raise self._shorter()
        self._transfer(os.pwritev, offset, data)

    def _transfer(
        self, call: Callable[[int, list[memoryview], int], int], offset: int, data: npt.NDArray[np.uint8]
    ) -> None:
        done, view = 0, data.data
        while done < len(view):  # one call transfers at most 2 GiB
            try:
                count = call(self._file, [view[done:]], self.offset + offset + done)
            except OSError as error:  # no memory is left for the pages of the file
                raise RequestError(
                    Status.INVALID, f"shared memory region {self.name!r} cannot be used: {error.strerror}"
                ) from None
            if not count:
                raise self._shorter()
            done += count

    def _shorter(self) -> RequestError:
        return RequestError(
            Status.INVALID,
            f"shared memory region {self.name!r} is shorter than when it was registered; unregister it, and register "
            "it again",
        )


class CudaRegion(Region):
    """Device memory of another process.

    Args:
        handle: the bytes of its `cudaIpcMemHandle_t`.

    Raises:
        RequestError: there is no such device or memory, or it is shorter.
    """

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
        """The memory of the region as a tensor."""
        return Tensor._over(self._address + offset, shape, dtype, Device("cuda", self.device_id), lender=self)


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

    def write(self, array: npt.NDArray[Any], output: str) -> int:
        """Writes an output, and returns its number of bytes.

        Raises:
            RequestError: the part is too small, or the region has shrunk.
        """
        data = np.frombuffer(pack(array), np.uint8)
        if len(data) > self.nbytes:
            raise RequestError(
                Status.INVALID,
                f"shared memory size specified with the request for output {output!r} ({self.nbytes} bytes) should be "
                f"at least {len(data)} bytes to hold the results",
            )
        self.region.write(self.offset, data)
        return len(data)


class SharedTensor:
    """A tensor in a part of a region, not copied yet. The client may change its values until it is copied.

    `shape` and `dtype` are those of an array. `read_into(array)` copies numbers into a row of a batch, `load()` copies
    the tensor into an array, and `tensor()` is the memory itself where it belongs to a CUDA device.

    Args:
        what: the name of the tensor in messages.
    """

    def __init__(self, part: RegionPart, datatype: str, shape: tuple[int, ...], what: str) -> None:
        self.part, self.datatype, self.shape, self.what = part, datatype, shape, what
        self.dtype = numpy_dtype(datatype)

    @property
    def device(self) -> str:
        """Of the region."""
        return self.part.region.device

    @property
    def nbytes(self) -> int:
        return self.part.nbytes

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, row: int) -> SharedTensor:
        count = self.shape[0]
        if not 0 <= row < count:
            raise IndexError(row)
        size = self.nbytes // count
        part = RegionPart(self.part.region, self.part.offset + row * size, size)
        return SharedTensor(part, self.datatype, self.shape[1:], self.what)

    def tensor(self) -> Tensor:
        """The memory as a tensor, where the region is a `CudaRegion`."""
        region = self.part.region
        assert isinstance(region, CudaRegion)
        return region.tensor(self.part.offset, self.shape, self.dtype)

    def read_into(self, array: npt.NDArray[Any]) -> None:
        """Copies numbers into an array of this shape and type, in C order.

        Raises:
            RequestError: the region has shrunk.
        """
        self.part.region.read_into(self.part.offset, array)

    def load(self) -> npt.NDArray[Any]:
        """A copy of the tensor.

        Raises:
            RequestError: the region has shrunk, or the bytes are no values of the datatype.
        """
        data = np.empty(self.nbytes, np.uint8)
        self.read_into(data)
        return unpack(data.data, self.datatype, self.shape, self.what)
