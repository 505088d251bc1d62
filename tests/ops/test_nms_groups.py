"""NMS that says which box suppressed which, against a plain reference, in every SIMD variant."""

from __future__ import annotations

import numpy as np
import pytest
from detection_cases import greedy_nms
from simd_variants import VARIANTS, variant

from infersdk.errors import InputError
from infersdk.ops import nms, nms_groups

F = np.float32


def crowd(rng: np.random.Generator, n: int, size: float) -> np.ndarray:
    """Boxes of very different sizes, many of them within others."""
    center = rng.random((n, 2)) * 1000
    half = rng.random((n, 2)) * size * rng.choice([0.1, 0.5, 2.0], (n, 1))
    return np.concatenate([center - half, center + half], axis=1).astype(F)


@pytest.mark.parametrize("match", ["iou", "smaller"])
@pytest.mark.parametrize("threshold", [0.0, 0.2, 0.5, 0.75, 1.0])
@pytest.mark.parametrize(("n", "size"), [(0, 1), (1, 10), (17, 300), (255, 150), (3000, 12), (3000, 120)])
def test_groups_equal_the_reference(
    rng: np.random.Generator, n: int, size: float, threshold: float, match: str
) -> None:
    boxes, scores = crowd(rng, n, size), np.round(rng.random(n), 2).astype(F)
    boxes[::7, 2] = boxes[::7, 0]  # without area
    for class_ids in (None, rng.integers(-1, 2, n)):
        expected = greedy_nms(boxes, scores, class_ids, threshold, match)
        for simd in VARIANTS:
            with variant(simd):
                keep, keepers = nms_groups(boxes, scores, class_ids, threshold=threshold, match=match)
                assert (keep.tolist(), keepers.tolist()) == expected


def test_a_box_that_was_cut_belongs_to_the_whole_one() -> None:
    boxes = [[0, 0, 100, 40], [70, 0, 100, 40], [0, 60, 10, 80]]
    assert nms_groups(boxes, [0.9, 0.8, 0.7])[1].tolist() == [0, 0, 2]
    assert nms_groups(boxes, [0.9, 0.8, 0.7], match="iou")[1].tolist() == [0, 1, 2]


def test_bad_arguments_are_named() -> None:
    boxes, scores = np.array([[0, 0, 1, 1]], F), np.array([0.5], F)
    with pytest.raises(InputError, match="match is 'area'; use one of 'iou', 'smaller'"):
        nms_groups(boxes, scores, match="area")
    with pytest.raises(InputError, match="threshold is 1.5; it must be 0 to 1"):
        nms_groups(boxes, scores, threshold=1.5)
    with pytest.raises(InputError, match="finite"):
        nms_groups(boxes * np.nan, scores)


def test_boxes_and_scores_that_are_no_numbers() -> None:
    with pytest.raises(InputError, match="boxes are of <U1, 'a' for example; give numbers"):
        nms("a", [0.5])
    with pytest.raises(InputError, match="boxes cannot be read as an array of numbers"):
        nms([[1, 2], [3]], [0.5, 0.5])
    with pytest.raises(InputError, match="scores are of <U1"):
        nms_groups(np.zeros((1, 4), F), ["b"])
    with pytest.raises(InputError, match="a list is not an array: .*; give rows of equal length"):
        nms(np.zeros((2, 4), F), np.zeros(2, F), [[1], [1, 2]])
