"""Frames of videos: on the host, and on a CUDA device."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from ..image import DeviceImage, HostImage

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..image.images import DevicePixels

__all__ = ["AnyFrame", "DeviceFrame", "Frame"]


class Frame(HostImage):
    """A frame of a video, which is a `HostImage`.

    Attributes:
        time: when it is shown, in seconds from the start of the video; never earlier than the frame before it.
        number: its number, from 0; frames that were dropped count as well.
        decoded: the time of `time.monotonic()` when it was decoded.
    """

    time: float
    number: int
    decoded: float

    def __new__(cls, pixels: npt.NDArray[np.uint8], format: str, time: float, number: int) -> Frame:
        frame = super().__new__(cls, pixels, format)
        frame.time, frame.number, frame.decoded = time, number, monotonic()
        return frame


class DeviceFrame(DeviceImage):
    """A frame of a video in NV12 on a CUDA device, which is a `DeviceImage`; `to_host()` copies it to the host.

    Args:
        source: its planes.

    Attributes:
        time, number, decoded: as those of `Frame`.
    """

    def __init__(self, source: DevicePixels, time: float, number: int, decoder: str) -> None:
        super().__init__(source, "nv12", decoder)
        self.time, self.number, self.decoded = time, number, monotonic()


AnyFrame: TypeAlias = "Frame | DeviceFrame"
