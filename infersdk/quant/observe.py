"""Activations of a model on ONNX Runtime, and the calibration table made of them."""

from __future__ import annotations

import copy
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import CalibrationError, InferenceError
from ..graph.digest import model_digest
from ..graph.files import write_model
from ..graph.weights import weights_size
from .functions import function_behind
from .histogram import ChannelRanges, Histogram
from .inputs import Inputs, batches_of
from .plan import Plan, channel_axis, data_input, plan
from .ranges import PERCENTILE, check_method, tensor_range
from .table import CalibrationTable, Method

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

    from .functions import Function
    from .schemes import Scheme

__all__ = ["MIN_SAMPLES", "Observations", "Observer", "calibrate", "observe"]

#: Fewer samples than this say too little of the data to come.
MIN_SAMPLES = 8

#: Batches in memory: while one is looked at, the next one runs. Runs on fewer threads each take less CPU time.
_IN_FLIGHT = 2

#: Is called with how many samples are done.
Progress = Callable[[int], None]


class Observations:
    """What the activations of a model were like over some data; ranges of any method follow without it.

    Attributes:
        samples: images, or rows of arrays.
        ranges: of each channel, by name of the activation.
        histograms: likewise, of all values.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        samples: int,
        ranges: dict[str, ChannelRanges],
        histograms: dict[str, Histogram],
        functions: Mapping[str, Function | None],
        blank: frozenset[str] = frozenset(),
    ) -> None:
        self._digest, self._name = model_digest(model), Path(model).name
        self._functions, self._blank = functions, blank
        self.samples, self.ranges, self.histograms = samples, ranges, histograms

    def merged(self, other: Observations) -> Observations:
        """What was observed here and over other data of the same model."""
        if self._digest != other._digest or self.ranges.keys() != other.ranges.keys():
            raise CalibrationError(
                f"observations of {other._name} ({other._digest[:12]}, {len(other.ranges)} activations) cannot be "
                f"added to those of {self._name} ({self._digest[:12]}, {len(self.ranges)} activations)"
            )
        made = copy.copy(self)
        made.ranges = {name: ranges.copy() for name, ranges in self.ranges.items()}
        made.histograms = {name: histogram.copy() for name, histogram in self.histograms.items()}
        for name, ranges in made.ranges.items():
            ranges.merge(other.ranges[name])
            made.histograms[name].merge(other.histograms[name])
        made._blank = self._blank & other._blank
        made.samples = self.samples + other.samples
        return made

    def table(
        self, method: Method | str = "mse", percentile: float = PERCENTILE, *, bias_correction: bool = True
    ) -> CalibrationTable:
        """The calibration table by one of the methods; see `calibrate`. `quantize` says what bias correction is.

        Raises:
            ConfigError: an unknown method, or a percentile out of range.
            CalibrationError: an activation is 0 throughout.
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
                f"activation {next(iter(dead))!r} is 0 throughout {self.samples} samples ({len(dead)} of "
                f"{len(self.ranges.keys() | dead)} activations are): the data is blank, or the layer is dead; give "
                "data that shows something, or exclude its node"
            )


class Observer:
    """Runs a model with its activations exposed, and looks at them. Use it in a `with` statement.

    The memory it takes does not depend on the amount of data: the counters of each activation, and one batch. What
    follows from another activation is not exposed: x * sigmoid(x) has a histogram that follows from that of x, and the
    mean of each channel is computed in the graph.

    Args:
        path: the model file.
        planned: what of it is to be quantised; `activations` are observed.
    """

    def __init__(self, path: str | os.PathLike[str], planned: Plan) -> None:
        self._path, self._plan = path, planned
        graph = planned.model.graph
        values = {value.name or "": value for value in (*graph.inputs, *_results(graph))}
        self._functions = {name: function_behind(values[name]) for name in planned.activations}
        self._axes = _channel_axes(planned)
        self._derived = _derived(values, planned.activations)
        self._inputs = [value.name or "" for value in graph.inputs if value.name not in graph.initializers]
        self._seen = [name for name in planned.activations if name not in self._derived]
        self._computed = [name for name in self._seen if name not in self._inputs]
        self._session = self._start()
        self._pool = ThreadPoolExecutor(os.cpu_count())

    def _start(self) -> Any:
        import onnx_ir as ir
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.enable_mem_pattern = False  # it keeps a plan, and the memory for it, for each shape of the data
        options.intra_op_num_threads = max(1, (os.cpu_count() or 1) // _IN_FLIGHT)
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # other threads work between the runs
        exposed = self._plan.model.clone()
        values = {value.name: value for value in _results(exposed.graph)}
        there = {value.name for value in exposed.graph.outputs}
        exposed.graph.outputs.extend(values[name] for name in self._computed if name not in there)
        for name in self._derived:
            mean = ir.node("GlobalAveragePool", [values[name]], name=_mean_of(name))
            mean.outputs[0].name, mean.outputs[0].type = _mean_of(name), values[name].type
            exposed.graph.append(mean)
            exposed.graph.outputs.append(mean.outputs[0])
        large = weights_size(exposed) > 2**30  # a message of protobuf holds twice as much
        with tempfile.TemporaryDirectory() as folder:
            path = write_model(exposed, Path(folder, "observed.onnx"), external_data="observed.data" if large else None)
            return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def observe(self, data: Inputs, *, progress: Progress | None = None) -> Observations:
        """What the activations are like over data; one pass.

        Args:
            data: `ImageInputs`, arrays or dicts of arrays by input (with the batch axis), or a function that returns an
                iterator over such.
            progress: is called after each batch with how many samples are done.

        Raises:
            CalibrationError: the data does not fit the model, or an activation is NaN or infinite.
            InferenceError: ONNX Runtime failed.
        """
        ranges: dict[str, ChannelRanges] = {}
        histograms = {name: Histogram() for name in self._seen}
        sums: dict[str, npt.NDArray[np.float64]] = {}

        def look(item: tuple[str, npt.NDArray[Any]]) -> None:
            name, values = item
            axis = self._axes.get(name)
            if name not in ranges:
                ranges[name] = ChannelRanges(1 if axis is None or values.ndim < 2 else values.shape[axis], axis or 0)
            ranges[name].update(values)
            histograms[name].update(values, ranges[name].absmax)

        samples = 0
        self._blank = set(self._inputs)
        for count, values, means in self._runs(data):
            list(self._pool.map(look, values.items()))
            for name, mean in means.items():  # [batch, channels, 1, 1]
                each = values[self._derived[name][0]].size / mean.size
                sums[name] = sums.get(name, 0) + each * mean.sum(axis=0, dtype=np.float64).reshape(-1)
            values.clear()  # the next run takes the same memory
            means.clear()
            _check_finite({name: ranges[name] for name in self._seen}, samples, samples + count)
            samples += count
            if progress:
                progress(samples)
        for name, (source, function) in self._derived.items():
            if source in ranges:
                histograms[name], zeros = histograms[source].mapped(function, ranges[source].zeros)
                ends = function(np.asarray([ranges[source].min, ranges[source].max]))
                ranges[name] = ChannelRanges.of_sums(sums[name], histograms[name], zeros, float(ends.max()))
        blank = frozenset(self._blank) if samples else frozenset()
        return Observations(self._path, samples, ranges, histograms, self._functions, blank)

    def _runs(self, data: Inputs) -> Iterator[tuple[int, dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]]]]:
        """How many samples a batch has, its activations by name, and the means of the channels of others."""
        waiting: deque[tuple[dict[str, npt.NDArray[Any]], Future[list[Any]]]] = deque()
        with ThreadPoolExecutor(_IN_FLIGHT) as runner:
            for feeds in batches_of(data, self._inputs):
                waiting.append((feeds, runner.submit(self._run, feeds)))
                if len(waiting) == _IN_FLIGHT:
                    yield self._taken(*waiting.popleft())
            while waiting:
                yield self._taken(*waiting.popleft())

    def _run(self, feeds: dict[str, npt.NDArray[Any]]) -> list[Any]:
        """The arrays of `_computed`, and the means of `_derived`."""
        names = [*self._computed, *(_mean_of(name) for name in self._derived)]
        if not names:
            return []  # no names would mean all outputs
        try:
            result: list[Any] = self._session.run(names, feeds)
        except Exception as error:  # the runtime has no root of its own exceptions
            shapes = ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in feeds.items())
            if "INVALID_ARGUMENT" in str(error):
                raise CalibrationError(f"the data ({shapes}) does not fit the model: {error}") from None
            raise InferenceError(f"ONNX Runtime failed on the data ({shapes}): {error}") from error
        return result

    def _taken(
        self, feeds: dict[str, npt.NDArray[Any]], running: Future[list[Any]]
    ) -> tuple[int, dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]]]:
        """What `_runs` gives, of a run that may still go on."""
        result = running.result()
        # Whole numbers may be 0 throughout, such as the kinds of tokens.
        self._blank = {name for name in self._blank if feeds[name].dtype.kind == "f" and not feeds[name].any()}
        means = dict(zip(self._derived, result[len(self._computed) :], strict=True))
        values = dict(zip(self._computed, result, strict=False))
        result.clear()  # the future holds the list
        values |= {name: feeds[name] for name in self._seen if name in feeds}
        first = next(iter(feeds.values()))
        return (len(first) if np.ndim(first) else 1), values, means

    def close(self) -> None:
        self._session = None
        self._pool.shutdown()

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def observe(
    model: str | os.PathLike[str],
    data: Inputs,
    *,
    target: str | Scheme = "portable",
    min_samples: int = MIN_SAMPLES,
    progress: Progress | None = None,
) -> Observations:
    """Runs a model over data, once, and looks at its activations.

    Args:
        model: an ONNX file in FP32.
        data: `ImageInputs`, arrays or dicts of arrays by input (with the batch axis), or a function that returns an
            iterator over such.
        target: what the ranges are for. Those for `"portable"` hold for every target.
        min_samples: fewer are an error.
        progress: is called after each batch with how many samples are done.

    Raises:
        CalibrationError: there are too few samples, they do not fit the model, or an activation is NaN, infinite, or 0
            throughout.
        ModelError, BackendUnavailableError: as `plan`.
    """
    with Observer(model, plan(model, target)) as observer:
        seen = observer.observe(data, progress=progress)
    check_samples(seen.samples, min_samples)
    seen._check_alive()
    return seen


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
    """The calibration table of a model, from data; as `observe`, then one method.

    Args:
        model, data, target, min_samples, progress: as `observe` takes them.
        method: `"mse"` (the least squared error behind the activation function), `"entropy"` (the least
            Kullback-Leibler divergence), `"percentile"`, or `"minmax"` (nothing is clipped).
        percentile: of the values that are not clipped, for that method.

    Raises:
        ConfigError: an unknown method or target, or a percentile out of range.
        CalibrationError, ModelError, BackendUnavailableError: as `observe`.
    """
    check_method(method, percentile)
    seen = observe(model, data, target=target, min_samples=min_samples, progress=progress)
    return seen.table(method, percentile)


def check_samples(samples: int, least: int = MIN_SAMPLES) -> None:
    """Raises CalibrationError for fewer samples than `least`."""
    if samples < least:
        raise CalibrationError(
            f"{samples} samples are too few to calibrate with: give {least} at least, and better some hundreds that "
            "show what the model will see"
        )


def _check_finite(ranges: Mapping[str, ChannelRanges], before: int, after: int) -> None:
    for name, result in ranges.items():
        if result.nonfinite:
            raise CalibrationError(
                f"activation {name!r} has {result.nonfinite} values of {result.count} that are NaN or infinite, at "
                f"samples {before + 1} to {after}; look at what the model is given there"
            )


def _results(graph: ir.Graph) -> Iterator[ir.Value]:
    for node in graph:
        yield from (value for value in node.outputs if value.name)


def _channel_axes(planned: Plan) -> dict[str, int]:
    """The axis of the channels of what enters the layers."""
    nodes = [planned.nodes_by_name[name] for name in planned.layers]
    return {data_input(node).name or "": channel_axis(node) for node in nodes}


def _mean_of(name: str) -> str:
    return f"{name}_infersdk_mean"


def _derived(values: Mapping[str, ir.Value], activations: Sequence[str]) -> dict[str, tuple[str, Function]]:
    """Activations that are x * sigmoid(x) of another one, with that and the function."""
    result = {}
    for name in activations:
        maker = values[name].producer()
        shape = values[name].shape
        if maker is None or maker.op_type != "Mul" or shape is None or len(shape) != 4:
            continue
        for source in maker.inputs:
            if source is None or source.name not in activations:
                continue
            function = function_behind(source)
            if function is not None:
                result[name] = (source.name or "", function)
    return result
