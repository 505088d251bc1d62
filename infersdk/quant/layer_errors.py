"""The error of each layer when it alone is quantised."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import CalibrationError
from ..graph.fp16_parity import cpu_session
from ..graph.parts import extract_part
from ..graph.weights import data_inputs
from .observe import Inputs, batches_of
from .quantize import quantized_model

if TYPE_CHECKING:
    import onnx_ir as ir

    from .plan import Plan
    from .table import CalibrationTable

__all__ = ["layer_errors"]


def layer_errors(planned: Plan, table: CalibrationTable, data: Inputs, *, samples: int = 4) -> dict[str, float]:
    """The relative squared error sum (y - y')^2 / sum y^2 of each quantised layer.

    Each layer of the quantised graph, with its activation function, runs as a model of its own on the values of the
    FP32 graph, so that errors do not accumulate.

    Args:
        planned: the quantisation plan.
        table: the calibration table.
        data: as in `calibrate`.
        samples: the number of batches.

    Raises:
        CalibrationError: there is no data.
    """
    quantised, _ = quantized_model(planned.without_moves(), table)
    plain = planned.model.clone()
    nodes = {node.name: node for node in plain.graph}
    inputs = [value.name or "" for value in data_inputs(plain)]
    read, results, layers = dict[str, list[str]](), dict[str, str](), dict[str, Any]()
    for name in planned.layers:
        members = [nodes[member] for member in (name, *planned.functions[name])]
        read[name] = _read(members)
        results[name] = members[-1].outputs[0].name or ""
        layers[name] = cpu_session(extract_part(quantised, read[name], [results[name]]))
    shown = {*itertools.chain(*read.values()), *results.values()}.difference(inputs)
    values = [value for node in plain.graph for value in node.outputs if value.name in shown]
    plain.graph.outputs[:] = values
    names, whole = [value.name or "" for value in values], cpu_session(plain)
    errors, powers = dict.fromkeys(layers, 0.0), dict.fromkeys(layers, 0.0)
    count = 0
    for feeds in itertools.islice(batches_of(data, inputs), samples):
        count += 1
        known = feeds | dict(zip(names, whole.run(names, feeds), strict=True))
        for name, layer in layers.items():
            (found,) = layer.run(None, {value: known[value] for value in read[name]})
            wanted = known[results[name]].astype(np.float64)
            errors[name] += float(((found - wanted) ** 2).sum())
            powers[name] += float((wanted**2).sum())
    if not count:
        raise CalibrationError("there is no data to measure layer errors with; give at least one sample")
    return {name: error / max(powers[name], 1e-30) for name, error in errors.items()}


def _read(members: list[ir.Node]) -> list[str]:
    """The names of the values, except for weights, that nodes read from other nodes."""
    made = {value for node in members for value in node.outputs}
    read = [value for node in members for value in node.inputs if value is not None and value not in made]
    return list(dict.fromkeys(value.name or "" for value in read if not value.is_initializer()))
