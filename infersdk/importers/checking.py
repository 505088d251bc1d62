"""Checks a conversion by comparing the source on its runtime with the model on ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..accuracy.compare import Tolerance, difference
from ..errors import (
    BackendUnavailableError,
    ConfigError,
    InferSDKError,
    InputError,
    UnsupportedModelError,
    nearest,
)
from ..loading.registry import load
from .conversion import Check, Reference, Sample

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..accuracy.compare import Difference
    from ..core.tensor_spec import TensorSpec
    from ..infer import Infer

__all__ = ["check_model", "check_samples", "free_batch_agrees", "samples_of"]

#: The number of sets of random inputs: normally distributed ones, and one from [0, 1), like pixels.
ROUNDS = 3
#: The minimum magnitude by which differences are scaled.
_MIN_PEAK = 1e-6
#: The maximum number of elements of a random input, since a file can contain any shape.
_MAX_INPUT = 1 << 28


def samples_of(model: bytes, reference: Reference, seed: int, given: Mapping[str, Any] | None = None) -> list[Sample]:
    """The outputs of the source for random inputs.

    Inputs have the shapes that the model declares. Free axes have the sizes of the reference, or 1.

    Args:
        given: values by the name of the input, instead of random ones.

    Raises:
        UnsupportedModelError: an input is too large for a check.
    """
    if reference.run is None:
        return list(reference.samples)
    from ..graph.info import onnx_info

    specs, given = onnx_info(model).inputs, given or {}
    sets = [
        [
            np.asarray(given[spec.name], spec.dtype)
            if spec.name in given
            else _random(np.random.default_rng((seed, number, i)), spec, number, reference.sizes)
            for i, spec in enumerate(specs)
        ]
        for number in range(ROUNDS)
    ]
    results = reference.run([[array.copy() for array in arrays] for arrays in sets])
    return [Sample(arrays, outputs) for arrays, outputs in zip(sets, results, strict=True)]


def check_samples(model: bytes, given: Mapping[str, Any]) -> None:
    """Checks given values of inputs.

    Raises:
        ConfigError: an input does not exist, or a value does not fit it.
    """
    from ..graph.info import onnx_info

    specs = {spec.name: spec for spec in onnx_info(model).inputs}
    for name, array in given.items():
        if name not in specs:
            hint = nearest(name, specs)
            raise ConfigError(f"a sample is given for {name!r}; the inputs are {', '.join(specs)}{hint}")
        try:
            specs[name].check(array.shape)
        except InputError as error:
            raise ConfigError(f"the sample of an input does not fit: {error}") from None


def _random(rng: np.random.Generator, spec: TensorSpec, number: int, sizes: Mapping[str, tuple[int, ...]]) -> Any:
    shape = sizes.get(spec.name, tuple(size if isinstance(size, int) else 1 for size in spec.shape))
    if np.prod(shape, dtype=object) > _MAX_INPUT:
        raise UnsupportedModelError(f"input {spec} is too large to be checked with random numbers")
    if spec.dtype.kind == "f":
        values = rng.random(shape) if number == ROUNDS - 1 else rng.standard_normal(shape)
        return values.astype(spec.dtype)
    if spec.dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if spec.dtype.itemsize == 1:
        limits = np.iinfo(spec.dtype)
        return rng.integers(limits.min, limits.max, shape, spec.dtype, endpoint=True)
    return rng.integers(0, 2 if number == 0 else 10, shape).astype(spec.dtype)


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
    return all(_same(pair, both) for pair, both in zip(_columns(alone), together, strict=True))


def _columns(rows: list[list[Any]]) -> Iterator[tuple[Any, ...]]:
    yield from zip(*rows, strict=True)


def _same(pair: tuple[Any, ...], both: Any) -> bool:
    if any(np.ndim(one) == 0 for one in pair):
        return False
    whole = np.concatenate(pair)
    if whole.shape != both.shape:
        return False
    scale = max(1.0, _peak(whole))
    return bool(np.allclose(both, whole, rtol=0, atol=1e-4 * scale, equal_nan=True))
