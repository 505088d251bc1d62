"""Results that are drawn over their image."""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InputError
from ...image import HostImage, ImageSource, read_image
from .rows import save_rows

if TYPE_CHECKING:
    from PIL import Image

    from .image_reference import ImageReference

__all__ = ["Drawable"]


class Drawable(ABC):
    """A result that is drawn over its image, in files and in notebooks."""

    __slots__ = ()

    image: ImageReference | None

    if TYPE_CHECKING:  # a field of some results, which would take a property of this class as its default

        @property
        def size(self) -> tuple[int, int]:
            """(width, height) of the image."""

    @abstractmethod
    def draw(self, image: ImageSource | HostImage | None = None, *, channel_order: str = "bgr") -> Image.Image:
        """The result over an image, as a new PIL image."""

    @abstractmethod
    def _drawn(self, pil: Image.Image) -> Image.Image:
        """The result over these pixels, as `draw()` does it by default."""

    @abstractmethod
    def to_json(self, *, indent: int | None = None) -> str:
        """The result as JSON."""

    def save(
        self, path: str | os.PathLike[str], *, image: ImageSource | HostImage | None = None, channel_order: str = "bgr"
    ) -> Path:
        """Writes the result to a file, by its suffix: `.json` holds `to_dicts()`, any image format the drawn image.

        Raises:
            OutputError: the file cannot be written.
            InputError, ImageError: as `draw()`.
        """
        return save_rows(self, path, lambda: self.draw(image, channel_order=channel_order))

    def _repr_png_(self) -> bytes:
        """For notebooks: drawn over the image, or over grey where the image is not known any more."""
        image = None if self.image is None else self.image.read()
        buffer = io.BytesIO()
        from ..draw import blank_image, to_pil

        self._drawn(blank_image(self.size) if image is None else to_pil(image)).save(buffer, "PNG")
        return buffer.getvalue()

    def _image_to_draw(self, image: ImageSource | HostImage | None, channel_order: str) -> HostImage:
        """The image that was given, or the one that the result knows.

        Raises:
            InputError: none was given, and the result does not know its image.
            ImageError: the image cannot be read.
        """
        if image is not None:
            return read_image(image, channel_order=channel_order)
        known = None if self.image is None else self.image.read()
        if known is None:
            raise InputError("the image is not known any more; give it: draw(image)")
        return known
