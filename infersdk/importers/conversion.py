"""The parameters and results of conversions to ONNX."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, UnsupportedModelError
from .workers.exchange import NotHeldError, converted_values

if TYPE_CHECKING:
    from pathlib import Path

    from ..accuracy.compare import Difference
    from ..core.model_source import ModelSource

__all__ = [
    "Check", "Conversion", "Imported", "InputShape", "Reference", "Request", "Sample", "argument",
    "missing_operators", "samples_by_name", "shapes_of",
]  # fmt: skip


@dataclass(frozen=True)
class InputShape:
    """The shape of an input, for files that do not contain it.

    Attributes:
        sizes: the sizes of the axes.
        name: the name of the input; empty for the next input in order.
        dtype: the NumPy name of the element type; empty for the type in the file, or float32.
    """

    sizes: tuple[int, ...]
    name: str = ""
    dtype: str = ""

    def __post_init__(self) -> None:
        if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in self.sizes):
            raise ConfigError(
                f"the sizes of input {self.name or 'in order'} must be whole numbers from 1, not {self.sizes}"
            )
        try:
            known = not self.dtype or np.dtype(self.dtype).kind in "biuf"
        except TypeError:
            known = False
        if not known:
            raise ConfigError(f"{self.dtype!r} is not an element type; use a name such as float32")

    @classmethod
    def parse(cls, text: str) -> InputShape:
        """Parses `[NAME=]N,N,...[:TYPE]`, such as `1,3,224,224` or `tokens=1,128:int64`.

        Raises:
            ConfigError: the text does not have this form.
        """
        name, _, rest = text.rpartition("=")
        sizes, _, dtype = rest.partition(":")
        try:
            numbers = tuple(int(size) for size in sizes.removesuffix(",").split(","))
        except ValueError:
            raise ConfigError(f"shape {text!r} is not of the form [NAME=]1,3,640,640[:float32]") from None
        return cls(numbers, name, dtype)


def shapes_of(
    given: Mapping[str, Sequence[int]] | Iterable[InputShape | str | Sequence[int]],
) -> tuple[InputShape, ...]:
    """Converts the shapes that `convert()` accepts.

    Raises:
        ConfigError: they have another form, or an input has two shapes.
    """
    pairs: list[tuple[str, Any]]
    try:
        if isinstance(given, Mapping):
            pairs = list(given.items())
        else:
            listed = [given] if isinstance(given, (str, InputShape)) else list(given)
            whole = bool(listed) and all(isinstance(one, (int, np.integer)) for one in listed)
            pairs = [("", one) for one in ([listed] if whole else listed)]
        result = tuple(_shape(name, one) for name, one in pairs)
    except TypeError:
        raise ConfigError(
            f"shapes are [(1, 3, 224, 224)], {{'images': (1, 3, 224, 224)}} or ['images=1,3,224,224'], not {given!r}"
        ) from None
    _check_once("shape", (one.name for one in result if one.name))
    return result


def _shape(name: str, given: Any) -> InputShape:
    if isinstance(given, InputShape):
        return given
    if isinstance(given, str):
        return InputShape.parse(f"{name}={given}" if name else given)
    return InputShape(tuple(int(size) if isinstance(size, np.integer) else size for size in given), name)


def _check_once(what: str, names: Iterable[str]) -> None:
    """Raises ConfigError for the name of an input that is not text, or occurs twice."""
    names = list(names)
    if odd := [name for name in names if not isinstance(name, str)]:
        raise ConfigError(f"the name of an input must be text, not {odd[0]!r}")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConfigError(f"input {twice[0]!r} has more than one {what}; give one")


def samples_by_name(given: Mapping[str, Any] | Iterable[str]) -> dict[str, Any]:
    """Converts the samples that `convert()` accepts.

    Raises:
        ConfigError: a text has the wrong form, a file cannot be read, or the values are not numbers.
    """
    try:
        texts = [given] if isinstance(given, str) else given
        pairs = list(given.items()) if isinstance(given, Mapping) else [_sample(text) for text in texts]
    except (TypeError, AttributeError):
        raise ConfigError(f"samples are {{'offsets': [0, 3, 5]}} or ['offsets=0,3,5'], not {given!r}") from None
    _check_once("sample", (name for name, _ in pairs))
    result = {}
    for name, values in pairs:
        try:
            array = np.asarray(values)
        except ValueError:  # rows of different lengths
            array = np.empty(0)
        if array.dtype.kind not in "biuf" or not array.size:
            raise ConfigError(f"the values of input {name!r} must be an array of one or more numbers, not {values!r}")
        if array.dtype.itemsize > 8:
            raise ConfigError(f"the values of input {name!r} are {array.dtype}; give numbers of up to 64 bits")
        result[name] = array
    return result


def _sample(text: str) -> tuple[str, Any]:
    """Parses `NAME=V,V,...[:TYPE]`, such as `offsets=0,3,5`, or `NAME=FILE.npy`."""
    name, sign, rest = text.partition("=")
    if not (name and sign):
        raise ConfigError(f"input {text!r} is not of the form NAME=0,3,5[:int64] or NAME=FILE.npy")
    if rest.endswith(".npy"):
        try:
            return name, np.load(rest, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ConfigError(f"input {text!r}: the file cannot be read: {error}") from None
    numbers, _, dtype = rest.partition(":")
    parts = numbers.split(",")
    kind = dtype or ("int64" if all(part.strip().lstrip("+-").isdecimal() for part in parts) else "float32")
    try:
        return name, converted_values([float(part) if "f" in kind else int(part) for part in parts], kind)
    except NotHeldError as error:
        raise ConfigError(f"input {text!r}: {error}") from None
    except (ValueError, TypeError, OverflowError):
        raise ConfigError(f"input {text!r} is not of the form NAME=0,3,5[:int64] or NAME=FILE.npy") from None


def argument(name: str, value: Any) -> Any:
    """Converts an argument of `convert()` to plain values.

    Raises:
        ConfigError: it has another type, or it is out of range.
    """
    if name in ("shapes", "samples"):
        return shapes_of(value) if name == "shapes" else samples_by_name(value)
    result: Any = value.item() if isinstance(value, np.generic) else value
    if name in ("inputs", "outputs"):
        result = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
        valid, wanted = all(isinstance(one, str) for one in result), "names such as ['x:0']"
    elif name in ("check", "free_batch"):
        valid, wanted = isinstance(result, bool), "True or False"
    elif name == "tolerance":
        number = isinstance(result, Real) and not isinstance(result, bool)
        valid, wanted = number and 0 <= result <= sys.float_info.max, "a number from 0"
    else:
        result = os.fspath(value) if isinstance(value, os.PathLike) else value
        valid = result is None or (isinstance(result, str) and result != "")
        wanted = "the path of a Python interpreter, or None"
    if not valid:
        raise ConfigError(f"{name} must be {wanted}, not {value!r}")
    return float(result) if name == "tolerance" else result


@dataclass(frozen=True)
class Request:
    """The parameters of an importer.

    Attributes:
        source: the file.
        module: a `torch.nn.Module` instead of a file.
        shapes: the given shapes of inputs.
        inputs, outputs: the given names of values that become inputs and outputs.
        python: the Python interpreter with the framework; None means the present one.
        check: whether results of the source are needed.
        samples: values by the name of the input, instead of random ones.
    """

    source: ModelSource
    module: Any = None
    shapes: tuple[InputShape, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    python: str | None = None
    check: bool = True
    samples: Mapping[str, Any] = field(default_factory=dict)

    @property
    def order(self) -> dict[str, Any]:
        """The shapes, with those of the samples, the samples, and `check`, as plain values for a worker."""
        of_samples = (InputShape(array.shape, name, array.dtype.name) for name, array in self.samples.items())
        shapes = [
            *({**asdict(one), "of_sample": False} for one in self.shapes if one.name not in self.samples),
            *({**asdict(one), "of_sample": True} for one in of_samples),
        ]
        samples = {name: array.tolist() for name, array in self.samples.items()}
        return {"shapes": shapes, "samples": samples, "check": self.check}


@dataclass(frozen=True)
class Sample:
    """Inputs of the model and the outputs of the source, both in order."""

    inputs: list[Any]
    outputs: list[Any]


@dataclass(frozen=True)
class Reference:
    """The name and version of the runtime of the source, and its results."""

    runtime: str
    samples: tuple[Sample, ...]


@dataclass
class Imported:
    """The result of an importer.

    Attributes:
        model: the bytes of the ONNX model.
        reference: the results of the source, or the reason why there are none.
        notes: notes for the user, such as the exporter that was used.
        alternative: converts by another exporter, for use if the check fails; raises the errors of an importer.
    """

    model: bytes
    reference: Reference | str
    notes: list[str] = field(default_factory=list)
    alternative: Callable[[], Imported] | None = None


@dataclass(frozen=True)
class Check:
    """A comparison of the converted model on ONNX Runtime with the source on its runtime.

    Attributes:
        runtime: the runtime of the source.
        rounds: the number of sets of inputs; 1 if samples were given for all inputs.
        tolerance: the maximum difference relative to the largest magnitude of an output.
        outputs: the differences of the outputs.
        scaled: the largest relative difference.
        passed: whether all outputs are within the tolerance.
    """

    runtime: str
    rounds: int
    tolerance: float
    outputs: tuple[Difference, ...]
    scaled: float
    passed: bool

    @property
    def largest(self) -> float:
        """The largest absolute difference over all outputs."""
        return max((one.max_abs for one in self.outputs), default=0.0)


@dataclass(frozen=True)
class Conversion:
    """A converted model.

    Attributes:
        source: the name of the source.
        format: the format of the source, such as `"pnnx"`.
        content: the bytes of the ONNX file.
        check: the comparison with the source; None if it was not checked.
        unchecked: the reason why it was not checked, or "".
        notes: notes for the user.
    """

    source: str
    format: str
    content: bytes
    check: Check | None
    unchecked: str
    notes: tuple[str, ...]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the ONNX file atomically.

        Raises:
            OutputError: the file cannot be written.
        """
        from ..core.files import atomic_write

        return atomic_write(path, self.content)

    @property
    def verdict(self) -> str:
        """A summary of the check in one line."""
        if self.check is None:
            return f"not checked: {self.unchecked}"
        result = "within" if self.check.passed else "BEYOND"
        notes = "; ".join(f"{one.name} {one.note}" for one in self.check.outputs if one.note)
        inputs = "the given inputs" if self.check.rounds == 1 else f"{self.check.rounds} sets of random inputs"
        return (
            f"checked against {self.check.runtime} on {inputs}: largest difference "
            f"{self.check.largest:.3g}, {self.check.scaled:.3g} of an output's largest value, {result} the tolerance "
            f"of {self.check.tolerance:g}{f' ({notes})' if notes else ''}"
        )


def missing_operators(what: str, missing: Mapping[str, int]) -> UnsupportedModelError:
    """The error for operators that cannot be converted.

    Args:
        what: the converter.
        missing: the number of occurrences by operator name, to which a reason may be appended.
    """
    listed = ", ".join(f"{name} ({count})" for name, count in sorted(missing.items()))
    return UnsupportedModelError(f"{what}: {len(missing)} kinds of operators are not supported: {listed}")
