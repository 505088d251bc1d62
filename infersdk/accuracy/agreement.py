"""How far the results of two models agree, by a measure without steps: a score that falls shows, and so does a box that
moves.

Two models whose mAP is equal may differ all the same: a score of 0.85 that becomes 0.45 changes no ranking, and is what
a user sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, UnsupportedModelError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Agreement", "agreement", "can_compare", "score_shift"]

#: Boxes of one class that overlap by so much are the same object.
_SAME_OBJECT = 0.5


@dataclass(frozen=True)
class Agreement:
    """How far the results of a model agree with a reference.

    Attributes:
        common, total: for each image, what both have in common and what they have together.
        shifts: for each image, the changes of the scores of what was matched.
    """

    common: npt.NDArray[np.float64]
    total: npt.NDArray[np.float64]
    shifts: tuple[npt.NDArray[np.float64], ...]

    @property
    def percent(self) -> float:
        """100 is identity. Results without anything in them agree."""
        whole = float(self.total.sum())
        return 100 * float(self.common.sum()) / whole if whole > 0 else 100.0

    @property
    def score_shift(self) -> float:
        """The mean change of the scores of what was matched; 0 where nothing was."""
        changes = np.concatenate([*self.shifts, np.empty(0)])
        return float(changes.mean()) if changes.size else 0.0


def can_compare(result: object) -> bool:
    """Whether results of this kind have a measure: boxes with scores, or classes with scores."""
    return hasattr(result, "scores") and (hasattr(result, "xyxy") or hasattr(result, "class_ids"))


def agreement(reference: Sequence[Any], results: Sequence[Any]) -> Agreement:
    """How far results of wrappers agree; the first are taken for the truth.

    - Detections: 2 sum IoU min(s, s') / (sum s + sum s') over boxes of one class that overlap by half and more, each
      matched once, the best-scored first: the Dice coefficient of the scores, weighted with the overlap.
    - Classifications: the same sum over the scores of the classes, sum min(p, p') / sum p for probabilities. The shift
      is that of the best class.

    Raises:
        InputError: there are no results, or not as many on both sides.
        UnsupportedModelError: the results have neither boxes nor classes.
    """
    if len(reference) != len(results) or not reference:
        raise InputError(f"{len(reference)} results against {len(results)}; give one or more, as many on both sides")
    if not can_compare(reference[0]):
        raise UnsupportedModelError(f"results of {type(reference[0]).__name__} have no boxes or classes to compare")
    compare = _boxes if hasattr(reference[0], "xyxy") else _classes
    rows = [compare(one, other) for one, other in zip(reference, results, strict=True)]
    return Agreement(
        np.asarray([row[0] for row in rows]), np.asarray([row[1] for row in rows]), tuple(row[2] for row in rows)
    )


def score_shift(reference: Sequence[Any], results: Sequence[Any], *, least: float = 0.25) -> float:
    """The mean change of the scores of what a user sees: boxes that score `least` and more in the reference.

    A box that is found again with any score counts; of classes it is the best one.

    Raises:
        InputError, UnsupportedModelError: as `agreement`.
    """
    seen = [one[one.scores >= least] if hasattr(one, "xyxy") else one for one in reference]
    return agreement(seen, results).score_shift


def _boxes(reference: Any, found: Any) -> tuple[float, float, npt.NDArray[np.float64]]:
    total = float(np.sum(reference.scores, dtype=np.float64) + np.sum(found.scores, dtype=np.float64))
    overlaps = _overlaps(found.xyxy, reference.xyxy) * (found.class_ids[:, None] == reference.class_ids[None])
    taken = np.zeros(len(reference.scores), bool)
    common, shifts = 0.0, []
    for score, row in zip(found.scores, overlaps, strict=True):  # boxes come best first
        free = np.where(taken, 0, row)
        at = int(free.argmax()) if free.size else -1
        if at >= 0 and free[at] >= _SAME_OBJECT:
            taken[at] = True
            common += 2 * float(free[at]) * float(min(score, reference.scores[at]))
            shifts.append(float(score) - float(reference.scores[at]))
    return common, total, np.asarray(shifts, np.float64)


def _classes(reference: Any, found: Any) -> tuple[float, float, npt.NDArray[np.float64]]:
    before, after = (dict(zip(one.class_ids.tolist(), one.scores.tolist(), strict=True)) for one in (reference, found))
    common = 2 * sum(min(before[name], after[name]) for name in before.keys() & after.keys())
    best = int(reference.class_ids[0])
    shift = after.get(best, 0.0) - before[best]
    return common, sum(before.values()) + sum(after.values()), np.asarray([shift], np.float64)


def _overlaps(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """IoU of each box with each, `[len(a), len(b)]`."""
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    inner = np.prod(np.clip(high - low, 0, None), axis=-1)
    area_a, area_b = np.prod(a[:, 2:] - a[:, :2], axis=-1), np.prod(b[:, 2:] - b[:, :2], axis=-1)
    return inner / np.maximum(area_a[:, None] + area_b[None] - inner, 1e-9)  # type: ignore[no-any-return]
