"""Masks, keypoints and oriented boxes as columns of `Detections`: chosen, exported and pickled with their boxes."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import numpy as np
import pytest

from infersdk.errors import InputError, ShapeError
from infersdk.models import Detections, Mask, Masks
from infersdk.models.results.masks import decompressed_runs
from infersdk.ops.masks import mask_polygons

SIZE = (37, 21)


def planes(rng: np.random.Generator, count: int = 4, size: tuple[int, int] = SIZE) -> np.ndarray[Any, Any]:
    """Random pixels in a rectangle of each mask; the last mask is empty."""
    masks = np.zeros((count, size[1], size[0]), bool)
    for mask in masks[:-1]:
        x, y = rng.integers(0, size[0] - 4), rng.integers(0, size[1] - 4)
        part = mask[y:, x:][: rng.integers(1, 15), : rng.integers(1, 20)]
        part[:] = rng.random(part.shape) < 0.7
    return masks


def boxes(count: int, **columns: Any) -> Detections:
    xyxy = [(i, i, i + 8, i + 10) for i in range(count)]
    scores = np.linspace(0.9, 0.2, count)
    return Detections.of(xyxy, scores, np.arange(count) % 2, names=("person", "bus"), size=SIZE, **columns)


def test_masks_stay_with_their_boxes(rng: np.random.Generator) -> None:
    masks = planes(rng)
    found = boxes(4, mask=masks)
    assert isinstance(found.masks, Masks)
    for index in (slice(1, None), slice(None, None, -1), found.scores > 0.5, [2, 0], [], np.array([-1, 1])):
        taken = found[index]
        expected = masks[np.array(index, int) if isinstance(index, list) else index]
        np.testing.assert_array_equal(taken.masks.numpy(), expected)
        np.testing.assert_array_equal(np.asarray(taken.masks), expected)
        assert taken.masks.areas.tolist() == expected.sum((1, 2)).tolist()
        assert len(taken.masks) == len(taken)
    for i, box in enumerate(found):
        mask = box.columns["mask"]
        assert isinstance(mask, Mask)
        np.testing.assert_array_equal(mask, masks[i])
        assert (mask.area, mask.size) == (masks[i].sum(), SIZE)
    with pytest.raises(IndexError, match="no mask 4; there are 4"):
        found.masks[4]
    for wrong in (True, np.True_, [True, False]):
        with pytest.raises(ShapeError, match="a mask has one value for each of 4 rows"):
            found.masks[wrong]
    with pytest.raises(ShapeError, match="37 x 20 for an image of 37 x 21"):
        boxes(4, mask=masks[:, 1:])
    with pytest.raises(ShapeError, match=r"\(4, 21\)"):
        boxes(4, mask=masks[:, :, 0])


def test_masks_with_the_same_pixels_are_equal(rng: np.random.Generator) -> None:
    pixels = planes(rng)
    pixels[2] = pixels[0] ^ (np.arange(SIZE[0]) == 0)
    masks, others = Masks.of(pixels), Masks.of(pixels[::-1])
    assert [masks.index(mask) for mask in others] == [3, 2, 1, 0]
    assert len({*masks, *others}) == 4
    assert Masks.of(np.ones((1, 3, 3)))[0] not in masks
    np.testing.assert_array_equal(masks[0] == pixels[0], np.ones(pixels[0].shape, bool))  # type: ignore[arg-type]


def test_pickles_hold_the_masks_that_are_left(rng: np.random.Generator) -> None:
    masks = planes(rng, 40, (640, 480))
    whole = Masks.of(masks)
    for chosen in ([3, 1], [], list(range(40))):
        again = pickle.loads(pickle.dumps(whole[chosen]))
        np.testing.assert_array_equal(again.numpy(), masks[chosen])
    assert len(pickle.dumps(whole[:2])) < len(pickle.dumps(whole)) / 10
    one = pickle.loads(pickle.dumps(whole[5]))
    np.testing.assert_array_equal(one.numpy(), masks[5])
    assert len(pickle.dumps(whole[5])) < len(pickle.dumps(whole)) / 10
    assert whole.nbytes <= masks.size / 8


def test_run_lengths_are_those_of_pycocotools(rng: np.random.Generator) -> None:
    coco = pytest.importorskip("pycocotools.mask")
    large = np.zeros((2, 2000, 1500), bool)
    large[0, 3:1997, 700:], large[1] = True, rng.random((2000, 1500)) < 0.01
    for masks in (planes(rng), ~planes(rng), large):
        for mask, pixels in zip(Masks.of(masks), masks, strict=True):
            expected = coco.encode(np.asfortranarray(pixels.astype(np.uint8)))
            assert mask.to_coco() == {"size": expected["size"], "counts": expected["counts"].decode()}
            assert coco.area(mask.to_coco()) == mask.area
            np.testing.assert_array_equal(decompressed_runs(mask.to_coco()["counts"]), mask.runs())


def test_outlines_enclose_the_mask(rng: np.random.Generator) -> None:
    masks = planes(rng, 20)
    found = boxes(20, mask=masks)
    for outlines, mask in zip(found.polygons(), masks, strict=True):
        assert [points.tolist() for points in outlines] == [points.tolist() for points in mask_polygons(mask)]
    assert found.polygons()[-1] == [], "an empty mask"


def test_data_of_other_programs(rng: np.random.Generator) -> None:
    coco = pytest.importorskip("pycocotools.mask")
    masks, points = planes(rng, 3), rng.random((3, 5, 2)).astype(np.float32) * 20
    found = boxes(3, mask=masks, keypoints=points)
    for row, mask in zip(json.loads(found.to_json()), masks, strict=True):
        np.testing.assert_array_equal(coco.decode(row["mask"]), mask)
        assert np.shape(row["keypoints"]) == (5, 2)
    for row, mask, own in zip(found.to_coco(7, [1, 2]), masks, points, strict=True):
        np.testing.assert_array_equal(coco.decode(row["segmentation"]), mask)
        np.testing.assert_allclose(
            np.reshape(row["keypoints"], (5, 3)), np.pad(own, ((0, 0), (0, 1)), constant_values=1)
        )
    assert "segmentation" not in boxes(2).to_coco(7, [1, 2])[0]


def test_supervision_takes_all_of_it(rng: np.random.Generator) -> None:
    pytest.importorskip("supervision")
    masks, turned = planes(rng, 3), np.array([[10, 10, 4, 2, 0.5]] * 3)
    columns = {"track_id": np.array([4, 5, 6]), "zone": np.array([7, 8, 9])}
    theirs = boxes(3, mask=masks, oriented=turned, **columns).to_supervision()
    np.testing.assert_array_equal(theirs.mask, masks)
    assert theirs.tracker_id.tolist() == [4, 5, 6]
    assert theirs.data["zone"].tolist() == [7, 8, 9]
    assert theirs.data["class_name"].tolist() == ["person", "bus", "person"]
    assert theirs.data["xyxyxyxy"].shape == (3, 4, 2)
    assert len(theirs[theirs.confidence > 0.5]) == 2


def test_oriented_boxes() -> None:
    found = boxes(2, oriented=[[10, 8, 6, 2, 0], [10, 8, 6, 2, math.pi / 2]])
    np.testing.assert_allclose(found.corners[0], [[7, 7], [13, 7], [13, 9], [7, 9]], atol=1e-5)
    np.testing.assert_allclose(found.corners[1], [[11, 5], [11, 11], [9, 11], [9, 5]], atol=1e-5)
    np.testing.assert_allclose(found[::-1].angles, [math.pi / 2, 0])
    assert found.to_dicts()[0]["oriented"] == [10, 8, 6, 2, 0]
    assert found.to_coco(1, [1, 2])[0]["segmentation"] == [found.corners[0].reshape(-1).tolist()]
    with pytest.raises(ShapeError, match=r"'oriented' has shape \(2, 4\); use \(boxes, 5\)"):
        boxes(2, oriented=np.zeros((2, 4)))


def test_what_a_model_does_not_give() -> None:
    found = boxes(2, track_id=np.array([1, 2]))
    for name in ("masks", "keypoints", "oriented", "angles", "corners"):
        with pytest.raises(InputError, match=r"have no .*columns are track_id"):
            getattr(found, name)
    with pytest.raises(ShapeError, match=r"'keypoints' has shape \(2, 3\); use \(boxes, points, 2 or 3\)"):
        found.with_columns(keypoints=np.zeros((2, 3)))
