"""What the wrappers return: small, immutable, with NumPy views for those who want all at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ..errors import BackendUnavailableError
from ..image import HostImage, ImageSource, read_image

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image

    from ..ops import DetectStats

__all__ = ["Classification", "Classifications", "Detection", "Detections"]


@dataclass(frozen=True, slots=True)
class Detection:
    """One box: `xyxy` are its left, top, right and bottom edge in pixels of the image."""

    xyxy: tuple[float, float, float, float]
    score: float
    class_id: int
    label: str

    def as_dict(self) -> dict[str, Any]:
        return {"xyxy": list(self.xyxy), "score": self.score, "class_id": self.class_id, "label": self.label}


@dataclass(frozen=True, slots=True, eq=False)
class Detections(Sequence[Detection]):
    """The boxes of one image, best first.

    Attributes:
        data: the boxes as a structured array (`xyxy` float32 (4,), `score` float32, `class_id` int32).
        names: the class names by class_id; a class without one is called by its number.
        size: (width, height) of the image.
        stats: how many candidates there were, and what the limits left out.
    """

    data: npt.NDArray[Any]
    names: Sequence[str]
    size: tuple[int, int]
    stats: DetectStats

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

    @overload
    def __getitem__(self, index: int) -> Detection: ...
    @overload
    def __getitem__(self, index: slice) -> Detections: ...
    def __getitem__(self, index: int | slice) -> Detection | Detections:
        if isinstance(index, slice):
            return Detections(self.data[index], self.names, self.size, self.stats)
        return self._box(self.data[index])

    def __iter__(self) -> Iterator[Detection]:
        return map(self._box, self.data)

    def _box(self, row: Any) -> Detection:
        class_id = int(row["class_id"])
        x1, y1, x2, y2 = row["xyxy"].tolist()
        return Detection((x1, y1, x2, y2), float(row["score"]), class_id, _name(self.names, class_id))

    def to_supervision(self) -> Any:
        """The same as a `supervision.Detections`, with the labels under `data["class_name"]`."""
        try:
            import supervision
        except ImportError:
            raise BackendUnavailableError(
                'to_supervision() needs the supervision package: pip install "infersdk[supervision]"'
            ) from None
        return supervision.Detections(
            xyxy=self.xyxy.copy(),
            confidence=self.scores.copy(),
            class_id=self.class_ids.astype(int),
            data={"class_name": np.array(self.labels, dtype=str)},
        )

    def draw(self, image: ImageSource | HostImage, *, channel_order: str = "bgr") -> Image.Image:
        """The boxes over the image they were found in, as a new PIL image."""
        from .draw import draw_boxes

        return draw_boxes(read_image(image, channel_order=channel_order), self)


@dataclass(frozen=True, slots=True)
class Classification:
    """One class and its score."""

    class_id: int
    score: float
    label: str

    def as_dict(self) -> dict[str, Any]:
        return {"class_id": self.class_id, "score": self.score, "label": self.label}


@dataclass(frozen=True, slots=True, eq=False)
class Classifications(Sequence[Classification]):
    """The best classes of one image, best first: `class_ids` int32 and `scores` float32, both (k,)."""

    class_ids: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]
    names: Sequence[str] = field(repr=False)

    @property
    def labels(self) -> list[str]:
        return [_name(self.names, i) for i in self.class_ids.tolist()]

    def __len__(self) -> int:
        return len(self.class_ids)

    @overload
    def __getitem__(self, index: int) -> Classification: ...
    @overload
    def __getitem__(self, index: slice) -> Classifications: ...
    def __getitem__(self, index: int | slice) -> Classification | Classifications:
        if isinstance(index, slice):
            return Classifications(self.class_ids[index], self.scores[index], self.names)
        class_id = int(self.class_ids[index])
        return Classification(class_id, float(self.scores[index]), _name(self.names, class_id))


def _name(names: Sequence[str], class_id: int) -> str:
    return names[class_id] if class_id < len(names) else str(class_id)
