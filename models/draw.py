"""Boxes and labels over an image."""

from __future__ import annotations

import colorsys
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from ..image import HostImage
    from .results import Detections

__all__ = ["draw_boxes", "to_pil"]


def to_pil(image: HostImage) -> Image.Image:
    """The image as an RGB image."""
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


def draw_boxes(image: HostImage, detections: Detections) -> Image.Image:
    """A new RGB pil of the image's size: a box a detection in the colour of its class, with label and score."""
    pil = to_pil(image)
    draw = ImageDraw.Draw(pil)
    unit = max(pil.size) / 640
    width, size = max(2, round(2 * unit)), max(11, round(12 * unit))
    font = ImageFont.load_default(size)
    for box in reversed(detections):  # the best one is drawn last, on top
        colour = _colour(box.class_id)
        draw.rectangle(box.xyxy, outline=colour, width=width)
        text = f"{box.label} {box.score:.2f}"
        left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
        high, wide = bottom - top + 2 * width, right - left + 2 * width
        x = min(max(box.xyxy[0], 0), max(pil.width - wide, 0))
        y = box.xyxy[1] - high if box.xyxy[1] >= high else box.xyxy[1]
        draw.rectangle((x, y, x + wide, y + high), fill=colour)
        ink = "black" if 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] > 140 else "white"
        draw.text((x + width - left, y + width - top), text, fill=ink, font=font)
    return pil


def _colour(class_id: int) -> tuple[int, int, int]:
    """Hues a golden angle apart: neighbouring classes differ well, and a class keeps its colour."""
    red, green, blue = colorsys.hsv_to_rgb(class_id * 0.61803398875 % 1.0, 0.75, 0.95)
    return round(red * 255), round(green * 255), round(blue * 255)
