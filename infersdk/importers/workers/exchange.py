"""What the workers share: how a request is answered, random inputs, and files of arrays.

A worker is given a folder. It reads `request.json` there, and writes `answer.json`: a dict, with `error` and `kind`
where it failed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Sets of random inputs that the source and the converted model are compared on.
ROUNDS = 3


class RefusedError(Exception):
    """The worker does not do what it is asked for.

    Attributes:
        message: why, and what to do.
        kind: of the error: "missing", "config", "format" or "unsupported".
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message, kind)
        self.message, self.kind = message, kind


def answer_request(
    run: Callable[[Path, dict[str, Any]], dict[str, Any]],
    missing: str,
    summary: Callable[[BaseException], str] = lambda error: str(error)[:600],
) -> None:
    """Answers the request in the folder that the command line names.

    Args:
        run: takes the folder and the request, and returns the answer.
        missing: the error where a package is not installed, whose name takes the place of `{name}`.
        summary: the message of any other exception, cut to a length that can be read.
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
    """What a model returns, in order: the values in dicts, lists and tuples."""
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    if isinstance(value, (list, tuple)):
        return [leaf for inner in value for leaf in leaves(inner)]
    return [value]


def random_arrays(shapes: Iterable[Any], dtypes: Iterable[Any], number: int) -> list[Any]:
    """The inputs of a round: normal numbers, in the last round those of [0, 1); whole numbers from 0 to 1, and later
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
