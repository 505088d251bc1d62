"""PNNX graphs as Python objects: operators, operands, parameters and weights.

::

    graph = PnnxGraph.read("model.pnnx.param")          # with model.pnnx.bin next to it
    for operator in graph.operators:
        print(operator.type, operator.name, [operand.name for operand in operator.inputs], operator.params)
    graph.operator("conv1").attributes["weight"].array   # NumPy, read on first access
    run(graph, [images])                                 # values of all operands (importers.pnnx.run)

The text file has one line per operator: its type, name, numbers of inputs and outputs, and the names of these operands.
Then follow parameters `key=value`, weights `@key=(shape)type`, shapes `#operand=(shape)type`, and names of inputs
`$name=operand`. The weights are the entries `operator.key` of an uncompressed zip archive. ncnn's `ir.h` defines the
format.
"""

from __future__ import annotations

import functools
import re
import zipfile
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.model_source import ModelLike, ModelSource
from ...errors import ModelFormatError, ModelNotFoundError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import numpy.typing as npt

__all__ = ["Attribute", "Operand", "Operator", "PnnxGraph", "weights_file"]

_MAGIC = "7767517"
#: The element types by their names in the file.
TYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32), "f64": np.dtype(np.float64), "f16": np.dtype(np.float16), "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64), "i16": np.dtype(np.int16), "i8": np.dtype(np.int8), "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_), "c64": np.dtype(np.complex64), "c128": np.dtype(np.complex128),
}  # fmt: skip
#: The maximum number of operators, and size of the text in bytes.
_MOST_OPERATORS, _MOST_TEXT = 1 << 20, 1 << 28
_TENSOR = re.compile(r"\(([0-9?,\s]*)\)([a-z0-9]*)")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf|nan)")


@dataclass(eq=False)
class Operand:
    """A value between operators.

    Attributes:
        name: the name in the file, usually a number.
        shape: the sizes of the axes, with None for free axes; None if unknown.
        dtype: the element type; None if unknown.
    """

    name: str
    shape: tuple[int | None, ...] | None = None
    dtype: np.dtype[Any] | None = None


class Attribute:
    """A weight, whose array is read from the archive on first access."""

    def __init__(self, entry: str, shape: tuple[int, ...], dtype: np.dtype[Any], archive: _Archive) -> None:
        self.entry, self.shape, self.dtype = entry, shape, dtype
        self._archive = archive

    @functools.cached_property
    def array(self) -> npt.NDArray[Any]:
        """The read-only array.

        Raises:
            ModelFormatError: the entry is missing or has another size.
        """
        return self._archive.array(self.entry, self.shape, self.dtype)

    def __repr__(self) -> str:
        return f"<Attribute {self.entry} {self.shape} {self.dtype}>"


@dataclass(eq=False)
class Operator:
    """A line of the file.

    Attributes:
        type: the type, such as `"nn.Conv2d"`, `"F.relu"`, `"torch.cat"` or `"pnnx.Expression"`.
        inputs, outputs: the operands in order.
        params: the parameters: None, bools, numbers, strings, and tuples of these.
        attributes: the weights.
        input_names: the argument names of inputs by position, if the file contains them.
    """

    type: str
    name: str
    inputs: list[Operand] = field(default_factory=list, repr=False)
    outputs: list[Operand] = field(default_factory=list, repr=False)
    params: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Attribute] = field(default_factory=dict)
    input_names: dict[int, str] = field(default_factory=dict)


@dataclass
class PnnxGraph:
    """The operators of a model in order."""

    operators: list[Operator]

    @classmethod
    def read(cls, model: ModelLike, external_data: str | os.PathLike[str] | None = None) -> PnnxGraph:
        """Reads a `.pnnx.param` file and its weights, the `.bin` file of the same name in the same folder.

        Args:
            external_data: the weights file of a graph in memory.

        Raises:
            ModelNotFoundError: the file, or the required weights file, does not exist.
            ModelFormatError: a line is malformed; the message gives its number.
        """
        source = ModelSource.of(model, external_data)
        return _Reader(str(source), _text(source), _Archive(source)).read()

    @property
    def inputs(self) -> list[Operand]:
        return [operand for one in self.operators if one.type == "pnnx.Input" for operand in one.outputs]

    @property
    def outputs(self) -> list[Operand]:
        return [operand for one in self.operators if one.type == "pnnx.Output" for operand in one.inputs]

    def operator(self, name: str) -> Operator:
        """The operator with a name.

        Raises:
            KeyError: there is no such operator.
        """
        for one in self.operators:
            if one.name == name:
                return one
        raise KeyError(name)


def weights_file(source: ModelSource) -> Path | None:
    """The path of the weights file; None for a model in memory without `external_data`."""
    if source.path is None:
        return source.external_data
    name = source.path.name
    return source.path.with_name((name[: -len(".param")] if name.endswith(".param") else name) + ".bin")


def _text(source: ModelSource) -> str:
    content = source.read()
    if len(content) > _MOST_TEXT:
        raise ModelFormatError(f"{str(source)!r} has {len(content):,} bytes, which is too large for a PNNX graph")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelFormatError(f"{str(source)!r} is not UTF-8 text at byte {error.start}; is it damaged?") from None


class _Archive:
    """The weights file, which is opened on first access, since a graph without weights has none."""

    def __init__(self, source: ModelSource) -> None:
        self._owner, self._weights = str(source), weights_file(source)

    def array(self, entry: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        try:
            info = self._zip.getinfo(entry)
        except KeyError:
            raise ModelFormatError(f"the weights of {self._owner!r} have no entry {entry!r}") from None
        wanted = prod(shape) * dtype.itemsize
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != wanted or info.compress_size != wanted:
            raise ModelFormatError(
                f"the weight {entry!r} of {self._owner!r} has {info.file_size} bytes; shape {shape} of {dtype} "
                f"needs {wanted}"
            )
        try:
            return np.frombuffer(self._zip.read(info), dtype).reshape(shape)
        except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
            raise ModelFormatError(f"the weight {entry!r} of {self._owner!r} cannot be read: {error}") from None

    @functools.cached_property
    def _zip(self) -> zipfile.ZipFile:
        if self._weights is None:
            raise ModelNotFoundError(
                f"the weights of {self._owner!r} are missing: for a graph in memory, give the path of its .bin file "
                "with external_data='model.pnnx.bin'"
            )
        try:
            source = ModelSource.of(self._weights)
        except ModelNotFoundError as error:
            raise ModelNotFoundError(f"the weights of {self._owner!r} are missing: {error}") from None
        try:
            return zipfile.ZipFile(source.open())
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, OverflowError) as error:
            raise ModelFormatError(f"{str(source)!r} is not a PNNX weights file, or is corrupt: {error}") from None


class _Reader:
    """Parses the text file."""

    def __init__(self, name: str, text: str, archive: _Archive) -> None:
        self._name, self._archive = name, archive
        self._lines = text.split("\n")
        self._operands: dict[str, Operand] = {}
        self._at = 0

    def read(self) -> PnnxGraph:
        rows = self._rows()
        if next(rows, "").strip() != _MAGIC:
            raise self._error(f"a PNNX graph must begin with {_MAGIC}")
        counts = next(rows, "").split()
        if len(counts) != 2 or not all(count.isdigit() and len(count) < 10 for count in counts):
            raise self._error("expected: number of operators, number of operands")
        count = int(counts[0])
        if count > _MOST_OPERATORS:
            raise self._error(f"{count} operators exceed the limit of {_MOST_OPERATORS}")
        operators = [self._operator(row) for row in rows]
        if len(operators) != count:
            raise self._error(f"the file has {len(operators)} operators instead of {count}; is it truncated?")
        return PnnxGraph(operators)

    def _rows(self) -> Iterator[str]:
        for number, line in enumerate(self._lines, 1):
            if line.strip():
                self._at = number
                yield line

    def _error(self, why: str) -> ModelFormatError:
        return ModelFormatError(f"{self._name!r} is not a PNNX graph, or is damaged: line {self._at}: {why}")

    def _operator(self, row: str) -> Operator:
        words = row.split()
        if len(words) < 4 or not words[2].isdigit() or not words[3].isdigit() or len(words[2]) + len(words[3]) > 12:
            raise self._error("expected: type, name, number of inputs, number of outputs")
        taken, given = int(words[2]), int(words[3])
        if len(words) < 4 + taken + given:
            raise self._error(f"{taken} inputs and {given} outputs need more than {len(words) - 4} words")
        made = Operator(words[0], words[1])
        for name in words[4 : 4 + taken]:
            if name not in self._operands:
                raise self._error(f"operand {name!r} is used before it is defined")
            made.inputs.append(self._operands[name])
        for name in words[4 + taken : 4 + taken + given]:
            if name in self._operands:
                raise self._error(f"operand {name!r} is defined twice")
            self._operands[name] = Operand(name)
            made.outputs.append(self._operands[name])
        for word in words[4 + taken + given :]:
            key, sign, value = word.partition("=")
            if not sign:
                raise self._error(f"{word!r} is not of the form key=value")
            self._entry(made, key, value)
        return made

    def _entry(self, made: Operator, key: str, value: str) -> None:
        if key.startswith("@"):
            shape, dtype = self._tensor(value)
            if shape is None or dtype is None or None in shape:
                raise self._error(f"weight {key[1:]!r} has no complete shape and type: {value!r}")
            sizes = tuple(size for size in shape if size is not None)
            if made.type == "pnnx.Attribute":  # the file may omit its shape
                for operand in made.outputs:
                    operand.shape, operand.dtype = sizes, dtype
            made.attributes[key[1:]] = Attribute(f"{made.name}.{key[1:]}", sizes, dtype, self._archive)
        elif key.startswith("#"):
            described = self._operands.get(key[1:])
            if described is None:
                raise self._error(f"there is no operand {key[1:]!r}")
            described.shape, described.dtype = self._tensor(value)
        elif key.startswith("$"):
            for index, operand in enumerate(made.inputs):
                if operand.name == value and index not in made.input_names:
                    made.input_names[index] = key[1:]
                    break
            else:
                raise self._error(f"{key}={value} does not name an input of operator {made.name!r}")
        else:
            made.params[key] = value if key == "expr" else self._value(value)

    def _tensor(self, text: str) -> tuple[tuple[int | None, ...] | None, np.dtype[Any] | None]:
        match = _TENSOR.fullmatch(text)
        if match is None:
            raise self._error(f"{text!r} is not of the form (1,3,8,8)f32")
        sizes = [part.strip() for part in match[1].split(",") if part.strip()]
        if any(size != "?" and len(size) > 18 for size in sizes):
            raise self._error(f"{text!r} has an axis that is too long")
        if match[2] and match[2] not in TYPES:
            raise self._error(f"unknown element type {match[2]!r}; use one of {', '.join(TYPES)}")
        return tuple(None if size == "?" else int(size) for size in sizes), TYPES.get(match[2])

    def _value(self, text: str) -> Any:
        if text[:1] in "([" and text[-1:] in ")]" and len(text) > 1:
            inner = text[1:-1]
            return tuple(self._value(part) for part in inner.split(",")) if inner else ()
        return parse_scalar(text)


def parse_scalar(text: str) -> Any:
    """Parses a parameter that is not a tuple: None, a bool, a number, or a string."""
    named: Mapping[str, Any] = {"None": None, "True": True, "False": False}
    if text in named:
        return named[text]
    if text.lstrip("+-").isdigit() and text.isascii() and len(text) < 20:
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text
