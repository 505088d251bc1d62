"""How images come onto their canvases, kept by the shape of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..preprocessor import geometry_of_pixels, view_of

if TYPE_CHECKING:
    from ...image import Geometry, ImageView
    from ..preprocessor import Preprocessor
    from .executor import CanvasSet

__all__ = ["PlacedImage", "Placements"]

#: Shapes of arrays that are kept.
KNOWN_SHAPES = 64
_UINT8 = np.dtype(np.uint8)


class PlacedImage(NamedTuple):
    """An image, and how it comes onto its canvas.

    Attributes:
        view: of the image.
        preprocessor: of its canvas.
        sampled: the geometry of its pixels.
        geometry: that of the whole image, for the results.
        decoder: see `HostImage`.
    """

    view: ImageView
    preprocessor: Preprocessor
    sampled: Geometry
    geometry: Geometry
    decoder: str | None


class Placements:
    """Places images, for one thread at a time.

    What follows from the shape and strides of an array is kept: frames of a video and of cameras repeat them. Where a
    model has just emptied the caches of the processor, each function that is not called then spares 2 us.

    Args:
        canvases: of the model.
    """

    def __init__(self, canvases: CanvasSet) -> None:
        self._canvases = canvases
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], PlacedImage] = {}

    def of(self, source: Any) -> PlacedImage:
        """An image that is still to be read, placed. Its view may be that of the next one: see `ImageView.move_to()`.

        Raises:
            ImageError: it cannot be read.
        """
        if type(source) is not np.ndarray or source.dtype != _UINT8:
            return self._place(source)
        known = self._known.get((source.shape, source.strides))
        if known is None:
            return self._place(source)
        known.view.move_to(source)
        return known

    def _place(self, source: Any) -> PlacedImage:
        image = self._canvases.whole.read(source)
        preprocessor = self._canvases.of(image.size)
        geometry, view = preprocessor.geometry_of(image.size), view_of(image)
        placed = PlacedImage(view, preprocessor, geometry_of_pixels(image, geometry), geometry, image.decoder)
        if type(source) is np.ndarray and view.moves_with(source):
            if len(self._known) >= KNOWN_SHAPES:
                self._known.clear()
            self._known[source.shape, source.strides] = placed._replace(view=view.without_array())
        return placed
