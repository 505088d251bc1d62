"""Converts a Keras 3 archive to ONNX with Keras's export on PyTorch, and runs it on random inputs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .exchange import ROUNDS, RefusedError, answer_request, leaves, random_arrays, save_sample

if TYPE_CHECKING:
    from pathlib import Path


def run(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    try:
        model = keras.saving.load_model(request["model"], compile=False, safe_mode=True)
    except Exception as error:
        raise RefusedError(f"Keras {keras.__version__} cannot load the file: {str(error)[:300]}", "format") from None
    free = [one.name for one in model.inputs if any(size is None for size in one.shape[1:])]
    if free:
        raise RefusedError(
            f"the inputs {', '.join(free)} have free sizes; save the model with fixed ones", "unsupported"
        )
    shapes = [tuple(2 if size is None else size for size in one.shape) for one in model.inputs]
    for number in range(ROUNDS):  # before the export, which needs a model that has been called
        arrays = random_arrays(shapes, [one.dtype for one in model.inputs], number)
        results = model(arrays if len(arrays) > 1 else arrays[0], training=False)
        save_sample(folder, number, arrays, [leaf.detach().cpu().numpy() for leaf in leaves(results)])
    try:
        model.export(str(folder / "model.onnx"), format="onnx", verbose=False)
    except Exception as error:
        reason = f"Keras {keras.__version__} cannot export the model: {str(error)[:400]}"
        raise RefusedError(reason, "unsupported") from None
    return {"runtime": f"Keras {keras.__version__} on PyTorch"}


if __name__ == "__main__":
    answer_request(run, '{name} is not installed: pip install "infersdk[keras]"')
