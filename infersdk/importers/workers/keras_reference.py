"""Runs a Keras model on inputs: `tf_keras` if it is installed, which is Keras 2, else `keras`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .exchange import RefusedError, answer_request, leaves, load_arrays, save_arrays

if TYPE_CHECKING:
    from pathlib import Path


def run(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    keras, name = _keras()
    model = keras.models.load_model(str(folder / request["model"]), compile=False)
    rounds = []
    for number in range(request["rounds"]):
        arrays = load_arrays(folder / f"inputs{number}.npz")
        given = arrays if len(arrays) > 1 else arrays[0]
        outputs = [_array(leaf) for leaf in leaves(model(given, training=False))]
        save_arrays(folder / f"outputs{number}.npz", outputs)
        rounds.append(len(outputs))
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
        raise RefusedError(f"Keras is not installed: pip install tf_keras ({error})", "missing") from None


def _array(tensor: Any) -> Any:
    """The array of a tensor of TensorFlow or PyTorch."""
    detach = getattr(tensor, "detach", None)
    return detach().cpu().numpy() if detach is not None else tensor.numpy()


if __name__ == "__main__":
    answer_request(run, "{name} is not installed, which Keras needs: pip install {name}")
