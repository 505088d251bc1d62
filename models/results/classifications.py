"""The result of a classifier."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .rows import Rows, class_label, save_rows

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Self

__all__ = ["Classification", "Classifications"]


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
        return [class_label(self.names, i) for i in self.class_ids.tolist()]

    def __len__(self) -> int:
        return len(self.class_ids)

    def __repr__(self) -> str:
        best = ", ".join(f"{row.label} {row.score:.3f}" for row in self[:3])
        return f"<{type(self).__name__}: {best}{', ...' if len(self) > 3 else ''}>"

    def _row(self, index: int) -> Classification:
        class_id = int(self.class_ids[index])
        return Classification(class_id, float(self.scores[index]), class_label(self.names, class_id))

    def _take(self, index: slice | npt.NDArray[Any]) -> Self:
        return dataclasses.replace(self, class_ids=self.class_ids[index], scores=self.scores[index])

    def to_dicts(self) -> list[dict[str, Any]]:
        """The classes as dicts of plain Python values: `class_id`, `score`, `label`."""
        return [row.to_dict() for row in self]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes `to_dicts()` to a file that ends in `.json`. Raises ConfigError, OutputError."""
        return save_rows(self, path, None)
