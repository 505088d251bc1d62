"""Detections in the form that other programs take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...errors import BackendUnavailableError, InputError
from ..oriented import corners
from .rows import class_label

if TYPE_CHECKING:
    import numpy.typing as npt

    from .masks import Mask

__all__ = ["coco_rows", "supervision_detections"]


class _Boxes(Protocol):
    """The part of `Detections` that is exported."""

    @property
    def xyxy(self) -> npt.NDArray[np.float32]: ...
    @property
    def scores(self) -> npt.NDArray[np.float32]: ...
    @property
    def class_ids(self) -> npt.NDArray[np.int32]: ...
    @property
    def labels(self) -> list[str]: ...
    @property
    def names(self) -> Sequence[str]: ...
    @property
    def columns(self) -> Mapping[str, Any]: ...


def coco_rows(found: _Boxes, image_id: int, category_ids: Sequence[int] | Mapping[int, int]) -> list[dict[str, Any]]:
    """See `Detections.to_coco()`."""
    rows = []
    for (x1, y1, x2, y2), score, class_id in zip(
        found.xyxy.tolist(), found.scores.tolist(), found.class_ids.tolist(), strict=True
    ):
        try:
            category = category_ids[class_id]
        except (LookupError, TypeError):
            raise InputError(
                f"category_ids has no category for class {class_id} ({class_label(found.names, class_id)}); give one "
                "for each class of the model, or filter the boxes before"
            ) from None
        box = [x1, y1, x2 - x1, y2 - y1]
        rows.append({"image_id": image_id, "category_id": int(category), "bbox": box, "score": score})
    for name, add in (("oriented", _add_corners), ("mask", _add_mask), ("keypoints", _add_keypoints)):
        if name in found.columns:
            for row, value in zip(rows, found.columns[name], strict=True):
                add(row, value)
    return rows


def _add_corners(row: dict[str, Any], oriented: Any) -> None:
    row["segmentation"] = [corners(oriented).reshape(-1).tolist()]


def _add_mask(row: dict[str, Any], mask: Mask) -> None:
    row["segmentation"] = mask.to_coco()


def _add_keypoints(row: dict[str, Any], points: npt.NDArray[np.float32]) -> None:
    values = np.ones((len(points), 3))
    values[:, : points.shape[1]] = points
    row["keypoints"] = values.reshape(-1).tolist()


def supervision_detections(found: _Boxes) -> Any:
    """See `Detections.to_supervision()`."""
    try:
        import supervision
    except ImportError:
        raise BackendUnavailableError(
            'to_supervision() needs the supervision package: pip install "infersdk[supervision]"'
        ) from None
    columns = dict(found.columns)
    mask, tracks = columns.pop("mask", None), columns.pop("track_id", None)
    data = {name: np.array(column) for name, column in columns.items()}
    if "oriented" in data:
        data["xyxyxyxy"] = corners(data.pop("oriented"))
    return supervision.Detections(
        xyxy=found.xyxy.copy(),
        mask=None if mask is None else np.array(mask),
        confidence=found.scores.copy(),
        class_id=found.class_ids.astype(int),
        tracker_id=None if tracks is None else np.array(tracks),
        data={"class_name": np.array(found.labels, dtype=str), **data},
    )
