"""Oriented boxes: rectangles that are turned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["corners", "enclosing"]


def corners(oriented: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """The corners of oriented boxes, in order around each.

    Args:
        oriented: `[..., 5]`: the centre's x and y, width and height in pixels, and the angle in radians. The angle
            turns the side of the width from the x axis towards the y axis, which points down.

    Returns:
        `[..., 4, 2]` of x and y. For an angle of 0: left top, right top, right bottom, left bottom.
    """
    x, y, width, height, angle = np.moveaxis(np.asarray(oriented, np.float64), -1, 0)
    cosine, sine = np.cos(angle), np.sin(angle)
    along = np.stack([width * cosine, width * sine], -1)[..., None, :] / 2
    across = np.stack([-height * sine, height * cosine], -1)[..., None, :] / 2
    centre = np.stack([x, y], -1)[..., None, :]
    a, b = np.array([-1, 1, 1, -1])[:, None], np.array([-1, -1, 1, 1])[:, None]
    return (centre + a * along + b * across).astype(np.float32)


def enclosing(oriented: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """The upright boxes around oriented boxes: `[..., 4]` of left, top, right and bottom."""
    points = corners(oriented)
    return np.concatenate([points.min(axis=-2), points.max(axis=-2)], axis=-1)
