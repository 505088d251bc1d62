"""The binding of the native core. Only this module imports the native module; it turns statuses into errors.

Each call that can fail is written `check(lib.ifs_...(...))`.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from .. import errors
from .._native import ffi, lib

__all__ = ["address", "check", "ffi", "lib", "library_path", "out", "text"]

_ERRORS: dict[int, type[errors.InferSDKError]] = {
    lib.IFS_ERR_INVALID_ARGUMENT: errors.InputError,
    lib.IFS_ERR_OUT_OF_MEMORY: errors.OutOfMemoryError,
    lib.IFS_ERR_NO_DEVICE: errors.DeviceUnavailableError,
    lib.IFS_ERR_DEVICE: errors.CudaError,
    lib.IFS_ERR_DEVICE_OUT_OF_MEMORY: errors.OutOfMemoryError,
    lib.IFS_ERR_TOO_SMALL: errors.ShapeError,
    lib.IFS_ERR_SHAPE: errors.ShapeError,
    lib.IFS_ERR_DTYPE: errors.DTypeError,
    lib.IFS_ERR_READ_ONLY: errors.ReadOnlyError,
    lib.IFS_ERR_IO: errors.OutputError,
    lib.IFS_ERR_FORMAT: errors.TensorFileError,
    lib.IFS_ERR_OVER_BUDGET: errors.MemoryLimitError,
    lib.IFS_ERR_IN_USE: errors.InUseError,
}


def check(status: int) -> None:
    """Raises the error of a status, with the message of the core."""
    if status != 0:
        _raise(status)


def _raise(status: int) -> NoReturn:
    kind = _ERRORS.get(status, errors.NativeError)
    raise kind(text(lib.ifs_last_error()) or text(lib.ifs_status_text(status)))


def text(chars: Any) -> str:
    """The str of a `const char *`."""
    return str(ffi.string(chars).decode("utf-8", "replace"))


def library_path() -> str:
    """The file of the native core."""
    return str(sys.modules["infersdk._native"].__file__)


def address(pointer: Any) -> int:
    """The address that a pointer holds."""
    return int(ffi.cast("uintptr_t", pointer))


def out(kind: str) -> Any:
    """Memory for an `out` parameter: `out("int32_t")` is an `int32_t *`."""
    return ffi.new(f"{kind} *")
