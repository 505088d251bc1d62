"""From maps of text to rectangles."""

from __future__ import annotations

import numpy as np
import pytest

from infersdk.models.ocr.regions import reading_order, text_regions

cv2 = pytest.importorskip("cv2")

SETTINGS = {"threshold": 0.3, "box_threshold": 0.5, "unclip": 1.6}


def drawn(*rectangles: tuple[tuple[float, float], tuple[float, float], float], value: float = 0.9) -> np.ndarray:
    """A map with rectangles: (centre, size, angle in degrees)."""
    plane = np.zeros((200, 300), np.float32)
    for rectangle in rectangles:
        cv2.fillPoly(plane, [np.round(cv2.boxPoints(rectangle)).astype(np.int32)], value)
    return plane


@pytest.mark.parametrize("angle", [0, 15, 30, 75])
def test_a_rectangle_grows_by_its_area_and_perimeter(angle: float) -> None:
    (corners,) = text_regions(drawn(((150, 100), (120, 20), angle)), **SETTINGS)
    sides = sorted(np.linalg.norm(corners - np.roll(corners, -1, axis=0), axis=1))
    wide, high = 121.5, 21.5  # as drawn, and one pixel more by what joins corners
    grown = 2 * wide * high * 1.6 / (2 * (wide + high))
    np.testing.assert_allclose(sides, [high + grown, high + grown, wide + grown, wide + grown], atol=3)
    np.testing.assert_allclose(corners.mean(axis=0), (150, 100), atol=1.5)
    assert corners[0][0] <= corners[1][0]
    assert corners[0][1] <= corners[3][1]


def test_weak_and_small_parts_are_left_out() -> None:
    assert len(text_regions(drawn(((150, 100), (120, 20), 0), value=0.45), **SETTINGS)) == 0
    assert len(text_regions(drawn(((150, 100), (2, 1), 0)), **SETTINGS)) == 0
    assert text_regions(np.zeros((50, 60), np.float32), **SETTINGS).shape == (0, 4, 2)


def test_the_mean_is_that_of_the_rectangle() -> None:
    plane = drawn(((100, 100), (100, 20), 0), value=0.9)
    plane[90:111, 50:105] = 0.35
    assert len(text_regions(plane, threshold=0.3, box_threshold=0.55, unclip=1.6)) == 1
    assert len(text_regions(plane, threshold=0.3, box_threshold=0.75, unclip=1.6)) == 0


def quad(x: float, y: float) -> np.ndarray:
    return np.array([[x, y], [x + 30, y], [x + 30, y + 10], [x, y + 10]], np.float32)


def test_rows_are_read_from_left_to_right() -> None:
    regions = np.stack([quad(100, 4), quad(0, 8), quad(50, 0), quad(10, 40), quad(0, 80), quad(90, 75)])
    assert reading_order(regions).tolist() == [1, 2, 0, 3, 4, 5]
    assert reading_order(np.zeros((0, 4, 2), np.float32)).tolist() == []
