"""Device names: `"cpu"`, `"cuda"`, `"cuda:1"`, and whatever else a backend knows (`"gpu"`, `"npu"`, `"auto"`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import DeviceUnavailableError

__all__ = ["CPU", "Device"]


@dataclass(frozen=True)
class Device:
    """A kind of device and its number among its like."""

    kind: str
    index: int = 0

    @classmethod
    def parse(cls, name: str | Device | None) -> Device:
        """The device that `name` means; None means the processor.

        Raises:
            DeviceUnavailableError: the name is not of the form `kind` or `kind:number`.
        """
        if isinstance(name, Device):
            return name
        text = "cpu" if name is None else name if isinstance(name, str) else ""
        match = re.fullmatch(r"([A-Za-z][A-Za-z_]*)(?::(\d{1,6}))?", text)
        if match is None:
            raise DeviceUnavailableError(f'device {name!r} is not understood; write "cpu", "cuda" or "cuda:1", say')
        return cls(match[1].lower(), int(match[2] or 0))

    @property
    def ordinal(self) -> int:
        """The number that the native core takes: a CUDA ordinal, or -1 for anything that is not CUDA."""
        return self.index if self.kind == "cuda" else -1

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}" if self.kind == "cuda" or self.index else self.kind


CPU = Device("cpu")
