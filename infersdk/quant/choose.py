"""Selects a calibration method by the results of the quantised model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .quantize import quantize
from .ranges import PERCENTILE

if TYPE_CHECKING:
    from ..accuracy.agreement import Agreement
    from .observe import Observations
    from .plan import Plan
    from .table import CalibrationTable, Method

__all__ = ["CANDIDATES", "Candidate", "Choice", "choose"]

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
    tables: dict[tuple[str, float], CalibrationTable] = {}
    with tempfile.TemporaryDirectory() as folder:
        for done, candidate in enumerate(candidates, 1):
            key = candidate.method, candidate.percentile
            if key not in tables:
                tables[key] = candidate.table(seen)
            path = Path(folder, f"{done}.onnx")
            made = quantize(planned, path, tables[key], bias_correction=candidate.bias_correction)
            result[candidate.name] = measure(made.path)
            if result[candidate.name].percent > result[best.name].percent:
                best = candidate
            if progress:
                progress(done)
    return Choice(best, result)
