"""The forms of every result type, and of a type that defines nothing but its rows."""

from __future__ import annotations

import dataclasses
import io
import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from infersdk import models
from infersdk.errors import ConfigError, InputError, UnsupportedModelError
from infersdk.models import (
    AnomalyMap,
    Classifications,
    ClassMap,
    ClassMaps,
    DepthMap,
    Detections,
    Embedding,
    GroupResult,
    ImageResult,
    Matte,
    Result,
    ResultTensor,
    Rows,
    TextLine,
    TextLines,
)

SIZE = (40, 30)
IMAGE = np.full((30, 40, 3), 90, np.uint8)
#: 0 to 1 from left to right.
RAMP = np.tile(np.linspace(0, 1, SIZE[0], dtype=np.float32), (SIZE[1], 1))


def boxes(*rows: tuple[int, float, float], **columns: Any) -> Detections:
    """Boxes of 10 x 10 by class, score, and how far to the right they are."""
    xyxy = [(x, 12, x + 10, 22) for _, _, x in rows]
    scores, class_ids = [row[1] for row in rows], [row[0] for row in rows]
    return Detections.of(xyxy, scores, class_ids, names=["cat", "dog"], size=SIZE, **columns)


def area(*classes: int) -> ClassMap:
    """Stripes of the same width."""
    row = np.repeat(np.array(classes, np.uint8), SIZE[0] // len(classes))
    return ClassMap(np.tile(row, (SIZE[1], 1)), ["road", "car"], background=0)


def lines(*texts: tuple[str, float]) -> TextLines:
    polygons = [np.array([(2, y), (30, y), (30, y + 8), (2, y + 8)], np.float32) for y in range(2, 30, 10)]
    return TextLines([TextLine(text, score, polygons[i]) for i, (text, score) in enumerate(texts)], SIZE)


def best(*rows: tuple[int, float]) -> Classifications:
    class_ids, scores = np.array(rows).T
    return Classifications(class_ids.astype(np.int32), scores.astype(np.float32), ["cat", "dog", "cow"])


RESULTS: list[Result] = [
    boxes((0, 0.9, 3.0), (1, 0.5, 20.0), mask=np.ones((2, 30, 40), bool), keypoints=np.ones((2, 3, 2))),
    best((2, 0.75), (0, 0.25)),
    area(0, 1),
    ClassMaps({"area": area(0, 1), "lanes": area(1, 0)}),
    Embedding.of([3.0, 4.0]),
    lines(("hello", 0.9), ("world", 0.8)),
    DepthMap(RAMP),
    AnomalyMap(RAMP, 0.7, True, RAMP > 0.5),
    Matte(RAMP),
    ImageResult(IMAGE + 60),
    GroupResult(("a", "b"), {"a": boxes((0, 0.9, 3.0))}, {"b": ValueError("no network")}),
]
#: Results that are not drawn, and that have no measure of agreement.
NOT_DRAWN, NOT_COMPARED = {Embedding}, {GroupResult}
#: Results that are drawn without the image that they were made of.
DRAWN_ALONE = {ImageResult}


@dataclass(frozen=True)
class Height(Result):
    """A result type of a user, with its rows alone."""

    metres: float

    def to_dicts(self) -> list[dict[str, Any]]:
        return [{"metres": self.metres}]


@dataclass(frozen=True, slots=True, eq=False)
class Heights(Height):
    """The same with a tensor and a drawing."""

    grid: npt.NDArray[np.float32]

    def _tensors(self) -> dict[str, ResultTensor]:
        return {
            "heights": ResultTensor(lambda: self.grid, 2, -1.0),
            "top": ResultTensor(lambda: np.float32(self.metres)),
        }

    def _drawn(self, pil: Image.Image) -> Image.Image:
        pil.paste((255, 0, 0), (0, 0, 5, 5))
        return pil


EVERY = [*RESULTS, Height(3.0), Heights(3.0, np.zeros((2, 2), np.float32))]
ids = [type(result).__name__ for result in EVERY]


def test_no_type_is_left_out() -> None:
    types = {getattr(models, name) for name in models.__all__ if isinstance(getattr(models, name), type)}
    concrete = {kind for kind in types if issubclass(kind, Result) and not kind.__abstractmethods__}
    assert {kind.__name__ for kind in concrete} <= {type(result).__name__ for result in RESULTS}


@pytest.mark.parametrize("result", EVERY, ids=ids)
def test_plain_data_text_and_files(result: Result, tmp_path: Path) -> None:
    rows = result.to_dicts()
    assert json.loads(json.dumps(rows)) == rows == json.loads(result.to_json())
    assert json.loads(result.save(tmp_path / "a.json").read_text("utf-8")) == rows
    assert result.summary().strip()
    assert all(line.strip() for line in result.summary().splitlines())


@pytest.mark.parametrize("result", EVERY, ids=ids)
def test_tensors_are_as_their_specification(result: Result) -> None:
    specs, tensors = result.tensor_specs(), result.to_tensors()
    assert [spec.name for spec in specs] == list(tensors)
    for name, dtype, shape, _ in specs:
        array = tensors[name]
        assert array.dtype == dtype
        assert len(shape) == array.ndim
        assert all(side in (-1, real) for side, real in zip(shape, array.shape, strict=True))
        np.testing.assert_array_equal(result.to_tensors([name])[name], array)
    with pytest.raises(InputError, match=f"{type(result).__name__} has no array 'nope'; it has {specs[0].name}"):
        result.to_tensors([specs[0].name, "nope"])


@pytest.mark.parametrize("result", EVERY, ids=ids)
def test_pickles_and_copies(result: Result, tmp_path: Path) -> None:
    Image.fromarray(IMAGE).save(tmp_path / "a.png")
    for known in (result, result.with_image(tmp_path / "a.png")):
        twin = pickle.loads(pickle.dumps(known))
        assert type(twin) is type(result)
        assert twin.to_json() == result.to_json()
        assert (twin.image is None) == (known.image is None)


@pytest.mark.parametrize("result", EVERY, ids=ids)
def test_drawing(result: Result, tmp_path: Path) -> None:
    known = result.with_image(IMAGE)
    if type(result) in NOT_DRAWN | {Height}:
        with pytest.raises(UnsupportedModelError, match=r"not drawn; use to_dicts\(\)"):
            known.draw()
        with pytest.raises(ConfigError, match=r"saved as JSON; use a name such as out.json"):
            known.save(tmp_path / "a.png")
        assert known._repr_png_() is None
        return
    if type(result) not in DRAWN_ALONE:
        with pytest.raises(InputError, match=r"give it: draw\(image\)"):
            result.draw()
    drawn = known.draw()
    assert drawn.size == SIZE
    assert (np.asarray(drawn) != 90).any()
    assert drawn.tobytes() == result.draw(IMAGE).tobytes() == result.draw(IMAGE, channel_order="rgb").tobytes()
    assert Image.open(result.save(tmp_path / "a.png", IMAGE)).tobytes() == drawn.tobytes()
    with pytest.raises(ConfigError, match=r"'a' has no suffix.*out\.png"):
        result.save("a", IMAGE)
    png = known._repr_png_()
    assert png is not None
    assert Image.open(io.BytesIO(png)).tobytes() == drawn.tobytes()


@pytest.mark.parametrize("result", EVERY, ids=ids)
def test_attributes_are_fixed(result: Result) -> None:
    for one in (result, *(result[:1] if isinstance(result, Rows) else ())):
        for name in (dataclasses.fields(one)[0].name, "summary", "note"):
            with pytest.raises(dataclasses.FrozenInstanceError, match=name):
                setattr(one, name, None)
            with pytest.raises(dataclasses.FrozenInstanceError, match=name):
                delattr(one, name)


@pytest.mark.parametrize("result", RESULTS, ids=ids[: len(RESULTS)])
def test_a_result_equals_itself_alone(result: Result) -> None:
    twin = pickle.loads(pickle.dumps(result))
    assert result != twin
    assert len({result, result, twin}) == 2


def test_lines_of_text_are_compared_by_their_text_and_scores() -> None:
    row, twin = lines(("hello", 0.9))[0], lines(("hello", 0.9))[0]
    assert row == twin != lines(("hello", 0.8))[0]
    assert hash(row) == hash(twin)


# ---- agreement ----


@pytest.mark.parametrize("result", RESULTS, ids=ids[: len(RESULTS)])
def test_a_result_agrees_with_itself(result: Result) -> None:
    if type(result) in NOT_COMPARED:
        with pytest.raises(UnsupportedModelError, match=r"no measure of agreement; compare their to_dicts\(\)"):
            result.agreement(result)
        return
    same = result.agreement(result)
    assert same.percent == pytest.approx(100)
    assert same.score_shift == 0
    with pytest.raises(InputError, match=r"Height cannot be compared with"):
        result.agreement(Height(1.0))


@pytest.mark.parametrize(
    ("both", "weaker", "percent"),
    [
        (boxes((0, 0.95, 3.0), (1, 0.5, 20.0)), boxes((0, 0.55, 3.0), (1, 0.5, 20.0)), 100 * 1.1 / 1.5),
        (lines(("hello", 0.95), ("world", 0.5)), lines(("hello", 0.55), ("world", 0.5)), 100),
    ],
    ids=["Detections", "TextLines"],
)
def test_rows_below_the_minimum_score_count_only_where_they_match(both: Result, weaker: Result, percent: float) -> None:
    assert both.agreement(both, min_score=0.9).percent == pytest.approx(100)
    assert both.agreement(weaker, min_score=0.9).percent == pytest.approx(percent)


@pytest.mark.parametrize(
    ("after", "shift"),
    [
        (best((1, 0.3), (0, 0.25)), -0.05),
        (best((1, 0.3), (2, 0.28)), -0.02),  # 0 has at most the score of 2
        (best((1, 0.6), (2, 0.3)), -0.2),  # 0 has at most the rest
        (best((1, 0.9), (2, 0.8)), -0.3),  # these are not probabilities
        (best((1, 0.9))[:0], -0.3),
    ],
)
def test_the_shift_of_a_best_class_that_is_no_longer_among_the_best(after: Result, shift: float) -> None:
    assert best((0, 0.3), (1, 0.28)).agreement(after).score_shift == pytest.approx(shift)


def test_boxes_without_area_agree_with_equal_ones() -> None:
    xyxy = [[5, 5, 5, 5], [2, 3, 9, 3], [1, 1, 8, 8]]
    flat, other = (Detections.of(edges, [0.9, 0.8, 0.7], names=["cat"], size=SIZE) for edges in (xyxy, xyxy[::-1]))
    assert flat.agreement(flat).percent == pytest.approx(100)
    assert flat.agreement(other).percent == pytest.approx(100 * (0.7 + 0.8 + 0.7) / 2.4)
    assert flat[:1].agreement(flat[1:2]).percent == 0


def test_agreement_of_maps() -> None:
    assert area(0, 1, 1, 0).agreement(area(0, 0, 1, 1)).percent == pytest.approx(100 / 3), "IoU 1 of 3 for both"
    assert area(0, 0).agreement(area(1, 1)).percent == 0
    assert area(0, 1).agreement(area(0, 1)).shifts == (), "maps have no scores"
    both, other = ClassMaps({"a": area(0, 0), "b": area(0, 1)}), ClassMaps({"a": area(1, 1), "b": area(0, 1)})
    assert both.agreement(other).percent == pytest.approx(50)
    unseen = ClassMap(np.full((2, 2), 255, np.uint8), ())
    assert unseen.agreement(unseen).percent == 100
    with pytest.raises(InputError, match=r"\(2, 2\).*\(40, 30\)"):
        area(0, 1).agreement(unseen)


@pytest.mark.parametrize("kind", [DepthMap, AnomalyMap, Matte])
def test_pixels_that_one_map_alone_knows_do_not_agree(kind: type[DepthMap | AnomalyMap | Matte]) -> None:
    half = RAMP.copy()
    half[::2] = np.nan
    full, some, none = kind(RAMP), kind(half), kind(np.full_like(RAMP, np.nan))
    for one, other, percent in ((full, some, 50), (full, none, 0), (some, some, 100), (none, none, 100)):
        assert one.agreement(other).percent == other.agreement(one).percent == pytest.approx(percent)
    assert Matte(RAMP * 0).agreement(Matte(half * 0)).percent == 50


def test_agreement_of_vectors() -> None:
    one = Embedding.of([1.0, 0.0])
    assert one.agreement(Embedding.of([1.0, 1.0])).percent == pytest.approx(100 / np.sqrt(2))
    assert one.agreement(Embedding.of([-1.0, 0.0])).percent == 0


def test_agreement_of_lines() -> None:
    one = lines(("hello", 0.9), ("world", 0.8))
    assert one.agreement(lines(("hello", 0.7), ("world", 0.8))).score_shift == pytest.approx(-0.1)
    assert one.agreement(lines(("hello", 0.9), ("would", 0.8))).percent == pytest.approx(90), "4 of 5 letters"
    assert one.agreement(lines(("hello", 0.9))).percent == pytest.approx(100 * 2 / 3)
    assert one.agreement(lines(("hello", 0.9)), min_score=0.85).percent == pytest.approx(100)
    assert lines().agreement(lines()).percent == 100


def test_agreement_of_classes() -> None:
    fewer = best((2, 0.5), (1, 0.5))
    assert best((2, 0.75), (0, 0.25)).agreement(fewer).percent == pytest.approx(50)
    assert best((2, 0.75), (0, 0.25)).agreement(fewer, min_score=0.9).score_shift == pytest.approx(-0.25)
    assert fewer[:0].agreement(fewer[:0]).percent == 100
    logits = best((2, 7.0), (0, -9.0))
    for one, other in ((logits, fewer), (fewer, logits)):
        with pytest.raises(UnsupportedModelError, match=r"a score is -9, and scores below 0 .*softmax=True"):
            one.agreement(other)


# ---- text ----


def test_summaries() -> None:
    assert boxes((0, 0.9, 3.0), (1, 0.5, 20.0)).summary() == (
        "cat  0.900  3.0, 12.0, 13.0, 22.0\ndog  0.500  20.0, 12.0, 30.0, 22.0"
    )
    assert boxes().summary() == "nothing found"
    assert best((2, 0.75), (0, 0.25)).summary() == "cow  0.7500\ncat  0.2500"
    assert area(0, 0, 0, 1).summary() == "road  75.0%\ncar   25.0%"
    assert ClassMaps({"m": area(0, 1)}).summary() == "m road  50.0%\nm car   50.0%"
    assert lines(("hello", 0.9)).summary() == "0.900  hello"
    assert lines().summary() == "no text"
    assert Embedding.of([3.0, 4.0]).summary() == "2 dimensions  0.600, 0.800"
    assert Height(3.0).summary() == "metres 3"


# ---- habits ----


def test_centre_and_size() -> None:
    found = boxes((0, 0.9, 3.0), (1, 0.5, 20.0), track_id=np.array([7, 8]))
    np.testing.assert_array_equal(found.xywh, [[8, 17, 10, 10], [25, 17, 10, 10]])
    row = found[1]
    assert row.xywh == (25, 17, 10, 10)
    assert (row.confidence, row.class_id, row.tracker_id) == (row.score, 1, 8)
    assert boxes((0, 0.9, 3.0))[0].tracker_id is None


@pytest.mark.parametrize(
    ("result", "name", "words"),
    [
        (boxes(), "plot", r"Detections has no attribute 'plot'; use \.draw\(\)$"),
        (
            boxes((0, 0.9, 3.0))[0],
            "plot",
            r"Detection has no attribute 'plot'; it is a row of Detections, which have \.draw\(\)$",
        ),
        (boxes(), "show", r"use \.draw\(\)\.show\(\)$"),
        (boxes(), "boxes", r"use \.xyxy$"),
        (boxes(), "probs", r"use \.scores$"),
        (boxes(), "confidence", r"use \.scores$"),
        (boxes(), "class_id", r"use \.class_ids$"),
        (boxes(), "tracker_id", r'use \.columns\["track_id"\]$'),
        (boxes(), "obb", r"use \.oriented$"),
        (boxes(), "lables", r"did you mean 'labels'\?$"),
        (boxes((0, 0.9, 3.0))[0], "conf", r"Detection has no attribute 'conf'; use \.score$"),
        (boxes((0, 0.9, 3.0))[0], "keypoints", r'use \.columns\["keypoints"\]$'),
        (boxes((0, 0.9, 3.0))[0], "name", r"use \.label$"),
        (best((0, 1.0)), "probs", r"use \.scores$"),
        (area(0, 1), "masks", r"use \.to_masks\(\)$"),
        (area(0, 1), "boxes", r"ClassMap has no attribute 'boxes'; use \.to_supervision\(\)$"),
        (lines(("a", 1.0)), "boxes", r"use \.polygons$"),
        (lines(("a", 1.0))[0], "conf", r"use \.score$"),
        (Embedding.of([1.0]), "embedding", r"use \.vector$"),
        (Embedding.of([1.0]), "boxes", r"Embedding has no attribute 'boxes'; it has agreement, cosine"),
    ],
)
def test_names_of_other_programs(result: Any, name: str, words: str) -> None:
    with pytest.raises(AttributeError, match=words):
        getattr(result, name)
    assert not hasattr(result, name)
