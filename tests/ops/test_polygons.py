"""The outlines of masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from infersdk.errors import InputError, ShapeError
from infersdk.ops.masks import mask_polygons


def filled(outlines: list[np.ndarray[Any, Any]], shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    """The pixels inside by the even-odd rule; all outlines follow the edges of pixels."""
    crossed = np.zeros((shape[0], shape[1] + 1), int)
    for points in outlines:
        for (x1, y1), (x2, y2) in zip(points.astype(int), np.roll(points.astype(int), -1, 0), strict=True):
            assert (x1 == x2) != (y1 == y2), "an edge is horizontal or vertical"
            if x1 == x2:
                crossed[min(y1, y2) : max(y1, y2), x1] += 1
    return (crossed.cumsum(1) % 2)[:, :-1].astype(bool)


def signed_area(points: np.ndarray[Any, Any]) -> float:
    x, y = points.astype(float).T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


def test_outlines_give_the_mask_back(rng: np.random.Generator) -> None:
    for _ in range(300):
        mask = rng.random(rng.integers(1, 14, 2)) < rng.random()
        outlines = mask_polygons(mask)
        np.testing.assert_array_equal(filled(outlines, mask.shape), mask)
        assert sum(map(signed_area, outlines)) == mask.sum(), "holes run the other way round"


def test_a_ring_has_two_outlines() -> None:
    mask = np.zeros((9, 12), np.uint8)
    mask[1:8, 2:10] = 1
    mask[3:5, 4:6] = 0
    outer, hole = mask_polygons(mask, offset=(100, 50))
    assert outer.tolist() == [[102, 51], [110, 51], [110, 58], [102, 58]]
    assert sorted(hole.tolist()) == [[104, 53], [104, 55], [106, 53], [106, 55]]
    assert (signed_area(outer - 50), signed_area(hole - 50)) == (56, -4)


def test_pixels_that_touch_by_a_corner_have_their_own_outlines() -> None:
    assert len(mask_polygons(np.eye(3))) == len(mask_polygons(np.eye(3)[::-1])) == 3


@pytest.mark.parametrize("tolerance", [1.0, 2.5])
def test_fewer_points_stay_within_the_tolerance(tolerance: float) -> None:
    y, x = np.mgrid[:200, :260]
    (exact,) = mask_polygons(((y - 100) / 90) ** 2 + ((x - 130) / 120) ** 2 < 1)
    (fewer,) = mask_polygons(((y - 100) / 90) ** 2 + ((x - 130) / 120) ** 2 < 1, tolerance=tolerance)
    assert 8 < len(fewer) < len(exact) / 4
    start, end = fewer, np.roll(fewer, -1, 0)
    for point in exact:
        part = np.clip(((point - start) * (end - start)).sum(1) / np.square(end - start).sum(1), 0, 1)
        nearest = start + part[:, None] * (end - start)
        assert np.hypot(*(point - nearest).T).min() <= tolerance + 1e-4


def test_small_and_thin_outlines_stay() -> None:
    for mask in (np.eye(1), np.ones((2, 2)), np.ones((1, 16))):
        (exact,), (fewer,) = mask_polygons(mask), mask_polygons(mask, tolerance=2)
        np.testing.assert_array_equal(fewer, exact)


def test_nothing_and_wrong_arguments() -> None:
    assert mask_polygons(np.zeros((5, 7))) == mask_polygons(np.zeros((0, 7))) == []
    with pytest.raises(ShapeError, match=r"\(2, 3, 4\); use \(height, width\)"):
        mask_polygons(np.zeros((2, 3, 4)))
    for wrong in (-1.0, np.nan, np.inf):
        with pytest.raises(InputError, match=f"tolerance is {wrong}"):
            mask_polygons(np.ones((2, 2)), tolerance=wrong)
