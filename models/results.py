"""What the wrappers return: small, immutable, with NumPy arrays for all rows at once.

A result is a sequence of rows, best first. It takes the indices of a list (`found[0]`, `found[:3]`) and those of an
array (`found[found.scores > 0.5]`, `found[[0, 2]]`), and goes on to other programs::

    json.dumps(found.to_dicts())                        # any web framework takes the dicts as they are
    found.to_coco(image_id=17, category_ids=[1, 2, 3])
    found.to_supervision()
    found.save("out.jpg", image=frame)                  # the boxes drawn; "out.json" holds the rows
"""

from __future__ import annotations

import dataclasses
import io
import json
import operator
import os
import weakref
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from .._files import atomic_path, atomic_write
from ..errors import BackendUnavailableError, ConfigError, InputError, ShapeError
from ..image import HostImage, ImageSource, read_image
from ..ops import DETECTION, DetectStats
from .draw import blank_image, draw_boxes, to_pil

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image, ImageFont
    from typing_extensions import Self


__all__ = ["Classification", "Classifications", "Detection", "Detections", "Rows"]

Row = TypeVar("Row")


class Rows(Sequence[Row]):
    """A result of several rows: how it is indexed, and how it leaves as plain data."""

    __slots__ = ()

    @abstractmethod
    def _row(self, index: int) -> Row:
        """One row; `index` counts from 0 or, negative, from the end."""

    @abstractmethod
    def _take(self, index: slice | npt.NDArray[Any]) -> Self:
        """The same with the rows that `index` chooses, with all that belongs to them."""

    @abstractmethod
    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as dicts of plain Python values."""

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | Sequence[bool] | npt.NDArray[Any]) -> Self: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._take(index)
        if hasattr(index, "__index__") and not isinstance(index, (bool, np.bool_, np.ndarray)):
            return self._row(operator.index(index))
        return self._take(self._positions(index))

    def __iter__(self) -> Iterator[Row]:
        return map(self._row, range(len(self)))

    def to_json(self, *, indent: int | None = None) -> str:
        """`to_dicts()` as JSON. Raises ValueError for a number that JSON cannot hold: infinity or NaN."""
        return json.dumps(self.to_dicts(), ensure_ascii=False, allow_nan=False, indent=indent)

    def _positions(self, index: Any) -> npt.NDArray[Any]:
        """A mask of booleans or an array of positions, checked."""
        chosen = np.asarray(index)
        if chosen.size == 0 and chosen.ndim == 1 and chosen.dtype != bool:
            chosen = chosen.astype(np.intp)  # an empty list is of float64
        if chosen.dtype == bool and chosen.shape != (len(self),):
            raise ShapeError(f"a mask has one value for each of {len(self)} rows; this one has shape {chosen.shape}")
        if chosen.ndim != 1 or chosen.dtype.kind not in "bui":
            raise InputError(
                f"{type(self).__name__} takes a position, a slice, a mask of booleans or an array of positions, "
                f"not {index!r}"
            )
        return chosen


class ImageReference:
    """What an image was read from, without keeping its pixels alive: a path, or a weak reference to what holds them.

    Pickled, it keeps the path alone.
    """

    __slots__ = ("_channel_order", "_holder", "_path")

    def __init__(self, path: str | None, holder: weakref.ref[Any] | None, channel_order: str) -> None:
        self._path, self._holder, self._channel_order = path, holder, channel_order

    @classmethod
    def of(cls, source: Any, channel_order: str = "bgr") -> ImageReference | None:
        """The reference to an image source; None for bytes, streams and what else cannot be referred to."""
        if isinstance(source, (str, os.PathLike)):
            return cls(os.fspath(source), None, channel_order)
        if isinstance(source, HostImage):
            return cls(None, weakref.ref(source.pixels), source.format)
        if hasattr(source, "read"):
            return None
        try:
            return cls(None, weakref.ref(source), channel_order)
        except TypeError:
            return None

    def read(self) -> HostImage | None:
        """The image; None if its pixels are gone.

        Raises:
            ImageError: the file cannot be read any more.
        """
        if self._path is not None:
            return read_image(self._path)
        source = None if self._holder is None else self._holder()
        if source is None:
            return None
        if self._channel_order in ("bgr", "rgb", "nv12"):
            return read_image(source, channel_order=self._channel_order)
        return HostImage(source, self._channel_order)

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageReference, (self._path, None, self._channel_order)


@dataclass(frozen=True, slots=True)
class Detection:
    """One box.

    Attributes:
        xyxy: left, top, right and bottom edge in pixels of the image.
        score: 0 to 1.
        class_id: the number of its class.
        label: the name of its class.
        columns: what else is known of this box, by name; see `Detections.columns`.
    """

    xyxy: tuple[float, float, float, float]
    score: float
    class_id: int
    label: str
    columns: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        own = {"xyxy": list(self.xyxy), "score": self.score, "class_id": self.class_id, "label": self.label}
        return own | {name: _plain(value) for name, value in self.columns.items()}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Detections(Rows[Detection]):
    """The boxes of one image, best first.

    Attributes:
        data: the boxes as a structured array (`xyxy` float32 (4,), `score` float32, `class_id` int32).
        names: the class names by class_id; a class without one is called by its number.
        size: (width, height) of the image.
        stats: how many candidates there were, and what the limits left out.
        columns: what else is known of each box, by name: arrays whose first axis is that of the boxes, or objects that
            are indexed like one (masks, keypoints, numbers of a tracker). Filters and slices keep them together.
        image: what the boxes were found in, where that is known; `draw()` takes it.
        decoder: what decoded the image file (`"pillow"`, `"simplejpeg"`, `"nvimgcodec"`); None for pixels that came as
            an array.
    """

    data: npt.NDArray[Any]
    names: Sequence[str]
    size: tuple[int, int]
    stats: DetectStats
    columns: Mapping[str, Any] = field(default_factory=dict)
    image: ImageReference | None = None
    decoder: str | None = None

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
        """Boxes from arrays, for a `postprocess()` of one's own.

        Args:
            xyxy: (N, 4): left, top, right and bottom in pixels of the image; clipped to it here.
            scores: (N,), best first.
            class_ids: (N,); None is class 0 for all.
            names, size: as the attributes.
            stats: None says that nothing was left out.
            columns: further columns by name.

        Raises:
            ShapeError: the arrays have other numbers of rows.
        """
        boxes, values = np.asarray(xyxy, np.float32).reshape(-1, 4), np.asarray(scores, np.float32)
        classes = np.zeros(len(boxes), np.int32) if class_ids is None else np.asarray(class_ids, np.int32)
        if not len(boxes) == len(values) == len(classes):
            raise ShapeError(f"{len(boxes)} boxes, {len(values)} scores and {len(classes)} class ids; give one of each")
        data = np.zeros(len(boxes), DETECTION)
        width, height = size
        data["xyxy"] = np.clip(boxes, 0, (width, height, width, height))
        data["score"], data["class_id"], data["row"] = values, classes, np.arange(len(boxes))
        return cls(data, names, size, stats or DetectStats(len(boxes), 0, len(boxes), 0), columns)

    def __post_init__(self) -> None:
        for name, column in self.columns.items():
            if len(column) != len(self.data):
                raise ShapeError(f"column {name!r} has {len(column)} rows for {len(self.data)} boxes")

    @property
    def xyxy(self) -> npt.NDArray[np.float32]:
        """(N, 4) float32: left, top, right, bottom in pixels."""
        return self.data["xyxy"]

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
        return [_name(self.names, i) for i in self.class_ids.tolist()]

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
        return Detection((x1, y1, x2, y2), float(row["score"]), class_id, _name(self.names, class_id), columns)

    def _take(self, index: slice | npt.NDArray[Any]) -> Self:
        columns = {name: column[index] for name, column in self.columns.items()}
        return dataclasses.replace(self, data=self.data[index], columns=columns)

    def with_columns(self, **columns: Any) -> Self:
        """The same boxes with further columns, or with others of the same name.

        Raises:
            ShapeError: a column has another number of rows than there are boxes.
        """
        return dataclasses.replace(self, columns={**self.columns, **columns})

    def with_image(self, source: Any) -> Self:
        """The same boxes, with the image that they were found in; see `ImageReference`."""
        return dataclasses.replace(self, image=ImageReference.of(source))

    def _remember_image(self, source: Any) -> None:
        """As `with_image()`, in place: for the wrapper that has just made these boxes. A copy would take longer."""
        object.__setattr__(self, "image", ImageReference.of(source))

    def to_dicts(self) -> list[dict[str, Any]]:
        """The boxes as dicts of plain Python values: `xyxy`, `score`, `class_id`, `label`, and each column."""
        return [box.to_dict() for box in self]

    def to_coco(self, image_id: int, category_ids: Sequence[int] | Mapping[int, int]) -> list[dict[str, Any]]:
        """The boxes as COCO's result format has them: `bbox` is left, top, width and height in pixels.

        Args:
            image_id: the image's number in the annotations.
            category_ids: the number of the category in the annotations, by class_id. COCO's own run from 1 to 90, with
                gaps.

        Raises:
            InputError: a class has no category.
        """
        rows = []
        for (x1, y1, x2, y2), score, class_id in zip(
            self.xyxy.tolist(), self.scores.tolist(), self.class_ids.tolist(), strict=True
        ):
            try:
                category = category_ids[class_id]
            except (LookupError, TypeError):
                raise InputError(
                    f"category_ids has no category for class {class_id} ({_name(self.names, class_id)}); give one for "
                    "each class of the model, or filter the boxes before"
                ) from None
            box = [x1, y1, x2 - x1, y2 - y1]
            rows.append({"image_id": image_id, "category_id": int(category), "bbox": box, "score": score})
        return rows

    def to_supervision(self) -> Any:
        """The same as a `supervision.Detections`; the labels are `data["class_name"]`, and each column is there too."""
        try:
            import supervision
        except ImportError:
            raise BackendUnavailableError(
                'to_supervision() needs the supervision package: pip install "infersdk[supervision]"'
            ) from None
        columns = {name: np.array(column) for name, column in self.columns.items()}
        return supervision.Detections(
            xyxy=self.xyxy.copy(),
            confidence=self.scores.copy(),
            class_id=self.class_ids.astype(int),
            data={"class_name": np.array(self.labels, dtype=str), **columns},
        )

    def draw(
        self,
        image: ImageSource | HostImage | None = None,
        *,
        channel_order: str = "bgr",
        font: str | os.PathLike[str] | ImageFont.FreeTypeFont | None = None,
    ) -> Image.Image:
        """The boxes over an image, as a new PIL image.

        Args:
            image: the image that they were found in; None is the one that the result knows.
            channel_order: of an array.
            font: a font file or a loaded font for the labels; None is a font of Pillow's, or of the system where that
                lacks a character.

        Raises:
            InputError: the result does not know its image.
            ImageError: the image cannot be read.
        """
        given = self._known_image() if image is None else read_image(image, channel_order=channel_order)
        if given is None:
            raise InputError("the image is not known any more; give it: draw(image)")
        return draw_boxes(to_pil(given), self, font=font)

    def save(
        self, path: str | os.PathLike[str], *, image: ImageSource | HostImage | None = None, channel_order: str = "bgr"
    ) -> Path:
        """Writes the boxes to a file, by its suffix: `.json` holds `to_dicts()`, any image format the drawn image.

        Raises:
            OutputError: the file cannot be written.
            InputError, ImageError: as `draw()`.
        """
        return _save(self, path, lambda: self.draw(image, channel_order=channel_order))

    def _known_image(self) -> HostImage | None:
        return None if self.image is None else self.image.read()

    def _repr_png_(self) -> bytes:
        """For notebooks: the boxes drawn over the image, or on grey where the image is not known any more."""
        image = self._known_image()
        drawn = draw_boxes(blank_image(self.size) if image is None else to_pil(image), self)
        buffer = io.BytesIO()
        drawn.save(buffer, "PNG")
        return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class Classification:
    """One class and its score."""

    class_id: int
    score: float
    label: str

    def to_dict(self) -> dict[str, Any]:
        return {"class_id": self.class_id, "score": self.score, "label": self.label}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Classifications(Rows[Classification]):
    """The best classes of one image, best first: `class_ids` int32 and `scores` float32, both (k,).

    `decoder` is as of `Detections`.
    """

    class_ids: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]
    names: Sequence[str]
    decoder: str | None = None

    @property
    def labels(self) -> list[str]:
        return [_name(self.names, i) for i in self.class_ids.tolist()]

    def __len__(self) -> int:
        return len(self.class_ids)

    def __repr__(self) -> str:
        best = ", ".join(f"{row.label} {row.score:.3f}" for row in self[:3])
        return f"<{type(self).__name__}: {best}{', ...' if len(self) > 3 else ''}>"

    def _row(self, index: int) -> Classification:
        class_id = int(self.class_ids[index])
        return Classification(class_id, float(self.scores[index]), _name(self.names, class_id))

    def _take(self, index: slice | npt.NDArray[Any]) -> Self:
        return dataclasses.replace(self, class_ids=self.class_ids[index], scores=self.scores[index])

    def to_dicts(self) -> list[dict[str, Any]]:
        """The classes as dicts of plain Python values: `class_id`, `score`, `label`."""
        return [row.to_dict() for row in self]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes `to_dicts()` to a file that ends in `.json`. Raises ConfigError, OutputError."""
        return _save(self, path, None)


def _save(rows: Rows[Any], path: str | os.PathLike[str], drawn: Any) -> Path:
    target = Path(path)
    if target.suffix.lower() == ".json":
        return atomic_write(target, rows.to_json(indent=2) + "\n")
    if drawn is None:
        raise ConfigError(f"{str(target)!r}: {type(rows).__name__} are saved as JSON; name the file so: out.json")
    with atomic_path(target) as sibling:
        drawn().save(sibling)
    return target


def _plain(value: Any) -> Any:
    """Of a column: what JSON takes."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return value


def _name(names: Sequence[str], class_id: int) -> str:
    return names[class_id] if class_id < len(names) else str(class_id)
