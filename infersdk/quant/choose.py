"""Which method suits a model: candidates made of the same observations, judged by the results of the model in INT8."""

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

#: Says how far the results of a model file agree with those of the FP32 model.
Measure = Callable[[Path], "Agreement"]


@dataclass(frozen=True)
class Candidate:
    """A way to choose the ranges, and whether biases make up for the rounding of the weights."""

    method: Method = "mse"
    bias_correction: bool = True
    percentile: float = PERCENTILE

    @property
    def name(self) -> str:
        """For people: `"percentile 99.999, no bias correction"`."""
        method = f"percentile {self.percentile:g}" if self.method == "percentile" else self.method
        return method if self.bias_correction else f"{method}, no bias correction"

    def table(self, seen: Observations) -> CalibrationTable:
        return seen.table(self.method, self.percentile, bias_correction=self.bias_correction)


#: Per cent of agreement with FP32 from which the candidates differ by less than some dozens of images can show. Where
#: results agree less, one of the candidates may be better by several per cent.
ENOUGH = 92.0
#: What `auto` tries. The least squared error is that of the channels with the largest values. Where few channels have
#: values far beyond those of others, as behind depthwise convolutions, clipping these leaves more codes to the rest.
CANDIDATES = (Candidate(), Candidate("percentile", percentile=99.97), Candidate(bias_correction=False))


@dataclass(frozen=True)
class Choice:
    """The candidate that was chosen, and how far the results of each agree with FP32, by its name."""

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
    """Tries candidates on what was observed.

    The one whose results agree best with FP32 is chosen; of equals the first.

    Args:
        planned: what of the model is quantised.
        seen: observed on other images than `measure` looks at.
        measure: of a model file.
        candidates: the default first.
        progress: is called after each with how many are done.

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
