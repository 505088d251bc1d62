"""Alignment by landmarks: the transform against least squares, the pixels against OpenCV."""

from __future__ import annotations

import numpy as np
import pytest

from infersdk.errors import InputError, ShapeError
from infersdk.image import PixelTransform
from infersdk.ops import FIVE_POINTS, aligned_crops, similarity


def least_squares(points: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The similarity (a, b, tx, ty) of x' = a x - b y + tx, y' = b x + a y + ty by a linear solver."""
    x, y = points.T
    one, none = np.ones_like(x), np.zeros_like(x)
    rows = np.vstack([np.stack([x, -y, one, none], 1), np.stack([y, x, none, one], 1)])
    a, b, tx, ty = np.linalg.lstsq(rows, np.concatenate([targets[:, 0], targets[:, 1]]), rcond=None)[0]
    return np.array([[a, -b, tx], [b, a, ty]])


def turned(points: np.ndarray, angle: float, scale: float, shift: tuple[float, float]) -> np.ndarray:
    c, s = scale * np.cos(angle), scale * np.sin(angle)
    return points @ np.array([[c, s], [-s, c]]) + shift


def test_similarity_is_the_least_squares_one(rng: np.random.Generator) -> None:
    for _ in range(200):
        n = int(rng.integers(2, 9))
        points = rng.normal(0, 50, (n, 2)) + rng.normal(0, 500, 2)
        exact = turned(points, rng.uniform(-np.pi, np.pi), rng.uniform(0.1, 5), tuple(rng.normal(0, 100, 2)))
        noisy = exact + rng.normal(0, 2, exact.shape)
        for targets in (exact, noisy):
            matrix = similarity(points, targets)
            np.testing.assert_allclose(matrix, least_squares(points, targets), rtol=1e-6, atol=1e-6)
            assert np.linalg.det(matrix[:, :2]) > 0, "it never mirrors"
        moved = points @ similarity(points, exact)[:, :2].T + similarity(points, exact)[:, 2]
        np.testing.assert_allclose(moved, exact, atol=1e-6)


def test_mirrored_points_are_not_mirrored() -> None:
    points = np.asarray(FIVE_POINTS)
    matrix = similarity(points, points * [-1, 1])
    assert np.linalg.det(matrix[:, :2]) > 0


def test_wrong_points() -> None:
    with pytest.raises(ShapeError, match=r"\(1, 2\)"):
        similarity([[0, 0]], [[1, 1]])
    with pytest.raises(ShapeError, match=r"\(2, 2\) and targets \(3, 2\)"):
        similarity(np.zeros((2, 2)), np.zeros((3, 2)))
    with pytest.raises(InputError, match="coincide"):
        similarity([[1, 1], [1, 1]], [[0, 0], [1, 0]])
    with pytest.raises(InputError, match="coincide"):
        similarity([[0, 0], [1, 0]], [[1, 1], [1, 1]])
    with pytest.raises(InputError, match="finite"):
        similarity([[0, np.nan], [1, 0]], [[0, 0], [1, 0]])
    with pytest.raises(InputError, match="coordinates reach 1e.200, which is too large"):
        similarity([[0, 0], [1e200, 0], [0, 1e200]], [[0, 0], [1, 0], [0, 1]])
    for wrong, words in (
        ([[1, 2], [3]], "cannot be read as an array"),
        ("abc", "are of <U3, 'abc' for example; give num"),
    ):
        with pytest.raises(InputError, match=f"points {words}"):
            similarity(wrong, FIVE_POINTS)
        with pytest.raises(InputError, match=f"targets {words}"):
            similarity(FIVE_POINTS, wrong)
        with pytest.raises(InputError, match=f"landmarks {words}"):
            aligned_crops(np.zeros((100, 120, 3), np.uint8), wrong)
        with pytest.raises(InputError, match=f"template {words}"):
            aligned_crops(np.zeros((100, 120, 3), np.uint8), [FIVE_POINTS], template=wrong)
    with pytest.raises(InputError, match="all are equally close"):
        similarity([[1, 0], [0, 1], [-1, 0], [0, -1]], [[1, 0], [0, -1], [-1, 0], [0, 1]])


def test_points_that_coincide_are_noticed_in_spite_of_rounding(rng: np.random.Generator) -> None:
    for point in rng.uniform(0, 200, (100, 2)).round(2):
        for count in (2, 3, 5):
            with pytest.raises(InputError, match="coincide"):
                similarity([point] * count, FIVE_POINTS[:count])


def test_crops_equal_warp_affine_of_opencv(rng: np.random.Generator) -> None:
    cv2 = pytest.importorskip("cv2")
    coarse = rng.integers(0, 256, (12, 16, 3), np.uint8)
    image = cv2.resize(coarse, (320, 240), interpolation=cv2.INTER_CUBIC)
    template = np.asarray(FIVE_POINTS)
    landmarks = np.stack([
        turned(template - 56, angle, scale, shift) for angle, scale, shift in
        ((0.0, 1.0, (150.0, 120.0)), (0.4, 0.7, (100.0, 90.0)), (-2.0, 1.3, (200.0, 130.0)), (3.1, 0.5, (20.0, 30.0)))
    ])  # fmt: skip
    landmarks += rng.normal(0, 1, landmarks.shape)
    crops = aligned_crops(image, landmarks)
    assert crops.shape == (4, 112, 112, 3)
    assert crops.dtype == np.uint8
    for crop, points in zip(crops, landmarks, strict=True):
        expected = cv2.warpAffine(image, least_squares(points, template), (112, 112), flags=cv2.INTER_LINEAR)
        inside = cv2.warpAffine(np.full_like(image, 255), least_squares(points, template), (112, 112)) == 255
        difference = np.abs(crop.astype(int) - expected)[inside]
        assert difference.mean() < 1, "OpenCV's coordinates have steps of 1/32 of a pixel"
        assert difference.max() <= 16


def test_sizes_transforms_and_what_does_not_fit(rng: np.random.Generator) -> None:
    image = rng.integers(0, 256, (100, 120, 3), np.uint8)
    landmarks = np.asarray(FIVE_POINTS)[None] * 0.8
    assert aligned_crops(image, landmarks, 224).shape == (1, 224, 224, 3)
    assert aligned_crops(image, landmarks, np.int64(96)).shape == (1, 96, 96, 3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"size is \(96, 96, 3\); use \(width, height\)"):
        aligned_crops(image, landmarks, (96, 96, 3))  # type: ignore[arg-type]
    chw = aligned_crops(image, landmarks, transform=PixelTransform("rgb", scale=1 / 127.5, bias=-1.0))
    assert (chw.shape, chw.dtype) == ((1, 3, 112, 112), np.float32)
    with_scores = np.dstack([landmarks, np.ones((1, 5, 1))])
    np.testing.assert_array_equal(aligned_crops(image, with_scores), aligned_crops(image, landmarks))
    assert aligned_crops(image, np.zeros((0, 5, 2))).shape == (0, 112, 112, 3)
    two = aligned_crops(image, [[[10, 10], [30, 10]]], (64, 32), template=[[8, 16], [56, 16]])
    assert two.shape == (1, 32, 64, 3)
    for wrong in (0, (0, 5)):
        with pytest.raises(InputError, match="the canvas's width is 0 pixels; it must be 1 to"):
            aligned_crops(image, landmarks, wrong)
    with pytest.raises(InputError, match="96 x 112"):
        aligned_crops(image, landmarks, (96, 112))
    with pytest.raises(ShapeError, match=r"\(1, 4, 2\) and the template \(5, 2\)"):
        aligned_crops(image, landmarks[:, :4])
