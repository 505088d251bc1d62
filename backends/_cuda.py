"""The part of the CUDA driver for running engines: the name, capability and context of a device.

It uses `libcuda` of the driver. The core and the runtimes use the same primary context.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from ..errors import CudaError, DeviceUnavailableError

__all__ = ["CudaDevice", "cuda_device", "device_count"]

LIBRARY = "libcuda.so.1"
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute
_p, _i, _u, _s = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_u,), "cuGetErrorString": (_i, _p), "cuDeviceGetCount": (_p,), "cuDeviceGet": (_p, _i),
    "cuDeviceGetName": (_s, _i, _i), "cuDeviceGetAttribute": (_p, _i, _i), "cuDevicePrimaryCtxRetain": (_p, _i),
    "cuCtxPushCurrent_v2": (_p,), "cuCtxPopCurrent_v2": (_p,),
}  # fmt: skip


@functools.cache
def _driver() -> Any:
    """The driver, ready for use.

    Raises:
        OSError: it is not installed or does not start.
    """
    library = ctypes.CDLL(LIBRARY)
    try:
        for name, arguments in _SIGNATURES.items():
            getattr(library, name).argtypes = arguments
    except AttributeError as error:
        raise OSError(f"{LIBRARY} is no CUDA driver, or too old: {error}") from None
    if status := library.cuInit(0):
        raise OSError(f"the NVIDIA driver does not start: {_text(library, status)}")
    return library


def _text(library: Any, status: int) -> str:
    words = ctypes.c_char_p()
    library.cuGetErrorString(status, ctypes.byref(words))
    return f"{(words.value or b'unknown error').decode()} (CUDA error {status})"


def _call(name: str, *arguments: Any) -> None:
    library = _driver()
    if status := getattr(library, name)(*arguments):
        raise CudaError(f"{name} failed: {_text(library, status)}")


def device_count() -> int:
    """The number of CUDA devices; 0 without a working driver."""
    count = ctypes.c_int()
    try:
        _call("cuDeviceGetCount", ctypes.byref(count))
    except (OSError, CudaError):
        return 0
    return count.value


class CudaDevice:
    """A CUDA device; `with device:` makes its primary context the current one of the thread.

    Raises:
        DeviceUnavailableError: no driver, or no device of that number.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        try:
            _driver()
        except OSError as error:
            raise DeviceUnavailableError(
                f"device 'cuda:{index}': no NVIDIA driver can be used ({error}); install or update it"
            ) from None
        if index >= (count := device_count()):
            there = ", ".join(f"cuda:{i}" for i in range(count)) or "no CUDA device"
            raise DeviceUnavailableError(f"device 'cuda:{index}': this machine has {there}")
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        _call("cuDeviceGet", ctypes.byref(handle), index)
        self._handle = handle.value
        # Never released, as in the CUDA runtime of the core.
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._handle)
        self._context = context.value
        self._popped = ctypes.byref(ctypes.c_void_p())  # for the popped context, which is not used
        # Releasing the interpreter's lock would take longer than these calls.
        holding = ctypes.PyDLL(_driver()._name)
        self._push, self._pop = holding.cuCtxPushCurrent_v2, holding.cuCtxPopCurrent_v2
        self._push.argtypes, self._pop.argtypes = (_SIGNATURES[f.__name__] for f in (self._push, self._pop))

    @functools.cached_property
    def name(self) -> str:
        """The name of the product."""
        text = ctypes.create_string_buffer(256)
        _call("cuDeviceGetName", text, len(text), self._handle)
        return text.value.decode(errors="replace")

    @functools.cached_property
    def capability(self) -> str:
        """The compute capability, as `"8.6"`."""
        numbers = []
        for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
            number = ctypes.c_int()
            _call("cuDeviceGetAttribute", ctypes.byref(number), attribute, self._handle)
            numbers.append(number.value)
        return f"{numbers[0]}.{numbers[1]}"

    def __enter__(self) -> CudaDevice:
        if status := self._push(self._context):
            raise CudaError(f"cuda:{self.index} cannot be made current: {_text(_driver(), status)}")
        return self

    def __exit__(self, *exc: object) -> None:
        self._pop(self._popped)

    def __str__(self) -> str:
        return f"cuda:{self.index}"


@functools.cache
def cuda_device(index: int) -> CudaDevice:
    """The device of a number, created once."""
    return CudaDevice(index)
