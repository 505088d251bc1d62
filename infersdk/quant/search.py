"""Which layers are worth leaving in floating point: accuracy for the time that it costs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .quantize import quantize

if TYPE_CHECKING:
    from ..accuracy.agreement import Agreement
    from .choose import Measure
    from .plan import Plan
    from .table import CalibrationTable

__all__ = ["SearchReport", "Step", "search"]

#: Groups of neighbouring layers that are tried first.
_GROUPS = 8
#: A layer that is as fast in floating point still costs the conversions around it: this share of its time.
_CONVERSIONS = 0.1
#: Halves of a group that each give less than this share of what the group gives only help together.
_TOGETHER = 0.6

#: Milliseconds of each layer in FP32 and in INT8.
Times = tuple[Mapping[str, float], Mapping[str, float]]
#: Is called after each file that was tried, with how many were.
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Step:
    """A file that was tried.

    Attributes:
        floating: the layers that it has in floating point beyond those of the plan.
        agreement: of its results with FP32.
        cost: milliseconds more than without, by the times of its layers; None where they are not known.
    """

    floating: tuple[str, ...]
    agreement: Agreement
    cost: float | None

    @property
    def percent(self) -> float:
        """How far its results agree with FP32."""
        return self.agreement.percent


@dataclass(frozen=True)
class SearchReport:
    """What the search has found.

    Attributes:
        exclude: names of the layers to leave in floating point.
        agreement: of the model with these in floating point.
        steps: what was tried, in order.
        reached: whether the limits are kept.
    """

    exclude: tuple[str, ...]
    agreement: Agreement
    steps: tuple[Step, ...]
    reached: bool

    @property
    def front(self) -> tuple[Step, ...]:
        """The steps that no other one beats in both agreement and cost, the cheapest first.

        Where the times are not known, the number of layers counts as the cost.
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
    """Checks the limits of a search.

    Raises:
        ConfigError: a limit is not a number in its range.
    """
    if not 0 <= max_drop <= 100:
        raise ConfigError(f"max_drop is a number of per cent from 0 to 100, not {max_drop!r}")
    if max_score_shift is not None and not max_score_shift >= 0:
        raise ConfigError(f"max_score_shift is a number from 0, not {max_score_shift!r}")


def search(
    planned: Plan,
    table: CalibrationTable,
    measure: Measure,
    max_drop: float,
    *,
    whole: Agreement | None = None,
    max_score_shift: float | None = None,
    times: Callable[[], Times | None] | None = None,
    max_layers: int | None = None,
    progress: Progress | None = None,
) -> SearchReport:
    """Finds layers to leave in floating point for results that agree with FP32 to within `max_drop`.

    Few layers cost most, and which they are shows in the results alone: what a layer does to its own output says little
    of what that does behind it. So neighbouring layers are left out together, and the group that gains most for the
    time it costs is halved until one layer remains, or the halves only help together; then the next group, until the
    drop is within the limit.

    Args:
        planned, table: as `quantize` takes them.
        measure: says how far the results of a model file agree with FP32.
        max_drop: per cent that the agreement may be below 100.
        whole: the agreement with no layer left out, if it is known.
        max_score_shift: by how much scores may change on average; None is no limit.
        times: gives the milliseconds of each layer in FP32 and in INT8, as `layer_times` has them; None where they are
            not known. It is called if the first file does not keep the limits.
        max_layers: at most so many layers stay in floating point; half of them if not given.
        progress: is called after each file.

    Raises:
        ConfigError: a drop that is not a number from 0 to 100, or a shift below 0.
    """
    check_limits(max_drop, max_score_shift)
    costs: dict[str, float] = {}
    known = True
    limit = len(planned.layers) // 2 if max_layers is None else max_layers
    limit = min(limit, len(planned.layers) - 1)
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
            return 100 - step.percent <= max_drop and (max_score_shift is None or shift <= max_score_shift)

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
    """The group of layers that gains most for the time it costs, as small as it can be."""
    rest = [name for name in planned.layers if name not in base.floating]
    whole = sum(costs.values())

    def gain(group: Sequence[str]) -> float:
        return attempt((*base.floating, *group)).percent - base.percent

    def worth(group: Sequence[str]) -> float:
        # A hundredth of the whole time is the least that counts: below it only the gain decides.
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
    """Milliseconds that a layer costs in floating point; one for each where that is not known."""
    if times is None:
        return 1.0
    fp32, int8 = times
    return max(fp32[name] - int8[name], _CONVERSIONS * fp32[name], 1e-6)
