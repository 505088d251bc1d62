"""How far results agree with reference results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Agreement", "best_matches", "overlaps"]

#: Minimum overlap of two rows that are the same object.
_SAME_OBJECT = 0.5


@dataclass(frozen=True)
class Agreement:
    """How far the results of a model agree with a reference.

    Attributes:
        common, total: for each image, the intersection and the union of both results, as numbers.
        shifts: for each image, the score changes of matched rows; `()` for results without scores.
    """

    common: npt.NDArray[np.float64]
    total: npt.NDArray[np.float64]
    shifts: tuple[npt.NDArray[np.float64], ...] = ()

    @classmethod
    def of(cls, common: float, total: float, shifts: Iterable[float] | None = None) -> Agreement:
        """The agreement of one image; `shifts=None` for results without scores."""
        changes = () if shifts is None else (np.asarray([*shifts], np.float64),)
        return cls(np.asarray([common], np.float64), np.asarray([total], np.float64), changes)

    @classmethod
    def joined(cls, parts: Iterable[Agreement]) -> Agreement:
        """The agreement of the images of all parts, at least one."""
        several = tuple(parts)
        return cls(
            np.concatenate([part.common for part in several]),
            np.concatenate([part.total for part in several]),
            tuple(change for part in several for change in part.shifts),
        )

    @property
    def percent(self) -> float:
        """100 is identity. Results without anything in them agree."""
        whole = float(self.total.sum())
        return 100 * float(self.common.sum()) / whole if whole > 0 else 100.0

    @property
    def score_shift(self) -> float:
        """The mean score change of matched rows. NaN where there are rows with scores and none match; 0 without any."""
        changes = np.concatenate([*self.shifts, np.empty(0)])
        if changes.size:
            return float(changes.mean())
        return float("nan") if self.shifts and self.total.any() else 0.0


def overlaps(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """IoU of each box with each, `[len(a), len(b)]`; 1 for equal boxes, also for those without area."""
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    inner = np.prod(np.clip(high - low, 0, None), axis=-1)
    area_a, area_b = np.prod(a[:, 2:] - a[:, :2], axis=-1), np.prod(b[:, 2:] - b[:, :2], axis=-1)
    ious = inner / np.maximum(area_a[:, None] + area_b[None] - inner, 1e-9)
    return np.where((a[:, None] == b[None]).all(axis=-1), 1, ious)


def best_matches(ious: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Pairs of row and column that are the same object: each row, from the first on, with the free column that it
    overlaps most.
    """
    free = np.ones(ious.shape[1], bool)
    for row, values in enumerate(ious):
        column = int(np.where(free, values, 0).argmax()) if values.size else -1
        if column >= 0 and free[column] and values[column] >= _SAME_OBJECT:
            free[column] = False
            yield row, column
