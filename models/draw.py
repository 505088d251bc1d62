"""Boxes, masks, keypoints and labels over an image."""

from __future__ import annotations

import operator
import os
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw

from ..errors import ConfigError
from ..image import Geometry, PixelTransform
from ..ops import preprocess
from ._fonts import font_for, load_font
from .colours import colour, ink
from .oriented import corners
from .results.masks import eroded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    import numpy.typing as npt
    from PIL import ImageFont

    from ..image import HostImage

Colour: TypeAlias = "tuple[int, int, int]"

__all__ = ["draw_boxes", "draw_texts", "to_pil"]

#: The opacity of masks, 0 to 255.
TINT = 115
#: The score of a keypoint from which on it is drawn.
SEEN = 0.5
#: Of a person: COCO's keypoints, and the pairs that a line joins.
COCO_POINTS = 17
COCO_SKELETON = (
    (15, 13), (13, 11), (16, 14), (14, 12), (11, 12), (5, 11), (6, 12), (5, 6), (5, 7), (6, 8), (7, 9), (8, 10),
    (1, 2), (0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6),
)  # fmt: skip


def to_pil(image: HostImage) -> Image.Image:
    """The image as a new RGB image of PIL's, of `image.size`."""
    whole = Geometry.stretch(image.pixel_size, image.size)
    as_is = PixelTransform(order="rgb", layout="hwc", dtype="uint8", scale=1.0)
    return Image.fromarray(preprocess(image.view(), whole, as_is))


def draw_boxes(
    pil: Image.Image,
    boxes: Sequence[Any],
    *,
    font: str | os.PathLike[str] | ImageFont.FreeTypeFont | None = None,
    colour_by: str | None = None,
    skeleton: Sequence[tuple[int, int]] | None = None,
) -> Image.Image:
    """Draws into an RGB image, and returns it: each box with label and score, over its mask and under its keypoints.

    Args:
        boxes: of the type `Detection`.
        font, colour_by, skeleton: see `Detections.draw()`.
    """
    pen = _Pen(pil, font)
    colours = [_colour_of(box, number, colour_by) for number, box in enumerate(boxes)]
    for box, own in reversed(list(zip(boxes, colours, strict=True))):  # the best one is drawn last, on top
        if (mask := box.columns.get("mask")) is not None:
            pen.mask(mask, own)
        if (oriented := box.columns.get("oriented")) is not None:
            pen.outline(corners(oriented), own)
        else:
            pen.rectangle(box.xyxy, own)
        if (points := box.columns.get("keypoints")) is not None:
            pen.keypoints(np.asarray(points), own, skeleton)
        track = f"#{box.columns['track_id']} " if _is_tracked(box) else ""
        pen.label(" ".join(f"{track}{box.label} {box.score:.2f}".split()), box.xyxy, own)
    return pil


def draw_texts(pil: Image.Image, texts: Sequence[str], numbers: Sequence[int]) -> Image.Image:
    """Draws texts in the colours of these numbers into the upper left corner of an RGB image, and returns it."""
    pen, top = _Pen(pil, None), 0.0
    for text, number in zip(texts, numbers, strict=True):
        top = pen.label(text, (0, top), colour(number), above=False)
    return pil


def _colour_of(box: Any, number: int, colour_by: str | None) -> Colour:
    if colour_by is None:
        colour_by = "track_id" if _is_tracked(box) else "class"
    if colour_by == "class":
        return colour(box.class_id)
    if colour_by == "box":
        return colour(number)
    try:
        return colour(operator.index(box.columns[colour_by]))
    except (KeyError, TypeError):
        columns = f"; the columns are {', '.join(box.columns)}" if box.columns else ""
        raise ConfigError(
            f"colour_by is {colour_by!r}; use class, box, or a column of whole numbers{columns}"
        ) from None


def _is_tracked(box: Any) -> bool:
    """Whether a tracker has a number for it; -1 is none."""
    return int(box.columns.get("track_id", -1)) >= 0


class _Pen:
    """Draws the parts of boxes into an image, with lines and letters of a size that fits it."""

    def __init__(self, pil: Image.Image, font: str | os.PathLike[str] | ImageFont.FreeTypeFont | None) -> None:
        self._pil, self._draw = pil, ImageDraw.Draw(pil)
        unit = max(pil.size) / 640
        self._width, self._size = max(2, round(2 * unit)), max(11, round(12 * unit))
        self._font = load_font(font, self._size) if font is not None else None

    def mask(self, mask: Any, colour: Colour) -> None:
        """Tints the pixels of a `Mask`, and draws a line along its border."""
        x, y, width, height = mask.box
        pixels = mask.crop()
        inside = pixels
        for _ in range(max(1, self._width // 2)):
            inside = eroded(inside)
        opacity = np.where(inside, np.uint8(TINT), np.where(pixels, np.uint8(255), np.uint8(0)))
        if width and height:
            self._pil.paste(colour, (x, y, x + width, y + height), Image.fromarray(opacity))

    def rectangle(self, xyxy: Sequence[float], colour: Colour) -> None:
        x1, y1, x2, y2 = xyxy
        # Pillow refuses a box whose right edge is left of its left one.
        ordered = (min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2))
        self._draw.rectangle(ordered, outline=colour, width=self._width)

    def outline(self, points: npt.NDArray[np.float32], colour: Colour) -> None:
        """A closed line through points, (k, 2) of x and y."""
        if np.isfinite(points).all():
            self._draw.line([*map(tuple, points.tolist()), tuple(points[0].tolist())], colour, self._width, "curve")

    def keypoints(
        self, points: npt.NDArray[np.float32], colour_of_lines: Colour, skeleton: Sequence[tuple[int, int]] | None
    ) -> None:
        """The points whose score is high enough, each in a colour of its own, and lines between them."""
        if skeleton is None:
            skeleton = COCO_SKELETON if len(points) == COCO_POINTS else ()
        seen: npt.NDArray[np.bool_] = np.all(np.isfinite(points[:, :2]), axis=1)
        if points.shape[1] > 2:
            seen &= points[:, 2] >= SEEN
        try:
            pairs = [(operator.index(first), operator.index(second)) for first, second in skeleton]
        except (TypeError, ValueError):
            raise ConfigError(f"skeleton is a list of pairs of keypoints, by number from 0, not {skeleton!r}") from None
        for first, second in pairs:
            if not 0 <= first < len(points) or not 0 <= second < len(points):
                raise ConfigError(f"skeleton joins {first} and {second}, and there are {len(points)} keypoints, from 0")
            if seen[first] and seen[second]:
                ends = [tuple(points[end, :2].tolist()) for end in (first, second)]
                self._draw.line(ends, colour_of_lines, self._width)
        radius = self._width * 1.25
        for number in np.flatnonzero(seen).tolist():
            x, y = points[number, :2].tolist()
            disc = (x - radius, y - radius, x + radius, y + radius)
            self._draw.ellipse(disc, fill=colour(number + 1), outline="white")

    def label(self, text: str, corner: Sequence[float], background: Colour, *, above: bool = True) -> float:
        """Text above the top left corner of a box, or below where the image ends; within the image.

        Returns:
            The lower edge of the text.
        """
        face, width = self._font or font_for(text, self._size), self._width
        left, top, right, bottom = self._draw.textbbox((0, 0), text, font=face)
        high, wide = bottom - top + 2 * width, right - left + 2 * width
        x = min(max(corner[0], 0), max(self._pil.width - wide, 0))
        y = corner[1] - high if above and corner[1] >= high else corner[1]
        self._draw.rectangle((x, y, x + wide, y + high), fill=background)
        self._draw.text((x + width - left, y + width - top), text, fill=ink(background), font=face)
        return y + high
