"""Zones and lines against supervision's, on objects that walk at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from infersdk.errors import ConfigError, InputError
from infersdk.models import Detections, Line, Zone

SIZE = (640, 480)
ANCHORS = [
    "center", "top_left", "top_center", "top_right", "center_left", "center_right", "bottom_left", "bottom_center",
    "bottom_right",
]  # fmt: skip
POLYGONS = {
    "triangle": [(100, 80), (500, 120), (300, 400)],
    "concave": [(60, 60), (560, 60), (560, 420), (320, 200), (60, 420)],
    "crossing edges": [(100, 100), (500, 400), (500, 100), (100, 400)],
}


def tracked(xyxy: Any, numbers: Any) -> Detections:
    xyxy = np.asarray(xyxy, np.float32).reshape(-1, 4)
    return Detections.of(xyxy, np.full(len(xyxy), 0.9), names=("person",), size=SIZE, track_id=np.asarray(numbers))


def walk(seed: int, frames: int = 200, objects: int = 12) -> list[Detections]:
    """Objects that turn often, are sometimes not found, and sometimes have no number."""
    random = np.random.default_rng(seed)
    place, velocity = random.uniform(0, 1, (objects, 2)) * SIZE, random.normal(0, 6, (objects, 2))
    made = []
    for _ in range(frames):
        velocity += random.normal(0, 2, (objects, 2))
        velocity *= np.where((place < 40) | (place > np.array(SIZE) - 40), -1, 0.98)
        place = np.clip(place + velocity, 0, SIZE)
        found = random.random(objects) < 0.8
        numbers = np.where(random.random(objects) < 0.05, -1, np.arange(objects))
        corners = np.concatenate([place - np.array((15, 30)), place + np.array((15, 30))], axis=1)
        made.append(tracked(corners[found], numbers[found]))
    return made


def positions(supervision: Any, names: list[str]) -> list[Any]:
    return [supervision.Position[name.upper()] for name in names]


# ---- zones ----


@pytest.mark.parametrize("polygon", POLYGONS)
@pytest.mark.parametrize("anchors", [[name] for name in ANCHORS] + [["top_left", "bottom_right"]], ids="+".join)
@pytest.mark.parametrize("require_all", [True, False])
def test_boxes_in_a_zone(polygon: str, anchors: list[str], require_all: bool) -> None:
    """As supervision, which rounds to pixels, except within a pixel of an edge."""
    supervision = pytest.importorskip("supervision")
    corners = np.array(POLYGONS[polygon])
    zone = Zone(corners, anchors=anchors, require_all=require_all)
    theirs = supervision.PolygonZone(corners, positions(supervision, anchors), require_all_anchors=require_all)
    compared = inside = 0
    for found in walk(1, frames=40):
        other = found.to_supervision()
        points = np.array([other.get_anchors_coordinates(anchor) for anchor in theirs.triggering_anchors])
        clear = (distance_to_edges(points, corners) > 1).all(axis=0)
        own = zone.contains(found)
        np.testing.assert_array_equal(own[clear], theirs.trigger(other)[clear])
        assert zone.count_in(found) == own.sum()
        compared, inside = compared + clear.sum(), inside + own.sum()
    assert compared > 300
    assert 0 < inside < compared


def distance_to_edges(points: Any, corners: Any) -> Any:
    """(anchors, N): the distance of each point to the nearest edge."""
    edges = np.roll(corners, -1, axis=0) - corners
    offsets = points[..., None, :] - corners
    along = np.clip((offsets * edges).sum(-1) / (edges**2).sum(-1), 0, 1)
    return np.linalg.norm(offsets - along[..., None] * edges, axis=-1).min(axis=-1)


def test_edges_belong_to_a_zone() -> None:
    zone = Zone([(10, 10), (30, 10), (30, 30), (10, 30)], anchors=["top_left"])
    corners = [(10, 10), (30, 30), (20, 10), (30, 20), (10, 20), (20, 30), (9.9, 20), (20, 30.1)]
    found = tracked([(x, y, x + 5, y + 5) for x, y in corners], range(8))
    assert zone.contains(found).tolist() == [True] * 6 + [False] * 2


def test_a_frame_without_boxes() -> None:
    zone, nothing = Zone(POLYGONS["triangle"]), tracked([], [])
    assert zone.contains(nothing).shape == zone.time_in(nothing, 0.0).shape == (0,)
    assert zone.count_in(nothing) == 0
    assert [went.shape for went in Line((0, 0), (9, 9)).crossed(nothing)] == [(0,), (0,)]


def test_times_in_a_zone() -> None:
    """As the timers of supervision's examples: since the first frame in the zone."""
    zone, begins = Zone(POLYGONS["triangle"], anchors=["center"]), dict[int, float]()
    longest = 0.0
    for frame, found in enumerate(walk(2)):
        time = frame / 25
        inside = zone.contains(found)
        seconds = zone.time_in(found, time)
        for number, is_inside, spent in zip(found.columns["track_id"], inside, seconds, strict=True):
            if is_inside and number >= 0:
                assert spent == time - begins.setdefault(number, time)
            else:
                assert np.isnan(spent)
        longest = max(longest, np.nanmax(seconds, initial=0))
    assert longest > 2


def test_a_long_absence_begins_a_new_time() -> None:
    zone = Zone([(0, 0), (100, 0), (100, 100), (0, 100)], max_absence=5)
    inside, outside = tracked([(10, 10, 20, 20)], [3]), tracked([(200, 10, 220, 20)], [3])
    assert zone.time_in(inside, 0.0).tolist() == [0]
    assert np.isnan(zone.time_in(outside, 4.0)).all()
    assert zone.time_in(inside, 5.0).tolist() == [5]
    zone.time_in(outside, 9.0)
    assert zone.time_in(inside, 10.5).tolist() == [0]
    assert zone.time_in(inside, 12.5).tolist() == [2]
    zone.reset()
    assert zone.time_in(inside, 1.0).tolist() == [0]
    with pytest.raises(InputError, match=r"0\.5 s after one at 1\.0 s"):
        zone.time_in(inside, 0.5)
    with pytest.raises(InputError, match="a frame at None s after"):
        zone.time_in(inside, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("time", [np.inf, -np.inf, np.nan])
def test_a_time_that_is_not_finite(time: float) -> None:
    zone = Zone([(0, 0), (100, 0), (100, 100), (0, 100)])
    with pytest.raises(InputError, match=f"a frame at {time} s .*; pass finite times in order"):
        zone.time_in(tracked([(10, 10, 20, 20)], [3]), time)


@pytest.mark.parametrize("max_absence", [0, 1.0, 3.0])
def test_frames_further_apart_than_the_longest_absence(max_absence: float) -> None:
    zone = Zone([(0, 0), (100, 0), (100, 100), (0, 100)], max_absence=max_absence)
    inside, outside = tracked([(10, 10, 20, 20)], [3]), tracked([(200, 10, 220, 20)], [3])
    assert [zone.time_in(inside, time).item() for time in (0.0, 2.0, 4.0, 6.0)] == [0, 2, 4, 6]
    zone.time_in(outside, 8.0)
    assert zone.time_in(inside, 10.0).tolist() == [0]


# ---- lines ----


@pytest.mark.parametrize("anchors", [None, ["center"], ["bottom_center"], ["top_left", "bottom_right"]], ids=str)
@pytest.mark.parametrize("min_frames", [1, 2, 4])
@pytest.mark.parametrize(
    ("start", "end"), [((320, 480), (320, 0)), ((100, 240), (540, 240)), ((500, 90), (130, 400))], ids=str
)
def test_objects_that_cross(start: Any, end: Any, min_frames: int, anchors: list[str] | None) -> None:
    supervision = pytest.importorskip("supervision")
    line = Line(start, end, min_frames=min_frames, **({"anchors": anchors} if anchors else {}))
    theirs = supervision.LineZone(
        supervision.Point(*start), supervision.Point(*end), minimum_crossing_threshold=min_frames,
        **({"triggering_anchors": positions(supervision, anchors)} if anchors else {}),
    )  # fmt: skip
    for found in walk(3, frames=400):
        for own, other in zip(line.crossed(found), theirs.trigger(found.to_supervision()), strict=True):
            np.testing.assert_array_equal(own, other)
    assert (line.in_count, line.out_count) == (theirs.in_count, theirs.out_count)
    assert min(line.in_count, line.out_count) > 3


def test_directions_of_a_line() -> None:
    """On the way from start to end, in is from the right to the left."""
    line = Line((50, 100), (50, 0), anchors=["center"])
    left, right = tracked([(10, 40, 30, 60)], [7]), tracked([(70, 40, 90, 60)], [7])
    assert [went.tolist() for went in line.crossed(right)] == [[False], [False]]
    assert [went.tolist() for went in line.crossed(left)] == [[True], [False]]
    assert [went.tolist() for went in line.crossed(right)] == [[False], [True]]
    assert (line.in_count, line.out_count) == (1, 1)
    line.reset()
    assert [went.tolist() for went in line.crossed(left)] == [[False], [False]]
    assert (line.in_count, line.out_count) == (0, 0)


def test_an_object_on_the_line_is_on_no_side() -> None:
    line = Line((50, 100), (50, 0), anchors=["center"])
    left, on, right = (tracked([(x, 40, x + 20, 60)], [7]) for x in (10, 40, 70))
    for found in (on, left, on, left, on, right, on, right):
        line.crossed(found)
    assert (line.in_count, line.out_count) == (0, 1)


def test_a_share_of_the_frame_rate_as_the_minimum_of_frames() -> None:
    line = Line((50, 100), (50, 0), anchors=["center"], min_frames=0.1 * 25)
    left, right = tracked([(10, 40, 30, 60)], [7]), tracked([(70, 40, 90, 60)], [7])
    line.crossed(right)
    assert [line.crossed(left)[0].item() for _ in range(4)] == [False, False, True, False]


# ---- errors ----


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Zone([(0, 0), (1, 1)]), r"shape \(2, 2\)"),
        (lambda: Zone([(0, 0), (1, 1), (np.nan, 3)]), "finite"),
        (lambda: Zone([(0, 0), (1, 1, 2), (0, 3)]), r"a polygon is made of points \(x, y\)"),
        (lambda: Zone(POLYGONS["triangle"], anchors=["middle"]), "'middle'"),
        (lambda: Zone(POLYGONS["triangle"], anchors=[]), "use a list of"),
        (lambda: Zone(POLYGONS["triangle"], anchors="center"), "use a list of"),
        (lambda: Zone(POLYGONS["triangle"], anchors=[["center"]]), "use a list of"),  # type: ignore[list-item]
        (lambda: Zone(POLYGONS["triangle"], anchors=5), "use a list of"),  # type: ignore[arg-type]
        (lambda: Zone(POLYGONS["triangle"], max_absence=-1), "max_absence=-1"),
        (lambda: Zone(POLYGONS["triangle"], max_absence="x"), "max_absence='x'; use 0 or"),  # type: ignore[arg-type]
        (lambda: Zone(POLYGONS["triangle"], max_absence=None), "max_absence=None"),  # type: ignore[arg-type]
        (lambda: Line((1, 2), (1, 2)), "two different points"),
        (lambda: Line((1, 2), (np.inf, 2)), "two different points"),
        (lambda: Line("door", (1, 2)), r"a line is made of points \(x, y\)"),  # type: ignore[arg-type]
        (lambda: Line((1, 2), (3, 4), min_frames=0), "min_frames=0"),
        (lambda: Line((1, 2), (3, 4), min_frames=np.nan), "min_frames=nan"),
        (lambda: Line((1, 2), (3, 4), min_frames="x"), "min_frames='x'; use 1 or"),  # type: ignore[arg-type]
        (lambda: Line((1, 2), (3, 4), min_frames=None), "min_frames=None"),  # type: ignore[arg-type]
    ],
)
def test_wrong_zones_and_lines(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_boxes_without_numbers() -> None:
    found = Detections.of([(0, 0, 9, 9)], [0.9], names=(), size=SIZE)
    assert Zone(POLYGONS["triangle"]).count_in(found) == 0
    with pytest.raises(InputError, match=r"Tracker\.update"):
        Line((0, 0), (9, 9)).crossed(found)
    with pytest.raises(InputError, match=r"Tracker\.update"):
        Zone(POLYGONS["triangle"]).time_in(found, 0.0)


@pytest.mark.parametrize("wrong", [[], "frame.jpg", None])
def test_anything_but_detections_is_refused(wrong: Any) -> None:
    zone = Zone(POLYGONS["triangle"])
    for method in (zone.count_in, zone.contains, lambda found: zone.time_in(found, 0.0), Line((0, 0), (9, 9)).crossed):
        with pytest.raises(InputError, match=r"is not the Detections of one frame; pass model\(frame\)"):
            method(wrong)


def test_detections_of_supervision_are_refused() -> None:
    pytest.importorskip("supervision")
    found = Detections.of([(0, 0, 9, 9)], [0.9], names=(), size=SIZE).to_supervision()
    with pytest.raises(InputError, match=r"before to_supervision\(\)"):
        Zone(POLYGONS["triangle"]).count_in(found)
