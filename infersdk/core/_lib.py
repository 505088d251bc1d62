"""The binding of the native core. Only this module imports the native module; it turns statuses into errors.

Each call that can fail is written `check(lib.ifs_...(...))`, or `returned(kind, lib.ifs_..., ...)` where it returns one
value.
"""

from __future__ import annotations

import atexit
import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import errors
from .._native import ffi, lib

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "Handle", "access_code", "address", "check", "choice", "ffi", "int32", "lib", "library_path", "out", "returned",
    "text",
]  # fmt: skip

# The core does not call Python any more. The handlers that are registered later run before this one.
atexit.register(lib.ifs_custom_set_host, ffi.NULL)

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


def returned(kind: str, function: Callable[..., int], *arguments: Any) -> Any:
    """The value that a function of the core returns through its last parameter, a pointer to a `kind`."""
    value = out(kind)
    check(function(*arguments, value))
    return value[0]


def choice(what: str, value: str, table: dict[str, int]) -> int:
    """The number of the core for a value of a parameter.

    Raises:
        InputError: the value is not in `table`; `what` names the parameter.
    """
    try:
        return table[value]
    except (KeyError, TypeError):
        raise errors.InputError(f"{what} is {value!r}; use one of {', '.join(map(repr, table))}") from None


def int32(name: str, value: int, least: int = -(2**31)) -> int:
    """A whole number for the core; `name` is the parameter's.

    Raises:
        InputError: the value is no whole number, does not fit 32 bits, or is less than `least`.
    """
    try:
        value = operator.index(value)
    except TypeError:
        raise errors.InputError(f"{name} is {value!r}; it must be a whole number") from None
    if not -(2**31) <= value < 2**31:
        raise errors.InputError(f"{name} is {value}; it must fit 32 bits")
    if value < least:
        raise errors.InputError(f"{name} is {value}; it must be {least} or more")
    return value


def access_code(read: bool, write: bool) -> int:
    """The native code of an access for reading, writing, or both."""
    return (lib.IFS_READ if read else 0) | (lib.IFS_WRITE if write else 0)


class Handle:
    """The owner of a native handle, which `close()`, `with` or the end of the object frees."""

    _c: Any = None  # so it is before the handle is created, and once it is closed

    def _own(self, handle: Any, destroy: Any) -> None:
        self._c = ffi.gc(handle, destroy)

    @property
    def _open(self) -> Any:
        if self._c is None:
            raise errors.ClosedError(f"this {type(self).__name__} was closed; create a new one")
        return self._c

    def close(self) -> None:
        """Frees the memory now. Existing views stay valid; every other use raises ClosedError."""
        self._c = None  # destroys the handle, unless another thread is inside of a native call with it

    def __enter__(self) -> Self:
        self._open  # noqa: B018 - raises if closed
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> Any:  # copy.copy() would make two owners of one handle
        raise TypeError(f"a {type(self).__name__} can be neither copied nor pickled; create a new one")
