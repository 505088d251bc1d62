"""Results that are images: that of a network that changes an image, and a cut-out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import InputError
from .agreement import Agreement
from .float_map import FloatMap
from .result import Result, ResultTensor, check_pixels

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image
    from typing_extensions import Self

    from ...image import HostImage, ImageSource

__all__ = ["ImageResult", "Matte"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ImageResult(Result):
    """The image that a network makes of an image.

    Attributes:
        pixels: uint8 (height, width, 3), RGB.
        scale: pixels of the result for each pixel of the image, along both sides: (horizontal, vertical).
    """

    _replaces_image: ClassVar[bool] = True

    pixels: npt.NDArray[np.uint8]
    scale: tuple[float, float] = (1.0, 1.0)

    def __post_init__(self) -> None:
        check_pixels("pixels", self.pixels, np.uint8, 3)

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the result."""
        return self.pixels.shape[1], self.pixels.shape[0]

    def numpy(self, order: str = "bgr") -> npt.NDArray[np.uint8]:
        """The pixels, `"bgr"` (as OpenCV has them) or `"rgb"`."""
        if order not in ("bgr", "rgb"):
            raise InputError(f'order is {order!r}; use "bgr" or "rgb"')
        return self.pixels if order == "rgb" else np.ascontiguousarray(self.pixels[..., ::-1])

    def to_pil(self) -> Image.Image:
        from PIL import Image

        return Image.fromarray(self.pixels)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict: `width` and `height` of the result, and `scale`."""
        return [{"width": self.size[0], "height": self.size[1], "scale": list(self.scale)}]

    def draw(self, image: ImageSource | HostImage | None = None, *, channel_order: str = "bgr") -> Image.Image:
        """The result as a PIL image; the image that it was made of is not needed."""
        return self.to_pil()

    def _drawn(self, pil: Image.Image) -> Image.Image:
        return self.to_pil()

    def _tensors(self) -> Mapping[str, ResultTensor]:
        return {"image": ResultTensor(lambda: self.pixels, 2)}

    def _agreement(self, other: Self, min_score: float) -> Agreement:
        """1 less the mean difference of the pixels, of 255."""
        return Agreement.of(1 - float(np.abs(self.pixels.astype(np.int16) - other.pixels).mean()) / 255, 1.0)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.size[0]} x {self.size[1]}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Matte(FloatMap):
    """What of each pixel belongs to the foreground.

    Attributes:
        values: float32 (height, width), 0 to 1; NaN where the network has not seen the image.
    """

    _replaces_image: ClassVar[bool] = True

    @property
    def alpha(self) -> npt.NDArray[np.uint8]:
        """uint8 (height, width): 0 for the background, 255 for the foreground."""
        return np.rint(self._shares() * 255).astype(np.uint8)

    def cut_out(self, image: ImageSource | HostImage | None = None, *, channel_order: str = "bgr") -> Image.Image:
        """The foreground as a PIL image with an alpha channel (RGBA). Arguments and errors: see `draw()`."""
        return self._with_alpha(self._pil(image, channel_order))

    def _with_alpha(self, pil: Image.Image) -> Image.Image:
        from PIL import Image

        pil = pil.convert("RGBA")
        pil.putalpha(Image.fromarray(self.alpha))
        return pil

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict: `area`, the share of the image that is foreground."""
        return [{"area": float(self._shares().mean(dtype=np.float64))}]

    def _shares(self) -> npt.NDArray[np.float32]:
        """The values from 0 to 1; 0 where they are not known."""
        return np.nan_to_num(np.clip(self.values, 0, 1), nan=0.0)

    def _drawn(self, pil: Image.Image) -> Image.Image:
        """The foreground over white."""
        from PIL import Image

        white = Image.new("RGBA", pil.size, "white")
        white.alpha_composite(self._with_alpha(pil))
        return white.convert("RGB")

    def _tensors(self) -> Mapping[str, ResultTensor]:
        return {"matte": ResultTensor(lambda: self.values, 2, np.nan)}

    def _agreement(self, other: Self, min_score: float) -> Agreement:
        """The intersection over the union in the pixels that both mattes know, times the share of these."""
        a, b, share = self._common(other)
        common, total = float(np.minimum(a, b).sum()), float(np.maximum(a, b).sum())
        return Agreement.of(share * common, total) if total > 0 else Agreement.of(share, 1.0)
