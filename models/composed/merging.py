"""Merging the boxes of several views of an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ...errors import UnsupportedModelError
from ...ops import DetectStats, nms_groups, nms_oriented
from ..oriented import enclosing
from ..results import Detections, Masks

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Merge", "merge_views"]


class Merge(NamedTuple):
    """How boxes are merged; see `Tiled`."""

    kind: Literal["nms", "union", "weighted"]
    match: Literal["iou", "smaller"]
    threshold: float
    class_agnostic: bool

    def check_oriented(self) -> None:
        """Raises UnsupportedModelError if it cannot merge oriented boxes."""
        if self.kind != "nms":
            raise UnsupportedModelError(f"merge={self.kind!r} does not merge oriented boxes; use merge='nms'")


def merge_views(
    parts: Sequence[Detections],
    offsets: Sequence[tuple[int, int]],
    size: tuple[int, int],
    merge: Merge,
    decoder: str | None = None,
) -> Detections:
    """The boxes of an image from those of its views, at least one: the best first, with the columns that all views with
    boxes have.

    Args:
        offsets: (x, y) of the upper left corner of each view in the image.
        size: (width, height) of the image.
    """
    stats, names = [part.stats for part in parts], parts[0].names
    views = list(zip(parts, offsets, strict=True))
    # A `postprocess()` may leave out the columns where it finds nothing.
    parts, offsets = zip(*([view for view in views if len(view[0])] or views[:1]), strict=True)
    data = np.concatenate([part.data for part in parts])
    data["row"] = np.arange(len(data))
    counts = [len(part) for part in parts]
    shifts = np.repeat(np.asarray(offsets, np.float32).reshape(-1, 2), counts, axis=0)
    data["xyxy"] += np.tile(shifts, 2)
    classes = None if merge.class_agnostic else data["class_id"]
    values = {
        name: [part.columns[name] for part in parts]
        for name in parts[0].columns
        if all(name in part.columns for part in parts)
    }
    if "oriented" in values:
        merge.check_oriented()
        turned = _moved("oriented", values["oriented"], shifts)
        data["xyxy"] = np.clip(enclosing(turned), 0, np.tile(size, 2))  # those of the views end at their edges
        keep = nms_oriented(turned, data["score"], classes, iou=merge.threshold)
    elif merge.kind == "weighted":
        keep, keepers, edges = _fusion(data["xyxy"], data["score"], classes, merge)
    else:
        keep, keepers = nms_groups(data["xyxy"], data["score"], classes, threshold=merge.threshold, match=merge.match)
    merged = data[keep]
    if merge.kind != "nms":
        group = np.empty(len(data), np.int64)  # the position among the kept boxes of each box's keeper
        group[keep] = np.arange(len(keep))
        group = group[keepers]
        merged["xyxy"] = _around(data["xyxy"], group, len(keep)) if merge.kind == "union" else edges
    columns: dict[str, Any] = {}
    for name, column in values.items():
        if name == "mask":
            placed = [masks.placed(offset, size) for masks, offset in zip(column, offsets, strict=True)]
            masks = Masks.concatenate(placed, size)
            columns[name] = masks[keep] if merge.kind == "nms" else _unions(masks, group, keep)
        else:
            columns[name] = _moved(name, column, shifts)[keep]
    total = DetectStats(
        sum(s.candidates for s in stats),
        sum(s.dropped_candidates for s in stats),
        len(keep),
        sum(s.dropped_detections for s in stats),
    )
    return Detections(merged, names, size, total, columns, decoder=decoder)


def _around(boxes: npt.NDArray[np.float32], group: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.float32]:
    """The box around all boxes of each group."""
    around = np.empty((count, 4), np.float32)
    around[:, :2], around[:, 2:] = np.inf, -np.inf
    np.minimum.at(around[:, :2], group, boxes[:, :2])
    np.maximum.at(around[:, 2:], group, boxes[:, 2:])
    return around


def _fusion(
    boxes: npt.NDArray[np.float32], scores: npt.NDArray[np.float32], classes: npt.NDArray[np.int32] | None, merge: Merge
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Weighted boxes fusion, with the best score of each group (R. Solovyev et al., "Weighted boxes fusion: Ensembling
    boxes from different object detection models", 2021).

    Boxes are added from the best one on. A box joins the fused box that it matches best, if that match is above the
    threshold. The edges of the fused box become the average of the group, weighted by score. Other boxes begin a group.

    Returns:
        The best box of each group, best first; for each box the best one of its group; the fused boxes, (groups, 4).
    """
    keepers = np.empty(len(boxes), np.int64)
    keep, fused = [np.zeros(0, np.int64)], [np.zeros((0, 4))]
    order = np.argsort(-scores, kind="stable")
    for class_id in (None,) if classes is None else np.unique(classes):
        own = order if class_id is None else order[classes[order] == class_id]  # type: ignore[index]
        best, members, edges = _fused(boxes[own].astype(np.float64), scores[own].tolist(), merge)
        keep.append(own[best])
        fused.append(edges)
        keepers[own] = own[best][members]
    kept = np.concatenate(keep)
    ranked = np.argsort(-scores[kept], kind="stable")
    return kept[ranked], keepers, np.concatenate(fused).astype(np.float32)[ranked]


def _fused(
    boxes: npt.NDArray[np.float64], scores: Sequence[float], merge: Merge
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The groups of the boxes of one class, best first: the index of the best box of each group, the group of each
    box, and the fused boxes.
    """
    fused, sums = np.zeros((len(boxes), 4)), np.zeros((len(boxes), 4))
    weights, areas = np.zeros(len(boxes)), np.zeros(len(boxes))
    best: list[int] = []
    members = np.empty(len(boxes), np.int64)
    for index, (box, score) in enumerate(zip(boxes, scores, strict=True)):
        group = _matching(fused[: len(best)], areas[: len(best)], box, merge)
        if group is None:
            group = len(best)
            best.append(index)
        members[index] = group
        weight = max(score, 1e-30)
        sums[group] += weight * box
        weights[group] += weight
        left, top, right, bottom = fused[group] = sums[group] / weights[group]
        areas[group] = (right - left) * (bottom - top)
    return np.array(best, np.int64), members, fused[: len(best)]


def _matching(
    fused: npt.NDArray[np.float64], areas: npt.NDArray[np.float64], box: npt.NDArray[np.float64], merge: Merge
) -> int | None:
    """The fused box that matches a box best; None if no match is above the threshold."""
    if not len(fused):
        return None
    sides = np.minimum(fused[:, 2:], box[2:]) - np.maximum(fused[:, :2], box[:2])
    common = np.maximum(sides[:, 0], 0) * np.maximum(sides[:, 1], 0)
    area = (box[2] - box[0]) * (box[3] - box[1])
    whole = np.minimum(areas, area) if merge.match == "smaller" else areas + area - common
    matches = np.divide(common, whole, out=np.zeros(len(fused)), where=whole > 0)
    best = int(matches.argmax())
    return best if matches[best] > merge.threshold else None


def _moved(name: str, values: Sequence[Any], shifts: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """A column of all views, in pixels of the image where it has pixels."""
    column = np.concatenate([np.asarray(value) for value in values])
    if name == "keypoints":
        column[..., :2] += shifts[:, None, :]
    elif name == "oriented":
        column[:, :2] += shifts
    return column


def _unions(masks: Masks, group: npt.NDArray[np.int64], keep: npt.NDArray[np.int64]) -> Masks:
    """One mask for each group: the pixels of all of its masks."""
    parts = []
    for position, own in enumerate(keep.tolist()):
        members = masks[np.flatnonzero(group == position)]
        if len(members) == 1:
            parts.append(masks[own : own + 1])
            continue
        edges = np.array([mask.box for mask in members])  # left, top, width, height
        left, top = edges[:, :2].min(axis=0).tolist()
        right, bottom = (edges[:, :2] + edges[:, 2:]).max(axis=0).tolist()
        pixels = np.zeros((bottom - top, right - left), np.bool_)
        for mask in members:
            x, y, width, height = mask.box
            pixels[y - top : y - top + height, x - left : x - left + width] |= mask.crop()
        parts.append(Masks.of(pixels[None]).placed((left, top), masks.size))
    return Masks.concatenate(parts, masks.size)
