"""Runs a Keras model on inputs: `tf_keras` if it is installed, which is Keras 2, else `keras`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def run(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    keras, name = _keras()
    model = keras.models.load_model(str(folder / request["model"]), compile=False)
    rounds = []
    for number in range(request["rounds"]):
        with np.load(folder / f"inputs{number}.npz") as result:
            arrays = [result[f"a{i}"] for i in range(len(result.files))]
        given = arrays if len(arrays) > 1 else arrays[0]
        results = model(given, training=False)
        leaves = _leaves(results)
        named: dict[str, Any] = {f"a{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
        np.savez(folder / f"outputs{number}.npz", **named)
        rounds.append(len(leaves))
    return {"runtime": f"{name} {keras.__version__}", "rounds": rounds}


def _keras() -> tuple[Any, str]:
    try:
        import tf_keras

        return tf_keras, "tf_keras"
    except ImportError:
        pass
    try:
        import importlib.util

        if "KERAS_BACKEND" not in os.environ:
            has_tensorflow = importlib.util.find_spec("tensorflow") is not None
            os.environ["KERAS_BACKEND"] = "tensorflow" if has_tensorflow else "torch"
        import keras

        return keras, "keras"
    except ImportError as error:
        raise MissingError(f"Keras is not installed: pip install tf_keras ({error})") from None


class MissingError(Exception):
    """Keras is not installed."""


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in _leaves(inner)]
    if isinstance(value, (list, tuple)):
        return [leaf for inner in value for leaf in _leaves(inner)]
    detach = getattr(value, "detach", None)
    return [detach().cpu().numpy() if detach is not None else value.numpy()]


def main() -> None:
    folder = Path(sys.argv[1])
    try:
        answer = run(folder, json.loads((folder / "request.json").read_text()))
    except MissingError as error:
        answer = {"error": str(error), "kind": "missing"}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {str(error)[:600]}", "kind": "unsupported"}
    (folder / "answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
