"""Parts of an image, one for each box: what a second model looks at."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from ...errors import ConfigError, ImageError, InferSDKError, InputError
from ...image import DeviceImage, Geometry, HostImage, PixelTransform, image_view
from ...ops import aligned_crops, preprocess

if TYPE_CHECKING:
    from ..results import Detections

__all__ = ["CropKind", "Cutter", "cutter"]

Image: TypeAlias = "HostImage | DeviceImage"
#: The parts of an image for its boxes, in order; the reason where one cannot be cut out.
Cutter: TypeAlias = "Callable[[Image, Detections], Sequence[Image | Exception]]"
CropKind = Literal["box", "oriented", "landmarks"]


def cutter(kind: CropKind, margin: float = 0.0, size: int = 112) -> Cutter:
    """How parts are cut out.

    Args:
        kind: `"box"` is the pixels within the box's edges; `"oriented"` turns an oriented box upright, its width along
            the rows; `"landmarks"` brings five landmarks of a face to where recognition networks expect them (see
            `infersdk.ops.aligned_crops`).
        margin: by how much a box is enlarged on each side, as a share of that side; for `"box"` and `"oriented"`.
        size: the side of a crop by landmarks, in pixels.

    Raises:
        ConfigError: a setting has a wrong value.
    """
    if kind not in ("box", "oriented", "landmarks"):
        raise ConfigError(f"crop is {kind!r}; use box, oriented or landmarks, or a function of an image and its boxes")
    if not (math.isfinite(margin) and margin >= 0):
        raise ConfigError(f"margin is a share of a box's side, from 0, not {margin}")
    if kind == "landmarks":
        return lambda image, boxes: _each(boxes, lambda index: _by_landmarks(image, boxes, index, size))
    if kind == "oriented":
        return lambda image, boxes: _each(boxes, lambda index: _upright(image, boxes, index, margin))
    return lambda image, boxes: _each(boxes, lambda index: _within(image, boxes, index, margin))


def _each(boxes: Detections, cut: Callable[[int], Image]) -> list[Image | Exception]:
    """A part for each box, or the error that keeps it from being cut out."""
    parts: list[Image | Exception] = []
    for index in range(len(boxes)):
        try:
            parts.append(cut(index))
        except InferSDKError as error:
            parts.append(error)
    return parts


def _within(image: Image, boxes: Detections, index: int, margin: float) -> Image:
    x1, y1, x2, y2 = boxes.xyxy[index].tolist()
    if not (x2 > x1 and y2 > y1):
        raise InputError(f"box {index} is {x2 - x1:g} x {y2 - y1:g} pixels, so there is nothing to cut out")
    wide, high = margin * (x2 - x1), margin * (y2 - y1)
    width, height = image.size
    left, top = max(math.floor(x1 - wide), 0), max(math.floor(y1 - high), 0)
    right, bottom = min(math.ceil(x2 + wide), width), min(math.ceil(y2 + high), height)
    return image.crop((left, top, right, bottom))


def _upright(image: Image, boxes: Detections, index: int, margin: float) -> HostImage:
    x, y, width, height, angle = boxes.oriented[index].tolist()
    if not (width > 0 and height > 0):
        raise InputError(f"box {index} is {width:g} x {height:g} pixels, so there is nothing to cut out")
    host = _on_host(image)
    width, height = width * (1 + 2 * margin), height * (1 + 2 * margin)
    canvas = max(round(width), 1), max(round(height), 1)
    cosine, sine = math.cos(angle), math.sin(angle)
    along, across = width / canvas[0], height / canvas[1]
    matrix = np.array([[cosine * along, -sine * across, 0.0], [sine * along, cosine * across, 0.0]])
    matrix[:, 2] = np.array([x, y]) - matrix[:, :2] @ (np.array(canvas) / 2)
    geometry = Geometry.affine(host.size, canvas, matrix)
    pixels = preprocess(image_view(host.pixels, host.format), geometry, _BGR)  # type: ignore[arg-type]
    return HostImage(pixels, "bgr", host.decoder)


def _by_landmarks(image: Image, boxes: Detections, index: int, size: int) -> HostImage:
    host = _on_host(image)
    points = boxes.keypoints[index : index + 1]
    if points.shape[1] != 5:
        raise InputError(f"box {index} has {points.shape[1]} keypoints; a crop by landmarks needs the five of a face")
    view = image_view(host.pixels, host.format)  # type: ignore[arg-type]
    return HostImage(aligned_crops(view, points, size)[0], "bgr", host.decoder)


_BGR = PixelTransform("bgr", "hwc", "uint8", fill=0, scale=1.0)


def _on_host(image: Image) -> HostImage:
    if isinstance(image, HostImage):
        return image
    raise ImageError("parts that are turned are cut from images on the host; give the image as an array on the host")
