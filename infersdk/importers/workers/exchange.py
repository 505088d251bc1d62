"""Shared functions of workers: answering requests, random inputs, and files of arrays.

A worker reads `request.json` in its folder and writes `answer.json`, an object with `error` and `kind` on failure.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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


def answer_request(
    run: Callable[[Path, dict[str, Any]], dict[str, Any]],
    missing: str,
    summary: Callable[[BaseException], str] = lambda error: str(error)[:600],
) -> None:
    """Answers the request in the folder from the command line.

    Args:
        run: returns the answer for the folder and the request.
        missing: the message if a package is not installed, with `{name}` for its name.
        summary: returns the shortened message of any other exception.
    """
    folder = Path(sys.argv[1])
    try:
        answer = run(folder, json.loads((folder / "request.json").read_text()))
    except RefusedError as error:
        answer = {"error": error.message, "kind": error.kind}
    except ImportError as error:
        answer = {"error": missing.format(name=error.name), "kind": "missing"}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {summary(error)}", "kind": "unsupported"}
    (folder / "answer.json").write_text(json.dumps(answer))


def leaves(value: Any) -> list[Any]:
    """The values in nested dicts, lists and tuples, in order."""
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    if isinstance(value, (list, tuple)):
        return [leaf for inner in value for leaf in leaves(inner)]
    return [value]


def random_arrays(shapes: Iterable[Any], dtypes: Iterable[Any], number: int) -> list[Any]:
    """Random inputs of a round.

    Floats are normally distributed, and in the last round from [0, 1). Integers are 0 or 1 in the first round, then 0
    to 9.
    """
    import numpy as np

    rng = np.random.default_rng(number)
    arrays = []
    for shape, dtype in zip(shapes, map(np.dtype, dtypes), strict=True):
        drawn: Any
        if dtype.kind == "f":
            drawn = rng.random(shape) if number == ROUNDS - 1 else rng.standard_normal(shape)
        else:
            drawn = rng.integers(0, 2 if number == 0 or dtype.kind == "b" else 10, shape)
        arrays.append(drawn.astype(dtype))
    return arrays


def save_sample(folder: Path, number: int, inputs: Iterable[Any], outputs: Iterable[Any]) -> None:
    """Writes the arrays of a round."""
    save_arrays(folder / f"inputs{number}.npz", inputs)
    save_arrays(folder / f"outputs{number}.npz", outputs)


def save_arrays(path: Path, arrays: Iterable[Any]) -> None:
    import numpy as np

    named: dict[str, Any] = {f"a{i}": np.asarray(array) for i, array in enumerate(arrays)}
    np.savez(path, **named)


def load_arrays(path: Path) -> list[Any]:
    import numpy as np

    with np.load(path, allow_pickle=False) as file:
        return [file[f"a{i}"] for i in range(len(file.files))]
