"""The result of a classifier."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import UnsupportedModelError
from .agreement import Agreement
from .habits import Row
from .result import ResultTensor, bytes_array
from .rows import Rows, check_names, class_label

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL import Image
    from typing_extensions import Self

__all__ = ["Classification", "Classifications"]


@dataclass(frozen=True, slots=True)
class Classification(Row):
    """One class and its score."""

    class_id: int
    score: float
    label: str

    def to_dict(self) -> dict[str, Any]:
        return {"class_id": self.class_id, "score": self.score, "label": self.label}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Classifications(Rows[Classification]):
    """The best classes of one image, best first: `class_ids` int32 and `scores` float32, both (k,)."""

    class_ids: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]
    names: Sequence[str]

    def __post_init__(self) -> None:
        check_names(self.names)

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

    def summary(self) -> str:
        """The classes with their scores, a line each."""
        width = max((len(label) for label in self.labels), default=0)
        return "\n".join(f"{row.label:<{width}}  {row.score:.4f}" for row in self) or "no classes"

    def _tensors(self) -> Mapping[str, ResultTensor]:
        return {
            "class_ids": ResultTensor(lambda: self.class_ids, 1, -1),
            "class_scores": ResultTensor(lambda: self.scores, 1),
            "class_labels": ResultTensor(lambda: bytes_array(self.labels), 1, b""),
        }

    def _drawn(self, pil: Image.Image) -> Image.Image:
        from ..draw import draw_texts

        return draw_texts(pil, [f"{row.label} {row.score:.2f}" for row in self], self.class_ids.tolist())

    def _agreement(self, other: Self, min_score: float) -> Agreement:
        """The sum of the common part of the scores, sum min(p, p') / sum p for probabilities. The shift is that of the
        best class. A class that `other` does not have counts with its greatest possible score there. That is the lowest
        score of `other`, or 1 less their sum if this is lower.
        """
        lowest = min(one.scores.min(initial=0) for one in (self, other))
        if lowest < 0:
            raise UnsupportedModelError(
                f"a score is {lowest:.4g}, and scores below 0 have no measure of agreement; load the model with "
                "softmax=True"
            )
        before, after = (dict(zip(one.class_ids.tolist(), one.scores.tolist(), strict=True)) for one in (self, other))
        common = 2 * sum(min(before[name], after[name]) for name in before.keys() & after.keys())
        missing = min(min(after.values(), default=0.0), max(1 - sum(after.values()), 0.0))
        shifts = [after.get(best, missing) - before[best] for best in self.class_ids[:1].tolist()]
        return Agreement.of(common, sum(before.values()) + sum(after.values()), shifts)
