"""Detections in the form that other programs take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import BackendUnavailableError, InputError
from ..oriented import corners
from .rows import class_label

if TYPE_CHECKING:
    import numpy.typing as npt

    from .masks import Mask

__all__ = ["category_of", "coco_rows", "import_supervision", "supervision_detections"]


def category_of(category_ids: Sequence[int] | Mapping[int, int], class_id: int, names: Sequence[str]) -> int:
    """The category of a class in COCO's annotations.

    Raises:
        InputError: the class has none.
    """
    try:
        return int(category_ids[class_id])
    except (LookupError, TypeError):
        raise InputError(
            f"category_ids has no category for class {class_id} ({class_label(names, class_id)}); give one for each "
            "class of the model, or filter the rows before"
        ) from None


def import_supervision() -> Any:
    """The package `supervision`; raises BackendUnavailableError where it is not installed."""
    try:
        import supervision
    except ImportError:
        raise BackendUnavailableError(
            'to_supervision() needs the supervision package: pip install "infersdk[supervision]"'
        ) from None
    return supervision


def coco_rows(found: Any, image_id: int, category_ids: Sequence[int] | Mapping[int, int]) -> list[dict[str, Any]]:
    """The rows of `Detections`; see `Detections.to_coco()`."""
    rows = []
    for (x1, y1, x2, y2), score, class_id in zip(
        found.xyxy.tolist(), found.scores.tolist(), found.class_ids.tolist(), strict=True
    ):
        category, box = category_of(category_ids, class_id, found.names), [x1, y1, x2 - x1, y2 - y1]
        rows.append({"image_id": image_id, "category_id": category, "bbox": box, "score": score})
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


def supervision_detections(found: Any) -> Any:
    """See `Detections.to_supervision()`; `found` are `Detections`."""
    columns = dict(found.columns)
    mask, tracks = columns.pop("mask", None), columns.pop("track_id", None)
    data = {name: np.array(column) for name, column in columns.items()}
    if "oriented" in data:
        data["xyxyxyxy"] = corners(data.pop("oriented"))
    return import_supervision().Detections(
        xyxy=found.xyxy.copy(),
        mask=None if mask is None else np.array(mask),
        confidence=found.scores.copy(),
        class_id=found.class_ids.astype(int),
        tracker_id=None if tracks is None else np.array(tracks),
        data={"class_name": np.array(found.labels, dtype=str), **data},
    )
