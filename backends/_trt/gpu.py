"""The GPU of an engine."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ...core.device import Device
from ...core.stream import current_device, device_info

__all__ = ["CudaDevice", "cuda_device"]


@dataclass(frozen=True)
class CudaDevice:
    """A CUDA device with the name of the product and the compute capability, as `"8.6"`."""

    device: Device
    name: str
    capability: str

    def current(self) -> AbstractContextManager[None]:
        """Makes it the current device of the thread, whose context the runtime uses."""
        return current_device(self.device)

    def __str__(self) -> str:
        return str(self.device)


@functools.cache
def cuda_device(index: int) -> CudaDevice:
    """The device of a number.

    Raises:
        DeviceUnavailableError: no driver, or no device of that number.
    """
    device = Device("cuda", index)
    info = device_info(device)
    return CudaDevice(device, info["name"], "{}.{}".format(*info["compute_capability"]))
