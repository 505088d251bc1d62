"""Selects a calibration method, and layers to keep in floating point, by the results of the quantised model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .quantize import quantize
from .ranges import PERCENTILE

if TYPE_CHECKING:
    from ..models.results import Agreement
    from .observe import Observations
    from .plan import Plan
    from .table import CalibrationTable, Method

__all__ = ["CANDIDATES", "Candidate", "Choice", "SearchReport", "Step", "choose", "search"]

#: The number of groups of neighbouring layers to start with.
_GROUPS = 8
#: The minimum cost of a layer in floating point, as a fraction of its time: the conversions around it.
_CONVERSIONS = 0.1
#: A group is not divided if each half gains less than this fraction of the gain of the group.
_TOGETHER = 0.6

#: The milliseconds of each layer in FP32 and in INT8.
Times = tuple[Mapping[str, float], Mapping[str, float]]
#: Called after each tried file with their number.
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Step:
    """A tried file.

    Attributes:
        floating: the layers in floating point in addition to those of the plan.
        agreement: the agreement of its results with FP32.
        cost: the additional milliseconds, by the times of the layers; None if unknown.
    """

    floating: tuple[str, ...]
    agreement: Agreement
    cost: float | None

    @property
    def percent(self) -> float:
        """The agreement with FP32 in per cent."""
        return self.agreement.percent


@dataclass(frozen=True)
class SearchReport:
    """The result of a search.

    Attributes:
        exclude: the names of the layers to keep in floating point.
        agreement: the agreement of the model with these layers in floating point.
        steps: the tried files in order.
        reached: whether the limits are met.
    """

    exclude: tuple[str, ...]
    agreement: Agreement
    steps: tuple[Step, ...]
    reached: bool

    @property
    def front(self) -> tuple[Step, ...]:
        """The Pareto-optimal steps by agreement and cost, the cheapest first.

        If times are unknown, the number of layers is the cost.
        """
        ranked = sorted(
            self.steps, key=lambda step: (len(step.floating) if step.cost is None else step.cost, -step.percent)
        )
        best, result = float("-inf"), []
        for step in ranked:
            if step.percent > best:
                best = step.percent
                result.append(step)
        return tuple(result)


def check_limits(max_drop: float, max_score_shift: float | None) -> None:
    """Checks the limits of a search."""
    if not (isinstance(max_drop, Real) and 0 <= max_drop <= 100):
        raise ConfigError(f"max_drop must be a percentage from 0 to 100, not {max_drop!r}")
    if max_score_shift is not None and not (isinstance(max_score_shift, Real) and max_score_shift >= 0):
        raise ConfigError(f"max_score_shift must be a number from 0, not {max_score_shift!r}")


def search(
    planned: Plan,
    table: CalibrationTable,
    measure: Measure,
    max_drop: float,
    *,
    whole: Agreement | None = None,
    max_score_shift: float | None = None,
    times: Callable[[], Times | None] | None = None,
    progress: Progress | None = None,
) -> SearchReport:
    """Finds layers to keep in floating point so that the agreement with FP32 is within `max_drop` of 100 %.

    Few layers cause most of the error, and the errors of single layers do not show which. The search therefore measures
    the results of the model with groups of neighbouring layers in floating point. It divides the group with the largest
    gain per time in halves until one layer remains, or until the halves help only together. This is repeated until the
    limits are met, or half of all layers are in floating point.

    Args:
        planned, table: as in `quantize`.
        measure: measures the agreement of a model file with FP32.
        max_drop: the maximum drop of the agreement below 100, in per cent.
        whole: the agreement without further layers in floating point, if known.
        max_score_shift: the maximum mean change of scores; None means no limit.
        times: returns the times of `layer_times` for FP32 and INT8, or None if unknown. It is called if the first file
            does not meet the limits.
        progress: called after each file.

    Raises:
        ConfigError: `max_drop` is not from 0 to 100, or `max_score_shift` is negative.
    """
    check_limits(max_drop, max_score_shift)
    costs: dict[str, float] = {}
    known = True
    limit = len(planned.layers) // 2
    tried: dict[frozenset[str], Step] = {}
    if whole is not None:
        tried[frozenset()] = Step((), whole, 0.0)
    with tempfile.TemporaryDirectory() as folder:

        def attempt(floating: Sequence[str]) -> Step:
            key = frozenset(floating)
            if key not in tried:
                made = quantize(planned, Path(folder, "tried.onnx"), table, exclude=list(floating))
                cost = sum(costs[name] for name in floating) if known else None
                tried[key] = Step(tuple(floating), measure(made.path), cost)
                if progress:
                    progress(len(tried))
            return tried[key]

        def within(step: Step) -> bool:
            shift = abs(step.agreement.score_shift)
            kept = max_score_shift is None or shift <= max_score_shift  # not for NaN: no box was found again
            return 100 - step.percent <= max_drop and kept

        best = attempt(())
        if not within(best):
            result = times() if times is not None else None
            known = result is not None
            costs |= {name: _cost(name, result) for name in planned.layers}
        while not within(best) and len(best.floating) < limit:
            group = _most_worthwhile(planned, best, attempt, costs, limit - len(best.floating))
            step = attempt((*best.floating, *group))
            if not group or step.percent <= best.percent:
                break
            best = step
        best = max(tried.values(), key=lambda step: (within(step), step == best, step.percent))
        return SearchReport(best.floating, best.agreement, tuple(tried.values()), within(best))


def _most_worthwhile(
    planned: Plan, base: Step, attempt: Callable[[Sequence[str]], Step], costs: Mapping[str, float], limit: int
) -> tuple[str, ...]:
    """The smallest group of layers with the largest gain per time."""
    rest = [name for name in planned.layers if name not in base.floating]
    whole = sum(costs.values())

    def gain(group: Sequence[str]) -> float:
        return attempt((*base.floating, *group)).percent - base.percent

    def worth(group: Sequence[str]) -> float:
        # Costs below a hundredth of the total hardly count, so that the gain decides.
        return gain(group) / (sum(costs[name] for name in group) + 0.01 * whole)

    size = -(-len(rest) // _GROUPS)
    groups = [tuple(rest[at : at + size]) for at in range(0, len(rest), size)]
    group = max(groups, key=worth)
    while len(group) > 1:
        half = len(group) // 2
        halves = group[:half], group[half:]
        better = max(halves, key=worth)
        if len(group) <= limit and gain(better) < _TOGETHER * gain(group):
            break
        group = better
    return group if gain(group) > 0 else ()


def _cost(name: str, times: Times | None) -> float:
    """The additional milliseconds of a layer in floating point; 1 if times are unknown."""
    if times is None:
        return 1.0
    fp32, int8 = times
    return max(fp32[name] - int8[name], _CONVERSIONS * fp32[name], 1e-6)


#: Measures the agreement of the results of a model file with FP32.
Measure = Callable[[Path], "Agreement"]


@dataclass(frozen=True)
class Candidate:
    """A calibration method, with or without bias correction."""

    method: Method = "mse"
    bias_correction: bool = True
    percentile: float = PERCENTILE

    @property
    def name(self) -> str:
        """A readable name, such as `"percentile 99.999, no bias correction"`."""
        method = f"percentile {self.percentile:g}" if self.method == "percentile" else self.method
        return method if self.bias_correction else f"{method}, no bias correction"

    def table(self, seen: Observations) -> CalibrationTable:
        return seen.table(self.method, self.percentile, bias_correction=self.bias_correction)


#: The agreement with FP32, in per cent, above which a few dozen images cannot distinguish candidates. Below it, one
#: candidate may be better by several per cent.
ENOUGH = 92.0
#: The candidates of `auto`. The squared error is dominated by the channels with the largest values. If few channels
#: have much larger values than others, as after depthwise convolutions, clipping them leaves more codes for the others.
CANDIDATES = (Candidate(), Candidate("percentile", percentile=99.97), Candidate(bias_correction=False))


@dataclass(frozen=True)
class Choice:
    """The selected candidate, and the agreement of each candidate with FP32 by name."""

    candidate: Candidate
    agreements: dict[str, Agreement]


def choose(
    planned: Plan,
    seen: Observations,
    measure: Measure,
    *,
    candidates: Sequence[Candidate] = CANDIDATES,
    progress: Callable[[int], None] | None = None,
) -> Choice:
    """Selects the candidate with the best agreement with FP32; the first one in a tie.

    Args:
        planned: the quantisation plan.
        seen: observations on other images than those of `measure`.
        measure: measures the agreement of a model file.
        candidates: the candidates, the default first.
        progress: called with the number of tried candidates.

    Raises:
        ConfigError: there are no candidates.
        CalibrationError: as `Observations.table`.
    """
    if not candidates:
        raise ConfigError("there are no candidates to choose from")
    result: dict[str, Agreement] = {}
    best = candidates[0]
    with tempfile.TemporaryDirectory() as folder:
        for done, candidate in enumerate(candidates, 1):
            made = quantize(planned, Path(folder, f"{done}.onnx"), candidate.table(seen))
            result[candidate.name] = measure(made.path)
            if result[candidate.name].percent > result[best.name].percent:
                best = candidate
            if progress:
                progress(done)
    return Choice(best, result)
