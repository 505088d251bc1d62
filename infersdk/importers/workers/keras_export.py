"""A Keras 3 archive to ONNX by Keras's own export, on its PyTorch backend, and its results on random inputs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

ROUNDS = 3


class RefusedError(Exception):
    """What the answer says; the second argument is its kind."""


def run(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import numpy as np

    try:
        model = keras.saving.load_model(request["model"], compile=False, safe_mode=True)
    except Exception as error:
        raise RefusedError(f"Keras {keras.__version__} does not load the file: {str(error)[:300]}", "format") from None
    free = [one.name for one in model.inputs if any(size is None for size in one.shape[1:])]
    if free:
        raise RefusedError(
            f"the inputs {', '.join(free)} have free sizes; save the model with fixed ones", "unsupported"
        )
    for number in range(ROUNDS):  # and before the export, which wants a model that has been called
        rng = np.random.default_rng(number)
        arrays = []
        for one in model.inputs:
            shape = tuple(2 if size is None else size for size in one.shape)
            drawn: Any
            if np.dtype(one.dtype).kind == "f":
                drawn = rng.random(shape) if number == ROUNDS - 1 else rng.standard_normal(shape)
            else:
                drawn = rng.integers(0, 2 if number == 0 else 10, shape)
            arrays.append(drawn.astype(one.dtype))
        results = model(arrays if len(arrays) > 1 else arrays[0], training=False)
        for side, values in (("inputs", arrays), ("outputs", leaves(results))):
            named: dict[str, Any] = {f"a{i}": value for i, value in enumerate(values)}
            np.savez(folder / f"{side}{number}.npz", **named)
    try:
        model.export(str(folder / "model.onnx"), format="onnx", verbose=False)
    except Exception as error:
        reason = f"Keras {keras.__version__} does not export the model: {str(error)[:400]}"
        raise RefusedError(reason, "unsupported") from None
    return {"runtime": f"Keras {keras.__version__} on PyTorch"}


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    if isinstance(value, (list, tuple)):
        return [leaf for inner in value for leaf in leaves(inner)]
    return [value.detach().cpu().numpy()]


def main() -> None:
    folder = Path(sys.argv[1])
    try:
        answer = run(folder, json.loads((folder / "request.json").read_text()))
    except RefusedError as error:
        answer = {"error": error.args[0], "kind": error.args[1]}
    except ImportError as error:
        answer = {"error": f'{error.name} is not installed: pip install "infersdk[keras3]"', "kind": "missing"}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {str(error)[:400]}", "kind": "unsupported"}
    (folder / "answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
