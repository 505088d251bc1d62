"""DLPack for tensors on a device: export to torch, CuPy, JAX and numba, and import from them, without copies.

For the host side NumPy implements DLPack. The structs are those of the DLPack specification
(https://dmlc.github.io/dlpack/latest/c_api.html), of the unversioned form that every consumer takes.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from ..errors import DTypeError, ShapeError
from ._lib import address, ffi, lib

__all__ = ["Borrowed", "lend"]

CPU, CUDA, CUDA_HOST = 1, 2, 3

_KINDS = {"i": 0, "u": 1, "f": 2, "b": 6}
_BITS = {"i": (8, 16, 32, 64), "u": (8, 16, 32, 64), "f": (16, 32, 64), "b": (8,)}
_MAX_NDIM = 16  # as the core's IFS_MAX_NDIM
_LETTERS = {code: letter for letter, code in _KINDS.items()}

_python = ctypes.pythonapi
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_python.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_python.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)

#: Objects of an export until the consumer calls the deleter: the struct, its arrays, and the holder of the memory.
_lent: dict[int, tuple[Any, ...]] = {}


@ffi.def_extern(name="ifs_py_dlpack_release")  # type: ignore[untyped-decorator]
def _release(managed: Any) -> None:
    """The deleter of an export. The consumer may call it from any thread."""
    _lent.pop(address(managed), None)


# In its destructor a capsule has the reference count 0, so ctypes must take it as a bare address.
_address_of_capsule = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)  # type: ignore[untyped-decorator]
def _drop_capsule(capsule: int) -> None:
    """Frees the tensor of a capsule that no consumer has taken."""
    if _is_valid(capsule, b"dltensor"):
        _lent.pop(_address_of_capsule(capsule, b"dltensor"), None)


def lend(at: int, shape: tuple[int, ...], dtype: np.dtype[Any], device: tuple[int, int], holder: object) -> Any:
    """A capsule over the memory at an address; `holder` is kept until the consumer is done."""
    managed = ffi.new("DLManagedTensor *")
    dims = ffi.new("int64_t[]", list(shape) or [0])
    tensor = managed.dl_tensor
    tensor.data = ffi.cast("void *", at)
    tensor.device.device_type, tensor.device.device_id = device
    tensor.ndim = len(shape)
    tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = _KINDS[dtype.kind], dtype.itemsize * 8, 1
    tensor.shape = dims
    managed.deleter = lib.ifs_py_dlpack_release
    key = address(managed)
    _lent[key] = (managed, dims, holder)
    return _python.PyCapsule_New(key, b"dltensor", ctypes.cast(_drop_capsule, ctypes.c_void_p))


def _dtype_of(dtype: Any) -> np.dtype[Any]:
    kind, bits = _LETTERS.get(dtype.code), int(dtype.bits)
    if kind is None or dtype.lanes != 1 or bits not in _BITS[kind]:
        raise DTypeError(
            f"DLPack type code {dtype.code} with {bits} bits and {dtype.lanes} lanes is not supported; pass integers "
            "of 8 to 64 bits, floating point of 16 to 64, or bools of 8"
        )
    return np.dtype(f"{kind}{bits // 8}")


def _sizes(numbers: Any, ndim: int, what: str) -> tuple[int, ...]:
    if not 0 <= ndim <= _MAX_NDIM or (ndim and numbers == ffi.NULL):
        raise ShapeError(
            f"a DLPack tensor of {ndim} dimensions cannot be read; 0 to {_MAX_NDIM}, with their {what}, can"
        )
    return tuple(int(numbers[i]) for i in range(ndim))


class Borrowed:
    """A tensor of another library, taken out of its capsule. It is returned at the end of this object.

    Attributes:
        address, shape, dtype: Of the tensor. The elements are dense and in C order.
        device: (kind, number), where the kind is CPU, CUDA or CUDA_HOST.
    """

    def __init__(self, capsule: Any) -> None:
        self._managed = ffi.NULL
        try:
            pointer = _python.PyCapsule_GetPointer(capsule, b"dltensor")
        except ValueError:
            raise BufferError(f"{capsule!r} does not hold a tensor, or it was taken before; export a new one") from None
        self._managed = ffi.cast("DLManagedTensor *", pointer)
        _python.PyCapsule_SetName(capsule, b"used_dltensor")
        tensor = self._managed.dl_tensor
        self.dtype = _dtype_of(tensor.dtype)
        self.shape = _sizes(tensor.shape, tensor.ndim, "shape")
        if any(size < 0 for size in self.shape):
            raise ShapeError(f"a DLPack tensor cannot have shape {self.shape}: a dimension is negative")
        if math.prod(self.shape) * self.dtype.itemsize >= 2**63:
            raise ShapeError(f"a DLPack tensor of shape {self.shape} and type {self.dtype} is larger than any memory")
        self.device = (int(tensor.device.device_type), int(tensor.device.device_id))
        self.address = address(tensor.data) + int(tensor.byte_offset)
        if tensor.strides != ffi.NULL:
            strides = _sizes(tensor.strides, tensor.ndim, "strides")
            dense = 1
            for size, stride in zip(reversed(self.shape), reversed(strides), strict=True):
                if size != 1 and stride != dense:
                    raise ShapeError(f"strides {strides} of shape {self.shape} are not dense; pass a contiguous array")
                dense *= max(size, 1)

    def __del__(self) -> None:
        managed = self._managed
        if managed and managed.deleter:
            managed.deleter(managed)
