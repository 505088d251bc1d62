"""Random outputs of detection heads and the settings of their decoders, for the tests of the host and the device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from infersdk.ops.detection import DetectionDecoder

F = np.float32


class Case(NamedTuple):
    head: str = "yolov5"
    num_classes: int = 3
    num_anchors: int = 50
    conf: float = 0.25
    iou: float = 0.45
    max_det: int = 300
    max_candidates: int = 30000
    multi_label: bool = False
    class_agnostic: bool = False
    strides: tuple[int, ...] = ()
    dtype: str = "float32"
    extra: int = 0
    classes: tuple[int, ...] | None = None

    def detector(self) -> DetectionDecoder:
        return DetectionDecoder(**self._asdict())


def some_classes(rng: np.random.Generator, num_classes: int) -> tuple[int, ...]:
    """One, all, a few neighbours, or any."""
    first = int(rng.integers(num_classes))
    several = range(first, int(rng.integers(first, num_classes)) + 1)
    anyhow = np.flatnonzero(rng.random(num_classes) < rng.random()).tolist() or [first]
    return tuple([(first,), range(num_classes), several, anyhow][int(rng.integers(4))])


def random_output(rng: np.random.Generator, case: Case, kind: str) -> np.ndarray:
    """An output that is crowded, so that boxes overlap; `kind` names its peculiarity."""
    n = case.num_anchors
    rows = rng.random((n, 5 + case.num_classes)).astype(F)
    if case.head == "yolox":
        rows[:, :4] = rng.normal(0, 1.5, (n, 4))
    else:
        spread = max(200.0, 5 * n**0.5)
        rows[:, :4] = rows[:, :4] * [spread, spread, 90, 120] + [40, 30, 5, 5]
    if kind == "ties":
        rows = np.round(rows * 4) / 4
    if kind == "degenerate" and case.head != "yolox":
        rows[:, 2:4] *= rng.integers(-1, 2, (n, 2))
    if kind == "odd":
        odd = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-42, -0.0], F)
        where = rng.random(rows.shape) < 0.03
        rows[where] = rng.choice(odd, int(where.sum()))
    if kind == "none":
        rows[:, 4:] *= 0.2
    if kind == "low":
        rows[:, 4:] **= 6
    if kind == "equal":  # all scores the same
        rows[:, 4:] = 0.875
    if kind == "apart":  # nothing overlaps
        rows[:, 0], rows[:, 1] = np.arange(n) % 200 * 8, np.arange(n) // 200 * 8
        rows[:, 2:4] = 6
    if kind == "heap":  # everything overlaps
        rows[:, :4] = 100 + rows[:, :4] / 50
    extra = rng.choice(np.array([0, 0.5, 1, 7, -3e38, np.nan, np.inf], F), (n, case.extra))  # not for the decoder
    rows = np.concatenate([rows, extra], axis=1)
    if case.head == "yolov8":
        rows = np.ascontiguousarray(np.delete(rows, 4, axis=1).T)
    with np.errstate(over="ignore"):
        return rows.astype(case.dtype)


def greedy_nms(
    boxes: np.ndarray, scores: np.ndarray, class_ids: np.ndarray | None, threshold: float, match: str = "iou"
) -> tuple[list[int], list[int]]:
    """Class by class, a row of the matrix of overlaps at a time: the kept boxes, and the keeper of each box."""
    order = np.lexsort((np.arange(len(scores)), -scores))
    classes = np.zeros(len(scores), int) if class_ids is None else np.asarray(class_ids)
    zero, keepers = np.float32(0), np.full(len(scores), -1)
    with np.errstate(all="ignore"):
        areas = np.maximum(zero, boxes[:, 2] - boxes[:, 0]) * np.maximum(zero, boxes[:, 3] - boxes[:, 1])
        for own in np.unique(classes):
            rest = order[classes[order] == own]
            while len(rest):
                i, others = rest[0], boxes[rest]
                w = np.maximum(zero, np.minimum(boxes[i, 2], others[:, 2]) - np.maximum(boxes[i, 0], others[:, 0]))
                h = np.maximum(zero, np.minimum(boxes[i, 3], others[:, 3]) - np.maximum(boxes[i, 1], others[:, 1]))
                inter, least = w * h, np.minimum(areas[i], areas[rest])
                whole = least if match == "smaller" else (areas[i] + areas[rest]) - inter
                taken = (inter > np.float32(threshold) * whole) & (areas[i] > 0)  # without area it overlaps nothing
                taken[0] = True
                keepers[rest[taken]] = i
                rest = rest[~taken]
    return [int(i) for i in order if keepers[i] == i], keepers.tolist()
