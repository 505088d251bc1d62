"""Observes activations of a model with ONNX Runtime on images or arrays, and creates calibration tables."""

from __future__ import annotations

import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..core.model_source import ModelSource
from ..core.processors import available_processors
from ..errors import CalibrationError, ConfigError, InferenceError
from ..graph.digest import model_digest
from ..graph.files import write_large
from ..graph.weights import data_inputs, graph_values
from .histogram import ChannelRanges, Histogram
from .plan import Plan, data_input, plan
from .ranges import PERCENTILE, check_method, function_behind, tensor_range
from .table import CalibrationTable, Method

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..image import ImageSource
    from ..models.vision import VisionModel
    from .ranges import Function
    from .schemes import Scheme

__all__ = ["MIN_SAMPLES", "ImageInputs", "Inputs", "Observations", "Observer", "batches_of", "calibrate"]

#: The default minimum number of samples.
MIN_SAMPLES = 8

#: Batches in memory: one is analysed while the next one runs.
_IN_FLIGHT = 2

#: Called with the number of samples so far.
Progress = Callable[[int], None]


class Observations:
    """The ranges and histograms of activations over some data, from which any method can choose ranges.

    Attributes:
        samples: the number of images, or of rows of arrays.
        ranges: the ranges of the channels by name of the activation.
        histograms: the histograms by name of the activation.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        samples: int,
        ranges: dict[str, ChannelRanges],
        histograms: dict[str, Histogram],
        functions: Mapping[str, Function | None],
        blank: frozenset[str],
    ) -> None:
        self._digest, self._name = model_digest(model), ModelSource.of(model).name
        self._functions, self._blank = functions, blank
        self.samples, self.ranges, self.histograms = samples, ranges, histograms

    def table(
        self, method: Method | str = "mse", percentile: float = PERCENTILE, *, bias_correction: bool = True
    ) -> CalibrationTable:
        """Creates a calibration table; see `calibrate` for the methods and `quantize` for bias correction.

        Raises:
            ConfigError: the method is unknown, or the percentile is out of range.
            CalibrationError: all values of an activation are 0.
        """
        known = check_method(method, percentile)
        self._check_alive()
        tensors = {
            name: tensor_range(
                known, ranges, self.histograms[name], percentile=percentile, function=self._functions[name]
            )
            for name, ranges in self.ranges.items()
        }
        return CalibrationTable(
            model=self._digest,
            name=self._name,
            method=known,
            percentile=percentile if known == "percentile" else None,
            bias_correction=bias_correction,
            samples=self.samples,
            tensors=tensors,
        )

    def _check_alive(self) -> None:
        dead = dict.fromkeys([*sorted(self._blank), *(n for n, result in self.ranges.items() if result.absmax == 0)])
        if dead:
            raise CalibrationError(
                f"all values of activation {next(iter(dead))!r} are 0 in {self.samples} samples (as of {len(dead)} of "
                f"{len(self.ranges.keys() | dead)} activations): the data is blank or the layer is inactive; give "
                "representative data or exclude the node"
            )


class Observer:
    """Runs a model with exposed activations and collects their statistics.

    The memory use does not depend on the amount of data.

    Args:
        path: the model file.
        planned: the quantisation plan, whose `activations` are observed.
    """

    def __init__(self, path: str | os.PathLike[str], planned: Plan) -> None:
        self._path, self._plan = path, planned
        values = dict(graph_values(planned.model.graph))
        self._functions = {name: function_behind(values[name]) for name in planned.activations}
        layers = [planned.nodes_by_name[name] for name in planned.layers]
        # Biases of these layers are corrected by the means of the channels, on axis 1.
        self._by_channel = {data_input(node).name for node in layers if node.op_type in ("Conv", "Gemm")}
        self._inputs = [value.name or "" for value in data_inputs(planned.model)]
        self._computed = [name for name in planned.activations if name not in self._inputs]

    def _start(self) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.enable_mem_pattern = False  # it would allocate memory for each input shape
        options.intra_op_num_threads = max(1, available_processors() // _IN_FLIGHT)
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # other threads work between runs
        exposed = self._plan.model.clone()
        values = dict(graph_values(exposed.graph))
        there = {value.name for value in exposed.graph.outputs}
        exposed.graph.outputs.extend(values[name] for name in self._computed if name not in there)
        with tempfile.TemporaryDirectory() as folder:
            path = write_large(exposed, Path(folder, "observed.onnx"))
            return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def observe(self, data: Inputs, *, progress: Progress | None = None) -> Observations:
        """Observes the activations in one pass over data.

        Args:
            data: `ImageInputs`, arrays or dicts of arrays by input with a batch axis, or a function that returns an
                iterator over these.
            progress: called after each batch with the number of samples so far.

        Raises:
            CalibrationError: the data does not match the model, or an activation is NaN or infinite.
            InferenceError: ONNX Runtime fails.
        """
        ranges: dict[str, ChannelRanges] = {}
        histograms: dict[str, Histogram] = {}

        def look(item: tuple[str, npt.NDArray[Any]]) -> None:
            name, values = item
            if name not in ranges:
                if name in self._by_channel and values.ndim < 2:
                    raise CalibrationError(
                        f"activation {name!r} has shape {values.shape}; give arrays with a batch axis, and channels on "
                        "axis 1"
                    )
                ranges[name] = ChannelRanges(values.shape[1] if name in self._by_channel else 1)
                histograms[name] = Histogram()
            ranges[name].update(values)
            histograms[name].update(values, ranges[name].absmax)

        samples, blank = 0, frozenset(self._inputs)
        images = len(data) if isinstance(data, ImageInputs) else sys.maxsize
        with ThreadPoolExecutor(available_processors()) as pool:
            for feeds, running in self._runs(data):
                computed = running.result()
                # Integer inputs, such as token types, may be all 0.
                blank &= {name for name in blank if feeds[name].dtype.kind == "f" and not feeds[name].any()}
                values = dict(zip(self._computed, computed, strict=True))
                values |= {name: feeds[name] for name in self._plan.activations if name in feeds}
                first = next(iter(feeds.values()))
                rows = len(first) if np.ndim(first) else 1
                count = min(rows, images - samples)  # copies of the last image fill up a fixed batch
                values = {name: a[:count] if a.shape[:1] == (rows,) else a for name, a in values.items()}
                list(pool.map(look, values.items()))
                values.clear()  # frees the memory for the next run; the future keeps the list
                computed.clear()
                ranges = {name: ranges[name] for name in self._plan.activations}  # threads add them in any order
                _check_finite(ranges, samples, samples + count)
                samples += count
                if progress:
                    progress(samples)
        return Observations(self._path, samples, ranges, histograms, self._functions, blank if samples else frozenset())

    def _runs(self, data: Inputs) -> Iterator[tuple[dict[str, npt.NDArray[Any]], Future[list[Any]]]]:
        """Yields the inputs of each batch and its run."""
        session = self._start()
        waiting: deque[tuple[dict[str, npt.NDArray[Any]], Future[list[Any]]]] = deque()
        with ThreadPoolExecutor(_IN_FLIGHT) as runner:
            for feeds in batches_of(data, self._inputs):
                waiting.append((feeds, runner.submit(self._run, session, feeds)))
                if len(waiting) == _IN_FLIGHT:
                    yield waiting.popleft()
            yield from waiting

    def _run(self, session: Any, feeds: dict[str, npt.NDArray[Any]]) -> list[Any]:
        """Runs the model; returns the arrays of `_computed`."""
        outputs = self._computed or [session.get_outputs()[0].name]  # an empty list would request all outputs
        try:
            result: list[Any] = session.run(outputs, feeds)
        except Exception as error:  # the runtime has no root of its own exceptions
            shapes = ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in feeds.items())
            if "INVALID_ARGUMENT" in str(error):
                raise CalibrationError(
                    f"the data ({shapes}) does not match the model; give arrays of its types and shapes, with a batch "
                    f"axis: {error}"
                ) from None
            raise InferenceError(f"ONNX Runtime failed on the data ({shapes}): {error}") from error
        return result[: len(self._computed)]


def calibrate(
    model: str | os.PathLike[str],
    data: Inputs,
    *,
    method: Method = "mse",
    percentile: float = PERCENTILE,
    target: str | Scheme = "portable",
    min_samples: int = MIN_SAMPLES,
    progress: Progress | None = None,
) -> CalibrationTable:
    """Creates the calibration table of a model from data.

    Args:
        model: an ONNX file in FP32.
        data: `ImageInputs`, arrays or dicts of arrays by input with a batch axis, or a function that returns an
            iterator over these.
        method: `"mse"` (minimum squared error after the activation function), `"entropy"` (minimum Kullback-Leibler
            divergence), `"percentile"`, or `"minmax"` (no clipping).
        percentile: for `"percentile"`, a number above 50. In ranges with a zero point, 100 - `percentile` per cent of
            the values are clipped at each end. In symmetric ranges, so many are clipped in all.
        target: the target of the ranges. Those for `"portable"` are valid for every target.
        min_samples: the minimum number of samples.
        progress: called after each batch with the number of samples so far.

    Raises:
        ConfigError: the method or target is unknown, or a number is out of range.
        CalibrationError: there are too few samples, they do not match the model, or the values of an activation are
            NaN, infinite, or all 0.
        ModelError, BackendUnavailableError: as `plan`.
    """
    check_method(method, percentile)
    if not isinstance(min_samples, Integral) or min_samples < 1:
        raise ConfigError(f"min_samples is a whole number from 1, not {min_samples!r}")
    seen = Observer(model, plan(model, target)).observe(data, progress=progress)
    check_samples(seen.samples, min_samples)
    return seen.table(method, percentile)


def check_samples(samples: int, least: int = MIN_SAMPLES) -> None:
    """Raises CalibrationError for fewer samples than `least`."""
    if samples < least:
        raise CalibrationError(
            f"calibration needs at least {least} samples, not {samples}; give some hundreds of representative ones"
        )


def _check_finite(ranges: Mapping[str, ChannelRanges], before: int, after: int) -> None:
    for name, result in ranges.items():
        if result.nonfinite:
            raise CalibrationError(
                f"activation {name!r} has {result.nonfinite} values of {result.count} that are NaN or infinite, at "
                f"samples {before + 1} to {after}; check these samples"
            )


Arrays: TypeAlias = "npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]]"
#: Arrays, or dicts of arrays by input name, or a function that returns a new iterator over them.
Inputs: TypeAlias = "Iterable[Arrays] | Callable[[], Iterable[Arrays]]"


class ImageInputs:
    """Images with the preprocessing of a wrapper. Each iteration reads them again.

    Args:
        model: a wrapper such as `YOLOv5`, on any backend.
        images: paths, or other images that the wrapper accepts.
        batch: the batch size, if that of the model is free.
    """

    def __init__(self, model: VisionModel[Any], images: Sequence[ImageSource], batch: int = 1) -> None:
        self._model, self._images, self._batch = model, images, batch

    def __len__(self) -> int:
        """The number of images."""
        return len(self._images)

    def __iter__(self) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
        yield from self._model.details.network_inputs(self._images, batch=self._batch)


def batches_of(data: Inputs, names: Sequence[str]) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """The arrays for each run by input name.

    Raises:
        CalibrationError: the arrays do not match the inputs.
    """
    items = data() if callable(data) else data
    several = isinstance(items, Iterable) or hasattr(items, "__getitem__")
    if not several or isinstance(items, (Mapping, str, bytes)):
        raise CalibrationError(f"the data is one {type(items).__name__}; give a list of arrays, or of dicts of arrays")
    for item in items:
        if isinstance(item, Mapping):
            if missing := [name for name in names if name not in item]:
                raise CalibrationError(f"the data has {sorted(item)}, but not the input {missing[0]!r}")
            yield {name: _native(item[name]) for name in names}
        elif len(names) != 1:
            raise CalibrationError(f"the model has inputs {list(names)}; give dicts of arrays by these names")
        else:
            yield {names[0]: _native(item)}


def _native(values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Values in the byte order of the machine: ONNX Runtime takes arrays of the other one for it."""
    array = np.asarray(values)
    return array.astype(array.dtype.newbyteorder("="), copy=False)
