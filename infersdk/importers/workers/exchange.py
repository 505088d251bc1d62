"""Shared functions of workers: answering requests, random inputs, and files of arrays.

A worker makes the file `started` in its folder, reads `request.json`, and writes `answer.json`, an object with `error`
and `kind` on failure.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

#: The number of sets of random inputs.
ROUNDS = 3


class RefusedError(Exception):
    """The worker cannot answer the request.

    Attributes:
        message: the reason and the remedy.
        kind: the kind of error: "missing", "config", "format" or "unsupported".
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message, kind)
        self.message, self.kind = message, kind


class NotHeldError(ValueError):
    """An element type does not hold values."""


class FreeSizesError(RefusedError):
    """An input has free sizes that were not given."""


def onnx_inputs(path: Path) -> tuple[list[Any], list[str]]:
    """The inputs (`ValueInfoProto`) of an ONNX file that are not weights, and the names of its outputs."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    weights = {one.name for one in graph.initializer}
    return [one for one in graph.input if one.name not in weights], [one.name for one in graph.output]


def answer_request(folder: Path, run: Callable[[Path, dict[str, Any]], dict[str, Any]], missing: str) -> None:
    """Answers the request in a folder.

    Args:
        run: returns the answer for the folder and the request.
        missing: the message if a package is not installed, with `{name}` for its name.
    """
    try:
        answer = run(folder, json.loads((folder / "request.json").read_text()))
    except RefusedError as error:
        answer = {"error": error.message, "kind": error.kind}
    except ImportError as error:
        answer = {"error": missing.format(name=error.name), "kind": "missing"}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {first_line(error)}", "kind": "unsupported"}
    (folder / "answer.json").write_text(json.dumps(answer))


def first_line(error: BaseException) -> str:
    """The first line of a message and the reason from a later line or from the cause."""
    text, cause = _lines(error)[0], error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    reason = reason_of(cause)
    return text[:300] if reason in text else f"{text[:300]} ({reason})"


def reason_of(error: BaseException) -> str:
    """The line of a message with the reason: the last line that names an error, otherwise the first line."""
    lines = _lines(error)
    named = [line for line in lines if _NAMES_ERROR.match(line)]
    return (named[-1] if named else lines[0])[:300]


#: A line such as `RuntimeError: ...`, or PaddlePaddle's `(InvalidArgument) ...`.
_NAMES_ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception): |\((Invalid|Unavailable|NotFound|Fatal|OutOf)\w*\)")


def _lines(error: BaseException) -> list[str]:
    """The non-empty lines of a message without colour codes; the name of the error if there are none."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", str(error))
    return [line.strip() for line in plain.splitlines() if line.strip()] or [type(error).__name__]


def leaves(value: Any) -> list[Any]:
    """The values in nested dicts, lists and tuples, in order."""
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    if isinstance(value, (list, tuple)):
        return [leaf for inner in value for leaf in leaves(inner)]
    return [value]


def shapes_by_input(names: Sequence[str], given: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The given shapes (`name`, `sizes`, `dtype`, `of_sample`) by input. Those without a name belong to the next input
    in order.
    """
    shapes = list(given)
    result = {one["name"]: one for one in shapes if one["name"]}
    check_names(result, names)
    unnamed = [one for one in shapes if not one["name"]]
    rest = [name for name in names if name not in result]
    if len(unnamed) > len(rest):
        raise RefusedError(
            f"{len(unnamed)} shapes without a name are given for {len(rest)} inputs; all inputs are {', '.join(names)}",
            "config",
        )
    return result | dict(zip(rest, unnamed, strict=False))


def check_names(given: Iterable[str], names: Sequence[str]) -> None:
    """Raises RefusedError for the name of an input that does not exist."""
    if unknown := [name for name in given if name not in names]:
        raise RefusedError(f"there is no input {unknown[0]!r}; the inputs are {', '.join(names)}", "config")


def full_sizes(
    names: Sequence[str],
    known: Sequence[Sequence[int | None] | None],
    dtypes: Iterable[Any],
    given: Iterable[dict[str, Any]],
    batch: int | None = 2,
) -> list[tuple[int, ...]]:
    """The shape of each input: the given one, or the known one.

    Args:
        known: the shapes in the file, with None for free sizes; None for an unknown rank.
        dtypes: the element types in the file, with None for an unknown one. That of a sample may differ.
        batch: the size of a free first axis that is not given; None if it must be given.

    Raises:
        RefusedError: a given shape is for an input that does not exist, or it or its type differs from the known one.
        FreeSizesError: a free size is not given.
    """
    import numpy as np

    by_name = shapes_by_input(names, given)
    for name, dtype in zip(names, dtypes, strict=True):
        one = by_name.get(name)
        if one and one["dtype"] and not one["of_sample"] and dtype is not None and np.dtype(dtype) != one["dtype"]:
            raise RefusedError(f"input {name!r} is {np.dtype(dtype).name}, not {one['dtype']}", "config")
    result = []
    for name, shape in zip(names, known, strict=True):
        sizes = list(by_name[name]["sizes"] if name in by_name else shape or [None])
        fits = shape is None or len(sizes) == len(shape)
        if not fits or any(b not in (None, a) for a, b in zip(sizes, shape or sizes, strict=True)):
            raise RefusedError(f"the shape of input {name!r} is {list(shape or ())}, not {sizes}", "config")
        if batch is not None and shape and sizes[0] is None:
            sizes[0] = batch
        if None in sizes:
            example = [1 if axis == 0 else size or 64 for axis, size in enumerate(shape or (None, 3, 224, 224))]
            raise FreeSizesError(
                f"input {name!r} has the shape {shape and list(shape)}; give its free sizes: --shape "
                f"{name}={','.join(map(str, example))}",
                "config",
            )
        result.append(tuple(sizes))
    return result


def drawn_arrays(
    names: Sequence[str],
    shapes: Iterable[Any],
    dtypes: Iterable[Any],
    samples: Mapping[str, Any],
    number: int,
    below: int | None = None,
) -> list[Any]:
    """The inputs of a round: the given samples, and random arrays for the others.

    Random floats are normally distributed, and in the last round from [0, 1). Integers are 0 or 1 in the first round,
    then 0 to 9. With `below`, all types have integers, which are smaller than this number.
    """
    import numpy as np

    rng = np.random.default_rng(number)
    arrays: list[Any] = []
    for name, shape, dtype in zip(names, shapes, map(np.dtype, dtypes), strict=True):
        drawn: Any
        if dtype.kind == "f" and below is None:
            drawn = rng.random(shape) if number == ROUNDS - 1 else rng.standard_normal(shape)
        else:
            drawn = rng.integers(0, 2 if number == 0 or dtype.kind == "b" else 10, shape) % (below or 10)
        try:
            arrays.append(converted_values(samples.get(name, drawn), dtype))
        except NotHeldError as error:
            raise RefusedError(f"the sample of input {name!r}: {error}", "config") from None
    return arrays


def converted_values(values: Any, dtype: Any) -> Any:
    """The values as an array of an element type. Only floating-point types round.

    Raises:
        NotHeldError: the type does not hold them.
    """
    import numpy as np

    given = np.asarray(values)
    with np.errstate(all="ignore"):
        try:
            result = given.astype(dtype)
            held = np.isfinite(given) == np.isfinite(result) if result.dtype.kind == "f" else given == result
        except OverflowError:
            held = np.False_
    if not np.all(held):
        raise NotHeldError(f"{np.dtype(dtype).name} does not hold {given.tolist() if given.size < 9 else 'all values'}")
    return result


def run_rounds(
    folder: Path,
    request: dict[str, Any],
    names: Sequence[str],
    shapes: Sequence[Any],
    dtypes: Sequence[Any],
    run: Callable[[list[Any]], Iterable[Any]],
    below: int | None = None,
) -> None:
    """Runs the source on the inputs of each round, and writes these with the results. One round if none is random."""
    import numpy as np

    check_names(request["samples"], names)
    rounds = ROUNDS if set(names) - set(request["samples"]) else 1
    for number in range(rounds if request["check"] else 0):
        arrays = drawn_arrays(names, shapes, dtypes, request["samples"], number, below)
        np.savez(folder / f"outputs{number}.npz", *run(arrays))
        np.savez(folder / f"inputs{number}.npz", *arrays)


def load_arrays(path: Path) -> list[Any]:
    import numpy as np

    with np.load(path, allow_pickle=False) as file:
        return [file[f"arr_{i}"] for i in range(len(file.files))]
