"""Results: indexing, columns, and how they go on to other programs."""

from __future__ import annotations

import gc
import io
import json
import pickle
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from infersdk.errors import ConfigError, InputError, OutputError, ShapeError
from infersdk.image import HostImage, read_image
from infersdk.models import (
    AnomalyMap,
    Classification,
    Classifications,
    ClassMap,
    Detection,
    Detections,
    Embedding,
    Matte,
)
from infersdk.ops import DetectStats

BOX = np.dtype([("xyxy", np.float32, (4,)), ("score", np.float32), ("class_id", np.int32)])
NAMES = ("person", "bus")


def boxes(count: int = 3, columns: Mapping[str, Any] | None = None) -> Detections:
    data = np.zeros(count, BOX)
    for i in range(count):
        data[i] = ((i * 10, 5, i * 10 + 8, 25.5), 0.9 - 0.25 * i, i % 3)
    return Detections(data, NAMES, (64, 48), DetectStats(count, 0, count, 0), columns or {})


def keypoints(count: int) -> np.ndarray[Any, Any]:
    return np.arange(count * 6, dtype=np.float32).reshape(count, 2, 3)


def classes() -> Classifications:
    return Classifications(np.array([1, 0, 5], np.int32), np.array([0.7, 0.2, 0.1], np.float32), NAMES)


# ---- indexing ----


def test_a_row_a_slice_a_mask_and_positions() -> None:
    found = boxes()
    assert found[0] == Detection((0.0, 5.0, 8.0, 25.5), pytest.approx(0.9), 0, "person")
    assert found[-1] == found[2] == found[np.int64(2)]
    assert found[2].label == "2", "a class without a name is called by its number"
    assert list(found) == [found[0], found[1], found[2]]
    for index, rows in (
        (slice(1, None), [1, 2]), (slice(None, None, -1), [2, 1, 0]), (found.scores > 0.5, [0, 1]),
        ([True, False, True], [0, 2]), ([2, 0], [2, 0]), (np.array([1, 1]), [1, 1]), ([], []), (np.array([-1]), [2]),
        (np.zeros(3, bool), []), (np.array([0], np.uint8), [0]),
    ):  # fmt: skip
        taken = found[index]
        assert type(taken) is Detections
        assert list(taken) == [found[i] for i in rows]
        assert (taken.size, taken.names, taken.stats) == (found.size, found.names, found.stats)
    for classified in (classes()[classes().scores > 0.15], classes()[:2], classes()[[0, 1]]):
        assert [row.label for row in classified] == ["bus", "person"]
        assert isinstance(classified, Classifications)


def test_tensors_of_pytorch_are_indices() -> None:
    torch = pytest.importorskip("torch")
    found = boxes()
    for index, rows in (([0], [0]), ([2, 0], [2, 0]), ([False, True, True], [1, 2])):
        taken = found[torch.tensor(index)]
        assert type(taken) is Detections
        assert list(taken) == [found[i] for i in rows]
    assert found[torch.tensor(1)] == found[np.array(1)] == found[1]
    with pytest.raises(ShapeError, match="a mask"):
        found[torch.tensor(True)]


@pytest.mark.parametrize(
    ("index", "error", "words"),
    [
        ([True, False], ShapeError, r"one value for each of 3 rows.*\(2,\)"),
        (np.ones((3, 1), bool), ShapeError, r"\(3, 1\)"),
        ([0.5], InputError, "mask of booleans or an array of positions"),
        ("label", InputError, "'label'"),
        (True, (ShapeError, InputError), "True|mask"),
        ([[0], [1]], InputError, "not"),
        (np.array(1.5), InputError, "not array"),
        (3, IndexError, "3"),
        ([7], IndexError, "7"),
    ],
)
def test_wrong_indices(index: Any, error: type[Exception] | tuple[type[Exception], ...], words: str) -> None:
    with pytest.raises(error, match=words):
        boxes()[index]


# ---- columns ----


def test_columns_go_with_their_boxes() -> None:
    points, numbers = keypoints(3), np.array([7, 8, 9])
    found = boxes(3, {"keypoints": points}).with_columns(track_id=numbers)
    taken = found[found.scores < 0.8][::-1]
    np.testing.assert_array_equal(taken.columns["keypoints"], points[[2, 1]])
    assert taken.columns["track_id"].tolist() == [9, 8]
    assert taken[0].columns["track_id"] == 9
    assert found[1].to_dict()["keypoints"] == points[1].tolist()
    assert found.to_dicts()[0]["track_id"] == 7
    assert "track_id" not in boxes().to_dicts()[0]
    with pytest.raises(ShapeError, match="'masks' has 2 rows for 3 boxes"):
        boxes(3, {"masks": np.zeros((2, 4, 4))})
    with pytest.raises(ShapeError, match="'track_id' has 1 rows"):
        found.with_columns(track_id=[1])
    with pytest.raises(InputError, match="'track_id' is of object; use whole numbers, -1 for boxes without one"):
        found.with_columns(track_id=[None, 1, 2])
    assert boxes(0).with_columns(track_id=[]).columns["track_id"].dtype == np.int64
    for single in (0.5, "hall", np.array(7)):
        with pytest.raises(ShapeError, match=r"'place' is .*one value for \d boxes; give one value for each box"):
            boxes(4).with_columns(place=single)


@pytest.mark.parametrize("name", ["xyxy", "score", "class_id", "label", "boxes", "labels", "class_name"])
def test_a_column_replaces_no_value_of_a_box(name: str) -> None:
    with pytest.raises(InputError, match=f"a column is called '{name}', as a value that every box has"):
        boxes(1).with_columns(**{name: [1]})


def test_lists_as_columns() -> None:
    vector = Embedding.of([3.0, 4.0])
    found = boxes(3).with_columns(speed=[1.5, 2.0, 4.0], second=[vector, classes(), None])
    for index in (found.scores < 0.8, [1, 2], slice(1, None)):
        taken = found[index].columns
        assert taken["speed"].tolist() == [2.0, 4.0]
        assert [type(one) for one in taken["second"]] == [Classifications, type(None)]
    assert found.to_tensors()["detection_speed"].dtype == np.float64


def test_columns_of_another_byte_order() -> None:
    found = boxes(2).with_columns(speed=np.array([1.5, 2.0], ">f4"))
    assert found.to_tensors()["detection_speed"].tolist() == [1.5, 2.0]
    (spec,) = [spec for spec in found.tensor_specs() if spec.name == "detection_speed"]
    assert spec.dtype == np.float32


class Labelled:
    """An array that is indexed by labels, as a pandas Series is."""

    def __init__(self, values: list[int]) -> None:
        self.values = dict(enumerate(values))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, label: Any) -> Any:
        return self.values[label] if isinstance(label, int) else Labelled([*self.values.values()][label])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array([*self.values.values()], dtype)


@pytest.mark.parametrize(
    "column", [Labelled([10, 11, 12]), range(10, 13), deque([10, 11, 12]), {"a": 10, "b": 11, "c": 12}.values()]
)
def test_columns_are_indexed_by_position(column: Any) -> None:
    found = boxes(3).with_columns(tag=column)
    assert [row.columns["tag"] for row in found[::-1]] == [12, 11, 10]
    assert [row["tag"] for row in found[found.scores < 0.8].to_dicts()] == [11, 12]
    assert found[[2, 0]].to_tensors()["detection_tag"].tolist() == [12, 10]


def test_columns_without_an_order_are_refused() -> None:
    for column in ({1, 2, 3}, {0: "a", 1: "b", 2: "c"}):
        with pytest.raises(InputError, match=rf"'tag' is a {type(column).__name__}, .*; give a list or an array of on"):
            boxes(3).with_columns(tag=column)


# ---- to other programs ----


def test_results_of_a_second_model_in_a_column() -> None:
    """As `TwoStage` makes them: vectors, classes, and the exception of a part that failed."""
    vector, known = Embedding.of([3.0, 4.0]), classes()
    found = boxes(3).with_columns(second=[vector, known, ValueError("not cut out")])
    rows = [row["second"] for row in json.loads(found.to_json(indent=2))]
    assert rows == [vector.to_dict(), known.to_dicts(), {"error": "not cut out"}]
    assert rows[0] == {"vector": vector.to_list(), "norm": 5.0}


def test_plain_data() -> None:
    found = boxes(2)
    rows = found.to_dicts()
    assert rows[0] == {
        "xyxy": [0.0, 5.0, 8.0, 25.5], "score": pytest.approx(0.9), "class_id": 0, "label": "person",
    }  # fmt: skip
    assert json.loads(classes().to_json())[0] == {"class_id": 1, "score": pytest.approx(0.7), "label": "bus"}
    text = found.to_json(indent=2)
    assert json.loads(text) == rows
    assert len(text.splitlines()) < 10 * len(found), "coordinates are on one line"
    nested = {"side": np.float32(0.5), "steps": [np.int64(1), np.arange(2)], "day": np.datetime64("2026-01-31")}
    row = found.with_columns(more=[nested, [np.bool_(True)]]).to_dicts()
    assert [one["more"] for one in row] == [{"side": 0.5, "steps": [1, [0, 1]], "day": "2026-01-31"}, [True]]
    assert json.loads(json.dumps(row)) == row


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_columns_of_times(unit: str) -> None:
    """pandas counts in nanoseconds, for which Python has no type."""
    moments = np.array(["2026-01-31T12:00", "NaT"], f"datetime64[{unit}]")
    found = boxes(2).with_columns(seen=moments, stays=moments - moments[0])
    assert [(row["seen"], row["stays"]) for row in found.to_dicts()] == [("2026-01-31T12:00:00", "P0D"), (None, None)]


@pytest.mark.parametrize(
    "column", [np.array([1, np.nan]), np.array([1, -np.inf]), np.array([1, 1j]), [1.0, b"x"], ["a", Path("a")]]
)
def test_a_column_that_json_cannot_hold_is_named(column: Any, tmp_path: Path) -> None:
    found = boxes(2, {"fine": [1, 2], "speed": column})
    said = r"'speed' of row \d cannot be written as JSON: .*; leave it out or convert it"
    for write in (found.to_json, lambda: found.to_json(indent=2), lambda: found.save(tmp_path / "a.json")):
        with pytest.raises(InputError, match=said):
            write()
    assert not any(tmp_path.iterdir())


def test_a_value_within_a_column_that_json_cannot_hold() -> None:
    with pytest.raises(InputError, match="a complex cannot be written as JSON"):
        boxes(2, {"speed": [[1j], [2]]}).to_json()


def test_coco() -> None:
    found = boxes(2)
    assert found.to_coco(17, [1, 6]) == [
        {"image_id": 17, "category_id": 1, "bbox": [0.0, 5.0, 8.0, 20.5], "score": pytest.approx(0.9)},
        {"image_id": 17, "category_id": 6, "bbox": [10.0, 5.0, 8.0, 20.5], "score": pytest.approx(0.65)},
    ]
    assert json.dumps(found.to_coco(image_id=1, category_ids={0: np.int64(3), 1: 4}))
    assert json.loads(json.dumps(found.to_coco(np.int64(3), [1, 6])))[0]["image_id"] == 3
    with pytest.raises(InputError, match=r"no category for class 1 \(bus\)"):
        found.to_coco(1, {0: 1})
    for wrong in ("1a", 1.9, None):
        with pytest.raises(InputError, match=rf"category_ids has {wrong!r} for class 0; give a whole number"):
            found.to_coco(1, [wrong, 6])
    nameless = Detections.of([[0, 0, 1, 1]], [0.5], [-1], names=NAMES, size=(64, 48))
    with pytest.raises(InputError, match="no category for class -1"):
        nameless.to_coco(1, [1, 6])
    assert nameless.to_coco(1, {-1: 9})[0]["category_id"] == 9


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickling(protocol: int) -> None:
    pixels = np.zeros((48, 64, 3), np.uint8)
    found = boxes(3, {"keypoints": keypoints(3)}).with_image(pixels)
    again = pickle.loads(pickle.dumps(found, protocol))
    assert again.to_dicts() == found.to_dicts()
    assert (again.size, again.stats) == (found.size, found.stats)
    assert len(pickle.dumps(found, protocol)) < pixels.nbytes, "the pixels do not travel"
    assert pickle.loads(pickle.dumps(found[0], protocol)) == found[0]
    assert pickle.loads(pickle.dumps(classes(), protocol)).to_dicts() == classes().to_dicts()


def test_short_reprs() -> None:
    assert repr(boxes(4)) == "<Detections: 2 person, 1 bus, 1 2 in 64 x 48>"
    assert repr(boxes(0)) == "<Detections: nothing in 64 x 48>"
    assert len(repr(boxes(1000))) < 100
    assert repr(classes()) == "<Classifications: bus 0.700, person 0.200, 5 0.100>"
    assert "array" not in repr(boxes(2, {"masks": np.zeros((2, 9, 9))})[0])


def test_a_class_without_a_name_is_called_by_its_number() -> None:
    found = Detections.of(np.zeros((3, 4)), [0.5] * 3, [0, 2, -1], names=("person", "bus"), size=(64, 48))
    assert found.labels == [row.label for row in found] == ["person", "2", "-1"]


# ---- images ----


def test_images_that_a_result_knows(tmp_path: Path) -> None:
    found, pixels = boxes(2), np.full((48, 64, 3), 255, np.uint8)
    drawn = found.draw(pixels)
    assert found.with_image(pixels)[:1].draw().tobytes() != drawn.tobytes()
    rgb = found.with_image(HostImage(pixels, "rgb"))
    assert rgb.draw().tobytes() == drawn.tobytes()
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert found.with_image(tmp_path / "a.png").draw().tobytes() == drawn.tobytes()
    assert pickle.loads(pickle.dumps(found.with_image(tmp_path / "a.png"))).draw().tobytes() == drawn.tobytes()
    assert found.with_image(io.BytesIO(b"")).image is None
    assert found.with_image(b"bytes").image is None


def test_an_image_of_another_size_is_not_drawn_on() -> None:
    pixels = np.zeros((48, 63, 3), np.uint8)
    values = np.zeros((48, 64), np.float32)
    for found in (
        boxes(2),
        AnomalyMap(values, 0.5, None, None),
        Matte(values),
        ClassMap(values.astype(np.uint8), NAMES),
    ):
        with pytest.raises(InputError, match=rf"has 63 x 48 pixels, and the {type(found).__name__} 64 x 48"):
            found.draw(pixels)
        assert found.draw(np.zeros((48, 64, 3), np.uint8)).size == (64, 48)
    assert classes().draw(pixels).size == (63, 48)


def test_notebooks_show_results_over_grey_where_the_image_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    Image.new("RGB", (64, 48), "white").save(file)
    found = boxes(2).with_image(file)
    shown, expected = found._repr_png_(), boxes(2)._repr_png_()
    assert shown is not None
    assert Image.open(io.BytesIO(shown)).tobytes() == found.draw().tobytes()
    Image.new("RGB", (300, 200)).save(file)
    assert found._repr_png_() == expected
    file.unlink()
    assert found._repr_png_() == expected
    assert classes().with_image(file)._repr_png_() is None


def test_an_image_of_a_reduced_size_is_drawn_at_its_own_size() -> None:
    file = io.BytesIO()
    Image.new("RGB", (64, 48), "white").save(file, "JPEG")
    reduced = read_image(file.getvalue(), at_least=lambda size: (32, 24))
    assert reduced.pixel_size == (32, 24)
    assert boxes(2).draw(reduced).size == (64, 48)
    assert boxes(2).with_image(reduced).image is None


def test_a_result_does_not_keep_its_image_alive() -> None:
    pixels = np.zeros((48, 64, 3), np.uint8)
    found = boxes(2).with_image(pixels)
    del pixels
    gc.collect()
    with pytest.raises(InputError, match="not known"):
        found.draw()
    assert Image.open(io.BytesIO(found._repr_png_())).size == (64, 48)


def test_saving(tmp_path: Path) -> None:
    found, pixels = boxes(2), np.zeros((48, 64, 3), np.uint8)
    assert Image.open(found.save(tmp_path / "new" / "out.jpg", image=pixels)).format == "JPEG"
    assert Image.open(found.with_image(pixels).save(tmp_path / "out.png")).format == "PNG"
    assert json.loads(classes().save(str(tmp_path / "c.json")).read_text()) == classes().to_dicts()
    with pytest.raises(OutputError, match=r"out\.xyz.*unknown file extension; use \.json, or that of an image"):
        found.save(tmp_path / "out.xyz")
    with pytest.raises(InputError, match="give it"):
        found.save(tmp_path / "none.png")
    assert {path.name for path in tmp_path.iterdir()} == {"new", "out.png", "c.json"}


def test_equality_of_rows_does_not_ask_the_columns() -> None:
    row = boxes(1, {"keypoints": keypoints(1)})[0]
    assert row == boxes(1)[0]
    assert hash(row) == hash(boxes(1)[0])
    assert Classification(1, 0.5, "a") == Classification(1, 0.5, "a")


@pytest.mark.parametrize(
    ("xyxy", "scores", "class_ids", "error", "words"),
    [
        (np.zeros((4, 2)), [0.5, 0.4], None, ShapeError, r"xyxy has shape \(4, 2\), .*; use \(N, 4\), \(N,\) and"),
        (np.zeros((1, 3)), [0.5], None, ShapeError, r"xyxy has shape \(1, 3\)"),
        (np.zeros(4), [0.5], None, ShapeError, r"xyxy has shape \(4,\)"),
        (np.zeros((2, 4)), [[0.5], [0.4]], None, ShapeError, r"scores \(2, 1\)"),
        (np.zeros((2, 4)), [0.5, 0.4], [1], ShapeError, r"class_ids \(1,\)"),
        ([[0, 0, 1, 1], [0, 0, np.nan, 1]], [0.5, 0.4], None, InputError, "box 1 of 2 has the edges .*; leave out"),
        (np.zeros((1, 4)), [np.inf], None, InputError, "box 0 of 1 has .* and the score inf"),
        ([[0, 0, 1, 1], [0, 0]], [0.5, 0.4], None, InputError, "xyxy cannot be read as an array of numbers"),
        ("abcd", [0.5], None, InputError, "xyxy are of <U4, 'abcd' for example; give numbers"),
        ([["1", "1", "2", "2"]], [0.5], None, InputError, "xyxy are of <U1, .*; give numbers"),
        (np.zeros((1, 4)), ["0.5"], None, InputError, r"scores are of <U3, \['0.5'\] for example; give numbers"),
        (np.zeros((1, 4)), [0.5 + 1j], None, InputError, "scores are of complex128"),
        (np.zeros((1, 4)), [object()], None, InputError, "scores cannot be read as an array of numbers"),
        (np.zeros((1, 4)), [0.5], ["a"], InputError, r"class_ids are of <U1, \['a'\]"),
        (np.zeros((1, 4)), [0.5], [None], InputError, "class_ids are of object"),
        (np.zeros((2, 4)), [0.5, 0.4], [[1], [1, 2]], InputError, "class_ids cannot be read as an array of numbers"),
    ],
)
def test_arrays_that_are_no_boxes(xyxy: Any, scores: Any, class_ids: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Detections.of(xyxy, scores, class_ids, names=NAMES, size=(64, 48))


@pytest.mark.parametrize("size", [[64, 48], np.array([64, 48]), (np.int32(64), 48)])
def test_sizes_of_any_whole_numbers(size: Any) -> None:
    found = Detections.of([[0, 0, 1, 1]], [0.5], names=NAMES, size=size, mask=np.ones((1, 48, 64), bool))
    assert found.size == (64, 48)
    assert all(type(side) is int for side in found.size)


@pytest.mark.parametrize("size", [None, 64, (64,), (64, 48, 3), (float("nan"), 48), ("a", "b"), (0, 48)])
def test_sizes_that_are_none(size: Any) -> None:
    with pytest.raises(InputError, match=r"^size is .*; give \(width, height\) of the image, in whole pixels"):
        Detections.of([[0, 0, 1, 1]], [0.5], names=NAMES, size=size)


@pytest.mark.parametrize("names", [None, "person", 3, {17: "cat"}, {"cat"}])
def test_names_that_are_no_list(names: Any) -> None:
    for make in (
        lambda: Detections.of([[0, 0, 1, 1]], [0.5], names=names, size=(64, 48)),
        lambda: Classifications(np.zeros(1, np.int32), np.ones(1, np.float32), names),
        lambda: ClassMap(np.zeros((4, 4), np.uint8), names),
    ):
        with pytest.raises(InputError, match=f"^names is {names!r}; give a list of the class names"):
            make()


@pytest.mark.parametrize("empty", [[], np.zeros((0, 4)), np.zeros((4, 0))])
def test_no_boxes_at_all(empty: Any) -> None:
    assert Detections.of(empty, [], names=NAMES, size=(64, 48)).xyxy.shape == (0, 4)


def test_columns_of_no_boxes() -> None:
    found = Detections.of([], [], names=NAMES, size=(64, 48), mask=[], oriented=[], track_id=[])
    assert found.masks.numpy().shape == (0, 48, 64)
    assert found.corners.shape == (0, 4, 2)
    with pytest.raises(ShapeError, match=r"'keypoints' has shape \(0,\); use .* \(0, points, 2 or 3\) for no"):
        Detections.of([], [], names=NAMES, size=(64, 48), keypoints=[])
    with pytest.raises(ShapeError, match="'mask' has masks of 8 x 9 for an image of 64 x 48"):
        Detections.of([], [], names=NAMES, size=(64, 48), mask=np.zeros((0, 9, 8)))
    with pytest.raises(InputError, match="keypoints cannot be read as an array of numbers"):
        boxes(2, {"keypoints": [[[0, 1]], [[2]]]})


@pytest.mark.parametrize("number", [1.7, float("nan"), 2**40])
def test_class_ids_are_whole_numbers(number: float) -> None:
    def made(class_ids: Any) -> Detections:
        return Detections.of([[0, 0, 1, 1]], [0.5], class_ids, names=["a", "b"], size=(4, 4))

    assert made([1.0]).labels == ["b"]
    with pytest.raises(InputError, match=r"class_ids contain .*whole numbers"):
        made([number])


def test_classes_of_one_name() -> None:
    found = ClassMap(np.array([[0, 1], [2, 1]], np.uint8), ["road", "other", "other"])
    assert found.areas == {"other": 0.75, "road": 0.25}
    assert found.area("other") == 0.75
    assert found.mask("other").tolist() == [[False, True], [True, True]]
    assert found.area(2) == 0.25


def test_the_area_of_a_class_without_a_name() -> None:
    found = ClassMap(np.array([[0, 5], [5, 5]], np.uint8), ["road"])
    assert found.area(5) == 0.75
    assert found.mask(5).sum() == 3
    assert ClassMap(found.class_ids, ()).area(7) == 0
    for number in (7, 300, -1):
        for method in (found.area, found.mask):
            with pytest.raises(ConfigError, match=f"no class number {number}; use those that it has, from 0 to 5"):
                method(number)


@pytest.mark.parametrize("wrong", [None, 1.0, [0, 1], np.float32(1)])
def test_what_is_no_class(wrong: Any) -> None:
    found = ClassMap(np.array([[0, 1]], np.uint8), ["road", "car"])
    for method in (found.area, found.mask):
        with pytest.raises(ConfigError, match="a class is a name or a whole number, not "):
            method(wrong)


def test_numbers_of_numpy_choose_a_class() -> None:
    found = ClassMap(np.array([[0, 1], [1, 1]], np.uint8), ["road", "car"])
    for number in np.unique(found.class_ids):
        assert found.area(number) == found.area(int(number))
        assert found.mask(number).sum() == found.counts[number]
    with pytest.raises(ConfigError, match="no class number 9; use those that it has, from 0 to 1"):
        found.mask(np.int64(9))
