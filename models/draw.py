"""Boxes and labels over an image."""

from __future__ import annotations

import colorsys
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from PIL import Image, ImageDraw

from ._fonts import font_for, load_font

if TYPE_CHECKING:
    from PIL import ImageFont

    from ..image import HostImage

__all__ = ["Box", "blank_image", "class_colour", "draw_boxes", "to_pil"]


class Box(Protocol):
    """What is drawn of a box."""

    @property
    def xyxy(self) -> tuple[float, float, float, float]: ...
    @property
    def score(self) -> float: ...
    @property
    def class_id(self) -> int: ...
    @property
    def label(self) -> str: ...


def to_pil(image: HostImage) -> Image.Image:
    """The image as a new RGB image of PIL's."""
    pixels = image.pixels
    if image.format == "nv12":
        from ..image import Geometry, PixelTransform
        from ..ops import preprocess

        whole = Geometry.stretch(image.size, image.size)
        as_is = PixelTransform(order="rgb", layout="hwc", dtype="uint8", scale=1.0)
        return Image.fromarray(preprocess(pixels, whole, as_is, format="nv12"))
    if image.format == "gray":
        return Image.fromarray(pixels.reshape(pixels.shape[:2])).convert("RGB")
    rgb = pixels[:, :, :3] if image.format.startswith("rgb") else pixels[:, :, 2::-1]
    return Image.fromarray(np.ascontiguousarray(rgb))


def blank_image(size: tuple[int, int]) -> Image.Image:
    """Grey, of (width, height): what stands for an image that is not there."""
    return Image.new("RGB", size, (96, 96, 96))


def draw_boxes(
    pil: Image.Image,
    boxes: Sequence[Box],
    *,
    font: str | os.PathLike[str] | ImageFont.FreeTypeFont | None = None,
) -> Image.Image:
    """Draws into an RGB image, and returns it: each box in the colour of its class, with label and score.

    Args:
        font: a font file or a loaded font; None is one that has the characters of all labels.

    Raises:
        ConfigError: the font cannot be loaded.
    """
    draw = ImageDraw.Draw(pil)
    unit = max(pil.size) / 640
    width, size = max(2, round(2 * unit)), max(11, round(12 * unit))
    loaded = load_font(font, size) if isinstance(font, (str, os.PathLike)) else font
    for box in reversed(boxes):  # the best one is drawn last, on top
        colour = class_colour(box.class_id)
        draw.rectangle(_ordered(box.xyxy), outline=colour, width=width)
        text = " ".join(f"{box.label} {box.score:.2f}".split())
        face = loaded or font_for(text, size)
        left, top, right, bottom = draw.textbbox((0, 0), text, font=face)
        high, wide = bottom - top + 2 * width, right - left + 2 * width
        x = min(max(box.xyxy[0], 0), max(pil.width - wide, 0))
        y = box.xyxy[1] - high if box.xyxy[1] >= high else box.xyxy[1]
        draw.rectangle((x, y, x + wide, y + high), fill=colour)
        ink = "black" if 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] > 140 else "white"
        draw.text((x + width - left, y + width - top), text, fill=ink, font=face)
    return pil


def _ordered(xyxy: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    """Pillow refuses a box whose right edge is left of its left one."""
    x1, y1, x2, y2 = xyxy
    return min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)


def class_colour(class_id: int) -> tuple[int, int, int]:
    """Hues a golden angle apart: neighbouring classes differ well, and a class keeps its colour."""
    red, green, blue = colorsys.hsv_to_rgb(class_id * 0.61803398875 % 1.0, 0.75, 0.95)
    return round(red * 255), round(green * 255), round(blue * 255)
