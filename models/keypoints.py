"""Keypoints: how many a model gives, and how they come back to the image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..image import Geometry

__all__ = ["KeypointShape", "to_keypoints"]

#: (points, values a point), values being 2 (x, y) or 3 (x, y, score).
KeypointShape = tuple[Annotated[int, msgspec.Meta(ge=1)], Annotated[int, msgspec.Meta(ge=2, le=3)]]


def to_keypoints(
    values: npt.NDArray[np.float32], points: int, values_a_point: int, geometry: Geometry
) -> npt.NDArray[np.float32]:
    """The column `keypoints` from values in pixels of the network's canvas.

    Args:
        values: `[boxes, points * values_a_point]`.

    Returns:
        `[boxes, points, values_a_point]`, x and y in pixels of the image.
    """
    rows: npt.NDArray[np.float32] = values.reshape(-1, points, values_a_point).copy()
    rows[..., :2] = geometry.to_source(rows[..., :2].reshape(-1, 2)).reshape(-1, points, 2)
    return rows
