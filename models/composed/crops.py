"""Parts of an image, one for each box: the images of a second model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np

from ...core.stream import default_stream
from ...core.tensor import Tensor
from ...errors import ConfigError, InferSDKError, InputError
from ...image import DeviceImage, Geometry, HostImage, PixelTransform
from ...ops import preprocess
from ...ops.alignment import alignments
from ...ops.device import preprocess_batch

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..results import Detections

__all__ = ["CropKind", "Cutter", "cutter"]

T = TypeVar("T")
Image: TypeAlias = "HostImage | DeviceImage"
#: The parts of an image for its boxes, in order; the reason where one cannot be cut out.
Cutter: TypeAlias = "Callable[[Image, Detections], Sequence[Image | Exception]]"
CropKind = Literal["box", "oriented", "landmarks"]

#: The pixels of the largest oriented box that is cut out, in squares of the longer side of the image.
MOST_OF_SQUARE = 4


def cutter(kind: CropKind, margin: float = 0.0) -> Cutter:
    """The function that cuts out parts.

    Args:
        kind: `"box"`: the pixels within the box's edges. `"oriented"`: an oriented box turned upright, its width along
            the rows. `"landmarks"`: a face turned and scaled by its five landmarks (see `infersdk.ops.aligned_crops`).
        margin: by how much a box is enlarged on each side, as a share of that side; for `"box"` and `"oriented"`.

    The function raises InputError where boxes have no angles or keypoints for `kind`.

    Raises:
        ConfigError: a setting has a wrong value.
    """
    if kind not in ("box", "oriented", "landmarks"):
        raise ConfigError(f"crop is {kind!r}; use box, oriented or landmarks, or a function of an image and its boxes")
    if not (math.isfinite(margin) and margin >= 0):
        raise ConfigError(f"margin is a share of a box's side, from 0, not {margin}")
    if kind == "landmarks":
        return lambda image, boxes: _turned(image, _of_each(boxes, "keypoints", _by_landmarks, image))
    if kind == "oriented":
        return lambda image, boxes: _turned(image, _of_each(boxes, "oriented", _upright, image, margin))
    return lambda image, boxes: _of_each(boxes, "xyxy", _within, image, margin)


def _of_each(boxes: Detections, column: str, cut: Callable[..., T], *arguments: Any) -> list[T | Exception]:
    """The part of each box, by its row of a column; the reason where one cannot be cut out.

    Raises:
        InputError: there are boxes, and they have no such column.
    """
    rows = getattr(boxes, column) if len(boxes) else ()
    parts: list[T | Exception] = []
    for index in range(len(boxes)):
        try:
            parts.append(cut(rows, index, *arguments))
        except InferSDKError as error:
            parts.append(error)
    return parts


def _finite(rows: npt.NDArray[np.float32], index: int) -> list[float]:
    """The numbers of a row, if all are finite."""
    row: list[float] = rows[index].tolist()
    if not all(map(math.isfinite, row)):
        raise InputError(f"box {index} is {row}, which are no finite numbers, so there is nothing to cut out")
    return row


def _within(rows: npt.NDArray[np.float32], index: int, image: Image, margin: float) -> Image:
    x1, y1, x2, y2 = _finite(rows, index)
    if not (x2 > x1 and y2 > y1):
        raise InputError(f"box {index} is {x2 - x1:g} x {y2 - y1:g} pixels, so there is nothing to cut out")
    wide, high = margin * (x2 - x1), margin * (y2 - y1)
    width, height = image.size
    left, top = max(math.floor(x1 - wide), 0), max(math.floor(y1 - high), 0)
    right, bottom = min(math.ceil(x2 + wide), width), min(math.ceil(y2 + high), height)
    return image.crop((left, top, right, bottom))


def _upright(rows: npt.NDArray[np.float32], index: int, image: Image, margin: float) -> Geometry:
    x, y, width, height, angle = _finite(rows, index)
    if not (width > 0 and height > 0):
        raise InputError(f"box {index} is {width:g} x {height:g} pixels, so there is nothing to cut out")
    if max(width, 1) * max(height, 1) > MOST_OF_SQUARE * max(image.size) ** 2:
        raise InputError(
            f"box {index} is {width:g} x {height:g} pixels, and the image {image.size[0]} x {image.size[1]}; a box of "
            f"more than {MOST_OF_SQUARE} times the square of the image's longer side is not cut out"
        )
    width, height = width * (1 + 2 * margin), height * (1 + 2 * margin)
    canvas = max(round(width), 1), max(round(height), 1)
    cosine, sine = math.cos(angle), math.sin(angle)
    along, across = width / canvas[0], height / canvas[1]
    matrix = np.array([[cosine * along, -sine * across, 0.0], [sine * along, cosine * across, 0.0]])
    matrix[:, 2] = np.array([x, y]) - matrix[:, :2] @ (np.array(canvas) / 2)
    return Geometry.affine(image.size, canvas, matrix)


def _by_landmarks(rows: npt.NDArray[np.float32], index: int, image: Image) -> Geometry:
    points = rows[index : index + 1]
    if points.shape[1] != 5:
        raise InputError(f"box {index} has {points.shape[1]} keypoints; a crop by landmarks needs the five of a face")
    (geometry,) = alignments(image.size, points)
    return geometry


def _turned(image: Image, geometries: Sequence[Geometry | Exception]) -> list[Image | Exception]:
    """The parts of an image that geometries say, cut where the image is; an exception stays in its row."""
    if isinstance(image, DeviceImage):
        return _turned_on_device(image, geometries)
    view = image.view()
    return [
        one if isinstance(one, Exception) else HostImage(preprocess(view, one, _BGR), "bgr", image.decoder)
        for one in geometries
    ]


def _turned_on_device(image: DeviceImage, geometries: Sequence[Geometry | Exception]) -> list[Image | Exception]:
    """As `_turned`: those of one canvas in one launch, on the default stream of the device."""
    parts: list[Any] = list(geometries)
    by_canvas: dict[tuple[int, int], list[int]] = {}
    for index, one in enumerate(geometries):
        if isinstance(one, Geometry):
            by_canvas.setdefault(one.canvas, []).append(index)
    stream = default_stream(image.device)
    view = image.on(stream)
    for (width, height), rows in by_canvas.items():
        below = Tensor((len(rows) * height, width, 3), "uint8", image.device)  # one part below the other
        preprocess_batch([view] * len(rows), [parts[index] for index in rows], _BGR, below, stream=stream)
        whole = DeviceImage(below, "bgr", image.decoder, lender=(image, view))  # the parts are not cut out yet
        for row, index in enumerate(rows):
            parts[index] = whole.crop((0, row * height, width, (row + 1) * height))
    return parts


_BGR = PixelTransform("bgr", "hwc", "uint8", fill=0, scale=1.0)
