"""Activations of a model on ONNX Runtime, and the calibration table made of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from ..errors import CalibrationError, ConfigError, InferenceError
from ..graph.digest import model_digest
from .graph import plan
from .histogram import Histogram, Range
from .inputs import Inputs, batches_of
from .table import CalibrationTable, Method, TensorRange

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["calibrate"]

#: Fewer samples than this say too little of what is to come.
MIN_SAMPLES = 8
_LARGEST_FILE = 2**31 - 1  # what protobuf puts into one message

#: Is told the pass ("ranges", "histograms") and how many samples of it are done.
Progress = Callable[[str, int], None]


def calibrate(
    model: str | os.PathLike[str],
    data: Inputs,
    *,
    method: Method = "entropy",
    percentile: float = 99.99,
    min_samples: int = MIN_SAMPLES,
    progress: Progress | None = None,
) -> CalibrationTable:
    """Runs a model over data, once for the ranges of its activations and once for their histograms.

    The memory it takes does not depend on the amount of data: 2,048 counters an activation, and one batch.

    Args:
        model: an ONNX file in FP32.
        data: `PictureInputs`, a list of arrays or of dicts of arrays by input (with the batch axis), or a function that
            returns an iterator over such.
        method: `"entropy"` (least Kullback-Leibler divergence), `"percentile"`, or `"minmax"` (nothing is clipped; one
            pass).
        percentile: of the magnitudes that are not clipped, for that method.
        min_samples: fewer are an error.
        progress: called after each batch.

    Raises:
        CalibrationError: there are too few samples, they do not fit the model, or an activation is NaN, infinite, or 0
            throughout.
        ConfigError: no such method, or a percentile out of range.
        ModelError, BackendUnavailableError: as `plan`.
    """
    if method not in get_args(Method):
        raise ConfigError(f"method {method!r} is none of {', '.join(get_args(Method))}")
    if not 0 < percentile <= 100:
        raise ConfigError(f"percentile is above 0 and at most 100, not {percentile!r}")
    planned = plan(model)
    with _Observer(planned.model, planned.activations) as observer, ThreadPoolExecutor(os.cpu_count()) as pool:
        ranges = {name: Range() for name in planned.activations}
        samples = 0
        for count, values in observer.run(data):
            list(pool.map(lambda name, v=values: ranges[name].update(v[name]), values))
            _check_finite(ranges, samples, samples + count)
            samples += count
            if progress:
                progress("ranges", samples)
        _check_enough(samples, min_samples)
        _check_alive(ranges, samples)
        thresholds = {name: found.absmax for name, found in ranges.items()}
        if method != "minmax":
            histograms = {name: Histogram(found.absmax) for name, found in ranges.items()}
            again = 0
            for count, values in observer.run(data):
                list(pool.map(lambda name, v=values: histograms[name].update(v[name]), values))
                again += count
                if progress:
                    progress("histograms", again)
            if again != samples:
                raise CalibrationError(f"the data gave {samples} samples, and {again} when gone through again")
            names = list(histograms)
            found = pool.map(
                lambda name: (
                    histograms[name].entropy() if method == "entropy" else histograms[name].percentile(percentile)
                ),
                names,
            )
            thresholds = dict(zip(names, found, strict=True))
    tensors = {name: TensorRange(r.min, r.max, thresholds[name]) for name, r in ranges.items()}
    return CalibrationTable(
        model=model_digest(model),
        name=Path(model).name,
        method=method,
        percentile=percentile if method == "percentile" else None,
        samples=samples,
        tensors=tensors,
    )


def _check_enough(samples: int, least: int) -> None:
    if samples < least:
        raise CalibrationError(
            f"{samples} samples are too few to calibrate with: give {least} at least, and better some hundreds that "
            "show what the model will see"
        )


def _check_finite(ranges: Mapping[str, Range], before: int, after: int) -> None:
    for name, found in ranges.items():
        if found.nonfinite:
            raise CalibrationError(
                f"activation {name!r} has {found.nonfinite} values of {found.count} that are NaN or infinite, at "
                f"samples {before + 1} to {after}; look at what the model is given there"
            )


def _check_alive(ranges: Mapping[str, Range], samples: int) -> None:
    if dead := [name for name, found in ranges.items() if found.absmax == 0]:
        raise CalibrationError(
            f"activation {dead[0]!r} is 0 throughout {samples} samples ({len(dead)} of {len(ranges)} activations are): "
            "the data is blank, or the layer is dead; give data that shows something, or exclude its node"
        )


class _Observer:
    """The model with its activations as outputs."""

    def __init__(self, model: Any, activations: Sequence[str]) -> None:
        import onnx
        import onnxruntime

        exposed = onnx.ModelProto()
        exposed.CopyFrom(model)
        graph = exposed.graph
        self._inputs = [v.name for v in graph.input if v.name not in {t.name for t in graph.initializer}]
        self._activations = list(activations)
        self._computed = [name for name in activations if name not in self._inputs]
        there = {value.name for value in graph.output}
        known = {value.name: value for value in graph.value_info}
        graph.output.extend(known[name] for name in self._computed if name not in there)
        # No arena: it keeps the largest of each size that ever was.
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.enable_cpu_mem_arena = False
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "observed.onnx")
            onnx.save_model(exposed, path, save_as_external_data=exposed.ByteSize() > _LARGEST_FILE)
            self._session: Any = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(self, data: Inputs) -> Iterator[tuple[int, dict[str, npt.NDArray[Any]]]]:
        """How many samples a batch has, and its activations by name."""
        for feeds in batches_of(data, self._inputs):
            try:
                found = self._session.run(self._computed, feeds)
            except Exception as error:  # the runtime has no root of its own exceptions
                shapes = ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in feeds.items())
                if "INVALID_ARGUMENT" in str(error):
                    raise CalibrationError(f"the data ({shapes}) does not fit the model: {error}") from None
                raise InferenceError(f"ONNX Runtime failed on the data ({shapes}): {error}") from error
            values = dict(zip(self._computed, found, strict=True))
            del found
            values |= {name: feeds[name] for name in self._activations if name in feeds}
            first = next(iter(feeds.values()))
            yield (len(first) if np.ndim(first) else 1), values

    def __enter__(self) -> _Observer:
        return self

    def __exit__(self, *exc: object) -> None:
        self._session = None
