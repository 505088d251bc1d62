"""A continuous measure of the agreement of two models: it includes changes of scores and small moves of boxes.

Two models with equal mAP may differ: a score that drops from 0.85 to 0.45 need not change the ranking, but users notice
it. Each result type has its own measure: `infersdk.models.Result.agreement()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InputError, UnsupportedModelError
from ..models.results import Agreement, Result

__all__ = ["Agreement", "agreement", "score_shift"]


def agreement(reference: Sequence[Any], results: Sequence[Any], *, min_score: float = 0.0) -> Agreement:
    """The agreement of the results of wrappers; the first ones are the reference.

    Args:
        min_score: ignore rows of the reference with lower scores; the best class always counts.

    Raises:
        InputError: there are no results, or not as many on both sides.
        UnsupportedModelError: the results have no measure.
    """
    if len(reference) != len(results) or not reference:
        raise InputError(f"{len(reference)} results against {len(results)}; give one or more, as many on both sides")
    if not isinstance(reference[0], Result):
        raise UnsupportedModelError(
            f"results of {type(reference[0]).__name__} have no measure of agreement; let postprocess() return a "
            "subclass of infersdk.models.Result that defines _agreement()"
        )
    pairs = zip(reference, results, strict=True)
    return Agreement.joined(one.agreement(other, min_score=min_score) for one, other in pairs)


def score_shift(reference: Sequence[Any], results: Sequence[Any], *, min_score: float = 0.25) -> float:
    """The mean score change of the boxes with at least `min_score` in the reference, or of the best classes.

    Boxes that are found again with any score count.

    Raises:
        InputError, UnsupportedModelError: as `agreement`.
    """
    return agreement(reference, results, min_score=min_score).score_shift
