"""Activations of a model on ONNX Runtime, and the calibration table made of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np

from ..errors import CalibrationError, ConfigError, InferenceError
from ..graph.digest import model_digest
from .graph import plan
from .histogram import Histogram, Range
from .inputs import Inputs, batches_of
from .table import CalibrationTable, Method, TensorRange

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["PERCENTILE", "Observations", "calibrate", "observe"]

#: Fewer samples than this say too little of what is to come.
MIN_SAMPLES = 8
#: Of magnitudes that are not clipped. Of the millions in an activation the rarest hundred-thousandth is left out.
PERCENTILE = 99.999
_LARGEST_FILE = 2**31 - 1  # what protobuf puts into one message

#: Is told the pass ("ranges", "histograms") and how many samples of it are done.
Progress = Callable[[str, int], None]


class Observations:
    """What the activations of a model were like over some data; thresholds of any method follow without it.

    Attributes:
        samples: images, or rows of arrays.
        ranges: by name of the activation.
        histograms: likewise; empty where only ranges were asked for.
    """

    def __init__(
        self, model: str | os.PathLike[str], samples: int, ranges: dict[str, Range], histograms: dict[str, Histogram]
    ) -> None:
        self._digest, self._name = model_digest(model), Path(model).name
        self.samples, self.ranges, self.histograms = samples, ranges, histograms

    def table(self, method: Method | str = "entropy", percentile: float = PERCENTILE) -> CalibrationTable:
        """The calibration table by one of the methods; see `calibrate`."""
        check_method(method, percentile)
        if method != "minmax" and not self.histograms:
            raise ConfigError(f"method {method!r} needs histograms, and only ranges were observed")
        tensors = {}
        for name, found in self.ranges.items():
            if method == "minmax":
                threshold = found.absmax
            elif method == "percentile":
                threshold = self.histograms[name].percentile(percentile)
            else:
                threshold = self.histograms[name].entropy(zeros=found.zeros)
            tensors[name] = TensorRange(found.min, found.max, threshold)
        return CalibrationTable(
            model=self._digest,
            name=self._name,
            method=check_method(method, percentile),
            percentile=percentile if method == "percentile" else None,
            samples=self.samples,
            tensors=tensors,
        )


def observe(
    model: str | os.PathLike[str],
    data: Inputs,
    *,
    histograms: bool = True,
    min_samples: int = MIN_SAMPLES,
    progress: Progress | None = None,
) -> Observations:
    """Runs a model over data, once for the ranges of its activations and once for their histograms.

    The memory it takes does not depend on the amount of data: 2,048 counters an activation, and one batch.

    Args:
        model: an ONNX file in FP32.
        data: `ImageInputs`, a list of arrays or of dicts of arrays by input (with the batch axis), or a function that
            returns an iterator over such.
        histograms: False leaves out the second pass, which `"minmax"` does without.
        min_samples: fewer are an error.
        progress: called after each batch.

    Raises:
        CalibrationError: there are too few samples, they do not fit the model, or an activation is NaN, infinite, or 0
            throughout.
        ModelError, BackendUnavailableError: as `plan`.
    """
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
        if not histograms:
            return Observations(model, samples, ranges, {})
        found = {name: Histogram(r.absmax) for name, r in ranges.items()}
        again = 0
        for count, values in observer.run(data):
            list(pool.map(lambda name, v=values: found[name].update(v[name]), values))
            again += count
            if progress:
                progress("histograms", again)
    if again != samples:
        raise CalibrationError(f"the data gave {samples} samples, and {again} when gone through again")
    return Observations(model, samples, ranges, found)


def calibrate(
    model: str | os.PathLike[str],
    data: Inputs,
    *,
    method: Method = "entropy",
    percentile: float = PERCENTILE,
    min_samples: int = MIN_SAMPLES,
    progress: Progress | None = None,
) -> CalibrationTable:
    """The calibration table of a model, from data; as `observe`, then one method.

    Args:
        model, data, min_samples, progress: as `observe` takes them.
        method: `"entropy"` (least Kullback-Leibler divergence), `"percentile"`, or `"minmax"` (nothing is clipped; one
            pass).
        percentile: of the magnitudes that are not clipped, for that method.

    Raises:
        ConfigError: no such method, or a percentile out of range.
        CalibrationError, ModelError, BackendUnavailableError: as `observe`.
    """
    check_method(method, percentile)
    seen = observe(model, data, histograms=method != "minmax", min_samples=min_samples, progress=progress)
    return seen.table(method, percentile)


def check_method(method: str, percentile: float) -> Method:
    """Returns the method. Raises ConfigError for one that is none, or a percentile out of range."""
    if method not in get_args(Method):
        raise ConfigError(f"unknown method {method!r}; the methods are {', '.join(get_args(Method))}")
    if not 0 < percentile <= 100:
        raise ConfigError(f"percentile is above 0 and at most 100, not {percentile!r}")
    return cast("Method", method)


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
                # No names would mean all outputs.
                found = self._session.run(self._computed, feeds) if self._computed else []
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
