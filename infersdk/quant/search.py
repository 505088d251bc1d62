"""Which few layers are worth leaving in floating point."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import CalibrationError, ConfigError
from .graph import Placement, Plan, plan, quantize
from .inputs import Inputs, batches_of
from .observe import PERCENTILE, Observations

if TYPE_CHECKING:
    import numpy.typing as npt

    from .table import CalibrationTable

__all__ = ["LayerCost", "SearchReport", "best_method", "search"]

#: Gives the metric of a model file, in per cent: more is better.
Metric = Callable[[Path], float]
#: Is told what is done, and how many of how many.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class LayerCost:
    """A layer and what quantising it alone does to the model's outputs.

    Attributes:
        name, operator: of the node.
        error: the noise in the outputs over their power, sum (y - y')^2 / sum y^2, their mean; 0 is none.
        floating: whether the search has left it in floating point.
    """

    name: str
    operator: str
    error: float
    floating: bool = False


@dataclass(frozen=True)
class SearchReport:
    """What the search has found.

    Attributes:
        exclude: names of the layers to leave in floating point, the costliest first.
        layers: the cost of each, the costliest first.
        baseline: the metric of the FP32 model.
        steps: (layers in floating point, the metric), in the order they were tried.
        reached: whether the drop is within what was asked for.
    """

    exclude: tuple[str, ...]
    layers: tuple[LayerCost, ...]
    baseline: float
    steps: tuple[tuple[int, float], ...]
    reached: bool

    @property
    def metric(self) -> float:
        """Of the model with `exclude` left in floating point."""
        return dict(self.steps)[len(self.exclude)]


def search(
    model: str | os.PathLike[str],
    table: CalibrationTable,
    data: Inputs,
    metric: Metric,
    max_drop: float,
    *,
    exclude: Sequence[str] = (),
    placement: Placement = "all",
    samples: int = 4,
    max_layers: int | None = None,
    progress: Progress | None = None,
) -> SearchReport:
    """Ranks layers by the error that each causes when it is quantised alone, and leaves the worst out one after another
    until the metric drops by `max_drop` at most. How many is found by doubling, then by halving.

    Args:
        model: an ONNX file in FP32.
        table: the ranges of its activations.
        data: what the error is measured on.
        metric: of a model file; the FP32 model is measured first.
        max_drop: per cent of the metric's scale, 0.5 say.
        exclude, placement: as `quantize` takes them.
        samples: batches of the data that the ranking looks at.
        max_layers: at most so many are left out; by default a third.
        progress: called after each step.

    Raises:
        ConfigError: `max_drop` is negative.
        CalibrationError: there is no data, or the table is of another model.
    """
    if not max_drop >= 0:
        raise ConfigError(f"max_drop is a number of per cent from 0, not {max_drop!r}")
    table.check(model)
    planned = plan(model, exclude=exclude, placement=placement)
    limit = min(len(planned.layers), -(-len(planned.layers) // 3) if max_layers is None else max_layers)
    with tempfile.TemporaryDirectory() as folder:
        tried: dict[int, float] = {}
        baseline = metric(Path(model))
        ranked: list[LayerCost] = []

        def within(count: int) -> bool:
            if count not in tried:
                names = [cost.name for cost in ranked[:count]]
                tried[count] = metric(quantize(planned, Path(folder) / "tried.onnx", table, exclude=names).path)
                if progress:
                    progress("search", count, limit)
            return baseline - tried[count] <= max_drop

        if within(0):
            return SearchReport((), (), baseline, tuple(tried.items()), True)
        ranked = _rank(planned, table, data, samples, Path(folder), progress)
        low, high = 0, 1  # `low` layers are too few
        while high < limit and not within(high):
            low, high = high, min(2 * high, limit)
        reached = within(high)
        while reached and high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if within(middle) else (middle, high)
        if not reached:  # the best of what was tried, and the fewest of equals
            high = max(tried, key=lambda count: (tried[count], -count))
        names = tuple(cost.name for cost in ranked[:high])
        costs = tuple(LayerCost(c.name, c.operator, c.error, c.name in names) for c in ranked)
        return SearchReport(names, costs, baseline, tuple(tried.items()), reached)


def best_method(
    model: str | os.PathLike[str],
    seen: Observations,
    metric: Metric,
    *,
    percentiles: Sequence[float] = (99.99, PERCENTILE),
    exclude: Sequence[str] = (),
    placement: Placement = "all",
    progress: Progress | None = None,
) -> tuple[CalibrationTable, dict[str, float]]:
    """Tries each method on what was observed, and takes the one with the best metric.

    Args:
        model: the ONNX file that was observed.
        seen: with histograms.
        metric: of a model file, more is better.
        percentiles: that are tried.
        exclude, placement: as `quantize` takes them.
        progress: called after each method.

    Returns:
        The table, and the metric by method; `"percentile 99.99"` is one.
    """
    planned = plan(model, exclude=exclude, placement=placement)
    tables = {"entropy": seen.table("entropy")}
    tables |= {f"percentile {percent:g}": seen.table("percentile", percent) for percent in percentiles}
    tables["minmax"] = seen.table("minmax")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for done, (name, table) in enumerate(tables.items(), 1):
            found[name] = metric(quantize(planned, Path(folder) / "tried.onnx", table).path)
            if progress:
                progress("method", done, len(tables))
    return tables[max(found, key=lambda name: found[name])], found


def _rank(
    planned: Plan, table: CalibrationTable, data: Inputs, samples: int, folder: Path, progress: Progress | None
) -> list[LayerCost]:
    """Each layer's cost when it is quantised alone, the costliest first."""
    import onnx

    names = [v.name for v in planned.model.graph.input]
    feeds = [batch for batch, _ in zip(batches_of(data, names), range(samples), strict=False)]
    if not feeds:
        raise CalibrationError("there is no data to rank the layers with")
    reference = folder / "reference.onnx"
    onnx.save_model(planned.model, str(reference))
    truth = _outputs(reference, feeds)
    operators = {node.name: node.op_type for node in planned.model.graph.node}
    costs = []
    for done, name in enumerate(planned.layers, 1):
        alone = quantize(planned, folder / "alone.onnx", table, only=(name,)).path
        costs.append(LayerCost(name, operators[name], _noise(truth, _outputs(alone, feeds))))
        if progress:
            progress("rank", done, len(planned.layers))
    return sorted(costs, key=lambda cost: -cost.error)


def _outputs(path: Path, feeds: Sequence[Mapping[str, npt.NDArray[Any]]]) -> list[list[npt.NDArray[Any]]]:
    """The floating-point outputs for each batch."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [[y for y in session.run(None, dict(batch)) if y.dtype.kind == "f"] for batch in feeds]


def _noise(truth: Sequence[Sequence[npt.NDArray[Any]]], found: Sequence[Sequence[npt.NDArray[Any]]]) -> float:
    ratios = []
    for outputs, others in zip(truth, found, strict=True):
        for y, other in zip(outputs, others, strict=True):
            power = float(np.sum(np.square(y, dtype=np.float64)))
            ratios.append(float(np.sum(np.square(np.subtract(other, y, dtype=np.float64)))) / max(power, 1e-30))
    return float(np.mean(ratios)) if ratios else 0.0
