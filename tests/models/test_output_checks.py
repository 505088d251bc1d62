"""Networks that are no model of a wrapper, though their shapes fit: the first run refuses each."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_models import head_model

from infersdk.errors import UnsupportedModelError
from infersdk.models import TYPES, UltraFace, load

pytest.importorskip("onnxruntime")

NOISE = np.random.default_rng(5).integers(0, 256, (96, 128, 3), np.uint8)
#: What a wrapper needs to read a file that says nothing of itself.
SETTINGS: dict[str, dict[str, Any]] = {
    "yolov8-pose": {"keypoints": (17, 3)},
    "end-to-end-pose": {"keypoints": (17, 3)},
    "segmentation": {"preset": "unit"},
    "yolox": {"legacy": False},
}


@pytest.mark.parametrize("seed", range(3))
def test_faces_as_scores_and_corners_are_read_by_one_wrapper(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, 0.7, (235, 2))  # 235 anchors for 64 x 64 pixels
    edges = np.hstack([corner, corner + rng.uniform(0.05, 0.3, (235, 2))])
    scores = rng.dirichlet([1, 1], 235)
    path = head_model(tmp_path / "faces.onnx", [scores, edges], {}, names=("scores", "boxes"))
    for name in TYPES.keys() - {"ultraface"}:
        with pytest.raises(UnsupportedModelError) as caught, load(path, type=name, **SETTINGS.get(name, {})) as model:
            pytest.fail(f"{name}: {model(NOISE)}")
        assert 'type "' not in str(caught.value), "it would recommend a wrapper that was not tried"
    with load(path) as model:
        assert type(model) is UltraFace
        assert set(model(NOISE, conf=0.0).labels) == {"face"}


def grid(side: int = 64, strides: tuple[int, ...] = (8, 16, 32)) -> np.ndarray:
    """Centres and sides of a box in each cell, in pixels."""
    rows = [
        ((x + 0.5) * stride, (y + 0.5) * stride, 2.0 * stride, 1.5 * stride)
        for stride in strides
        for y, x in product(range(side // stride), range(side // stride))
    ]
    return np.array(rows, np.float32)


def corners(boxes: np.ndarray) -> np.ndarray:
    half = boxes[:, 2:] / 2
    return np.hstack([boxes[:, :2] - half, boxes[:, :2] + half]).clip(0)


def v5(boxes: np.ndarray, scores: float = 0.1) -> list[np.ndarray]:
    return [np.hstack([np.tile(boxes, (3, 1)), np.full((3 * len(boxes), 4), scores, np.float32)])]


def v8(boxes: np.ndarray, *more: np.ndarray) -> list[np.ndarray]:
    return [np.hstack([boxes, np.full((len(boxes), 3), 0.1, np.float32), *more]).T]


def rows(boxes: np.ndarray, score: float = 0.5, class_id: float = 1) -> list[np.ndarray]:
    some = np.zeros((100, 6), np.float32)
    some[: len(boxes), :4], some[: len(boxes), 4], some[: len(boxes), 5] = boxes, score, class_id
    return [some]


RNG = np.random.default_rng(3)
BOXES = grid()
LOGITS = RNG.normal(-3, 2, (100, 5)).astype(np.float32)
QUERIES = np.hstack([RNG.uniform(0.1, 0.9, (100, 2)), RNG.uniform(0.02, 0.2, (100, 2))]).astype(np.float32)
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
NO_OBJECT = LOGITS + np.float32([0, 0, 0, 0, 12])
LAST = np.float32([0, 0, 0, 1]) * (np.arange(100) < 10)[:, None]
POINTS = np.tile(np.float32([32, 32, 0.5]), (84, 17))

#: A type, the outputs of a network for it, and what refuses outputs that only look alike.
HEADS: list[tuple[str, list[np.ndarray], dict[str, list[np.ndarray]]]] = [
    ("yolov5", v5(BOXES), {
        "are corners": v5(corners(BOXES)),
        "reach to 0.9375 .* fractions, or offsets": v5(BOXES / 64),
        "widths and heights of its boxes reach from -1 to": v5(BOXES * np.float32([1, 1, -1 / 64, 1])),
        "scores reach from 1.5 to": v5(BOXES, 1.5),
        "scores reach from nan to": v5(BOXES, np.nan),
    }),
    ("yolov8", v8(BOXES), {
        "are corners": v8(corners(BOXES)),
        "reach to 0.9375 .* fractions, or offsets": v8(BOXES / 64),
        "scores reach from -2 to": v8(BOXES, np.full((84, 1), -2, np.float32)),
    }),
    ("yolox", [np.hstack([np.zeros((84, 4)), np.full((84, 3), 0.1)])], {
        "logarithms of sizes .* decoded already": [np.hstack([BOXES, np.full((84, 3), 0.1)])],
    }),
    ("yolov8-obb", v8(BOXES, np.full((84, 1), 1.5)), {
        "angles reach from 90.5 to 90.5": v8(BOXES, np.full((84, 1), 90.5)),
    }),
    ("yolov8-pose", v8(BOXES, POINTS), {
        "scores of keypoints reach from -3 to -3": v8(BOXES, POINTS - np.tile(np.float32([0, 0, 3.5]), 17)),
    }),
    ("end-to-end", rows(corners(BOXES)), {
        "bottom of its boxes are not in that order": rows(BOXES),
        "they may be fractions": rows(corners(BOXES) / 100),
        "scores reach from 0 to 3": rows(corners(BOXES), 3.0),
        "scores reach from nan": rows(corners(BOXES), np.nan),
        "classes are not whole numbers": rows(corners(BOXES), 0.5, 0.25),
    }),
    ("end-to-end", rows(corners(BOXES)[:0]), {}),
    ("detr", [NO_OBJECT, QUERIES], {
        "reach from .* as probabilities do": [PROBABILITIES, QUERIES],
        "logits reach from nan": [NO_OBJECT * np.nan, QUERIES],
        "are corners": [NO_OBJECT, corners(QUERIES)],
        "all of its 100 queries are alike": [NO_OBJECT[:1].repeat(100, 0), QUERIES[:1].repeat(100, 0)],
        '0% of its 100 queries are "no object"': [LOGITS - np.float32([0, 0, 0, 0, 12]), QUERIES],
    }),
    ("rt-detr", [LOGITS, QUERIES], {
        "reach from .* as probabilities do": [1 / (1 + np.exp(-LOGITS)), QUERIES],
        "are corners": [LOGITS, corners(QUERIES)],
        "all of its 100 queries are alike": [LOGITS[:1].repeat(100, 0), QUERIES[:1].repeat(100, 0)],
        '100% of its queries are of its class 4 .* "no object"': [NO_OBJECT, QUERIES],
    }),
    ("rf-detr", [LOGITS, QUERIES], {
        "widths and heights of its boxes reach from -0.5": [LOGITS, QUERIES * np.float32([1, 1, 1, 0]) - LAST / 2],
    }),
    ("classifier", [np.float32([-1, 2, 0.5])], {
        "these are scores that do not add up to 1": [np.float32([0.9, 0.8, 0.1])],
        "one value for each image": [np.float32([0.9])],
    }),
    ("classifier", [np.float32([0.7, 0.2, 0.1])], {}),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(HEADS)), ids=lambda case: HEADS[case][0])
def test_heads_that_only_look_alike(tmp_path: Path, case: int) -> None:
    name, sound, others = HEADS[case]
    settings = SETTINGS.get(name, {})
    names = ("logits", "pred_boxes") if "detr" in name else ()
    with load(head_model(tmp_path / "sound.onnx", sound, {}, names=names), type=name, **settings) as model:
        model(NOISE)
    for reason, outputs in others.items():
        path = head_model(tmp_path / "other.onnx", outputs, {}, names=names)
        with (
            load(path, type=name, **settings) as model,
            pytest.raises(UnsupportedModelError, match=f"other.onnx is not a model for .*{reason}"),
        ):
            pytest.fail(f"{reason}: {model(NOISE)}")


def test_probabilities_are_no_logits_of_a_single_class(tmp_path: Path) -> None:
    maps = head_model(tmp_path / "m.onnx", [np.full((1, 32, 32), 0.7, np.float32)], {})
    with (
        load(maps, type="segmentation", preset="unit", scores="logit") as model,
        pytest.raises(UnsupportedModelError, match="as probabilities do"),
    ):
        model(NOISE)


def test_scores_as_they_are(tmp_path: Path) -> None:
    for scores in ([0.9, 0.8, 0.1], [0.9]):
        path = head_model(tmp_path / "m.onnx", [np.float32(scores)], {})
        with load(path, type="classifier", softmax=False) as model:
            assert model(NOISE)[0].score == pytest.approx(0.9)


def test_readings_that_the_first_run_refuses_are_not_named(tmp_path: Path) -> None:
    names = ("logits", "pred_boxes")
    with load(head_model(tmp_path / "d.onnx", [NO_OBJECT, QUERIES], {}, names=names)) as model:
        assert type(model) is TYPES["detr"]
    with pytest.raises(UnsupportedModelError, match='Name it: type="rt-detr" or type="rf-detr"$'):
        load(head_model(tmp_path / "r.onnx", [LOGITS - np.float32([0, 0, 0, 0, 12]), QUERIES], {}, names=names))
    with pytest.raises(
        UnsupportedModelError,
        match=r"no wrapper is for.* 'detr' does not fit: its logits reach .*'rf-detr' does not fit",
    ):
        load(head_model(tmp_path / "p.onnx", [PROBABILITIES, QUERIES], {}, names=names))
    offsets = np.hstack([np.zeros((84, 2)), np.full((84, 2), -0.5), np.full((84, 3), 0.1)])
    with load(head_model(tmp_path / "x.onnx", [offsets], {}), legacy=True) as model:
        assert type(model) is TYPES["yolox"]
    with pytest.raises(UnsupportedModelError, match=r"for YOLOX: .*give legacy=True or legacy=False"):
        load(head_model(tmp_path / "x.onnx", [offsets], {}))
