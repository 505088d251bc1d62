"""Sharing memory with other libraries, without copies.

The `borrow` functions return a native `ifs_tensor *` over the memory of an array, a device array or a DLPack producer;
the caller keeps that memory alive. `lend_dlpack` exports the device side of a tensor to torch, CuPy, JAX and numba; for
the host side NumPy implements DLPack. The structs are those of the DLPack specification
(https://dmlc.github.io/dlpack/latest/c_api.html), of the unversioned form that every consumer takes.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DTypeError, InferSDKError, InputError, ShapeError
from ._lib import address, check, ffi, lib, out, returned
from .device import CPU, Device
from .memory import device_of
from .stream import Stream, current_device, device_count
from .tensor_spec import DTYPES, as_dims, dtype_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = [
    "DLPACK_CPU", "DLPACK_CUDA", "borrow", "borrow_array", "borrow_capsule", "borrow_cuda_array", "borrow_dlpack",
    "lend_dlpack", "pointer_of",
]  # fmt: skip

#: DLPack's numbers of the processor and of CUDA.
DLPACK_CPU, DLPACK_CUDA = 1, 2
_KINDS = {"i": 0, "u": 1, "f": 2, "b": 6}
_DTYPES = {(_KINDS[dtype.kind], 8 * dtype.itemsize): dtype for dtype in DTYPES.values()}
_MAX_NDIM = 16  # as the core's IFS_MAX_NDIM


def _prototype(name: str, result: Any, *arguments: Any) -> Any:
    """A function of the C API, with a prototype of its own: all users of `ctypes.pythonapi` share those there."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new_capsule = _prototype("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
# These take a capsule as its address: in its destructor its reference count is 0.
pointer_of = _prototype("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_is_valid = _prototype("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_rename = _prototype("PyCapsule_SetName", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)

#: Objects of an export until the consumer calls the deleter: the struct, its arrays, and the holder of the memory.
_lent: dict[int, tuple[Any, ...]] = {}


@ffi.def_extern(name="ifs_py_dlpack_release")  # type: ignore[untyped-decorator]
def _release(managed: Any) -> None:
    """The deleter of an export. The consumer may call it from any thread."""
    _lent.pop(address(managed), None)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)  # type: ignore[untyped-decorator]
def _drop_capsule(capsule: int) -> None:
    """Frees the tensor of a capsule that no consumer has taken."""
    if _is_valid(capsule, b"dltensor"):
        _lent.pop(pointer_of(capsule, b"dltensor"), None)


def borrow(
    at: int, shape: Sequence[int], dtype: npt.DTypeLike, ordinal: int, *, read_only: bool = False, on_device: bool
) -> Any:
    """A native tensor over the dense memory at an address of the host or, with `on_device`, of CUDA device `ordinal`.

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
    strides = interface.get("strides")
    if strides and not _are_dense(shape, strides, dtype.itemsize):
        raise ShapeError(f"a device array with strides {strides} cannot be wrapped; make it contiguous first")
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
        if kind != DLPACK_CUDA:
            array = np.from_dlpack(source)
            return borrow_array(array, CPU.ordinal), array
        number = 1 if stream is None else stream.handle or 1  # DLPack's number of the legacy default stream
        # Of several devices, torch exports from the current one alone.
        with current_device(Device("cuda", ordinal)) if device_count() > 1 else contextlib.nullcontext():
            at, shape, dtype, managed = borrow_capsule(source.__dlpack__(stream=number))
    except InferSDKError:
        raise
    except (AssertionError, AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"cannot borrow a {type(source).__name__} through DLPack: {error}") from None
    if stream is None:
        Stream.wrap(1, Device("cuda", ordinal)).synchronize()
    return borrow(at, shape, dtype, ordinal, on_device=True), managed


def borrow_capsule(capsule: Any) -> tuple[int, tuple[int, ...], np.dtype[Any], Any]:
    """Takes a tensor out of a DLPack capsule. Returns its address, shape and type, and the object that gives it back.

    Raises:
        BufferError: it holds no tensor, or not any more.
        ShapeError, DTypeError: as `borrow_dlpack()`.
    """
    try:
        pointer = pointer_of(id(capsule), b"dltensor")
    except ValueError:
        raise BufferError(f"{capsule!r} does not hold a tensor, or it was taken before; export a new one") from None
    managed = ffi.gc(ffi.cast("DLManagedTensor *", pointer), _return)
    _rename(id(capsule), b"used_dltensor")
    tensor = managed.dl_tensor
    dtype, shape = _dtype_of(tensor.dtype), _sizes(tensor.shape, tensor.ndim, "shape")
    if any(size < 0 for size in shape):
        raise ShapeError(f"a DLPack tensor cannot have shape {shape}: a dimension is negative")
    if math.prod(shape) * dtype.itemsize >= 2**63:
        raise ShapeError(f"a DLPack tensor of shape {shape} and type {dtype} is larger than any memory")
    if tensor.strides != ffi.NULL:
        strides = _sizes(tensor.strides, tensor.ndim, "strides")
        if not _are_dense(shape, strides, 1):
            raise ShapeError(f"strides {strides} of shape {shape} are not dense; pass a contiguous array")
    return address(tensor.data) + int(tensor.byte_offset), shape, dtype, managed


def _are_dense(shape: Sequence[int], strides: Sequence[int], element: int) -> bool:
    """Whether elements with these strides follow one another in C order. A side of one element has any stride."""
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != element:
            return False
        element *= max(size, 1)
    return True


def _return(managed: Any) -> None:
    if managed.deleter:
        managed.deleter(managed)


def _dtype_of(dtype: Any) -> np.dtype[Any]:
    found = _DTYPES.get((dtype.code, dtype.bits))
    if found is None or dtype.lanes != 1:
        raise DTypeError(
            f"DLPack type code {dtype.code} with {dtype.bits} bits and {dtype.lanes} lanes is not supported; pass "
            "integers of 8 to 64 bits, floating point of 16 to 64, or bools of 8"
        )
    return found


def _sizes(numbers: Any, ndim: int, what: str) -> tuple[int, ...]:
    if not 0 <= ndim <= _MAX_NDIM or (ndim and numbers == ffi.NULL):
        raise ShapeError(
            f"a DLPack tensor of {ndim} dimensions cannot be read; 0 to {_MAX_NDIM}, with their {what}, can"
        )
    return tuple(int(numbers[i]) for i in range(ndim))


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
    at, block = out("void *"), out("ifs_block *")
    if stream == -1:
        check(lib.ifs_tensor_hold(tensor, lib.IFS_SIDE_DEVICE, lib.IFS_READ_WRITE, at, block))
    else:
        theirs = Stream.wrap(1 if stream is None else stream, Device("cuda", ordinal))
        waits = lib.ifs_tensor_head(tensor) == lib.IFS_HEAD_HOST  # for a copy; without it threads may share it
        lend = lib.ifs_tensor_lend if waits else lib.held_ifs_tensor_lend
        check(lend(tensor, theirs._open, at, block))
    managed, dims = ffi.new("DLManagedTensor *"), ffi.new("int64_t[]", list(shape) or [0])
    exported = managed.dl_tensor
    exported.data, exported.shape, exported.ndim = at[0], dims, len(shape)
    exported.device.device_type, exported.device.device_id = DLPACK_CUDA, ordinal
    exported.dtype.code, exported.dtype.bits, exported.dtype.lanes = _KINDS[dtype.kind], dtype.itemsize * 8, 1
    managed.deleter = lib.ifs_py_dlpack_release
    key = address(managed)
    _lent[key] = managed, dims, ffi.gc(block[0], lib.ifs_block_release), lender
    return _new_capsule(key, b"dltensor", ctypes.cast(_drop_capsule, ctypes.c_void_p))
