"""What goes into a conversion to ONNX, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError

if TYPE_CHECKING:
    import os
    from pathlib import Path

    import onnx_ir as ir

    from ..compare import Difference
    from ..model_source import ModelSource

__all__ = [
    "Alternative",
    "Check",
    "Conversion",
    "Imported",
    "InputShape",
    "Reference",
    "Request",
    "Sample",
    "samples_by_name",
    "shapes_of",
    "sizes_by_name",
]


@dataclass(frozen=True)
class InputShape:
    """The shape of an input of the source, for files that do not say it.

    Attributes:
        sizes: of its axes.
        name: of the input; empty for the next one in order.
        dtype: of its elements, as NumPy names it; empty where the file says, or for float32.
    """

    sizes: tuple[int, ...]
    name: str = ""
    dtype: str = ""

    def __post_init__(self) -> None:
        if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in self.sizes):
            raise ConfigError(
                f"the shape of input {self.name or 'in order'} is of whole numbers from 1, not {self.sizes}"
            )
        if self.dtype:
            try:
                np.dtype(self.dtype)
            except TypeError:
                raise ConfigError(f"{self.dtype!r} is not an element type; float32 and int64 are examples") from None

    @classmethod
    def parse(cls, text: str) -> InputShape:
        """`[NAME=]N,N,...[:TYPE]`, such as `1,3,224,224` or `tokens=1,128:int64`.

        Raises:
            ConfigError: the text has another form.
        """
        rest, _, dtype = text.partition(":")
        name, _, sizes = rest.rpartition("=")
        try:
            numbers = tuple(int(size) for size in sizes.split(",") if size.strip())
        except ValueError:
            raise ConfigError(f"shape {text!r} is not of the form [NAME=]1,3,640,640[:float32]") from None
        return cls(numbers, name, dtype)


def shapes_of(
    given: Mapping[str, Sequence[int]] | Iterable[InputShape | str | Sequence[int]],
) -> tuple[InputShape, ...]:
    """Shapes in any of the forms that `convert()` takes."""
    if isinstance(given, Mapping):
        return tuple(InputShape(tuple(sizes), name) for name, sizes in given.items())
    return tuple(
        one
        if isinstance(one, InputShape)
        else InputShape.parse(one)
        if isinstance(one, str)
        else InputShape(tuple(one))
        for one in given
    )


def samples_by_name(given: Mapping[str, Any] | Iterable[str]) -> dict[str, Any]:
    """Values of inputs in any of the forms that `convert()` takes.

    Raises:
        ConfigError: a text has another form, a file cannot be read, or the values are not numbers.
    """
    pairs = given.items() if isinstance(given, Mapping) else map(_sample, given)
    result = {name: np.asarray(values) for name, values in pairs}
    for name, array in result.items():
        if array.dtype.kind not in "biuf" or not array.size:
            raise ConfigError(f"the values of input {name!r} are numbers, one or more, not {given!r}")
    return result


def _sample(text: str) -> tuple[str, Any]:
    """`NAME=V,V,...[:TYPE]`, such as `offsets=0,3,5`, or `NAME=FILE.npy`."""
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
        return name, np.array([float(part) if "f" in kind else int(part) for part in parts]).astype(kind)
    except (ValueError, TypeError, OverflowError):
        raise ConfigError(f"input {text!r} is not of the form NAME=0,3,5[:int64] or NAME=FILE.npy") from None


def sizes_by_name(names: Sequence[str], given: Iterable[InputShape]) -> dict[str, tuple[int, ...]]:
    """The sizes that were given for inputs, by the names of the inputs.

    Raises:
        ConfigError: a name is not one of an input, or there are more shapes than inputs.
    """
    unnamed = [one.sizes for one in given if not one.name]
    result = {one.name: one.sizes for one in given if one.name}
    rest = [name for name in names if name not in result]
    if unknown := sorted(set(result) - set(names)):
        raise ConfigError(f"there is no input {unknown[0]!r}; the inputs of the model are {', '.join(names)}")
    if len(unnamed) > len(rest):
        raise ConfigError(f"{len(unnamed)} shapes without a name are given for the inputs {', '.join(rest)}")
    return result | dict(zip(rest, unnamed, strict=False))


@dataclass(frozen=True)
class Request:
    """What an importer is asked for.

    Attributes:
        source: the file.
        module: a `torch.nn.Module` in place of a file.
        shapes: of the inputs, where given.
        inputs, outputs: names of values of the source that become inputs and outputs, where given.
        python: the Python interpreter that has the source's framework; None is this one.
        check: whether samples of the source's results are wanted.
        samples: values of inputs by name, in place of random ones.
        seed: of the random inputs.
    """

    source: ModelSource
    module: Any = None
    shapes: tuple[InputShape, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    python: str | None = None
    check: bool = True
    seed: int = 0
    samples: Mapping[str, Any] = field(default_factory=dict)

    @property
    def all_shapes(self) -> tuple[InputShape, ...]:
        """The shapes that are given, and those of the samples."""
        of_samples = (InputShape(array.shape, name, array.dtype.name) for name, array in self.samples.items())
        return (*(one for one in self.shapes if one.name not in self.samples), *of_samples)


@dataclass(frozen=True)
class Sample:
    """Inputs of the model in order, and the source's outputs for them in order."""

    inputs: list[Any]
    outputs: list[Any]


@dataclass(frozen=True)
class Reference:
    """The source's own runtime.

    Attributes:
        runtime: its name and version.
        run: for each set of arrays for all inputs, the arrays of all outputs, both in order; None where `samples` are
            all there is.
        samples: results that the importer has already.
        sizes: shapes of inputs for the check, by name, for those that have free axes.
    """

    runtime: str
    run: Callable[[list[list[Any]]], list[list[Any]]] | None = None
    samples: tuple[Sample, ...] = ()
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass
class Imported:
    """What an importer gives.

    Attributes:
        model: the ONNX model, or its bytes.
        reference: what it is checked against; or why it cannot be.
        notes: what a user should know: fall-backs, what was found, what was left out.
        alternative: how else it could be converted, for a model that does not do what its source does.
    """

    model: ir.Model | bytes
    reference: Reference | str
    notes: list[str] = field(default_factory=list)
    alternative: Alternative | None = None


@dataclass(frozen=True)
class Alternative:
    """Another conversion of the same source.

    Attributes:
        name: what it is done by.
        run: does it; raises what an importer raises.
    """

    name: str
    run: Callable[[], Imported]


@dataclass(frozen=True)
class Check:
    """The converted model on ONNX Runtime against the source on its own runtime.

    Attributes:
        runtime: the source's runtime.
        rounds: how many sets of random inputs were run.
        tolerance: the largest difference allowed, as a share of the largest magnitude of an output.
        outputs: how far each output is off.
        scaled: the largest difference, so scaled.
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
        """The largest difference of all elements of all outputs."""
        return max((one.max_abs for one in self.outputs), default=0.0)


@dataclass(frozen=True)
class Conversion:
    """A model that was converted to ONNX.

    Attributes:
        source: what it was called.
        format: the source's format, such as `"pnnx"`.
        content: the bytes of the ONNX file.
        check: how it compares with the source; None where it was not checked.
        unchecked: why it was not checked; empty where it was.
        notes: what a user should know.
    """

    source: str
    format: str
    content: bytes
    check: Check | None
    unchecked: str
    notes: tuple[str, ...]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the ONNX file in one step.

        Raises:
            OutputError: it cannot be written.
        """
        from .._files import atomic_write

        return atomic_write(path, self.content)

    @property
    def verdict(self) -> str:
        """One line about the check."""
        if self.check is None:
            return f"not checked: {self.unchecked}"
        result = "within" if self.check.passed else "BEYOND"
        notes = "; ".join(f"{one.name} {one.note}" for one in self.check.outputs if one.note)
        return (
            f"checked against {self.check.runtime} on {self.check.rounds} sets of random inputs: largest difference "
            f"{self.check.largest:.3g}, {self.check.scaled:.3g} of an output's largest value, {result} the tolerance "
            f"of {self.check.tolerance:g}{f' ({notes})' if notes else ''}"
        )
