"""Boxes of several views of an image, brought together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ...errors import ConfigError
from ...ops import DetectStats, nms_groups
from ..results import Detections, Masks

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Merge", "merge_views"]

_KINDS, _MATCHES = ("nms", "union", "weighted"), ("iou", "smaller")


class _Merge(NamedTuple):
    kind: str
    match: Literal["iou", "smaller"]
    threshold: float
    class_agnostic: bool


class Merge(_Merge):
    """How boxes are merged; see `Tiled`.

    Raises:
        ConfigError: a setting has a wrong value.
    """

    __slots__ = ()

    def __new__(cls, kind: str, match: Literal["iou", "smaller"], threshold: float, class_agnostic: bool) -> Merge:
        if kind not in _KINDS:
            raise ConfigError(f"merge is {kind!r}; use one of {', '.join(_KINDS)}")
        if match not in _MATCHES:
            raise ConfigError(f"match is {match!r}; use one of {', '.join(_MATCHES)}")
        if not 0 <= threshold <= 1:
            raise ConfigError(f"threshold is a match of two boxes, from 0 to 1, not {threshold}")
        return super().__new__(cls, kind, match, threshold, class_agnostic)


def merge_views(
    parts: Sequence[Detections],
    offsets: Sequence[tuple[int, int]],
    size: tuple[int, int],
    merge: Merge,
    decoder: str | None = None,
) -> Detections:
    """The boxes of an image from those of its views.

    Args:
        parts: the results of the views, at least one.
        offsets: (x, y) of the upper left corner of each view in the image.
        size: (width, height) of the image.
        merge: how boxes that match are merged.
        decoder: what decoded the image; see `Detections`.

    Returns:
        The boxes, best first, with the columns that all parts have.
    """
    data = np.concatenate([part.data for part in parts])
    data["row"] = np.arange(len(data))
    counts = [len(part) for part in parts]
    shifts = np.repeat(np.asarray(offsets, np.float32).reshape(-1, 2), counts, axis=0)
    data["xyxy"] += np.tile(shifts, 2)
    classes = None if merge.class_agnostic else data["class_id"]
    keep, keepers = nms_groups(data["xyxy"], data["score"], classes, threshold=merge.threshold, match=merge.match)
    merged = data[keep]
    group = np.empty(len(data), np.int64)  # the position among the kept boxes of each box's keeper
    group[keep] = np.arange(len(keep))
    group = group[keepers]
    if merge.kind == "union":
        merged["xyxy"] = _around(data["xyxy"], group, len(keep))
    elif merge.kind == "weighted":
        merged["xyxy"] = _averages(data["xyxy"], data["score"], group, len(keep))
    columns: dict[str, Any] = {}
    for name in parts[0].columns:
        if all(name in part.columns for part in parts):
            values = [part.columns[name] for part in parts]
            if name == "mask":
                masks = _joined_masks(values, offsets, size)
                columns[name] = _unions(masks, group, keep) if merge.kind == "union" else masks[keep]
            else:
                columns[name] = _moved(name, values, shifts)[keep]
    stats = [part.stats for part in parts]
    total = DetectStats(
        sum(s.candidates for s in stats),
        sum(s.dropped_candidates for s in stats),
        len(keep),
        sum(s.dropped_detections for s in stats),
    )
    return Detections(merged, parts[0].names, size, total, columns, decoder=decoder)


def _around(boxes: npt.NDArray[np.float32], group: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.float32]:
    """The box around all boxes of each group."""
    around = np.empty((count, 4), np.float32)
    around[:, :2], around[:, 2:] = np.inf, -np.inf
    np.minimum.at(around[:, :2], group, boxes[:, :2])
    np.maximum.at(around[:, 2:], group, boxes[:, 2:])
    return around


def _averages(
    boxes: npt.NDArray[np.float32], scores: npt.NDArray[np.float32], group: npt.NDArray[np.int64], count: int
) -> npt.NDArray[np.float32]:
    """The average of each group's edges, weighted by score."""
    weights = np.bincount(group, scores, count)
    edges = [np.bincount(group, scores * boxes[:, i].astype(np.float64), count) for i in range(4)]
    return (np.stack(edges, 1) / np.maximum(weights, 1e-30)[:, None]).astype(np.float32)


def _moved(name: str, values: Sequence[Any], shifts: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """A column of all views, in pixels of the image where it has pixels."""
    column = np.concatenate([np.asarray(value) for value in values])
    if name == "keypoints":
        column[..., :2] += shifts[:, None, :]
    elif name == "oriented":
        column[:, :2] += shifts
    return column


def _joined_masks(values: Sequence[Masks], offsets: Sequence[tuple[int, int]], size: tuple[int, int]) -> Masks:
    return Masks.concatenate([masks.placed(offset, size) for masks, offset in zip(values, offsets, strict=True)], size)


def _unions(masks: Masks, group: npt.NDArray[np.int64], keep: npt.NDArray[np.int64]) -> Masks:
    """One mask for each group: the pixels of all of its masks."""
    sizes = np.bincount(group, minlength=len(keep))
    members: dict[int, list[int]] = {position: [] for position in np.flatnonzero(sizes > 1).tolist()}
    for row in np.flatnonzero(sizes[group] > 1).tolist():
        members[int(group[row])].append(row)
    parts = []
    for position, own in enumerate(keep.tolist()):
        if position not in members:
            parts.append(masks[own : own + 1])
            continue
        boxes = [masks[index].box for index in members[position]]
        left, top = min(box[0] for box in boxes), min(box[1] for box in boxes)
        right = max(box[0] + box[2] for box in boxes)
        bottom = max(box[1] + box[3] for box in boxes)
        pixels = np.zeros((bottom - top, right - left), np.bool_)
        for index, (x, y, width, height) in zip(members[position], boxes, strict=True):
            pixels[y - top : y - top + height, x - left : x - left + width] |= masks[index].crop()
        parts.append(Masks.of(pixels[None]).placed((left, top), masks.size))
    return Masks.concatenate(parts, masks.size)
