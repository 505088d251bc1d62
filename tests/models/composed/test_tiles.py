"""Large images in tiles."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import pytest
from head_models import head_model
from hypothesis import given
from hypothesis import strategies as st

from infersdk import models
from infersdk.data import DETECTOR, IMAGE
from infersdk.errors import ConfigError, DeadlineExceeded, ImageError, Overloaded, UnsupportedModelError
from infersdk.image import read_image
from infersdk.models import Detections, Tile, Tiled, tile_grid
from infersdk.models.composed.merging import Merge, merge_views


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 700), st.integers(1, 700), st.floats(0, 0.95))
def test_tiles_cover_the_image_with_equal_sizes(width: int, height: int, w: int, h: int, overlap: float) -> None:
    if (width // max(w - int(overlap * w), 1)) * (height // max(h - int(overlap * h), 1)) > 5000:
        return
    tiles = tile_grid((width, height), (w, h), overlap)
    assert {(t.right - t.left, t.bottom - t.top) for t in tiles} == {(min(w, width), min(h, height))}
    for low, high, side, of_tile in ((0, 2, width, w), (1, 3, height, h)):
        edges = sorted({(tile[low], tile[high]) for tile in tiles})
        assert edges[0][0] == 0
        assert edges[-1][1] == side
        for (_, end), (begin, _) in itertools.pairwise(edges):
            assert end - begin >= int(overlap * of_tile)
    assert len(set(tiles)) == len(tiles)


def test_the_last_tiles_end_at_the_edge() -> None:
    assert tile_grid((100, 60), (60, 60), 0.25) == [Tile(0, 0, 60, 60), Tile(40, 0, 100, 60)]
    assert tile_grid((50, 40), (60, 60)) == [Tile(0, 0, 50, 40)]


def test_the_overlap_is_that_of_the_decimal_number() -> None:
    """In floating point, 0.29 * 100 is below 29."""
    assert [tile.left for tile in tile_grid((300, 100), (100, 100), 0.29)] == [0, 71, 142, 200]
    assert len(tile_grid((8, 5), (5, 5), 1 - 2**-53)) == 4


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="overlap is a share of a tile's side, from 0 to below 1, not 1"):
        tile_grid((10, 10), (5, 5), 1.0)
    assert tile_grid((100, 50), 40) == tile_grid((100, 50), (40, 40))
    assert tile_grid((100, 50), np.int64(40)) == tile_grid((100, 50), (40, np.int32(40)))
    for wrong in ((0, 5), 0, True, (True, 5), 640.0, (640.5, 640), (1, 1, 1), "64"):
        with pytest.raises(
            ConfigError, match=rf"tile is a number of pixels or \(width, height\), not {re.escape(repr(wrong))}"
        ):
            tile_grid((10, 10), wrong)
    with pytest.raises(ConfigError, match=r"size is a number of pixels or \(width, height\), not \(0, 5\)"):
        tile_grid((0, 5), 5)
    with pytest.raises(ConfigError, match="overlap is a share of a tile's side, .*, not 'x'"):
        tile_grid((10, 10), 5, "x")
    with (
        models.YOLOv5(DETECTOR) as model,
        pytest.raises(ConfigError, match="tile is a number of pixels or .*, not True"),
    ):
        Tiled(model, tile=True)
    for settings in ({"merge": "best"}, {"match": "area"}, {"threshold": 2.0}, {"overlap": -0.1}):
        with models.YOLOv5(DETECTOR) as model, pytest.raises(ConfigError, match=str(next(iter(settings.values())))):
            Tiled(model, **settings)


@pytest.fixture(scope="module")
def model() -> Iterator[models.YOLOv5]:
    with models.YOLOv5(DETECTOR, max_batch=4, threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def large() -> np.ndarray:
    """The image of the demo, many times, at odd offsets."""
    image = read_image(IMAGE).pixels[..., :3]
    tall, wide = image.shape[:2]
    canvas = np.full((2 * tall + 61, 3 * wide + 77, 3), 114, np.uint8)
    for row, top in enumerate((0, tall + 61)):
        for column in range(3):
            left = column * (wide + 38) + 17 * row if column < 2 else 2 * wide + 77
            canvas[top : top + tall, left : left + wide] = image[:, : canvas.shape[1] - left]
    return canvas


def reference(model: models.YOLOv5, image: np.ndarray, tile: int, overlap: float) -> np.ndarray:
    """Each tile and the whole image by a call of its own; then greedy NMS by the smaller area."""
    rows = []
    views = [*tile_grid((image.shape[1], image.shape[0]), (tile, tile), overlap), (0, 0, None, None)]
    for left, top, right, bottom in views:
        for box in model(image[top:bottom, left:right]):
            x1, y1, x2, y2 = box.xyxy
            rows.append((x1 + left, y1 + top, x2 + left, y2 + top, box.score, box.class_id))
    table = np.array(rows, np.float32)
    kept: list[np.ndarray] = []
    for row in table[np.argsort(-table[:, 4], kind="stable")]:
        for other in kept:
            w = max(np.float32(0), min(row[2], other[2]) - max(row[0], other[0]))
            h = max(np.float32(0), min(row[3], other[3]) - max(row[1], other[1]))
            areas = [(r[2] - r[0]) * (r[3] - r[1]) for r in (row, other)]
            if row[5] == other[5] and w * h > np.float32(0.5) * min(areas):
                break
        else:
            kept.append(row)
    return np.array(kept)


def table(result: Detections) -> np.ndarray:
    return np.concatenate([result.xyxy, result.scores[:, None], result.class_ids[:, None]], axis=1)


def test_boxes_equal_those_of_single_calls(model: models.YOLOv5, large: np.ndarray) -> None:
    tiled = Tiled(model, tile=200, overlap=0.3)
    result = tiled(large)
    expected = reference(model, large, 200, 0.3)
    assert len(expected) > 20
    np.testing.assert_array_equal(table(result), expected)
    assert result.size == (large.shape[1], large.shape[0])
    assert result.names == model.class_names == tiled.class_names


def test_every_way_gives_the_same(model: models.YOLOv5, large: np.ndarray) -> None:
    tiled = Tiled(model, tile=(220, 180), overlap=0.2, whole_image=False)
    images = [large[:300], large[:150, :160], IMAGE]
    expected = [table(tiled(image)) for image in images]

    async def coroutines() -> list[Detections]:
        return await asyncio.gather(*(tiled.infer(image) for image in images))

    futures = [tiled.submit(image) for image in images]
    for results in (
        tiled(images), list(tiled.stream(images)), list(tiled.map(images)), [future.result(60) for future in futures],
        asyncio.run(coroutines()),
    ):  # fmt: skip
        for got, want in zip(results, expected, strict=True):
            np.testing.assert_array_equal(table(got), want)
    strict = tiled(images[0], conf=0.9)
    assert len(strict) < len(expected[0])
    assert (strict.scores > 0.9).all()


def test_a_part_that_fails_fails_the_image(model: models.YOLOv5, large: np.ndarray) -> None:
    tiled = Tiled(model, tile=200)
    with pytest.raises(Exception, match="conf"):
        tiled.submit(large, conf="high").result(60)
    results = list(tiled.map([large], return_exceptions=True, conf="high"))
    assert len(results) == 1
    assert isinstance(results[0], Exception)


def test_cancelling_takes_all_parts_back(large: np.ndarray) -> None:
    with models.YOLOv5(DETECTOR, threads=1) as model:
        model.configure_pipeline(max_batch=1, max_delay=0, instances=1, slots=256)
        tiled = Tiled(model, tile=64, overlap=0.5)
        futures = [tiled.submit(large[:400, :400]) for _ in range(2)]
        assert futures[1].cancel()
        with pytest.raises(CancelledError):
            futures[1].result(60)
        assert len(futures[0].result(60)) > 0
        assert model.pipeline.stats().cancelled > 0


def test_cancelling_a_coroutine_takes_all_parts_back(large: np.ndarray) -> None:
    async def cancelled(tiled: Tiled) -> None:
        task = asyncio.ensure_future(tiled.infer(large[:400, :400]))
        while not tiled.model.pipeline.stats().submitted:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while not tiled.model.pipeline.stats().cancelled:
            await asyncio.sleep(0.001)

    with models.YOLOv5(DETECTOR, threads=1) as model:
        model.configure_pipeline(max_batch=1, max_delay=0, instances=1, slots=256)
        asyncio.run(asyncio.wait_for(cancelled(Tiled(model, tile=64, overlap=0.5)), 60))


def test_the_deadline_holds_for_all_parts(model: models.YOLOv5, large: np.ndarray) -> None:
    tiled = Tiled(model, tile=200)
    with pytest.raises(DeadlineExceeded):
        tiled.submit(large, deadline=0.0).result(60)
    assert len(tiled.submit(large, deadline=60).result(60)) > 20


def test_an_image_may_have_more_parts_than_the_pipeline_has_slots(large: np.ndarray) -> None:
    """One slot has to be free; the other parts wait in the queue."""
    image = large[:200, :200]
    with models.YOLOv5(DETECTOR, threads=1) as model:
        model.configure_pipeline(max_batch=1, slots=3, when_full="raise")
        tiled = Tiled(model, tile=64)
        assert len(tiled.tiles((200, 200))) > 3
        future = tiled.submit(image, timeout=0)
        with pytest.raises(Overloaded):
            tiled.submit(image)
        expected = table(tiled(image))
        np.testing.assert_array_equal(table(future.result(60)), expected)
        np.testing.assert_array_equal(table(asyncio.run(tiled.infer(image))), expected)


def test_warming_up_with_an_image(large: np.ndarray) -> None:
    with Tiled(models.YOLOv5(DETECTOR, max_batch=2, threads=1), tile=200) as tiled:
        before = tiled.details.pipelines[0].stats().done
        tiled.warm_up(example=large)
        assert tiled.details.pipelines[0].stats().done - before == len(tiled.tiles(large.shape[1::-1])) + 1


def test_settings_go_by_name(model: models.YOLOv5) -> None:
    with pytest.raises(TypeError, match="takes model by position, and settings by name; it was given 2"):
        Tiled(model, 640)  # type: ignore[misc]
    with pytest.raises(ConfigError, match="unknown field `overlapping`. Known are: tile, overlap,"):
        Tiled(model, overlapping=0.5)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"tile is a number of pixels or \(width, height\), not 0"):
        Tiled(model, tile=0)
    assert Tiled(model=model, overlap=0.5).settings.overlap == 0.5


def test_a_composition_has_no_input_size(model: models.YOLOv5) -> None:
    with pytest.raises(ConfigError, match="Tiled has no input size of its own; pass the side of a tile: tile=640"):
        Tiled(Tiled(model))


def test_results_of_another_kind_are_refused() -> None:
    from infersdk.data import CLASSIFIER

    with models.Classifier(CLASSIFIER) as classifier, pytest.raises(UnsupportedModelError, match="Classifications"):
        Tiled(classifier, tile=16)  # type: ignore[arg-type]


@pytest.mark.parametrize("merge", ["union", "weighted"])
def test_oriented_boxes_are_kept_not_joined(tmp_path: Path, merge: str) -> None:
    metadata = {"task": "obb", "names": "{0: 'plane', 1: 'ship'}"}
    path = head_model(tmp_path / "m.onnx", [np.zeros((7, 84), np.float32)], metadata)
    with models.YOLOv8OBB(path) as model, pytest.raises(UnsupportedModelError, match=f"merge='{merge}' does not merge"):
        Tiled(model, merge=merge)  # type: ignore[arg-type]


def test_nv12_is_refused() -> None:
    with models.YOLOv5(DETECTOR, channel_order="nv12") as model, pytest.raises(ImageError, match="NV12"):
        Tiled(model, tile=64)(np.zeros((300, 200), np.uint8))


# ---- merging ----


def view(
    boxes: list[list[float]], scores: list[float], size: tuple[int, int] = (60, 40), **columns: object
) -> Detections:
    return Detections.of(boxes, scores, names=("a",), size=size, **columns)


def cut_in_two(**columns: dict[str, object]) -> tuple[list[Detections], list[tuple[int, int]]]:
    """A box of 40 to 80 in an image of 100 x 40, in two views that begin at 0 and at 40."""
    left = view([[40, 10, 60, 30]], [0.6], **{name: value["left"] for name, value in columns.items()})
    right = view([[5, 12, 40, 32]], [0.8], **{name: value["right"] for name, value in columns.items()})
    return [left, right], [(0, 0), (40, 0)]


@pytest.mark.parametrize(
    ("kind", "expected"), [("nms", [45, 12, 80, 32]), ("union", [40, 10, 80, 32]), ("weighted", None)]
)
def test_boxes_that_match_become_one(kind: str, expected: list[float] | None) -> None:
    parts, offsets = cut_in_two()
    result = merge_views(parts, offsets, (100, 40), Merge(kind, "smaller", 0.5, False))
    if expected is None:
        edges = np.array([[40, 10, 60, 30], [45, 12, 80, 32]], float)
        expected = np.average(edges, axis=0, weights=[0.6, 0.8])
    np.testing.assert_allclose(result.xyxy, [expected], rtol=1e-6)
    np.testing.assert_array_equal(result.scores, np.float32([0.8]))
    assert len(merge_views(parts, offsets, (100, 40), Merge(kind, "iou", 0.5, False))) == 2


def crowd(count: int, seed: int, spread: float = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Boxes of two classes around a few objects, no two of one score."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(50, spread, (max(count // 8, 1), 2))[rng.integers(0, max(count // 8, 1), count)]
    sides = rng.uniform(20, 40, (count, 2))
    corners = centres + rng.normal(size=(count, 2)) * 4
    boxes = np.concatenate([corners - sides / 2, corners + sides / 2], axis=1).astype(np.float32)
    return boxes, rng.permutation(np.linspace(0.1, 0.95, count)).astype(np.float32), rng.integers(0, 2, count)


def fused_by_hand(boxes: np.ndarray, scores: np.ndarray, classes: np.ndarray, threshold: float) -> list[list[float]]:
    """Weighted boxes fusion in plain Python: x1, y1, x2, y2, score, class of each group, best first."""
    groups: list[list[int]] = []

    def average(group: list[int]) -> np.ndarray:
        return np.average(boxes[group].astype(float), axis=0, weights=scores[group].astype(float))

    def match(one: np.ndarray, other: np.ndarray) -> float:
        w, h = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
        common = max(w, 0) * max(h, 0)
        areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (one, other)]
        return common / (sum(areas) - common)

    for index in np.argsort(-scores):
        matches = [
            match(average(group), boxes[index].astype(float)) if classes[group[0]] == classes[index] else 0.0
            for group in groups
        ]
        if matches and max(matches) > threshold:
            groups[int(np.argmax(matches))].append(int(index))
        else:
            groups.append([int(index)])
    rows = [[*average(group), float(scores[group[0]]), int(classes[group[0]])] for group in groups]
    return sorted(rows, key=lambda row: -row[4])


@pytest.mark.parametrize("seed", range(4))
def test_weighted_boxes_fusion(seed: int) -> None:
    boxes, scores, classes = crowd(90, seed)
    result = Detections.of(boxes, scores, classes, names=("a", "b"), size=(400, 400))
    merged = merge_views([result], [(0, 0)], (400, 400), Merge("weighted", "iou", 0.45, False))
    assert 8 < len(merged) < 60
    np.testing.assert_allclose(table(merged), fused_by_hand(boxes, scores, classes, 0.45), rtol=1e-5)


def test_columns_come_along() -> None:
    def mask(*edges: int) -> np.ndarray:
        plane = np.zeros((1, 40, 60), bool)
        plane[0, edges[1] : edges[3], edges[0] : edges[2]] = True
        return plane

    points = np.array([[[50, 20, 0.5]]], np.float32)
    columns = {
        "mask": {"left": mask(42, 12, 60, 28), "right": mask(6, 14, 38, 30)},
        "keypoints": {"left": points, "right": points - [40, 0, 0]},
        "track_id": {"left": np.array([3]), "right": np.array([7])},
    }
    parts, offsets = cut_in_two(**columns)
    result = merge_views(parts, offsets, (100, 40), Merge("nms", "smaller", 0.5, False))
    np.testing.assert_array_equal(result.keypoints, [[[50, 20, 0.5]]])
    assert result.columns["track_id"].tolist() == [7]
    assert result.masks.size == (100, 40)
    expected = np.zeros((40, 100), bool)
    expected[14:30, 46:78] = True
    np.testing.assert_array_equal(result.masks.numpy(), [expected])
    expected[12:28, 42:60] = True
    for kind in ("union", "weighted"):
        both = merge_views(parts, offsets, (100, 40), Merge(kind, "smaller", 0.5, False))
        np.testing.assert_array_equal(both.masks.numpy(), [expected])
        np.testing.assert_array_equal(both.keypoints, [[[50, 20, 0.5]]])


def test_a_part_without_boxes_may_have_no_columns() -> None:
    points = np.array([[[50, 20, 0.5]]], np.float32)
    one = view([[5, 12, 40, 32]], [0.8], keypoints=points, mask=np.ones((1, 40, 60), bool))
    for parts in ([view([], []), one, view([], [])], [one, view([], []), view([], [])]):
        offsets = [(40 * (part is one), 0) for part in parts]
        result = merge_views(parts, offsets, (100, 40), Merge("nms", "smaller", 0.5, False))
        np.testing.assert_array_equal(result.keypoints, np.float32([[[90, 20, 0.5]]]))
        assert [mask.box[0] for mask in result.masks] == [40]
        assert result.stats.kept == 1


def test_oriented_boxes_match_by_their_angles() -> None:
    """Three long boxes at 45 degrees, side by side: their enclosing boxes overlap, they do not."""
    centres = np.array([[100.0, 100], [114, 86], [128, 72]])
    turned = np.float32([[x, y, 160, 12, np.pi / 4] for x, y in centres])
    upright = np.concatenate([centres - 61, centres + 61], axis=1)
    part = view(upright, [0.9, 0.8, 0.7], (240, 200), oriented=turned)
    moved = view(upright - [40, 0, 40, 0], [0.6, 0.5, 0.4], (200, 200), oriented=turned - np.float32([40, 0, 0, 0, 0]))
    for match in ("smaller", "iou"):
        result = merge_views([part, moved], [(0, 0), (40, 0)], (240, 200), Merge("nms", match, 0.5, False))
        np.testing.assert_array_equal(result.oriented, turned)
    for kind in ("union", "weighted"):
        with pytest.raises(UnsupportedModelError, match=f"merge='{kind}' does not merge oriented boxes; use merge='n"):
            merge_views([part], [(0, 0)], (240, 200), Merge(kind, "smaller", 0.5, False))


def test_upright_boxes_around_oriented_ones_end_at_the_edges_of_the_image() -> None:
    """Two boxes reach over the edge of the first view; one of them reaches over that of the image, too."""
    turned = np.float32([[60, 20, 40, 10, 0], [60, 40, 40, 10, 0]])
    part = view([[40, 15, 60, 25], [40, 35, 60, 40]], [0.9, 0.8], oriented=turned)
    result = merge_views([part], [(0, 0)], (100, 40), Merge("nms", "smaller", 0.5, False))
    np.testing.assert_array_equal(result.xyxy, [[40, 15, 80, 25], [40, 35, 80, 40]])


def test_classes_stay_apart_unless_told() -> None:
    def one(class_id: int, score: float) -> Detections:
        return Detections.of([[0, 0, 10, 10]], [score], [class_id], names=("a", "b"), size=(20, 20))

    parts, offsets = [one(0, 0.5), one(1, 0.9)], [(0, 0), (0, 0)]
    assert len(merge_views(parts, offsets, (20, 20), Merge("nms", "smaller", 0.5, False))) == 2
    assert merge_views(parts, offsets, (20, 20), Merge("nms", "smaller", 0.5, True)).class_ids.tolist() == [1]


def test_no_boxes_at_all() -> None:
    empty = view(np.zeros((0, 4)), [], mask=np.zeros((0, 40, 60), bool))
    for kind in ("nms", "union", "weighted"):
        result = merge_views([empty, empty], [(0, 0), (40, 0)], (100, 40), Merge(kind, "smaller", 0.5, False))
        assert len(result) == 0
        assert result.masks.numpy().shape == (0, 40, 100)
