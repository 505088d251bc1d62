"""Device names: `"cpu"`, `"cuda"`, `"cuda:1"`, and those of a backend (`"gpu"`, `"webgpu"`, `"openvino:gpu:1"`)."""

from __future__ import annotations

import re

import msgspec

from ..errors import DeviceUnavailableError

__all__ = ["CPU", "Device"]


class Device(msgspec.Struct, frozen=True):
    """A kind of device and its number among the devices of this kind."""

    kind: str
    index: int = 0

    @classmethod
    def parse(cls, name: str | Device | None) -> Device:
        """The device of a name; None is the processor.

        Raises:
            DeviceUnavailableError: The name has not the form `kind`, `kind:hardware`, or one of these with `:number`;
                "cpu" and "cuda" have no hardware.
        """
        if isinstance(name, Device):
            return name
        text = "cpu" if name is None else name if isinstance(name, str) else ""
        match = re.fullmatch(r"((?!(?:cpu|cuda):[a-z])[a-z][a-z_]*(?::[a-z]+)?)(?::(\d{1,6}))?", text, re.I | re.A)
        if match is None:
            raise DeviceUnavailableError(f'unknown device {name!r}; use a name such as "cpu", "cuda" or "cuda:1"')
        return cls(match[1].lower(), int(match[2] or 0))

    @property
    def ordinal(self) -> int:
        """The number for the native core: a CUDA ordinal, or -1 for any other kind."""
        return self.index if self.kind == "cuda" else -1

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}" if self.kind == "cuda" or self.index else self.kind


CPU = Device("cpu")


def memory_ordinal(device: str | Device | None) -> int:
    """The number of the device of a memory, for the native core: see `Device.ordinal`.

    Raises:
        DeviceUnavailableError: The name is of a device whose memory only its runtime manages.
    """
    parsed = Device.parse(device)
    if isinstance(device, str) and parsed.kind not in ("cpu", "cuda"):
        raise DeviceUnavailableError(f"no tensor is on device {device!r}; use 'cpu' or a CUDA device such as 'cuda:0'")
    return parsed.ordinal
