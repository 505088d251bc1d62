"""Compares the outputs of a model on several backends, and finds the first layer that differs.

::

    report = compare("yolov5n.onnx", ["onnxruntime", "openvino"], layers=True)
    report.agrees                       # False: at least one output is outside the tolerance
    report.sides[0].outputs[0].max_abs  # the largest difference of the first output
    report.sides[0].first_layer         # the first layer that differs

A side is a backend by name (`"openvino"`, `"onnxruntime@cuda:0"`, `"openvino/bf16"`), or a function that takes the path
of a model and returns what runs it: an `Infer`, or any callable from a dict of arrays to a dict of arrays.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..core.model_source import ModelSource
from ..core.target import Target
from ..errors import ConfigError, DTypeError, InputError, InputNameError
from ..infer import Infer
from ..loading.registry import load
from ..loading.samples import random_inputs

if TYPE_CHECKING:
    import os

    import numpy.typing as npt

    from ..core.tensor_spec import TensorSpec

__all__ = ["CompareReport", "Difference", "LayerDifference", "SideReport", "Tolerance", "compare", "difference"]

Arrays: TypeAlias = "Mapping[str, npt.NDArray[Any]]"
Runner: TypeAlias = Callable[[Arrays], Arrays]
Loader: TypeAlias = Callable[[Path], Runner]
Inputs: TypeAlias = "Iterable[Arrays] | Callable[[Sequence[TensorSpec]], Iterable[Arrays]]"


# ---- how far two arrays are apart ----


@dataclass(frozen=True)
class Tolerance:
    """The tolerance of a comparison.

    Every element must satisfy |other - reference| <= atol + rtol * |reference|, as in `numpy.allclose`, and the
    cosine difference of a whole output must be `cosine` at most. The defaults suit two float32 runtimes.
    """

    atol: float = 1e-3
    rtol: float = 1e-3
    cosine: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("atol", "rtol", "cosine"):
            value: float = getattr(self, name)
            if not (isinstance(value, Real) and 0 <= value < float("inf")):
                raise ConfigError(f"{name} is a number from 0, not {value!r}")


@dataclass(frozen=True)
class Difference:
    """The difference of an output from the reference, over all inputs.

    Two NaNs are the same, as are two infinities of one sign. A NaN beside a number is a difference of infinity, and so
    is an infinity beside anything else; such elements stay out of the cosine.

    Attributes:
        name: the output.
        max_abs: the largest |other - reference|.
        max_rel: the largest |other - reference| / max(|reference|, peak / 1000), where peak is the largest magnitude
            of the reference output: elements much smaller than others do not dominate.
        cosine: 1 - a·b / (|a| |b|) of the flattened output, in float64, the largest of all inputs: 0 is the same
            direction, 1 at right angles, 2 the opposite. Where both are zero it is 0, where one is, 1.
        argmax: the share of rows along the last axis where the other array has a greatest element at the index of the
            first greatest element of the reference. In a row with NaN, the first NaN is the greatest element, and only
            NaN is equal to it. None if the last axis has fewer than two elements.
        outside: how many elements are outside the tolerance.
        elements: how many were compared.
        note: the reason of an impossible comparison (other shapes, a missing output), else empty.
        within: whether all of it is inside the tolerance.
    """

    name: str
    max_abs: float
    max_rel: float
    cosine: float
    argmax: float | None
    outside: int
    elements: int
    note: str
    within: bool


def difference(
    reference: npt.ArrayLike, other: npt.ArrayLike, tolerance: Tolerance | None = None, *, name: str = ""
) -> Difference:
    """How far `other` is from `reference`. Element types may differ. The difference of integers of one type is exact.
    The tolerance applies to it as well.

    Raises:
        ConfigError: the tolerance is not a `Tolerance`.
        DTypeError: the elements are not real numbers.
    """
    meter = _Meter(name, _tolerance(tolerance))
    meter.add(np.asarray(reference), np.asarray(other))
    return meter.result()


def _tolerance(given: Tolerance | None) -> Tolerance:
    if given is not None and not isinstance(given, Tolerance):
        raise ConfigError(f"tolerance is a Tolerance, Tolerance(atol=1e-3) say, not {given!r}")
    return given or Tolerance()


@dataclass
class _Meter:
    """Gathers the differences of one output over many inputs."""

    name: str
    tolerance: Tolerance
    max_abs: float = 0.0
    max_rel: float = 0.0
    cosine: float = 0.0
    rows: int = 0
    agreeing: int = 0
    outside: int = 0
    elements: int = 0
    note: str = ""

    def add(self, a: npt.NDArray[Any], b: npt.NDArray[Any] | None) -> bool:
        """Takes `b` against the reference `a`; tells whether it is within the tolerance."""
        if b is None or a.shape != b.shape:
            self.note = "is missing" if b is None else f"has shape {b.shape}, not {a.shape}"
            return False
        for array in (a, b):
            if not np.can_cast(array.dtype, np.float64, "same_kind"):
                what = f"output {self.name!r}" if self.name else "an array"
                raise DTypeError(f"{what} has elements of {array.dtype}: only real numbers are compared")
        self.elements += a.size
        if not a.size:
            return True
        apart = _distance(a, b)
        a, b = _widen(a), _widen(b)
        size = np.abs(a)
        known = np.isfinite(size)
        peak = float(size.max(where=known, initial=0.0))
        self.max_abs = max(self.max_abs, float(apart.max()))
        scale = np.maximum(np.where(known, size, peak), peak / 1000)
        relative = np.divide(apart, scale, out=np.where(apart > 0, np.inf, 0.0), where=scale > 0)
        self.max_rel = max(self.max_rel, float(relative.max()))
        allowed = self.tolerance.atol + self.tolerance.rtol * np.where(known, size, 0.0)
        outside = int(np.count_nonzero(apart > allowed))
        self.outside += outside
        if a.ndim and a.shape[-1] > 1:
            best = np.take_along_axis(b, np.argmax(a, axis=-1, keepdims=True), axis=-1)[..., 0]
            unknown = np.isnan(a.max(axis=-1))
            self.agreeing += int(np.count_nonzero(np.where(unknown, np.isnan(best), best == b.max(axis=-1))))
            self.rows += best.size
        known &= np.isfinite(b)
        cosine = _cosine_difference(*((a.ravel(), b.ravel()) if known.all() else (a[known], b[known])))
        self.cosine = max(self.cosine, cosine)
        return not outside and cosine <= self.tolerance.cosine

    def result(self) -> Difference:
        if self.note:
            inf = float("inf")
            return Difference(self.name, inf, inf, 1.0, None, self.elements, self.elements, self.note, False)
        within = self.outside == 0 and self.cosine <= self.tolerance.cosine
        argmax = self.agreeing / self.rows if self.rows else None
        return Difference(
            self.name, self.max_abs, self.max_rel, self.cosine, argmax, self.outside, self.elements, "", within
        )


def _widen(array: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.atleast_1d(array).astype(np.float64)


def _distance(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """|b - a| for each element; infinity where one is NaN or they are different infinities."""
    if a.dtype == b.dtype and a.dtype.kind in "iu":
        # Modulo 2^64 the difference of two 64-bit integers is exact, where that of two float64 is not.
        low, high = np.minimum(a, b), np.maximum(a, b)
        return np.atleast_1d(high.astype(np.uint64) - low.astype(np.uint64)).astype(np.float64)
    a, b = _widen(a), _widen(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(b - a)
    apart[np.isnan(apart)] = np.inf
    apart[same] = 0.0
    return apart


def _cosine_difference(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    if np.array_equal(a, b):
        return 0.0
    peaks = [float(np.abs(x).max(initial=0.0)) for x in (a, b)]
    if 0.0 in peaks:
        return 1.0
    a, b = a / peaks[0], b / peaks[1]  # squares of the largest numbers would overflow
    return max(0.0, 1.0 - float(a @ b) / float(np.sqrt(a @ a) * np.sqrt(b @ b)))


# ---- the report ----


@dataclass(frozen=True)
class LayerDifference:
    """An intermediate value of the graph: what computes it, and how far it is from the reference."""

    node: str
    operator: str
    difference: Difference


@dataclass(frozen=True)
class SideReport:
    """One side against the reference.

    Attributes:
        name: the side.
        outputs: a difference for each output of the model.
        layers: with `layers=True`, for a side outside the tolerance: the intermediate values in topological order, up
            to the first one outside. They are of the first input with a difference.
        unseen: number of values that could not be compared, because their type or rank is unknown.
    """

    name: str
    outputs: tuple[Difference, ...]
    layers: tuple[LayerDifference, ...] = ()
    unseen: int = 0

    @property
    def agrees(self) -> bool:
        return all(output.within for output in self.outputs)

    @property
    def first_layer(self) -> LayerDifference | None:
        """The first layer whose result is outside the tolerance.

        None if the layers were not compared, or if all agree once their results are exposed. The difference then comes
        from fused layers, because exposing their results prevents fusion.
        """
        return next((layer for layer in self.layers if not layer.difference.within), None)


@dataclass(frozen=True)
class CompareReport:
    """The result of `compare()`: each other side against `reference`, over `samples` inputs."""

    model: str
    reference: str
    samples: int
    tolerance: Tolerance
    sides: tuple[SideReport, ...]

    @property
    def agrees(self) -> bool:
        """Whether all outputs of all sides are inside the tolerance."""
        return all(side.agrees for side in self.sides)


# ---- comparing ----


def compare(
    model: str | os.PathLike[str],
    sides: Sequence[str] | Mapping[str, str | Loader],
    inputs: Inputs | None = None,
    *,
    tolerance: Tolerance | None = None,
    layers: bool = False,
) -> CompareReport:
    """Runs a model on the same inputs on each side, and measures each against the first.

    Args:
        model: the model file; looking into the layers needs it to be ONNX.
        sides: backends as `"name"`, `"name@device"`, `"name/precision"` or `"name@device/precision"`; or a mapping of
            labels to such names or to functions that load a model. The first is the reference.
        inputs: one mapping of input names to arrays for each run, or a function that makes them from the
            specs of the inputs. They are consumed one by one. None is one random input (`samples.random_inputs`).
        tolerance: the allowed differences.
        layers: for sides that differ, find the first layer that differs. The results of layers become outputs of the
            model for that, which prevents runtimes from fusing them.

    Raises:
        ConfigError: fewer than two sides, a name that is not understood, or an argument of another type.
        InputError: the model is in memory; there are no inputs, or they do not fit the model; or the reference has no
            outputs, or a function returns something else.
        BackendError, ModelError, InferenceError: a side cannot load or run the model.
    """
    if ModelSource.of(model).path is None:  # it raises for other files
        raise InputError("compare() takes the path of a model file, which each side loads; write the model to a file")
    file = Path(model)
    tolerance = _tolerance(tolerance)
    loaders = _loaders(sides)
    reference, *others = loaders
    meters: dict[str, dict[str, _Meter]] = {name: {} for name in others}
    suspects: dict[str, Arrays] = {}  # the first input that made a side differ
    count = 0
    with _loaded(loaders, file) as runners:
        specs = _input_specs(file, runners[reference])
        samples = inputs(specs) if callable(inputs) else inputs if inputs is not None else [random_inputs(specs)]
        for count, sample in enumerate(samples, 1):  # noqa: B007 - counts
            _check_names(sample, specs)
            expected, *result = _run(runners, sample)
            if not expected:
                raise InputError(f"the reference {reference!r} returns no outputs, so there is nothing to compare")
            for name, outputs in zip(others, result, strict=True):
                for output, array in expected.items():
                    meter = meters[name].setdefault(output, _Meter(output, tolerance))
                    if not meter.add(array, outputs.get(output)):
                        suspects.setdefault(name, sample)
    if not count:
        raise InputError("there is no input to compare on")
    reports = []
    for name in others:
        differences = tuple(meter.result() for meter in meters[name].values())
        seen: tuple[tuple[LayerDifference, ...], int] = ((), 0)
        if layers and name in suspects:
            pair = {reference: loaders[reference], name: loaders[name]}
            seen = _compare_layers(file, pair, suspects[name], tolerance)
        reports.append(SideReport(name, differences, *seen))
    return CompareReport(str(file), reference, count, tolerance, tuple(reports))


def _run(runners: Mapping[str, Runner], sample: Arrays, names: Sequence[str] = ()) -> list[Arrays]:
    """The outputs of each side, the reference first, under `names`, or else under the reference's names."""
    result = [_call(name, runner, sample) for name, runner in runners.items()]
    return [_renamed(outputs, names or list(result[0])) for outputs in result]


def _renamed(outputs: Arrays, names: Sequence[str]) -> Arrays:
    """As many outputs as names under these: runtimes may know a value by several. Other names match by position."""
    if len(outputs) != len(names):
        return outputs
    free = iter([name for name in names if name not in outputs])
    return {name if name in names else next(free): array for name, array in outputs.items()}


def _compare_layers(
    file: Path, loaders: Mapping[str, Loader], sample: Arrays, tolerance: Tolerance
) -> tuple[tuple[LayerDifference, ...], int]:
    """The values in order up to the first one outside, and the number of values that could not be compared."""
    from ..graph.files import write_large
    from ..graph.layers import LayerModel

    graph = LayerModel(file, {name: array.shape for name, array in sample.items()})
    seen: list[LayerDifference] = []
    for values, model in graph.parts():
        with (
            tempfile.TemporaryDirectory(prefix="infersdk-") as folder,
            _loaded(loaders, write_large(model, Path(folder, file.name))) as runners,
        ):
            expected, result = _run(runners, sample, [value.name for value in values])
        for value in values:
            meter = _Meter(value.name, tolerance)
            within = meter.add(expected[value.name], result.get(value.name))
            seen.append(LayerDifference(value.node, value.operator, meter.result()))
            if not within:
                return tuple(seen), graph.unseen
    return tuple(seen), graph.unseen


# ---- the sides ----


@contextmanager
def _loaded(loaders: Mapping[str, Loader], file: Path) -> Iterator[dict[str, Runner]]:
    """The model on each side; closed on leaving."""
    runners: dict[str, Runner] = {}
    with ExitStack() as stack:
        for name, loader in loaders.items():
            runners[name] = runner = loader(file)
            if callable(close := getattr(runner, "close", None)):
                stack.callback(close)
        yield runners


def _loaders(sides: Sequence[str] | Mapping[str, str | Loader]) -> dict[str, Loader]:
    sides = [sides] if isinstance(sides, str) else sides
    if not isinstance(sides, Collection):
        raise ConfigError(f"the sides are a list of backends, or a mapping of labels to backends, not {sides!r}")
    named = sides if isinstance(sides, Mapping) else {side: side for side in sides}
    for name, side in named.items():
        if not (isinstance(name, str) and (isinstance(side, str) or callable(side))):
            raise ConfigError(f"a side is a backend by name, or a label and a function that loads models, not {side!r}")
    if len(named) < 2 or len(named) < len(sides):
        raise ConfigError(f"a comparison takes two or more different backends, not {', '.join(sides) or 'none'}")
    return {name: _loader(side) if isinstance(side, str) else side for name, side in named.items()}


def _loader(side: str) -> Loader:
    target = Target.parse(side)
    return lambda file: load(file, **target.arguments)


def _call(name: str, runner: Runner, sample: Arrays) -> Arrays:
    if not isinstance(runner, Infer):
        outputs = runner(sample)
        if not isinstance(outputs, Mapping):
            raise InputError(f"side {name!r} returns {type(outputs).__name__}, not a dict of arrays by output name")
        return {output: np.asarray(array) for output, array in outputs.items()}
    own = [spec.name for spec in runner.input_specs]
    if len(own) == len(sample) == 1:  # another file may call its only input something else
        sample = dict(zip(own, sample.values(), strict=True))
    if missing := [one for one in own if one not in sample]:
        raise InputNameError(
            f"{name} has no input of the reference for its {missing[0]!r}: its inputs are {own}, those of the "
            f"reference {list(sample)}; where there are several, they are matched by name"
        )
    # A runtime may have folded an input away, such as one whose shape alone is used.
    return runner({spec.name: _converted(sample[spec.name], spec.dtype) for spec in runner.input_specs})


def _converted(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """A sample in FP32 or FP16 for an input in the other one, as of an export in FP16."""
    return array.astype(dtype) if {getattr(array, "dtype", None), dtype} == {np.dtype("f4"), np.dtype("f2")} else array


def _input_specs(file: Path, runner: Runner) -> tuple[TensorSpec, ...]:
    """The input specs of the file, or of the runner for other formats than ONNX."""
    if file.suffix.lower() != ".onnx" and isinstance(runner, Infer):
        return runner.input_specs
    from ..graph import onnx_info

    return onnx_info(file).inputs


def _check_names(sample: Arrays, specs: Sequence[TensorSpec]) -> None:
    names = [spec.name for spec in specs]
    if not isinstance(sample, Mapping):
        raise InputError(
            f"inputs are a sequence of dicts of arrays by input name, one for each run, not of {type(sample).__name__}"
        )
    for wrong in sample.keys() ^ set(names):
        what = "no input" if wrong in sample else "nothing was given for input"
        raise InputNameError(f"{what} {wrong!r}; the model's inputs are {names}")
