"""The result of a detector: boxes, and what belongs to each of them."""

from __future__ import annotations

import dataclasses
import operator
import os
import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ...core.tensor_spec import as_numbers
from ...errors import InputError, ShapeError
from ...ops import DETECTION, DetectStats
from ..oriented import corners
from .agreement import Agreement, best_matches, overlaps
from .exports import category_of, import_supervision
from .habits import Row
from .masks import Masks
from .plain import plain_data, plain_value
from .result import ResultTensor, bytes_array
from .rows import Rows, check_names, class_label

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image, ImageFont
    from typing_extensions import Self

    from ...image import HostImage, ImageSource

__all__ = ["Detection", "Detections", "check_detections"]


@dataclass(frozen=True, slots=True)
class Detection(Row):
    """One box.

    Attributes:
        xyxy: left, top, right and bottom edge in pixels of the image.
        score: 0 to 1.
        class_id: the number of its class.
        label: the name of its class.
        columns: further values of this box by name; see `Detections.columns`.
    """

    xyxy: tuple[float, float, float, float]
    score: float
    class_id: int
    label: str
    columns: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def xywh(self) -> tuple[float, float, float, float]:
        """The centre's x and y, width and height in pixels. COCO's `bbox` begins at the corner instead: `to_coco()`."""
        x1, y1, x2, y2 = self.xyxy
        return (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1

    @property
    def tracker_id(self) -> int | None:
        """The number of its track, the column `track_id`: -1 for a box of no track; None where there is no such
        column.
        """
        number = self.columns.get("track_id")
        return None if number is None else int(number)

    def to_dict(self) -> dict[str, Any]:
        """`xyxy`, `score`, `class_id`, `label` and each column, as plain Python values."""
        own = {"xyxy": list(self.xyxy), "score": self.score, "class_id": self.class_id, "label": self.label}
        return own | {name: plain_value(value) for name, value in self.columns.items()}


#: The dimensions and the sizes of the last axis of known columns, and their shape in words.
_SHAPES = {
    "keypoints": (3, (2, 3), "(boxes, points, 2 or 3), and (0, points, 2 or 3) for no boxes"),
    "oriented": (2, (5,), "(boxes, 5)"),
}
#: Names that a box has already: in its dict, among the tensors, and in supervision's data.
OWN_NAMES = frozenset({"xyxy", "score", "class_id", "label", "boxes", "scores", "classes", "labels", "class_name"})


def _checked(columns: Mapping[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    """The columns as arrays and `Masks`; those with a known name as arrays of float32, and as `Masks`."""
    checked = {name: _as_column(name, one) for name, one in columns.items()}
    for name, (dimensions, last, words) in _SHAPES.items():
        if name in columns:
            array = as_numbers(name, columns[name], np.float32)
            if array.shape == (0,) and dimensions == 2:  # an empty list; the number of points is not known
                array = array.reshape(0, *last)
            checked[name] = array
            if array.ndim != dimensions or array.shape[-1] not in last:
                raise ShapeError(f"column {name!r} has shape {array.shape}; use {words}")
    if "track_id" in columns and (kind := np.asarray(checked["track_id"]).dtype).kind not in "iu":
        checked["track_id"] = np.zeros(0, np.int64)  # an empty list is of float64
        if len(columns["track_id"]):
            raise InputError(f"column 'track_id' is of {kind}; use whole numbers, -1 for boxes without one")
    if "mask" in columns:
        masks = columns["mask"]
        if not isinstance(masks, Masks):
            is_list = not len(masks) and np.ndim(masks) == 1  # an empty one
            masks = Masks.of(np.zeros((0, size[1], size[0]), np.bool_) if is_list else masks)
        checked["mask"] = masks
        if masks.size != size:
            raise ShapeError(
                f"column 'mask' has masks of {masks.size[0]} x {masks.size[1]} for an image of {size[0]} x {size[1]}"
            )
    return checked


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Detections(Rows[Detection]):
    """The boxes of one image, best first.

    Attributes:
        data: the boxes as a structured array (`xyxy` float32 (4,), `score` float32, `class_id` int32).
        names: the class names by class_id; a class without one is called by its number.
        size: (width, height) of the image.
        stats: the number of candidates, and of those that limits left out.
        columns: further values of each box by name: arrays whose first axis is that of the boxes. Lists and other
            values in an order, such as a pandas Series, become arrays. Filters and slices keep them together. These
            names have a meaning of their own: `mask` (see `masks`; an array (N, height, width) becomes `Masks`),
            `keypoints`, `oriented`, and `track_id`, the number that a tracker gives. Drawing and exports know them.
    """

    data: npt.NDArray[Any]
    names: Sequence[str]
    size: tuple[int, int]
    stats: DetectStats
    columns: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        xyxy: npt.ArrayLike,
        scores: npt.ArrayLike,
        class_ids: npt.ArrayLike | None = None,
        *,
        names: Sequence[str],
        size: tuple[int, int],
        stats: DetectStats | None = None,
        **columns: Any,
    ) -> Self:
        """Boxes from arrays, for a custom `postprocess()`.

        Args:
            xyxy: (N, 4): left, top, right and bottom in pixels of the image; clipped to it here.
            scores: (N,), best first.
            class_ids: (N,); None is class 0 for all.
            names, size: as the attributes.
            stats: None says that nothing was left out.
            columns: further columns by name. For no boxes each may be an empty list, apart from `keypoints`, which has
                the shape (0, points, 2 or 3).

        Raises:
            ShapeError: the arrays have other shapes, or other numbers of rows.
            InputError: an edge or a score is not a finite number, a class id is not a whole number of int32, or `size`
                is not two whole numbers from 1.
            InputError: `names` is no list; or a column is wrong, see `with_columns()`.
        """
        # float64: finite edges that are far outside may be infinite as float32, until they are clipped.
        boxes, values = as_numbers("xyxy", xyxy, np.float64), as_numbers("scores", scores, np.float32)
        boxes = boxes if boxes.size else boxes.reshape(0, 4)
        classes = np.zeros(boxes.shape[:1], np.int32) if class_ids is None else _class_numbers(class_ids)
        if boxes.shape[1:] != (4,) or not values.shape == classes.shape == boxes.shape[:1]:
            raise ShapeError(
                f"xyxy has shape {boxes.shape}, scores {values.shape} and class_ids {classes.shape}; use (N, 4), (N,) "
                "and (N,)"
            )
        if (wrong := np.flatnonzero(~(np.isfinite(boxes).all(axis=1) & np.isfinite(values)))).size:
            raise InputError(
                f"box {wrong[0]} of {len(boxes)} has the edges {boxes[wrong[0]].tolist()} and the score "
                f"{values[wrong[0]]}; leave out boxes that are not finite"
            )
        check_names(names)
        data = np.zeros(len(boxes), DETECTION)
        try:
            width, height = map(operator.index, size)
            if min(width, height) < 1:
                raise ValueError
        except (TypeError, ValueError):
            raise InputError(f"size is {size!r:.80}; give (width, height) of the image, in whole pixels") from None
        data["xyxy"] = np.clip(boxes, 0, (width, height, width, height))
        data["score"], data["class_id"], data["row"] = values, classes, np.arange(len(boxes))
        return cls(data, names, (width, height), stats or DetectStats(len(boxes), 0, len(boxes), 0), columns)

    def __post_init__(self) -> None:
        if not self.columns:
            return
        if taken := sorted(OWN_NAMES & self.columns.keys()):
            raise InputError(f"a column is called {taken[0]!r}, as a value that every box has; use another name")
        for name, column in self.columns.items():
            if (rows := _row_count(column)) != len(self.data):
                has = f"is {column!r:.80}, one value" if rows is None else f"has {rows} rows"
                raise ShapeError(f"column {name!r} {has} for {len(self.data)} boxes; give one value for each box")
        object.__setattr__(self, "columns", _checked(self.columns, self.size))

    @property
    def xyxy(self) -> npt.NDArray[np.float32]:
        """(N, 4) float32: left, top, right, bottom in pixels."""
        return self.data["xyxy"]

    @property
    def xywh(self) -> npt.NDArray[np.float32]:
        """(N, 4) float32: the centre's x and y, width and height in pixels. COCO's `bbox` begins at the corner instead:
        `to_coco()`.
        """
        low, high = self.xyxy[:, :2], self.xyxy[:, 2:]
        return np.concatenate([(low + high) / 2, high - low], axis=1)

    @property
    def scores(self) -> npt.NDArray[np.float32]:
        """(N,) float32."""
        return self.data["score"]

    @property
    def class_ids(self) -> npt.NDArray[np.int32]:
        """(N,) int32."""
        return self.data["class_id"]

    @property
    def labels(self) -> list[str]:
        return [class_label(self.names, i) for i in self.class_ids.tolist()]

    @property
    def masks(self) -> Masks:
        """The mask of each box: its pixels, run lengths and outlines. Raises InputError for boxes without masks."""
        masks: Masks = self._column("mask", "masks")
        return masks

    def polygons(self, *, tolerance: float = 0.0) -> list[list[npt.NDArray[np.float32]]]:
        """The outlines of each mask; see `Mask.polygons()`. Raises InputError where there are no masks."""
        return [mask.polygons(tolerance=tolerance) for mask in self.masks]

    @property
    def keypoints(self) -> npt.NDArray[np.float32]:
        """(N, points, 2 or 3) float32: x and y in pixels, and a score. Raises InputError if the boxes have none."""
        points: npt.NDArray[np.float32] = self._column("keypoints", "keypoints")
        return points

    @property
    def oriented(self) -> npt.NDArray[np.float32]:
        """(N, 5) float32: the centre's x and y, width and height in pixels, and the angle in radians. The angle turns
        the side of the width from the x axis towards the y axis, which points down. `xyxy` are the edges of the
        enclosing upright boxes. Raises InputError where the boxes are upright.
        """
        oriented: npt.NDArray[np.float32] = self._column("oriented", "angles")
        return oriented

    @property
    def angles(self) -> npt.NDArray[np.float32]:
        """(N,) float32: the angles of `oriented`."""
        return self.oriented[:, 4]

    @property
    def corners(self) -> npt.NDArray[np.float32]:
        """(N, 4, 2) float32: the corners of `oriented`, in order around each box."""
        return corners(self.oriented)

    def _column(self, name: str, what: str) -> Any:
        if name not in self.columns:
            raise InputError(f"these boxes have no {what}; their columns are {', '.join(self.columns) or 'none'}")
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {label}" for label, count in Counter(self.labels).most_common(8))
        return f"<{type(self).__name__}: {counts or 'nothing'} in {self.size[0]} x {self.size[1]}>"

    def _row(self, index: int) -> Detection:
        row = self.data[index]
        class_id = int(row["class_id"])
        x1, y1, x2, y2 = row["xyxy"].tolist()
        columns = {name: column[index] for name, column in self.columns.items()}
        return Detection((x1, y1, x2, y2), float(row["score"]), class_id, class_label(self.names, class_id), columns)

    def _take(self, index: slice | npt.NDArray[Any]) -> Self:
        columns = {name: column[index] for name, column in self.columns.items()}
        return dataclasses.replace(self, data=self.data[index], columns=columns)

    def with_columns(self, **columns: Any) -> Self:
        """The same boxes with further columns, or with others of the same name.

        Raises:
            ShapeError: a column has another number of rows than there are boxes.
            InputError: a column has the name of a value that every box has, such as `label`.
            InputError: a column is a set or a mapping, or cannot be read as an array.
        """
        return dataclasses.replace(self, columns={**self.columns, **columns})

    def to_coco(self, image_id: int, category_ids: Sequence[int] | Mapping[int, int]) -> list[dict[str, Any]]:
        """The boxes as COCO's result format has them: `bbox` is left, top, width and height in pixels.

        `segmentation` is a mask as compressed run lengths, or the polygon of an oriented box. `keypoints` is one list
        of x, y and score of each; points without scores have 1.

        Args:
            image_id: the image's number in the annotations.
            category_ids: the number of the category in the annotations, by class_id. COCO's own run from 1 to 90, with
                gaps.

        Raises:
            InputError: a class has no category.
        """
        rows: list[dict[str, Any]] = []
        for (x1, y1, x2, y2), score, class_id in zip(
            self.xyxy.tolist(), self.scores.tolist(), self.class_ids.tolist(), strict=True
        ):
            category, box = category_of(category_ids, class_id, self.names), [x1, y1, x2 - x1, y2 - y1]
            rows.append({"image_id": plain_value(image_id), "category_id": category, "bbox": box, "score": score})
        for row, oriented in zip(rows, self.columns.get("oriented", ()), strict=False):
            row["segmentation"] = [corners(oriented).reshape(-1).tolist()]
        for row, mask in zip(rows, self.columns.get("mask", ()), strict=False):
            row["segmentation"] = mask.to_coco()
        for row, points in zip(rows, self.columns.get("keypoints", ()), strict=False):
            values = np.ones((len(points), 3))
            values[:, : points.shape[1]] = points
            row["keypoints"] = values.reshape(-1).tolist()
        return rows

    def to_supervision(self) -> Any:
        """The same as a `supervision.Detections`: with `mask`, `tracker_id` (of the column `track_id`), the labels in
        `data["class_name"]`, the corners of oriented boxes in `data["xyxyxyxy"]`, and each further column in `data`.
        """
        columns = dict(self.columns)
        mask, tracks = columns.pop("mask", None), columns.pop("track_id", None)
        data = {name: np.array(column) for name, column in columns.items()}
        if "oriented" in data:
            data["xyxyxyxy"] = corners(data.pop("oriented"))
        return import_supervision().Detections(
            xyxy=self.xyxy.copy(),
            mask=None if mask is None else np.array(mask),
            confidence=self.scores.copy(),
            class_id=self.class_ids.astype(int),
            tracker_id=None if tracks is None else np.array(tracks),
            data={"class_name": np.array(self.labels, dtype=str), **data},
        )

    def draw(
        self,
        image: ImageSource | HostImage | None = None,
        *,
        channel_order: str = "bgr",
        font: str | os.PathLike[str] | ImageFont.FreeTypeFont | None = None,
        colour_by: str | None = None,
        skeleton: Sequence[tuple[int, int]] | None = None,
    ) -> Image.Image:
        """The boxes over an image, as a new PIL image, with their masks, keypoints and track numbers.

        Args:
            image, channel_order: see `Result.draw()`, also for its errors.
            font: a font file or a loaded font for the labels; None is a font of Pillow's, or of the system where that
                lacks a character.
            colour_by: the colours of boxes: by `"class"`, by `"box"`, or by the name of a column of whole numbers.
                None is `"track_id"` where there is such a column, else `"class"`.
            skeleton: the pairs of keypoints that a line joins, by number from 0; None is COCO's where there are 17.

        Raises:
            ConfigError: there is no such font, column or keypoint.
        """
        pil = self._pil(image, channel_order)
        return self._drawn(pil, font=font, colour_by=colour_by, skeleton=skeleton)

    def _drawn(self, pil: Image.Image, **options: Any) -> Image.Image:
        from ..draw import draw_boxes

        return draw_boxes(pil, self, **options)

    def summary(self) -> str:
        """A line for each box with label, score and edges, and the number of boxes that limits left out."""
        labels = self.labels
        width = max(map(len, labels), default=0)
        lines = [
            f"{label:<{width}}  {score:.3f}  " + ", ".join(f"{edge:.1f}" for edge in edges)
            for label, score, edges in zip(labels, self.scores.tolist(), self.xyxy.tolist(), strict=True)
        ] or ["nothing found"]
        if self.stats.dropped_detections or self.stats.dropped_candidates:
            lines.append(
                f"{self.stats.dropped_detections} more boxes were left out by max_det, "
                f"{self.stats.dropped_candidates} candidates before NMS"
            )
        return "\n".join(lines)

    def _tensors(self) -> Mapping[str, ResultTensor]:
        tensors = {
            "num_detections": ResultTensor(lambda: np.int32(len(self))),
            "detection_boxes": ResultTensor(lambda: self.xyxy, 1),
            "detection_scores": ResultTensor(lambda: self.scores, 1),
            "detection_classes": ResultTensor(lambda: self.class_ids, 1, -1),
            "detection_labels": ResultTensor(lambda: bytes_array(self.labels), 1, b""),
        }
        return tensors | {f"detection_{name}": _column_tensor(column) for name, column in self.columns.items()}

    def _agreement(self, other: Self, min_score: float) -> Agreement:
        """The Dice coefficient of the scores, weighted with the overlap: 2 sum IoU min(s, s') / (sum s + sum s').

        Boxes of one class match from an IoU of 0.5 on, each once, the highest score first. Boxes of the other side
        below `min_score` count only where they match.
        """
        kept = self.scores >= min_score
        boxes, scores, class_ids = self.xyxy[kept], self.scores[kept], self.class_ids[kept]
        counted = other.scores >= min_score
        ious = overlaps(other.xyxy, boxes) * (other.class_ids[:, None] == class_ids[None])
        common, shifts = 0.0, []
        for theirs, own in best_matches(ious):
            score, known = float(other.scores[theirs]), float(scores[own])
            common += 2 * float(ious[theirs, own]) * min(score, known)
            shifts.append(score - known)
            counted[theirs] = True
        total = np.sum(scores, dtype=np.float64) + np.sum(other.scores[counted], dtype=np.float64)
        return Agreement.of(common, float(total), shifts)


def check_detections(found: Any) -> None:
    """Raises InputError for anything but `Detections`."""
    if not isinstance(found, Detections):
        raise InputError(
            f"a {type(found).__name__} is not the Detections of one frame; pass model(frame), before to_supervision()"
        )


def _row_count(column: Any) -> int | None:
    """The number of rows of a column; None for a single value."""
    try:
        return None if isinstance(column, (str, bytes)) else len(column)
    except TypeError:
        return None


def _as_column(name: str, values: Any) -> npt.NDArray[Any] | Masks:
    """A column by position of its boxes: a pandas Series is indexed by label, and a range by no mask."""
    if isinstance(values, (np.ndarray, Masks)):
        return values
    if isinstance(values, (Set, Mapping)):
        raise InputError(
            f"column {name!r} is a {type(values).__name__}, {reprlib.repr(values)}; give a list or an array of one "
            "value for each box, in their order"
        )
    try:
        return np.asarray(values) if hasattr(values, "__array__") else _as_array(list(values))
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor on a GPU, for example
        raise InputError(f"column {name!r} cannot be read as an array: {error}; give a list or an array") from None


def _as_array(values: Sequence[Any]) -> npt.NDArray[Any]:
    """Numbers as an array of numbers, anything else as an array of objects: arrays take masks and positions."""
    if all(isinstance(value, (int, float, np.number, np.bool_)) for value in values):
        return np.asarray(values)
    array = np.empty(len(values), object)
    for index, value in enumerate(values):  # at once, NumPy would take objects with a length apart
        array[index] = value
    return array


def _class_numbers(class_ids: npt.ArrayLike) -> npt.NDArray[np.int32]:
    given = as_numbers("class_ids", class_ids)
    with np.errstate(invalid="ignore"):
        numbers = given.astype(np.int32)
    if (wrong := given[numbers != given]).size:
        raise InputError(f"class_ids contain {wrong[0]}; give whole numbers of int32")
    return numbers


def _column_tensor(column: Any) -> ResultTensor:
    """Numbers in the byte order of the machine; of any other column (masks, results of a model) each row as JSON."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
        return ResultTensor(lambda: column.astype(column.dtype.newbyteorder("="), copy=False), 1)
    return ResultTensor(
        lambda: bytes_array([
            msgspec.json.encode(plain_data(plain_value(column[index]))) for index in range(len(column))
        ]),
        1, b"",
    )  # fmt: skip
