"""Element types, dimensions, and TensorSpec: the declaration of a model for one of its inputs or outputs."""

from __future__ import annotations

import operator
import os
import reprlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..errors import DTypeError, InputError, InputNameError, ShapeError
from ._lib import lib

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "DTYPES", "TensorSpec", "aligned", "as_array", "as_dims", "as_numbers", "by_name", "dtype_code", "float_code",
    "known_shapes",
]  # fmt: skip


class TensorSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Name, element type and shape of an input or output.

    `shape` has an int for a fixed dimension. A free dimension has its name in the model, or None if it has no name.
    `kind` is "tensor" for numbers and bools. For anything else (strings, sequences, maps) it is the runtime's name of
    the type (`"tensor(string)"`, `"seq(tensor(float))"`), and `dtype` is object: no Tensor holds such a value.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...]
    kind: str = "tensor"

    @property
    def is_dynamic(self) -> bool:
        """Whether any dimension is free."""
        return not all(isinstance(d, int) for d in self.shape)

    @property
    def has_free_batch(self) -> bool:
        """Whether the first dimension is free, so that each run may have a batch of its own. False for a scalar."""
        return bool(self.shape) and not isinstance(self.shape[0], int)

    @property
    def fixed_batch(self) -> int | None:
        """The first dimension where the model fixes it; None where it is free, and for a scalar."""
        first = self.shape[0] if self.shape else None
        return first if isinstance(first, int) else None

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of that shape can be this input (or output)."""
        return len(shape) == len(self.shape) and all(
            want == got or not isinstance(want, int) for want, got in zip(self.shape, shape, strict=True)
        )

    def check(self, shape: tuple[int, ...], dtype: np.dtype[Any] | None = None, side: str = "input") -> None:
        """Raises ShapeError or DTypeError unless an array of that shape and type can be this input (or output)."""
        if dtype is not None and dtype != self.dtype:
            raise DTypeError(
                f"{side} {self.name!r} takes {self.dtype}, not {dtype}; convert it with .astype({str(self.dtype)!r})"
            )
        if not self.fits(shape):
            raise ShapeError(f"{side} {self.name!r} takes shape {self.text}, not {tuple(shape)}")

    def check_batch(self, shape: tuple[int, ...], largest: int | None) -> None:
        """Raises ShapeError if an array of that shape has a larger batch than the model was loaded for."""
        if largest and self.has_free_batch and shape[0] > largest:
            raise ShapeError(
                f"a batch of {shape[0]} for input {self.name!r} is more than max_batch={largest}; "
                f"split it, or load the model with max_batch={shape[0]}"
            )

    @property
    def text(self) -> str:
        """The shape as a person would write it: `(batch, 3, 640, 640)`."""
        inner = ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"({inner},)" if len(self.shape) == 1 else f"({inner})"

    def __str__(self) -> str:
        if self.kind != "tensor":
            return f"{self.name}: {self.kind} {self.text}" if self.shape else f"{self.name}: {self.kind}"
        return f"{self.name}: {self.dtype} {self.text}"


def by_name(values: Any, specs: Sequence[TensorSpec]) -> Mapping[str, Any]:
    """A value for each input: `values` if it is a mapping with their names, or the value of a model's only input.

    Raises:
        InputNameError: a name is unknown or missing.
        InputError: an image or the path of one, in place of an array.
    """
    names = [spec.name for spec in specs]
    if not isinstance(values, Mapping):
        if len(specs) == 1 and specs[0].dtype.kind in "biuf" and _is_image(values):
            what = repr(values) if isinstance(values, str) else f"a {type(values).__name__}"
            raise InputError(
                f"an Infer takes arrays, not {what}; infersdk.models.load() gives the wrapper of a model, which takes "
                "images and paths of images"
            )
        if len(names) != 1:
            raise InputNameError(f"the model has {len(names)} inputs, {names}: pass a dict with an array for each")
        return {names[0]: values}
    if unknown := [name for name in values if name not in names]:
        raise InputNameError(f"no input {unknown[0]!r}; the model's inputs are {names}")
    if missing := [name for name in names if name not in values]:
        raise InputNameError(f"input {missing[0]!r} was not given; the model's inputs are {names}")
    return values


def _is_image(value: Any) -> bool:
    """Whether it is a path, the bytes of a file or an image of Pillow, or a list of these."""
    if isinstance(value, (list, tuple)):
        return len(value) > 0 and _is_image(value[0])
    return isinstance(value, (str, os.PathLike, bytes, bytearray)) or hasattr(value, "getbands")


def as_array(value: Any, name: str | None = None) -> npt.NDArray[Any]:
    """The value of an input as an array.

    Args:
        name: the name of the input, for the message; None is a value that belongs to no input.

    Raises:
        InputError: it is none, such as rows of different lengths.
    """
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # RuntimeError: of a tensor of PyTorch with a gradient
        what = f"a {type(value).__name__}" if name is None else f"input {name!r}"
        remedy = "rows of equal length" if isinstance(error, ValueError) else "a value that numpy.asarray() takes"
        raise InputError(f"{what} is not an array: {error}; give {remedy}") from None


def aligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array, or a copy that is aligned to its elements; the core reads no others."""
    return array if array.flags.aligned else array.copy()


def as_numbers(name: str, values: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """Values as an array; raises InputError for values that are not numbers, and for rows of different lengths."""
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "cmMSU":  # of which NumPy makes real numbers too
            array = aligned(np.asarray(array, dtype))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} cannot be read as an array of numbers: {error}") from None
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} are of {array.dtype}, {reprlib.repr(values)} for example; give numbers")
    return array


def known_shapes(
    specs: Sequence[TensorSpec], sources: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...] | None]:
    """The shapes of tensors that share names of free dimensions with others; None where a dimension stays unknown.

    Args:
        specs: of the tensors, outputs for example.
        sources, shapes: the others and their shapes, inputs for example.
    """
    sizes: dict[str, int] = {}
    for source in sources:
        for declared, size in zip(source.shape, shapes[source.name], strict=True):
            if isinstance(declared, str):
                sizes.setdefault(declared, size)
    result: dict[str, tuple[int, ...] | None] = {}
    for spec in specs:
        dims = [d if isinstance(d, int) else sizes.get(d) if d is not None else None for d in spec.shape]
        result[spec.name] = None if None in dims else tuple(d for d in dims if d is not None)
    return result


_NAMES = (
    "float32", "float16", "int32", "uint8", "int8", "int64",
    "bool", "float64", "int16", "uint16", "uint32", "uint64",
)  # fmt: skip
_CODES: dict[np.dtype[Any], int] = {np.dtype(name): getattr(lib, f"IFS_{name.upper()}") for name in _NAMES}

DTYPES: dict[int, np.dtype[Any]] = {code: dtype for dtype, code in _CODES.items()}
"""The NumPy type of each native number."""


def dtype_code(dtype: npt.DTypeLike) -> int:
    """The native number of a NumPy element type.

    Raises:
        DTypeError: A tensor cannot hold this type.
    """
    try:
        return _CODES[np.dtype(dtype)]
    except (KeyError, TypeError):
        raise DTypeError(f"a tensor cannot hold {dtype!r}; use one of {', '.join(_NAMES)}") from None


_FLOATS: dict[np.dtype[Any], int] = {np.dtype(name): _CODES[np.dtype(name)] for name in ("float32", "float16")}


def float_code(what: str, dtype: npt.DTypeLike) -> int:
    """The native number of float32 or float16. Raises DTypeError for other types; `what` is as in "scores are"."""
    try:
        return _FLOATS[np.dtype(dtype)]
    except (KeyError, TypeError):
        raise DTypeError(f"{what} {dtype}; use float32 or float16") from None


def as_dims(shape: Sequence[int]) -> list[int]:
    """The dimensions as plain ints that fit the core's int64.

    Raises:
        ShapeError: `shape` is not a sequence of whole numbers, or one of them is too large.
    """
    try:
        dims = [operator.index(d) for d in shape]
    except TypeError:
        raise ShapeError(f"a shape is a sequence of whole numbers, not {shape!r}") from None
    if any(not -(2**63) <= d < 2**63 for d in dims):
        raise ShapeError(f"the size of shape {tuple(dims)} overflows")
    return dims
