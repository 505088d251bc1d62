"""The element types of the Open Inference Protocol v2, and the encoding of tensors as bytes.

Numbers are little-endian and in C order. An element of `BYTES` is its length (4 bytes, little-endian), then its bytes.
In memory a `BYTES` tensor is an array of objects, each of type `bytes`. `BF16` needs the package ml_dtypes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import RequestError, Status

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["DATATYPES", "array_of", "bytes_of", "datatype_of", "element_count", "numpy_dtype", "pack", "unpack"]

#: The NumPy type of each datatype, apart from BF16.
DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}
_NAMES = {dtype: name for name, dtype in DATATYPES.items()}
#: Maximum elements and axes of a shape.
_MOST_ELEMENTS, _MOST_AXES = 1 << 48, 32
#: The length of an element of BYTES.
_LENGTH = struct.Struct("<I")


def numpy_dtype(datatype: str) -> np.dtype[Any]:
    """The NumPy type of a datatype. Raises RequestError if there is none, or if it needs a package."""
    dtype = DATATYPES.get(datatype)
    if dtype is not None:
        return dtype
    if datatype == "BF16":
        try:
            import ml_dtypes
        except ImportError:
            raise RequestError(
                'the server lacks BF16; install it there: pip install "infersdk[serve]"', Status.UNIMPLEMENTED
            ) from None
        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    raise RequestError(f"unknown datatype {datatype!r}; the datatypes are {', '.join([*DATATYPES, 'BF16'])}")


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The datatype of a NumPy type; `BYTES` for text and objects."""
    if dtype.kind in "OSU":
        return "BYTES"
    if (name := _NAMES.get(dtype)) is not None:
        return name
    if dtype.name == "bfloat16":
        return "BF16"
    raise RequestError(f"the protocol has no datatype for {dtype}", Status.INTERNAL)


def element_count(shape: Sequence[int], what: str) -> int:
    """The number of elements of a shape. Raises RequestError for too many axes or elements, and for negative sides."""
    if len(shape) > _MOST_AXES:  # first: the product of a million sides takes minutes
        raise RequestError(f"{what}: a shape has at most {_MOST_AXES} axes, not {len(shape):,}")
    if min(shape, default=0) < 0:
        raise RequestError(f"{what}: a shape has sides of at least 0, not {list(shape)}")
    count = math.prod(shape)
    if (count or math.prod(side or 1 for side in shape)) > _MOST_ELEMENTS:  # NumPy refuses [0, 1 << 62], too
        raise RequestError(
            f"{what}: the sides of {list(shape)} have a product above {_MOST_ELEMENTS:,}; use a real shape"
        )
    return count


def unpack(data: memoryview, datatype: str, shape: Sequence[int], what: str) -> npt.NDArray[Any]:
    """Decodes a tensor. Numbers are not copied. Raises RequestError if the size does not match the shape."""
    dtype, count = numpy_dtype(datatype), element_count(shape, what)
    if datatype == "BYTES":
        return _unpack_bytes(data, count, what).reshape(tuple(shape))
    if data.nbytes != count * dtype.itemsize:
        raise RequestError(
            f"{what}: {datatype} {list(shape)} has {count * dtype.itemsize:,} bytes, and {data.nbytes:,} were given"
        )
    array: npt.NDArray[Any] = np.frombuffer(data, dtype).reshape(tuple(shape))
    if datatype == "BOOL" and count and int(array.view(np.uint8).max()) > 1:
        raise RequestError(f"{what}: a BOOL is a byte of 0 or 1; another value was given")
    return array


def _unpack_bytes(data: memoryview, count: int, what: str) -> npt.NDArray[Any]:
    if count * 4 > data.nbytes:  # before memory is allocated
        raise RequestError(
            f"{what}: {count:,} elements of BYTES have at least {count * 4:,} bytes, not {data.nbytes:,}"
        )
    array = np.empty(count, np.object_)
    at, end, length_at = 0, data.nbytes, _LENGTH.unpack_from
    for index in range(count):
        if at + 4 > end:
            raise RequestError(f"{what}: element {index} of {count} has no length; the data is cut off")
        (length,) = length_at(data, at)
        at += 4
        if length > end - at:
            raise RequestError(
                f"{what}: element {index} of {count} has {length:,} bytes, and {end - at:,} are left: it is cut off"
            )
        array[index] = bytes(data[at : at + length])
        at += length
    if at != end:
        raise RequestError(f"{what}: {end - at:,} bytes follow the last of its {count} elements")
    return array


def pack(array: npt.NDArray[Any]) -> memoryview:
    """Encodes a tensor. Contiguous arrays of numbers are not copied."""
    if array.dtype.kind in "OSU":
        parts: list[bytes] = []
        for element in bytes_of(array):
            parts += (_LENGTH.pack(len(element)), element)
        return memoryview(b"".join(parts))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def bytes_of(array: npt.NDArray[Any]) -> list[bytes]:
    """The elements of a `BYTES` tensor, in C order; text becomes UTF-8."""
    return [
        element if isinstance(element, bytes) else str(element).encode("utf-8", "surrogateescape")
        for element in array.reshape(-1).tolist()
    ]


def array_of(elements: Sequence[bytes], shape: Sequence[int]) -> npt.NDArray[Any]:
    """A `BYTES` tensor of these elements."""
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array.reshape(tuple(shape))
