"""Heads that are made of parts of different families: each wrapper reads the objects that are in a head, or refuses it.

A head encodes some objects. How it does so is drawn: the form of its boxes and scores, the order of its values and
axes, the number of its rows, its outputs, their names, and what the metadata says. Most of these heads are of no
family.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_models import head_model

import infersdk
from infersdk.errors import ConfigError, UnsupportedModelError
from infersdk.models import TYPES, Detections, load

pytest.importorskip("onnxruntime")

SIDE, STRIDES = 64, (8, 16, 32)
IMAGE = np.random.default_rng(5).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
CELLS = np.array([(x, y, s) for s in STRIDES for y in range(SIDE // s) for x in range(SIDE // s)], np.float64)
#: What a wrapper needs to read a file that says nothing of itself.
SETTINGS: dict[str, dict[str, Any]] = {
    "yolov8-pose": {"keypoints": (2, 3)}, "end-to-end-pose": {"keypoints": (2, 3)}, "segmentation": {"preset": "unit"},
    "yolox": {"legacy": False},
}  # fmt: skip


#: What a head is made of. Values behind the others ("more") are an angle, or two keypoints.
CHOICES: dict[str, Sequence[Any]] = {
    "rows": ("three", "one", "queries", "few"),
    "boxes": ("centres", "corners", "rows first", "offsets"),
    "unit": ("pixels", "fractions"),
    "scores": ("sigmoid", "softmax", "logits", "class logits", "chosen"),
    "objectness": (False, True),
    "more": (0, 1, 6),
    "channel first": (False, True),
    "scores first": (False, True),
    "outputs": (1, 2),
    "names": ((), ("logits", "pred_boxes"), ("labels", "dets"), ("scores", "boxes")),
    "metadata": ("", "names", "task"),
}
#: The families that are mutated.
FAMILIES = (
    ("three", "centres", "pixels", "sigmoid", True, 0, False, False, 1, (), "names"),  # YOLOv5
    ("one", "centres", "pixels", "sigmoid", False, 0, True, False, 1, (), "names"),  # YOLOv8
    ("one", "centres", "pixels", "sigmoid", False, 0, True, False, 1, (), ""),
    ("one", "centres", "pixels", "sigmoid", False, 1, True, False, 1, (), ""),  # oriented boxes
    ("one", "centres", "pixels", "sigmoid", False, 6, True, False, 1, (), ""),  # poses
    ("one", "offsets", "pixels", "sigmoid", True, 0, False, False, 1, (), ""),  # YOLOX
    ("one", "centres", "pixels", "sigmoid", True, 0, False, False, 1, (), ""),  # YOLOv6
    ("queries", "corners", "pixels", "chosen", False, 0, False, False, 1, (), "names"),  # end to end
    ("queries", "centres", "fractions", "logits", False, 0, False, False, 2, (), ""),  # RT-DETR
    (
        "queries",
        "centres",
        "fractions",
        "class logits",
        False,
        0,
        False,
        False,
        2,
        ("logits", "pred_boxes"),
        "",
    ),  # DETR
    ("one", "corners", "fractions", "softmax", False, 0, False, False, 2, ("scores", "boxes"), ""),  # SSD
)


class Head:
    """The outputs of a network, and the objects in them.

    Attributes:
        truth: (left, top, right, bottom, score, class) of each object.
    """

    def __init__(self, seed: int) -> None:
        draw, self.rng = random.Random(seed), np.random.default_rng(seed)
        self.classes = draw.choice([1, 2, 3, 8, 20])
        self.form: dict[str, Any] = dict(zip(CHOICES, draw.choice(FAMILIES), strict=True))
        for name in draw.sample(list(CHOICES), draw.choice([0, 1, 1, 2, 3])):
            self.form[name] = draw.choice(CHOICES[name])
        self._place_objects()
        self.outputs = self._encoded()
        self.metadata: dict[str, str] = {}
        if self.form["metadata"]:
            self.metadata["names"] = repr({i: f"class {i}" for i in range(self.classes)})
        if self.form["metadata"] == "task":
            self.metadata["task"] = "detect"

    def _place_objects(self) -> None:
        """Some objects that do not overlap, each in a row of its own; the other rows hold boxes of low scores."""
        form = self.form
        cells = np.tile(CELLS, (3, 1)) if form["rows"] == "three" else CELLS
        if form["rows"] in ("queries", "few"):
            cells = CELLS[self.rng.integers(0, len(CELLS), 100 if form["rows"] == "queries" else 70)]
        count = len(cells)
        centres = (cells[:, :2] + self.rng.uniform(0.2, 0.8, (count, 2))) * cells[:, 2:]
        self.cells, self.boxes = cells, np.hstack([centres, cells[:, 2:] * self.rng.uniform(0.6, 1.9, (count, 2))])
        self.scores = self.rng.uniform(0.001, 0.02, (count, self.classes))
        objects = self.rng.choice(count, 3, replace=False)
        self.boxes[objects] = [[14, 14, 20, 16], [46, 17, 18, 22], [30, 47, 34, 14]]
        classes = self.rng.integers(0, self.classes, 3)
        self.scores[objects] = 1e-4
        self.scores[objects, classes] = self.rng.uniform(0.7, 0.95, 3)
        half = self.boxes[objects, 2:] / 2
        middle = self.boxes[objects, :2]
        best = self.scores[objects, classes]
        self.truth = np.hstack([middle - half, middle + half, best[:, None], classes[:, None]])
        self.objects = objects

    def _encoded_boxes(self) -> np.ndarray:
        boxes = self.boxes.copy()
        if self.form["boxes"] == "offsets":
            return np.hstack(
                [boxes[:, :2] / self.cells[:, 2:] - self.cells[:, :2], np.log(boxes[:, 2:] / self.cells[:, 2:])]
            )
        if self.form["boxes"] != "centres":
            boxes = np.hstack([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2]).clip(0, SIDE)
        if self.form["boxes"] == "rows first":
            boxes = boxes[:, [1, 0, 3, 2]]
        return boxes / SIDE if self.form["unit"] == "fractions" else boxes

    def _encoded_scores(self) -> np.ndarray:
        scores, kind = self.scores, self.form["scores"]
        if kind == "logits":
            return np.log(scores / (1 - scores))
        if kind in ("softmax", "class logits"):  # of all classes and of none
            none = np.maximum(1 - scores.sum(axis=1, keepdims=True), 1e-3)
            every = np.hstack([scores, none] if self.rng.random() < 0.5 else [none, scores])
            every /= every.sum(axis=1, keepdims=True)
            return every if kind == "softmax" else np.log(every) + self.rng.normal(1, 0.5, (len(every), 1))
        if kind == "chosen":
            ids = scores.argmax(axis=1)
            best = scores.max(axis=1)
            return np.stack([best, ids] if self.rng.random() < 0.7 else [ids, best], axis=1)
        return scores

    def _encoded(self) -> list[np.ndarray]:
        form = self.form
        boxes, scores = self._encoded_boxes(), self._encoded_scores()
        if form["objectness"] and form["scores"] == "sigmoid":
            low = np.ones(len(boxes), bool)
            low[self.objects] = False
            scores = scores / 0.97
            scores[low] = self.rng.uniform(0.05, 0.6, scores[low].shape)
            scores = np.hstack([np.where(low, self.rng.uniform(0.001, 0.02, len(low)), 0.97)[:, None], scores])
        more = self.rng.uniform(-0.7, 2.3, (len(boxes), form["more"]))
        more[self.objects] = 0
        if form["more"] == 6:  # two keypoints
            more = np.tile(self.boxes[:, [0, 1, 0]], (1, 2))
            more[:, 2::3] = self.rng.uniform(0, 1, more[:, 2::3].shape)
        if form["outputs"] == 2:
            result = [scores, np.hstack([boxes, more])]
            result = result[::-1] if form["scores first"] else result
        else:
            result = [np.hstack([scores, boxes, more] if form["scores first"] else [boxes, scores, more])]
        return [np.ascontiguousarray(one.T if form["channel first"] else one, np.float32) for one in result]

    def save(self, path: Path) -> Path:
        names = self.form["names"] if len(self.outputs) == 2 else ()
        return head_model(path, self.outputs, self.metadata, size=SIDE, names=names)

    def is_read_by(self, found: Any, type_name: str) -> bool:
        """Whether a result has the objects of this head, and no others. YOLO-NAS's image has a border on its canvas."""
        if not isinstance(found, Detections) or len(found) != len(self.truth):
            return False
        xyxy = found.xyxy * (60 / 64) + 2 if type_name == "YOLONAS" else found.xyxy
        ours = np.hstack([xyxy, found.scores[:, None], found.class_ids[:, None]])
        ours, truth = (rows[np.argsort(rows[:, 0])] for rows in (ours, self.truth))
        return bool(np.allclose(ours, truth, atol=[0.1] * 4 + [0.02, 0]))


def no_check_can_tell(head: Head) -> bool:
    """Whether the values of a head are such as another family gives, so that nothing in them shows the difference.

    - Rows of boxes are exchanged with columns, and no cells say where a box is: on an input as high as wide this is
      the head of the image mirrored at its diagonal.
    - The class number of each box is 0, since there is one class: it may be the score of a class that is not found.
    """
    form = head.form
    exchanged = form["boxes"] == "rows first" and form["scores"] in ("chosen", "softmax")
    return exchanged or (form["scores"] == "chosen" and head.classes == 1)


def misread(folder: Path, seeds: Sequence[int]) -> list[str]:
    """What was read and is not in the head, of each head under each type, and without one."""
    wrong, right = [], 0
    for seed in seeds:
        head = Head(seed)
        path = head.save(folder / f"{seed}.onnx")
        with infersdk.load(path, threads=1) as network:
            for name in (None, *TYPES):
                try:
                    with load(network.clone(), type=name, **SETTINGS.get(name or "", {})) as model:
                        found = model(IMAGE)
                except (UnsupportedModelError, ConfigError):
                    continue
                read = head.is_read_by(found, type(model).__name__)
                right += read
                if not read and not no_check_can_tell(head):
                    shapes = [one.shape for one in head.outputs]
                    wrong.append(f"seed {seed}, type {name} ({type(model).__name__}): {shapes}, {head.form}: {found}")
        path.unlink()
    assert right > len(seeds) / 8, "heads that are of a family are read"
    return wrong


def test_mutated_heads(tmp_path: Path) -> None:
    assert misread(tmp_path, range(40)) == []


def test_heads_that_one_check_alone_tells_apart(tmp_path: Path) -> None:
    """Objectness as a class and the reverse, class numbers as scores or logits, scores as angles."""
    assert misread(tmp_path, [1005, 1022, 1040, 1041, 1142, 1512, 1551, 1579, 2561, 2, 9, 10]) == []


@pytest.mark.slow
@pytest.mark.parametrize("first", range(40, 1000, 120))
def test_many_mutated_heads(tmp_path: Path, first: int) -> None:
    assert misread(tmp_path, range(first, first + 120)) == []
