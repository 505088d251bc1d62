"""Where images are preprocessed for a CUDA device: measured once for each kind of batch."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from ..._text import logger
from ...memory import is_page_locked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...image import HostImage

__all__ = ["PreprocessPlacement"]

_log = logger("infersdk.models")


class PreprocessPlacement:
    """`"device"`, `"host"` (the images shrink on the processor's threads first), or `"auto"`, which measures both.

    What was measured holds for a model and its clones, by the size of a batch and whether it is page-locked.
    """

    def __init__(self, setting: str) -> None:
        self.setting = setting
        #: The location that was the faster one, by the size class of a batch and whether it is page-locked.
        self.measured: dict[tuple[int, bool], str] = {}
        self._lock = Lock()

    def choose(self, images: Sequence[HostImage], measure: Callable[[str], float]) -> str:
        """The location for this batch; `measure` returns the seconds that a location takes."""
        if self.setting != "auto":
            return self.setting
        size = sum(image.pixels.nbytes for image in images)
        key = (size.bit_length(), is_page_locked(images[0].pixels))
        with self._lock:
            if key not in self.measured:
                seconds = {location: measure(location) for location in ("device", "host")}
                # About even, the device: that leaves the processor to other work, such as other devices' batches.
                # Copies out of page-locked memory may be slower: the processor prepares the next batch meanwhile.
                queued = len(images) > 1 and key[1]
                self.measured[key] = (
                    "host" if seconds["host"] < (0.5 if queued else 0.9) * seconds["device"] else "device"
                )
                _log.debug(
                    "batches of up to %d bytes%s are preprocessed on the %s: %s", 1 << key[0],
                    ", page-locked," if key[1] else "", self.measured[key],
                    ", ".join(f"{place} {1e3 * taken:.2f} ms" for place, taken in seconds.items()),
                )  # fmt: skip
            return self.measured[key]
