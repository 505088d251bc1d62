"""Checks a conversion by comparing the source on its runtime with the model on ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..accuracy.compare import Tolerance, difference
from ..errors import BackendUnavailableError, InferSDKError, UnsupportedModelError
from ..loading.registry import load
from .conversion import Check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..accuracy.compare import Difference
    from ..infer import Infer
    from .conversion import Sample

__all__ = ["check_model", "free_batch_agrees"]

#: The minimum magnitude by which differences are scaled.
_MIN_PEAK = 1e-6


def check_model(model: bytes, runtime: str, samples: Sequence[Sample], tolerance: float) -> Check:
    """Runs the model on the inputs of samples and compares the outputs.

    Raises:
        BackendUnavailableError: ONNX Runtime is not installed.
        InferSDKError: ONNX Runtime does not load or run the model.
    """
    differences: list[Difference] = []
    scaled = 0.0
    with load(model, "onnxruntime") as infer:
        names = [spec.name for spec in infer.output_specs]
        for sample in samples:
            outputs = list(_run(infer, sample.inputs).values())
            if len(outputs) != len(sample.outputs):
                raise UnsupportedModelError(
                    f"the model has {len(outputs)} outputs, and the source {len(sample.outputs)}"
                )
            for name, expected, result in zip(names, sample.outputs, outputs, strict=True):
                one = difference(expected, result, Tolerance(1e30, 1e30, 2.0), name=name)
                differences.append(one)
                scaled = max(scaled, one.max_abs / max(_MIN_PEAK, _peak(expected)) if not one.note else float("inf"))
    worst = {name: max((one for one in differences if one.name == name), key=lambda one: one.max_abs) for name in names}
    return Check(runtime, len(samples), tolerance, tuple(worst.values()), scaled, scaled <= tolerance)


def _peak(array: Any) -> float:
    values = np.abs(np.asarray(array, np.float64))
    return float(values.max(where=np.isfinite(values), initial=0.0))


def _run(infer: Infer, inputs: Sequence[Any]) -> dict[str, Any]:
    if len(inputs) != len(infer.input_specs):
        raise UnsupportedModelError(f"the model has {len(infer.input_specs)} inputs, and the source {len(inputs)}")
    return infer(
        {spec.name: np.asarray(array, spec.dtype) for spec, array in zip(infer.input_specs, inputs, strict=True)}
    )


def free_batch_agrees(fixed: bytes, free: bytes, samples: Sequence[Sample]) -> bool:
    """Whether a model with a free batch gives the same results for two samples at once as the fixed one for each."""
    try:
        with load(fixed, "onnxruntime") as one, load(free, "onnxruntime") as many:
            if not all(spec.has_free_batch for spec in many.input_specs):
                return False
            first, second, *_ = [*samples, *samples]
            alone = [list(_run(one, sample.inputs).values()) for sample in (first, second)]
            pairs = zip(first.inputs, second.inputs, strict=True)
            together = list(_run(many, [np.concatenate([a, b]) for a, b in pairs]).values())
    except BackendUnavailableError:
        raise
    except (InferSDKError, ValueError):
        return False
    return all(_same(pair, both) for *pair, both in zip(*alone, together, strict=True))


def _same(pair: Sequence[Any], both: Any) -> bool:
    if any(np.ndim(one) == 0 for one in pair):
        return False
    whole = np.concatenate(pair)
    return difference(whole, both, Tolerance(1e-4 * max(1.0, _peak(whole)), 0.0, 2.0)).within
