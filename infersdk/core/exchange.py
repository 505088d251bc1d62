"""Sharing memory with other libraries, without copies.

The `borrow` functions return a native `ifs_tensor *` over the memory of an array, a device array or a DLPack producer;
the caller keeps that memory alive. `lend_dlpack` exports the device side of a tensor.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InferSDKError, InputError, ShapeError
from . import dlpack
from ._lib import address, check, ffi, lib, out, returned
from .device import CPU, Device
from .memory import device_of
from .stream import Stream, current_device, device_count
from .tensor_spec import as_dims, dtype_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["borrow", "borrow_array", "borrow_cuda_array", "borrow_dlpack", "lend_dlpack"]


def borrow(
    at: int, shape: Sequence[int], dtype: npt.DTypeLike, ordinal: int, *, read_only: bool = False, on_device: bool
) -> Any:
    """A native tensor over the memory at an address.

    Args:
        at: The address, on the host or the device.
        shape: Its dimensions; the elements are dense and in C order.
        dtype: Its element type.
        ordinal: The CUDA device of the tensor, or -1.
        read_only: Write access is refused.
        on_device: The address is one of the device.

    Raises:
        InputError: The address is not aligned to the elements.
        DTypeError, ShapeError, DeviceUnavailableError.
    """
    code, dims = dtype_code(dtype), as_dims(shape)
    element = lib.held_ifs_dtype_size(code)
    nbytes = math.prod(dims) * element
    if nbytes and at % element:
        raise InputError(f"{at:#x} is not aligned to the {element} bytes of an element; copy the array first")
    wrap = lib.held_ifs_memory_wrap_device if on_device else lib.held_ifs_memory_wrap_host
    memory = returned("ifs_memory *", wrap, ffi.cast("void *", at), nbytes, ordinal, read_only)
    try:
        return returned("ifs_tensor *", lib.held_ifs_tensor_on, memory, 0, code, len(dims), dims)
    finally:
        lib.ifs_memory_destroy(memory)  # the tensor holds its own reference


def borrow_array(array: npt.NDArray[Any], ordinal: int) -> Any:
    """A native tensor over a NumPy array; its other side is on the CUDA device of that `ordinal`.

    Raises:
        ShapeError: The array is not C-contiguous.
        InputError: The array is not aligned.
    """
    if not array.flags.c_contiguous:
        raise ShapeError(f"an array with strides {array.strides} cannot be wrapped; pass np.ascontiguousarray(array)")
    if not array.flags.aligned:
        raise InputError(f"an array of {array.dtype} that is not aligned cannot be wrapped; pass np.array(array)")
    at, read_only = array.__array_interface__["data"]
    return borrow(at, array.shape, array.dtype, ordinal, read_only=read_only, on_device=False)


def borrow_cuda_array(interface: dict[str, Any]) -> Any:
    """A native tensor over the array that a `__cuda_array_interface__` describes.

    Raises:
        ShapeError: The array is not C-contiguous.
        InputError: The address does not lie on a CUDA device.
    """
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    at, read_only = interface["data"]
    strides, dense = interface.get("strides"), dtype.itemsize
    for size, stride in zip(reversed(shape), reversed(strides or ()), strict=False):
        if size != 1 and stride != dense:
            raise ShapeError(f"a device array with strides {strides} cannot be wrapped; make it contiguous first")
        dense *= size
    ordinal = device_of(at)
    if (stream := interface.get("stream")) is not None:
        Stream.wrap(stream, Device("cuda", ordinal)).synchronize()
    return borrow(at, shape, dtype, ordinal, read_only=read_only, on_device=True)


def borrow_dlpack(source: Any, stream: Stream | None) -> tuple[Any, object]:
    """A native tensor over the export of a DLPack producer, and the object to keep alive with it.

    On a device, `stream` waits for the producer's work; without a stream, the host does.

    Raises:
        InputError: `source` does not export its memory.
        ShapeError, DTypeError: its elements are not dense and in C order, or of a type that tensors do not have.
    """
    try:
        kind, ordinal = source.__dlpack_device__()
        if kind != dlpack.CUDA:
            array = np.from_dlpack(source)
        else:
            number = 1 if stream is None else stream.handle or 1  # DLPack's number of the legacy default stream
            # Of several devices, torch exports from the current one alone.
            with current_device(Device("cuda", ordinal)) if device_count() > 1 else contextlib.nullcontext():
                theirs = dlpack.Borrowed(source.__dlpack__(stream=number))
    except InferSDKError:
        raise
    except (AssertionError, AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"cannot borrow a {type(source).__name__} through DLPack: {error}") from None
    if kind != dlpack.CUDA:
        return borrow_array(array, CPU.ordinal), array
    if stream is None:
        Stream.wrap(1, Device("cuda", ordinal)).synchronize()
    return borrow(theirs.address, theirs.shape, theirs.dtype, ordinal, on_device=True), theirs


def lend_dlpack(
    tensor: Any, shape: tuple[int, ...], dtype: np.dtype[Any], ordinal: int, stream: int | None, lender: object
) -> Any:
    """A DLPack capsule of the device side of a native tensor, which becomes the newer side.

    Args:
        tensor: The `ifs_tensor *`.
        shape, dtype, ordinal: Of the memory.
        stream: The consumer's stream as DLPack numbers it; it waits for the work that is queued for the tensor. None is
            the legacy default stream; -1 asks for no waiting.
        lender: Kept until the consumer is done.
    """
    at = out("void *")
    if stream == -1:
        check(lib.ifs_tensor_device_ptr(tensor, lib.IFS_READ_WRITE, ffi.NULL, at))
    else:
        theirs = Stream.wrap(1 if stream is None else stream, Device("cuda", ordinal))
        check(lib.held_ifs_tensor_lend(tensor, theirs._open, at))
    memory = lib.held_ifs_tensor_memory(tensor)
    block = returned("ifs_block *", lib.held_ifs_memory_hold, memory, lib.IFS_SIDE_DEVICE)
    holder = (ffi.gc(block, lib.ifs_block_release), lender)
    return dlpack.lend(address(at[0]), shape, dtype, (dlpack.CUDA, ordinal), holder)
