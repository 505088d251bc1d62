"""Contenders that run one after another, round after round: a disturbance of the machine reaches all of them, and a
ratio is taken within a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    Values = npt.NDArray[np.float64]


def seconds(run: Callable[[], object]) -> float:
    """How long a call takes."""
    start = perf_counter()
    run()
    return perf_counter() - start


def figures(contenders: Mapping[str, Callable[[], float]], rounds: int, *, warm_up: int = 0) -> dict[str, Values]:
    """The figure that each contender returns in each round; every other round runs in reverse order.

    Args:
        warm_up: so many rounds run first, whose figures are not kept.
    """
    kept: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(warm_up + rounds):
        for name in list(contenders) if number % 2 else reversed(contenders):
            kept[name].append(contenders[name]())
    return {name: np.array(values[warm_up:]) for name, values in kept.items()}


def times(contenders: Mapping[str, Callable[[], object]], rounds: int, *, warm_up: int = 0) -> dict[str, Values]:
    """The seconds of each contender in each round, as `figures()` takes them."""
    timed = {name: partial(seconds, run) for name, run in contenders.items()}
    return figures(timed, rounds, warm_up=warm_up)


@dataclass(frozen=True)
class Spread:
    """A figure over the rounds: its median, the least and the largest; `f"{spread:.2f}"` reads 1.23 (1.10 to 1.31)."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Spread:
        return cls(float(np.median(values)), float(np.min(values)), float(np.max(values)))

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} ({self.low:{spec}} to {self.high:{spec}})"
