"""References to the images of results."""

from __future__ import annotations

import os
import weakref
from typing import Any

import msgspec
import numpy as np

from ...image import HostImage, read_image

__all__ = ["ImageReference"]


class ImageReference(msgspec.Struct, frozen=True, eq=False):
    """The source of an image: a path, or a weak reference to the object with its pixels. Only the path is pickled."""

    _path: str | None
    _holder: weakref.ref[Any] | None
    _channel_order: str

    @classmethod
    def of(cls, source: Any, channel_order: str = "bgr") -> ImageReference | None:
        """The reference to an image source; None for bytes, streams and other sources without weak references."""
        if isinstance(source, np.ndarray):
            return cls(None, weakref.ref(source), channel_order)
        if isinstance(source, (str, os.PathLike)):
            return cls(os.fspath(source), None, channel_order)
        if isinstance(source, HostImage):
            return cls(None, weakref.ref(source.pixels), source.format)
        if hasattr(source, "read"):
            return None
        try:
            return cls(None, weakref.ref(source), channel_order)
        except TypeError:
            return None

    def read(self) -> HostImage | None:
        """The image; None if its pixels are gone.

        Raises:
            ImageError: the file cannot be read any more.
        """
        if self._path is not None:
            return read_image(self._path)
        source = None if self._holder is None else self._holder()
        if source is None:
            return None
        if self._channel_order in ("bgr", "rgb", "nv12"):
            return read_image(source, channel_order=self._channel_order)
        return HostImage(source, self._channel_order)

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageReference, (self._path, None, self._channel_order)
